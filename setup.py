# SPDX-License-Identifier: Apache-2.0
"""Compile what is not Python while a wheel or an editable install is built.

Two things: the BPF objects, from ``probes/ebpf/*.bpf.c``, and the correlator's C core, a plain
shared object that ctypes loads. Neither uses Python's ABI, so one wheel per platform serves
every Python. All metadata is in pyproject.toml.

``GPUCORRELATE_NO_NATIVE=1`` leaves both out: enough for an engine's environment, where only
the agent runs and there may be no compiler. ``python setup.py build_native --inplace`` builds
them in the source tree.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

#: Paths are taken through the package, so that they hold in an sdist too.
EBPF = Path("gpucorrelate/probes/ebpf")
NATIVE = Path("gpucorrelate/correlator/native")
CFLAGS = ("-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")


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
    """Build the BPF objects and the C core next to their sources, or into the build folder."""

    description = "compile the BPF objects and the correlator's C core"
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

    def _core(self) -> tuple[list[Path], Path]:
        return sorted(NATIVE.glob("*.c")), self._target(NATIVE) / "_walk.so"

    def run(self) -> None:
        """Compile both; without BPF sources or C sources there is nothing to do."""
        if os.environ.get("GPUCORRELATE_NO_NATIVE"):
            return
        self._build_bpf()
        self._build_core()

    def _build_bpf(self) -> None:
        _tool("CLANG", "clang", "clang llvm libbpf-dev")
        out = self._target(EBPF)
        out.mkdir(parents=True, exist_ok=True)
        # A process of its own: the build backend's sys.path need not hold this folder.
        command = [sys.executable, "-m", "gpucorrelate.probes.ebpf.build", "--out", str(out)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(Path.cwd())})

    def _build_core(self) -> None:
        sources, out = self._core()
        out.parent.mkdir(parents=True, exist_ok=True)
        compiler = _tool("CC", "cc", "gcc libc6-dev")
        # A new file each time: replacing the bytes of a loaded library would crash its users.
        fresh = out.with_suffix(".so.new")
        subprocess.run([*compiler, *CFLAGS, "-o", str(fresh), *map(str, sources)], check=True)
        fresh.replace(out)

    def get_source_files(self) -> list[str]:
        """What an sdist must carry for this command."""
        return [str(p) for p in sorted([*EBPF.glob("*.[ch]"), *NATIVE.glob("*.[ch]")])]

    def get_outputs(self) -> list[str]:
        """The files that ``run`` makes."""
        if os.environ.get("GPUCORRELATE_NO_NATIVE"):
            return []
        objects = [
            str(self._target(EBPF) / p.name.replace(".bpf.c", ".bpf.o"))
            for p in sorted(EBPF.glob("*.bpf.c"))
        ]
        return [*objects, str(self._core()[1])]

    def get_output_mapping(self) -> dict[str, str]:
        """Editable installs use the files in the source tree: nothing is mapped."""
        return {}


class BuildAll(build):
    """``build`` with the native parts."""

    sub_commands: ClassVar = [*build.sub_commands, ("build_native", None)]


class PlatformWheel(bdist_wheel):
    """A wheel for every Python 3 of this platform: the objects in it know nothing of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """``py3-none-<platform>``, or ``-any`` when nothing was compiled."""
        return "py3", "none", super().get_tag()[2]


class NativeDistribution(Distribution):
    """Tells setuptools that there are compiled files, though none is a Python extension."""

    def has_ext_modules(self) -> bool:
        """Whether something is compiled."""
        return not os.environ.get("GPUCORRELATE_NO_NATIVE")


setup(
    distclass=NativeDistribution,
    cmdclass={"build": BuildAll, "build_native": BuildNative, "bdist_wheel": PlatformWheel},
)
