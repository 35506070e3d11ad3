# SPDX-License-Identifier: Apache-2.0
"""A real terminal, made by tmux: what is on it, keys, its size."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.kernel.observe import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE_S = 60.0
_ENV = {
    "HOME": "/nonexistent", "LANG": "C.UTF-8", "PATH": os.environ.get("PATH", ""),
    "PYTHONPATH": str(ROOT), "TERM": "xterm-256color",
}  # fmt: skip
GPUCORRELATE = shlex.join([sys.executable, "-c", "from gpucorrelate.cli.main import main; main()"])


def missing_tmux() -> str:
    """Why there can be no terminal here; empty where there can."""
    return "" if shutil.which("tmux") else "tmux is not installed"


class Terminal:
    """A shell in a terminal of 80 by 24; a context manager."""

    def __init__(self, **env: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="gpct"))
        self._env = {**_ENV, **env}
        self._run("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24",
                  "env PS1='ready> ' bash --norc --noprofile")  # fmt: skip
        self.until(lambda text: "ready>" in text, "a prompt")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._run("kill-server")
        shutil.rmtree(self._folder)

    def _run(self, *args: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(self._folder / "socket"), *args],
            env=self._env, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout

    @property
    def text(self) -> str:
        """What is on it, line by line."""
        return self._run("capture-pane", "-p")

    @property
    def codes(self) -> str:
        """The same with the codes of its colours."""
        return self._run("capture-pane", "-p", "-e")

    def until(self, so: Callable[[str], object], what: str) -> str:
        """What is on it once something is so."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            text = self.text
            if so(text):
                return text
            time.sleep(0.1)
        raise AssertionError(f"never: {what}; the terminal has:\n{self.text}")

    def shows(self, words: str) -> str:
        """What is on it once some words are."""
        return self.until(lambda text: words in text, words)

    def type(self, *keys: str) -> None:
        """Keys by tmux's names, or texts."""
        self._run("send-keys", *keys)

    def run(self, command: str) -> None:
        """A command, typed and begun."""
        self.type(command, "Enter")

    def resize(self, width: int, height: int) -> None:
        """Make it as large as that."""
        self._run("resize-window", "-x", str(width), "-y", str(height))
