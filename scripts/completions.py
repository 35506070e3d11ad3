# SPDX-License-Identifier: Apache-2.0
"""Write the shells' completion scripts: ``python -m scripts.completions FOLDER``.

They are click's own; ``gpucorrelate.cli.completion`` says what is offered.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from click.shell_completion import get_completion_class

from gpucorrelate.cli.app import PROGRAM, cli
from gpucorrelate.cli.completion import ENV

SHELLS = ("bash", "zsh", "fish")


def source(shell: str) -> str:
    """The script for a shell.

    Raises:
        ValueError: click knows none for it.
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise ValueError(f"no completion for {shell}")
    # Not source(), which asks this machine's bash for its version and complains of it.
    complete = kind(cli, {}, PROGRAM, ENV)
    return complete.source_template % complete.source_vars()


def main() -> int:
    """Write them; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for shell in SHELLS:
        (folder / shell).write_text(source(shell), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
