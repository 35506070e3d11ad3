# SPDX-License-Identifier: Apache-2.0
"""Run by the distribution's Python, which has BCC: compiles C to BPF instructions, no more.

A process of its own because BCC is not in our environment, brings LLVM (some 100 MB) and changes
its working directory; all that is gone when the instructions are there. Needs the standard
library and BCC alone. With ``--find`` it says where BCC is, without loading it; else it reads
``{"text", "cflags", "functions"}`` as JSON and writes ``{"programs": {name: hex}}``.
"""

import importlib.util
import json
import os
import runpy
import sys
from pathlib import Path


def _find() -> dict[str, str]:
    spec = importlib.util.find_spec("bcc")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else None
    # PyPI's "bcc" is another project.
    if folder is None or not (folder / "libbcc.py").exists():
        return {}
    told = runpy.run_path(str(folder / "version.py"))
    return {"folder": str(folder), "version": str(told.get("__version__", "unknown"))}


def _compile(asked: dict) -> dict:  # type: ignore[type-arg]
    from bcc import BPF

    module = BPF(text=asked["text"].encode(), cflags=asked["cflags"])
    names = asked["functions"]
    return {"programs": {name: module.dump_func(name.encode()).hex() for name in names}}


def main() -> None:
    """Answer on standard output, which BCC's own words must not reach."""
    out = os.dup(1)
    os.dup2(2, 1)
    answer = _find() if sys.argv[1:] == ["--find"] else _compile(json.load(sys.stdin))
    with os.fdopen(out, "w") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    main()
