# SPDX-License-Identifier: Apache-2.0
"""Write the table of CUDA API calls that the GPU agent records, from CUPTI's own headers.

``python -m scripts.cupti_callbacks FOLDER`` with the folder that holds ``cupti_runtime_cbid.h``
and ``cupti_driver_cbid.h``, of the newest CUPTI there is: numbers are only ever appended. The
headers come with the package ``nvidia-cuda-cupti``; they are not needed to build.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

OUT = Path(__file__).parents[1] / "probes/agents/cupti/native/callbacks.gen.h"

#: What is recorded: launches, copies and fills, waits for the device, stream order, and what may
#: block on the device although it does not look like it (allocations, registration).
_RUNTIME = re.compile(
    r"(__)?cudaLaunch|cudaGraphLaunch|cudaMemcpy|cudaMemset|cuda(Device|Stream|Event)Synchronize"
    r"|cuda(Stream|Event)Query|cudaStreamWaitEvent|cudaEventRecord|cudaMalloc|cudaFree"
    r"|cudaHost(Alloc|Register|Unregister)|cudaGraphInstantiate|cudaGraphUpload"
)
_DRIVER = re.compile(
    r"cuLaunch|cuGraphLaunch|cuMemcpy|cuMemset|cu(Ctx|Stream|Event)Synchronize"
    r"|cu(Stream|Event)Query|cuStreamWaitEvent|cuEventRecord|cuMem(Alloc|Free|Host)"
    r"|cuGraphInstantiate|cuGraphUpload|cuModuleLoad|cuLibraryLoad"
)
_LINE = re.compile(r"CUPTI_(?:RUNTIME|DRIVER)_TRACE_CBID_(\w+)\s*=\s*(\d+)")
#: Suffixes that tell variants of one function apart: the CUDA version and per-thread streams.
_SUFFIX = re.compile(r"(_v\d+)?(_pt[sd][zs]?)?(_v\d+)?$")


def chosen(header: str, wanted: re.Pattern[str]) -> dict[int, str]:
    """Number and plain name of each recorded call."""
    found = {}
    for name, number in _LINE.findall(header):
        if wanted.match(name):
            found[int(number)] = _SUFFIX.sub("", name).lstrip("_")
    return found


def table(runtime: dict[int, str], driver: dict[int, str]) -> str:
    """The text of ``callbacks.gen.h``."""
    parts = [
        "/* SPDX-License-Identifier: Apache-2.0 */",
        "/* Made by scripts/cupti_callbacks.py: names by callback id, of the calls recorded. */",
        "#ifndef GCU_CALLBACKS_GEN_H",
        "#define GCU_CALLBACKS_GEN_H",
        "",
    ]
    for domain, names in (("runtime", runtime), ("driver", driver)):
        size = max(names) + 1
        parts += [
            f"#define GCU_{domain.upper()}_NAMES {size}",
            f"static const char *const gcu_{domain}_names[{size}] = {{",
            *(f'\t[{number}] = "{name}",' for number, name in sorted(names.items())),
            "};",
            "",
        ]
    return "\n".join([*parts, "#endif", ""])


def main() -> int:
    """Write the file; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    try:
        runtime = (folder / "cupti_runtime_cbid.h").read_text(encoding="utf-8")
        driver = (folder / "cupti_driver_cbid.h").read_text(encoding="utf-8")
    except OSError as exc:
        sys.stderr.write(f"cupti_callbacks: {exc}\n")
        return 1
    OUT.write_text(table(chosen(runtime, _RUNTIME), chosen(driver, _DRIVER)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
