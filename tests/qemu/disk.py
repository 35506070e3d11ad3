# SPDX-License-Identifier: Apache-2.0
"""The guests' disk: this Python, its packages, this source tree, and the libraries they need.

Everything lies where it lies here, so that paths, bytecode and links hold. Nothing of the rest
of this machine is on it.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from gpucorrelate.probes.ebpf import bcc
from tests.qemu.kernels import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.qemu.kernels import BootKernel

#: Distributions that the daemon, the commands and the tests inside need, with all they need.
_DISTRIBUTIONS = ("numpy", "psutil", "pyudev", "msgpack", "msgspec", "click", "rich", "pytest",
                  "pytest-timeout", "hypothesis")  # fmt: skip
_TREE = ("gpucorrelate", "probes", "correlator", "daemon", "cli", "verify", "systemd", "tests",
         "pyproject.toml")  # fmt: skip
_PROGRAMS = ("sh", "env", "cat", "echo", "sleep", "timeout", "true", "nice", "setpriv", "mkdir",
             "dmesg")  # fmt: skip
#: Loaded by name at run time, so that nothing that is linked names them.
_LIBRARIES = ("libbpf.so.1", "libudev.so.1", "libbcc.so.0", "librt.so.1")
#: Of the standard library: what is large and of no use there.
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "tkinter",
             "ensurepip", "turtledemo"}  # fmt: skip
_MODULES = ("uio", "uio_pci_generic")
_SIZE = "2G"  # sparse
_INIT = """#!/bin/busybox sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs dev /dev 2>/dev/null
$b mkdir -p /dev/shm
$b mount -t tmpfs tmpfs /dev/shm
$b mount -t tmpfs tmpfs /tmp
$b mount -t tmpfs tmpfs /run
$b mount -t bpf bpf /sys/fs/bpf
$b mount -t cgroup2 cgroup2 /sys/fs/cgroup
$b ip link set lo up
$b stty -F /dev/ttyS1 raw -echo
{python} -S {agent} /dev/ttyS1
$b poweroff -f
"""


def program(name: str) -> Path:
    """A program of this machine.

    Raises:
        FileNotFoundError: it has none of that name.
    """
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        raise FileNotFoundError(f"{name} is not installed")
    return Path(found)


def build(folder: Path, kernels: Iterable[BootKernel]) -> Path:
    """Make the disk in a folder; takes seconds.

    Args:
        folder: An empty folder.
        kernels: Those that will be booted with it: it holds some modules of theirs.
    """
    root = folder / "root"
    _skeleton(root)
    _python(root)
    _packages(root)
    _bcc(root)
    for name in _TREE:
        _copy(ROOT / name, root)
    for name in _PROGRAMS:
        _copy_resolved(program(name), root, Path("/usr/bin") / name)
    _copy_resolved(program("busybox"), root, Path("/usr/bin/busybox"))
    # ctypes asks it for the libraries that pyudev loads.
    _copy_resolved(program("ldconfig"), root, Path("/usr/sbin/ldconfig"))
    for kernel in kernels:
        for name in _MODULES:
            if (data := kernel.module(name)) is not None:
                place = root / "lib" / "modules" / kernel.release
                place.mkdir(parents=True, exist_ok=True)
                (place / f"{name}.ko").write_bytes(data)
    _libraries(root)
    image = folder / "disk"
    made = [str(program("mke2fs")), "-q", "-t", "ext4", "-O", "^has_journal", "-E",
            "root_owner=0:0", "-d", str(root), str(image), _SIZE]  # fmt: skip
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(root)
    return image


def _skeleton(root: Path) -> None:
    for name in ("dev", "etc", "proc", "root", "run", "sys", "tmp", "usr/bin", "usr/lib",
                 "usr/lib64", "usr/sbin", "var/lib", "var/tmp"):  # fmt: skip
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    agent = Path(__file__).with_name("agent.py")
    init = root / "init"
    init.write_text(_INIT.format(python=sys.executable, agent=agent))
    init.chmod(0o755)


def _python(root: Path) -> None:
    """The interpreter, its standard library and the environment's links to it."""
    real = Path(sys.executable).resolve()
    _copy(real, root)
    for path in {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}:
        shutil.copytree(
            path, _inside(root, path), symlinks=True, dirs_exist_ok=True, ignore=_left_out
        )
    link = Path(sys.executable)
    while link.is_symlink():
        _copy(link, root)
        link = link.parent / link.readlink()
    if (config := Path(sys.prefix) / "pyvenv.cfg").exists():
        _copy(config, root)


def _left_out(folder: str, names: list[str]) -> set[str]:
    del folder
    return {name for name in names if name in _LEFT_OUT or name.startswith("config-")}


def _packages(root: Path) -> None:
    wanted, seen = list(_DISTRIBUTIONS), set[str]()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        found = importlib.metadata.distribution(name)
        for text in found.requires or []:
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                wanted.append(needed.name)
        for file in found.files or []:
            path = Path(os.path.normpath(str(found.locate_file(file))))
            if path.is_file() and "tests" not in file.parts:
                _copy(path, root)


def _bcc(root: Path) -> None:
    """BCC and the Python of the system that runs it, where they are installed."""
    if (found := bcc.find()) is None:
        return
    asked = "import sysconfig; print(sysconfig.get_path('stdlib'))"
    stdlib = subprocess.run(
        [str(bcc.SYSTEM_PYTHON), "-I", "-c", asked], capture_output=True, text=True, check=True
    ).stdout.strip()
    shutil.copytree(
        stdlib, _inside(root, Path(stdlib)), symlinks=True, dirs_exist_ok=True, ignore=_left_out
    )
    _copy_resolved(bcc.SYSTEM_PYTHON, root, bcc.SYSTEM_PYTHON)
    _copy(Path(found.folder), root)


def _inside(root: Path, path: Path) -> Path:
    return root / str(path).lstrip("/")


def _copy(path: Path, root: Path) -> None:
    """A file, link or folder, to where it lies here."""
    to = _inside(root, path)
    to.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.copytree(path, to, symlinks=True, dirs_exist_ok=True)
    else:
        shutil.copy2(path, to, follow_symlinks=False)


def _copy_resolved(path: Path, root: Path, to: Path) -> None:
    """A file, links followed, to another place."""
    place = _inside(root, to)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(path, place)


def _libraries(root: Path) -> None:
    """All shared libraries that what is there by now is linked with, and the loader."""
    elves = [path for path in root.rglob("*") if path.is_file() and _is_elf(path)]
    files = [str(path) for path in elves] + [str(path) for path in _named_libraries()]
    said = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False).stdout
    found = {Path(name) for name in re.findall(r"(?:=>|^)\s*(/\S+) \(0x", said, re.MULTILINE)}
    for path in {*found, *_named_libraries()}:
        if not path.is_relative_to(root) and not _inside(root, path).exists():
            _copy_resolved(path, root, path)
    subprocess.run([str(program("ldconfig")), "-r", str(root)], check=True)


def _is_elf(path: Path) -> bool:
    if path.is_symlink() or path.suffix == ".o":
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _named_libraries() -> Iterator[Path]:
    said = subprocess.run(
        [str(program("ldconfig")), "-p"], capture_output=True, text=True, check=True
    ).stdout
    for name in _LIBRARIES:
        lines = [line for line in said.splitlines() if line.split(" ")[0].strip() == name]
        for line in lines[:1]:
            yield Path(line.rpartition(" => ")[2].strip())
