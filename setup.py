# SPDX-License-Identifier: Apache-2.0
"""Compile what is not Python while a wheel or an editable install is built.

The BPF objects, from ``probes/ebpf/*.bpf.c``; the correlator's C core, the importers' scanner of
events and the GPU agent's shim, plain shared objects that ctypes loads; and the fast paths of the
agent's hooks, which use Python's stable ABI alone. So one wheel per platform serves every Python
from 3.10. All metadata is in pyproject.toml.

``GPUCORRELATE_NO_NATIVE=1`` leaves all out: enough for an engine's environment, where only the
agent runs and there may be no compiler; its hooks then work in Python, at several times the
cost. ``python setup.py build_native --inplace`` builds them in the source tree.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

#: Paths are taken through the package, so that they hold in an sdist too.
EBPF = Path("gpucorrelate/probes/ebpf")
NATIVE = Path("gpucorrelate/correlator/native")
EVENTS = Path("gpucorrelate/probes/importers/native")
HOT = Path("gpucorrelate/probes/agents/native")
CUPTI = Path("gpucorrelate/probes/agents/cupti/native")
CFLAGS = ("-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
#: A hook's code is cold whenever it runs: what it costs is its size.
HOT_CFLAGS = ("-Os", "-fvisibility=hidden", "-fno-plt")
EVENTS_CFLAGS = ("-O3", "-std=c11")
CUPTI_CFLAGS = ("-O2", "-std=c11", "-fvisibility=hidden", "-pthread")


def _tool(env: str, default: str, package: str) -> list[str]:
    """The command of a compiler, or one line that says how to get it."""
    command = shlex.split(os.environ.get(env, default))
    if shutil.which(command[0]) is None:
        raise SystemExit(
            f"gpucorrelate: {command[0]} is needed to build from source (Debian: apt-get install "
            f"{package}); GPUCORRELATE_NO_NATIVE=1 builds the engine's agent alone"
        )
    return command


class BuildNative(Command):
    """Build what is not Python next to its sources, or into the build folder."""

    description = "compile the BPF objects, the C cores and the hooks' fast paths"
    user_options: ClassVar[list[tuple[str, str | None, str]]] = [
        ("inplace", "i", "build in the source tree")
    ]
    boolean_options: ClassVar[list[str]] = ["inplace"]

    def initialize_options(self) -> None:
        """Set the options' defaults."""
        self.build_lib: str | None = None
        self.editable_mode = False
        self.inplace = False

    def finalize_options(self) -> None:
        """Take the build folder from ``build_py``."""
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    def _target(self, folder: Path) -> Path:
        if self.inplace or self.editable_mode:
            return folder
        return Path(self.build_lib or "build/lib") / folder

    def _libraries(self) -> list[tuple[Path, Path, tuple[str, ...]]]:
        """Folder of sources, what they become, flags of its own."""
        headers = sysconfig.get_path("include")
        return [
            (NATIVE, self._target(NATIVE) / "_walk.so", ("-O2",)),
            (EVENTS, self._target(EVENTS) / "_events.so", EVENTS_CFLAGS),
            (CUPTI, self._target(CUPTI.parent) / "_cupti.so", CUPTI_CFLAGS),
            (HOT, self._target(HOT.parent) / "_hot.abi3.so", (*HOT_CFLAGS, f"-I{headers}")),
        ]

    def run(self) -> None:
        """Compile all; what is compiled is in ``get_outputs``."""
        if os.environ.get("GPUCORRELATE_NO_NATIVE"):
            return
        if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
            raise SystemExit(
                "gpucorrelate: Python.h is needed to build from source (Debian: apt-get install "
                "python3-dev); GPUCORRELATE_NO_NATIVE=1 builds the engine's agent alone"
            )
        self._build_bpf()
        for sources, out, flags in self._libraries():
            self._build_library(sources, out, flags)

    def _build_bpf(self) -> None:
        _tool("CLANG", "clang", "clang llvm libbpf-dev")
        out = self._target(EBPF)
        out.mkdir(parents=True, exist_ok=True)
        # A process of its own: the build backend's sys.path need not hold this folder.
        command = [sys.executable, "-m", "gpucorrelate.probes.ebpf.build", "--out", str(out)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(Path.cwd())})

    def _build_library(self, sources: Path, out: Path, flags: tuple[str, ...]) -> None:
        out.parent.mkdir(parents=True, exist_ok=True)
        compiler = _tool("CC", "cc", "gcc libc6-dev")
        # A new file each time: replacing the bytes of a loaded library would crash its users.
        fresh = out.with_suffix(".so.new")
        files = [str(path) for path in sorted(sources.glob("*.c"))]
        subprocess.run([*compiler, *CFLAGS, *flags, "-o", str(fresh), *files], check=True)
        fresh.replace(out)

    def get_source_files(self) -> list[str]:
        """What an sdist must carry for this command."""
        folders = (EBPF, NATIVE, EVENTS, HOT, CUPTI)
        return sorted(str(path) for folder in folders for path in folder.glob("*.[ch]"))

    def get_outputs(self) -> list[str]:
        """The files that ``run`` makes."""
        if os.environ.get("GPUCORRELATE_NO_NATIVE"):
            return []
        objects = [
            str(self._target(EBPF) / p.name.replace(".bpf.c", ".bpf.o"))
            for p in sorted(EBPF.glob("*.bpf.c"))
        ]
        return [*objects, *(str(out) for _, out, _ in self._libraries())]

    def get_output_mapping(self) -> dict[str, str]:
        """Editable installs use the files in the source tree: nothing is mapped."""
        return {}


class BuildAll(build):
    """``build`` with the native parts."""

    sub_commands: ClassVar = [*build.sub_commands, ("build_native", None)]


class PlatformWheel(bdist_wheel):
    """A wheel for every Python of this platform that has the stable ABI of 3.10."""

    def get_tag(self) -> tuple[str, str, str]:
        """``cp310-abi3-<platform>``, or ``py3-none-any`` when nothing was compiled."""
        if os.environ.get("GPUCORRELATE_NO_NATIVE"):
            return "py3", "none", "any"
        return "cp310", "abi3", super().get_tag()[2]


class NativeDistribution(Distribution):
    """Tells setuptools that there are compiled files, though none is a Python extension."""

    def has_ext_modules(self) -> bool:
        """Whether something is compiled."""
        return not os.environ.get("GPUCORRELATE_NO_NATIVE")


setup(
    distclass=NativeDistribution,
    cmdclass={"build": BuildAll, "build_native": BuildNative, "bdist_wheel": PlatformWheel},
)
