# SPDX-License-Identifier: Apache-2.0
"""Distribution kernels to boot: found where one has them, else fetched with apt into ``.cache``.

``GPUCORRELATE_QEMU_KERNELS=FOLDER`` names a folder of one's own, with ``vmlinuz-RELEASE`` files
anywhere below it. Otherwise the newest package of each series that apt knows of is fetched and
unpacked, and kept in ``.cache/qemu``; nothing is installed.
"""

from __future__ import annotations

import functools
import lzma
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
#: Debian's stable kernels; their cloud flavour has NVMe, ext4 and the 8250 built in.
SERIES = ("6.1", "6.12")
FOLDER_VARIABLE = "GPUCORRELATE_QEMU_KERNELS"
CACHE = ROOT / ".cache" / "qemu"
_FETCH_S = 300


class NoKernelError(Exception):
    """There is no kernel of a series, and none can be fetched."""


@dataclass(frozen=True)
class BootKernel:
    """A kernel that can be booted.

    Attributes:
        series: As ``6.12``.
        release: As ``uname -r`` says in the guest.
        image: The kernel itself.
    """

    series: str
    release: str
    image: Path

    def module(self, name: str) -> bytes | None:
        """A module that came with it, ready to be loaded; ``None`` if it has no such module."""
        folder = self.image.parent.parent / "lib" / "modules" / self.release
        for path in sorted(folder.rglob(f"{name}.ko*")):
            data = path.read_bytes()
            return lzma.decompress(data) if path.suffix == ".xz" else data
        return None


@functools.cache
def kernel(series: str) -> BootKernel:
    """The newest kernel of a series.

    Raises:
        NoKernelError: there is none, with the reason.
    """
    own = os.environ.get(FOLDER_VARIABLE)
    folder = Path(own) if own else CACHE
    found = _newest(folder, series)
    if found is None and own:
        raise NoKernelError(f"no vmlinuz of {series} in {own} ({FOLDER_VARIABLE})")
    if found is None:
        _fetch(series)
        found = _newest(folder, series)
    if found is None:
        raise NoKernelError(f"the package of {series} holds no vmlinuz")
    return found


def may_have() -> bool:
    """Whether there are kernels, or a way to fetch some; fetches none."""
    if os.environ.get(FOLDER_VARIABLE) or all(_newest(CACHE, series) for series in SERIES):
        return True
    return shutil.which("apt-get") is not None and shutil.which("dpkg-deb") is not None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", text))


def _newest(folder: Path, series: str) -> BootKernel | None:
    found = [
        BootKernel(series, path.name.removeprefix("vmlinuz-"), path)
        for path in folder.rglob("vmlinuz-*")
        if path.name.startswith(f"vmlinuz-{series}.")
    ]
    return max(found, key=lambda one: _numbers(one.release), default=None)


def _packages(series: str) -> Iterator[str]:
    """Packages of a series that apt knows of, the newest first."""
    known = subprocess.run(
        ["apt-cache", "pkgnames", f"linux-image-{series}."],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    wanted = [name for name in known if name.endswith("-cloud-amd64")]
    yield from sorted(wanted, key=_numbers, reverse=True)


def _fetch(series: str) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise NoKernelError(f"no apt to fetch a kernel {series} with; set {FOLDER_VARIABLE}")
    CACHE.mkdir(parents=True, exist_ok=True)
    said = "apt knows of no such package (apt-get update?)"
    for name in list(_packages(series))[:3]:
        # Older packages may be gone from the mirror while apt still knows their names.
        done = subprocess.run(
            ["apt-get", "download", name],
            cwd=CACHE,
            capture_output=True,
            text=True,
            check=False,
            timeout=_FETCH_S,
        )
        files = sorted(CACHE.glob(f"{name}_*.deb"))
        if done.returncode == 0 and files:
            # Unpacked beside its place: what is cut short is not taken for whole.
            half = CACHE / f".{name}.{os.getpid()}"
            subprocess.run(["dpkg-deb", "-x", str(files[-1]), str(half)], check=True)
            shutil.rmtree(CACHE / name, ignore_errors=True)
            half.rename(CACHE / name)
            for file in files:
                file.unlink()
            return
        said = (done.stderr.strip().splitlines() or ["apt-get download failed"])[-1]
    raise NoKernelError(f"no kernel {series} can be fetched: {said}")
