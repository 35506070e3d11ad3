# SPDX-License-Identifier: Apache-2.0
"""Compile the BPF programs: ``python -m gpucorrelate.probes.ebpf.build [--out DIR] [--check]``.

Standard library only: it runs where a wheel is built. Needs clang, llvm-strip and the headers
of libbpf (Debian: clang, llvm, libbpf-dev).
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from gpucorrelate.probes.ebpf import layout
from gpucorrelate.probes.ebpf.syscall_numbers import ARM64, X86_64
from gpucorrelate.probes.wire import cgen
from gpucorrelate.probes.wire.errors import GpucorrelateError

HERE = Path(__file__).resolve().parent

#: ``platform.machine()`` -> libbpf's name of the architecture, for what the programs are
#: written for.
ARCHES = {X86_64: "x86", ARM64: "arm64"}

#: v3 has the 64-bit atomics the target bitmap needs (Linux 5.12 and later).
CFLAGS = ("-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror",
          "-Wno-unused-parameter", "-Wno-pointer-bool-conversion",
          "-Wno-tautological-pointer-compare")  # fmt: skip


class BuildError(GpucorrelateError):
    """The BPF programs cannot be compiled here."""


def _tool(env: str, name: str) -> list[str]:
    command = shlex.split(os.environ.get(env, name))
    if shutil.which(command[0]) is None:
        raise BuildError(
            f"{command[0]} is not installed",
            hint="Debian: apt-get install clang llvm libbpf-dev",
        )
    return command


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise BuildError(f"{command[0]} failed: {lines[0]}", hint="\n".join(lines[1:]))


def include_paths() -> list[str]:
    """Folders that hold ``bpf/bpf_helpers.h`` besides the compiler's own."""
    found = [os.environ.get("LIBBPF_INCLUDE", ""), "/usr/include", "/usr/local/include"]
    return [path for path in found if path and (Path(path) / "bpf/bpf_helpers.h").exists()]


def compile_object(source: Path, out: Path, arch: str) -> Path:
    """Compile one ``*.bpf.c`` into ``out``; returns the object's path.

    Raises:
        BuildError: a tool is missing or the source does not compile.
    """
    target = out / source.name.replace(".bpf.c", ".bpf.o")
    fresh = target.with_suffix(".o.new")
    includes = [flag for path in include_paths() for flag in ("-idirafter", path)]
    clang = _tool("CLANG", "clang")
    _run([*clang, *CFLAGS, f"-D__TARGET_ARCH_{arch}", *includes, "-c", str(source),
          "-o", str(fresh)])  # fmt: skip
    # -g drops DWARF; BTF, which CO-RE needs, stays.
    _run([*_tool("LLVM_STRIP", "llvm-strip"), "-g", str(fresh)])
    fresh.replace(target)
    return target


def generated() -> tuple[tuple[Path, str], ...]:
    """The generated headers of this folder with the text they should have."""
    return ((layout.HEADER_PATH, layout.header()), (cgen.HEADER_PATH, cgen.c_header()))


def build(out: Path = HERE) -> list[Path]:
    """Compile every BPF object; returns their paths.

    Raises:
        BuildError: see ``compile_object``; also for an architecture without programs.
    """
    machine = platform.machine()
    if machine not in ARCHES:
        raise BuildError(
            f"no BPF programs for {machine} yet",
            hint=f"they are written for {', '.join(ARCHES)}",
        )
    for path in cgen.stale(generated()):
        path.write_text(dict(generated())[path], encoding="utf-8")
    out.mkdir(parents=True, exist_ok=True)
    return [
        compile_object(source, out, ARCHES[machine]) for source in sorted(HERE.glob("*.bpf.c"))
    ]


def main(argv: list[str] | None = None) -> int:
    """Compile, or with ``--check`` only compare the generated headers; returns the exit code."""
    parser = argparse.ArgumentParser(prog="build", description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE, help="where the objects go")
    parser.add_argument("--check", action="store_true", help="fail if a header is stale")
    options = parser.parse_args(argv)
    if options.check:
        old = cgen.stale(generated())
        for path in old:
            sys.stderr.write(f"build: {path} is stale: run build\n")
        return 1 if old else 0
    try:
        for path in build(options.out):
            sys.stdout.write(f"{path}\n")
    except BuildError as exc:
        sys.stderr.write(f"build: {exc.message}\n{exc.hint}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
