# SPDX-License-Identifier: Apache-2.0
"""The compiled scanner of profiles as a target of libFuzzer itself, with sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

from tests.fuzz.files import kineto_seeds

if TYPE_CHECKING:
    from pathlib import Path

NAME = "scanner"
_FLAGS = ("-std=c11", "-g", "-O1", "-DLIBFUZZER", "-fno-sanitize-recover=all")
_SANITIZERS = "-fsanitize=fuzzer,address,undefined"


def build(root: Path, program: Path) -> str:
    """Compile it; returns why that cannot be, empty when it was."""
    compiler = shutil.which("clang") or shutil.which("clang-14")
    if compiler is None:
        return "no clang"
    sources = root / "probes" / "importers" / "native"
    done = subprocess.run(
        [compiler, *_FLAGS, _SANITIZERS, f"-I{sources}", "-o", program,
         root / "tests" / "unit" / "scan_hostile.c", sources / "names.c"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "cannot find" in done.stderr:
        return "clang has no libFuzzer here: apt-get install libclang-rt-14-dev"
    return done.stderr.strip()


def seed(corpus: Path) -> None:
    """Put lists of events into its corpus."""
    for number, text in enumerate(kineto_seeds()):
        (corpus / f"seed-{number}").write_bytes(text[text.index(b"[") + 1 :])
