# SPDX-License-Identifier: Apache-2.0
"""The distribution's BCC as a compiler: where it is, and C to instructions by it.

BCC comes as a package of the system's Python (Debian: python3-bpfcc), not from PyPI; so the
system's Python runs it, whatever Python we run in, and ends before anything is loaded.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucorrelate.probes.ebpf import btf, kernel_types
from gpucorrelate.probes.wire.errors import KernelSupportError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HERE = Path(__file__).resolve().parent
#: Python for which distributions package BCC.
SYSTEM_PYTHON = Path("/usr/bin/python3")
_CHILD = _HERE / "bcc_child.py"
_HEADERS = _HERE / "bcc_kernel"
_MAIN = "gpucorrelate.bpf.c"
_TYPES = "types.bpf.h"
#: Declares for the other compiler what ``_TYPES`` and maps are for this one.
_OTHER = "core.bpf.h"

#: The slowest machine seen needed a twentieth.
_FIND_S, _COMPILE_S = 30, 120
INSTALL = "Debian and Ubuntu: apt-get install --no-install-recommends python3-bpfcc"
_FLAGS = ("-DGPC_BCC", "-D__TARGET_ARCH_x86", "-Wno-int-conversion",
          "-Wno-incompatible-pointer-types-discards-qualifiers")  # fmt: skip
_INCLUDE = re.compile(r'^#include "([\w.]+)"\n', re.MULTILINE)
_ERROR = re.compile(r"error: (.*)")


@dataclass(frozen=True)
class FoundBcc:
    """BCC as it is installed here.

    Attributes:
        folder: Its Python package.
        version: Its version.
    """

    folder: str
    version: str


def find() -> FoundBcc | None:
    """The BCC of the system's Python; ``None``: there is none, or it does not answer."""
    try:
        done = _run(["--find"], "", _FIND_S)
        answer = json.loads(done.stdout) if not done.returncode else {}
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    if not isinstance(answer, dict) or "folder" not in answer:
        return None
    return FoundBcc(str(answer["folder"]), str(answer.get("version", "unknown")))


def _run(arguments: Sequence[str], given: str, limit_s: int) -> subprocess.CompletedProcess[str]:
    # Isolated: neither the user's packages nor variables decide what root runs.
    return subprocess.run(
        [str(SYSTEM_PYTHON), "-I", "-B", str(_CHILD), *arguments],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s,
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "BCC_KERNEL_SOURCE": str(_HEADERS)},
    )


def compile_programs(text: str, functions: Sequence[str]) -> dict[str, bytes]:
    """Instructions of each function.

    Args:
        text: One C file without ``#include``.
        functions: Programs in it.

    Raises:
        KernelSupportError: BCC is missing or does not compile it.
    """
    asked = {"text": text, "cflags": list(_FLAGS), "functions": list(functions)}
    try:
        done = _run([], json.dumps(asked), _COMPILE_S)
    except OSError as exc:
        raise KernelSupportError(
            f"BCC cannot be run by {SYSTEM_PYTHON}: {exc.strerror}", hint=INSTALL
        ) from exc
    except subprocess.TimeoutExpired as exc:
        raise KernelSupportError(
            f"BCC did not compile the programs in {_COMPILE_S} s", hint="try on a calmer machine"
        ) from exc
    if done.returncode:
        raise _failed(done.stderr)
    return _instructions(done.stdout, functions)


def _failed(said: str) -> KernelSupportError:
    if "No module named 'bcc'" in said:
        return KernelSupportError("BCC is not installed", hint=INSTALL)
    errors = _ERROR.findall(said) or said.strip().splitlines()[-1:] or ["it said nothing"]
    return KernelSupportError(
        f"BCC cannot compile the programs: {errors[0]}",
        hint="use the other backend (libbpf), and report BCC's version and this line",
    )


def _instructions(text: str, functions: Sequence[str]) -> dict[str, bytes]:
    try:
        programs: Mapping[str, Any] = json.loads(text)["programs"]
        return {name: bytes.fromhex(programs[name]) for name in functions}
    except (ValueError, KeyError, TypeError) as exc:
        raise KernelSupportError(
            "BCC's answer cannot be read", hint="use the other backend (libbpf)"
        ) from exc


def source(types: btf.Btf) -> str:
    """The programs as one text, with the layout of the kernel whose types are given.

    Raises:
        KernelSupportError: see ``kernel_types.layout``.
    """
    asked = kernel_types.asked_for(
        path.read_text(encoding="utf-8")
        for path in sorted(_HERE.glob("*.bpf.h"))
        if path.name not in {_OTHER, "bcc.bpf.h"}
    )
    layout = kernel_types.layout(types, _types_text(), asked)

    def inline(name: str) -> str:
        if name == _OTHER:
            return ""
        if name == _TYPES:
            return layout
        text = (_HERE / name).read_text(encoding="utf-8")
        return _INCLUDE.sub(lambda found: inline(found[1]), text)

    # BCC makes programs only of what stands in the file itself.
    return inline(_MAIN)


def struct_names() -> frozenset[str]:
    """Structs whose layout ``source`` needs to know."""
    return frozenset(kernel_types.declared(_types_text()))


def _types_text() -> str:
    return (_HERE / _TYPES).read_text(encoding="utf-8")
