# SPDX-License-Identifier: Apache-2.0
"""What a fuzz target is: bytes in, nothing out, and an exception where a promise is broken."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

FOUND = Path(__file__).resolve().parent / "found"
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


@dataclass(frozen=True)
class Target:
    """One way in.

    Attributes:
        name: Its name on the command line.
        run: Takes any bytes; raises where something does not hold.
        seeds: Well-formed inputs to begin with.
        words: What such inputs are made of, for the mutator.
        max_bytes: Longest input that is worth trying.
    """

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    words: tuple[bytes, ...] = ()
    max_bytes: int = 4096

    def found(self) -> list[Path]:
        """Inputs that once broke a promise, kept so that they never do again."""
        return sorted((FOUND / self.name).glob("*"))


@contextlib.contextmanager
def file_of(data: bytes) -> Iterator[Path]:
    """A file with these bytes, in memory where there is such a place."""
    with tempfile.NamedTemporaryFile(prefix="gpcf", dir=MEMORY) as file:
        file.write(data)
        file.flush()
        yield Path(file.name)
