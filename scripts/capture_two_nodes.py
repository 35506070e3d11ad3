# SPDX-License-Identifier: Apache-2.0
"""Save what a machine of two NUMA nodes shows in /sys and /proc, for tests on any machine.

``python -m scripts.capture_two_nodes [KERNEL FOLDER]`` boots a Linux kernel in QEMU (emulated,
so no KVM is needed: 5 to 60 s) with two nodes, a display device on each, and a process whose
memory and CPU are on different nodes; it then writes the files that the readers read under
FOLDER, as they were, and a note of where they come from. Needs ``qemu-system-x86_64``, ``gcc``
and ``cpio``, and a static busybox (``scripts/qemu_packages.sh``).

Without arguments it takes Debian's 6.1, which it fetches, and writes what the unit tests read.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.qemu.kernels import ROOT, NoKernelError, kernel

_PROGRAM = ROOT / "tests" / "system" / "placed.c"
_SAVED = ROOT / "tests" / "unit" / "data" / "two_nodes"
_SERIES = "6.1"
_TIMEOUT_S = 240
# Two threads of emulation have soft-locked older kernels; one never did.
_MACHINE = """
qemu-system-x86_64 -accel tcg,thread=single -M q35 -cpu max -m 512 -smp 2,sockets=2
-display none -no-reboot -nodefaults
-object memory-backend-ram,id=m0,size=256M -object memory-backend-ram,id=m1,size=256M
-numa node,nodeid=0,cpus=0,memdev=m0 -numa node,nodeid=1,cpus=1,memdev=m1
-numa dist,src=0,dst=1,val=21
-device pcie-root-port,id=port0,bus=pcie.0,chassis=1
-device bochs-display,bus=port0
-device pxb-pcie,id=far,bus_nr=128,bus=pcie.0,numa_node=1
-device pcie-root-port,id=port1,bus=far,chassis=2
-device bochs-display,bus=port1
"""
_INIT = """#!/bin/sh
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
mount -t tmpfs tmpfs /run
echo 4 > /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages
/placed > /run/said & pid=$!
n=0
until grep -q 'PLACED 0' /run/said || test $n = 100; do sleep 0.1; n=$((n+1)); done
show() { test -f "$1" && echo "@FILE ${2:-$1}" && cat "$1"; }
link() { test -L "$1" && echo "@LINK $1 $(readlink $1)"; }
exec > /dev/ttyS1
echo "@KERNEL $(uname -r)"
echo "@PID $pid"
node=/sys/devices/system/node
for f in online has_cpu has_memory; do show $node/$f; done
for n in $node/node*; do
    for f in cpulist distance numastat meminfo; do show $n/$f; done
done
for d in /sys/bus/pci/devices/*; do
    case $(cat $d/class) in 0x03*|0x0604*) ;; *) continue ;; esac
    link $d
    real=$(readlink -f $d)
    for f in class vendor device numa_node local_cpulist current_link_speed current_link_width \
        max_link_speed max_link_width; do show $real/$f; done
    link $real/driver
done
show /proc/$pid/numa_maps
show /proc/$pid/status
show /proc/$pid/stat
kill -USR1 $pid
n=0
until grep -q 'PLACED 1' /run/said || test $n = 100; do sleep 0.1; n=$((n+1)); done
show /proc/$pid/status /moved/proc/$pid/status
echo @END
poweroff -f
"""
_TOOLS = "sh mount test grep sleep cat echo readlink kill uname poweroff".split()


def main() -> int:
    """Capture; the exit code."""
    if len(sys.argv) not in (1, 3):
        print("usage: python -m scripts.capture_two_nodes [KERNEL FOLDER]", file=sys.stderr)
        return 2
    missing = [
        tool
        for tool in ("qemu-system-x86_64", "gcc", "cpio", "busybox")
        if shutil.which(tool) is None
    ]
    if missing:
        print(f"not installed: {', '.join(missing)}", file=sys.stderr)
        return 1
    try:
        image, folder = (
            map(Path, sys.argv[1:]) if sys.argv[1:] else (kernel(_SERIES).image, _SAVED)
        )
    except NoKernelError as error:
        print(error, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as made:
        said = _boot(image, Path(made))
    if "@END" not in said:
        print(f"the machine did not get to its end:\n{said[-2000:]}", file=sys.stderr)
        return 1
    count = _write(said, folder)
    print(f"{count} files and links under {folder}")
    return 0


def _boot(image: Path, made: Path) -> str:
    """What the machine wrote to its second serial line."""
    said = made / "said"
    command = [*_MACHINE.split(), "-kernel", str(image), "-initrd", str(_ramdisk(made))]
    command += ["-append", "console=ttyS0 quiet panic=-1"]
    command += ["-serial", f"file:{made / 'console'}", "-serial", f"file:{said}"]
    subprocess.run(command, check=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL)
    console = (made / "console").read_text(errors="replace")
    return said.read_text(errors="replace").replace("\r\n", "\n") or console


def _ramdisk(made: Path) -> Path:
    root = made / "root"
    for name in ("bin", "proc", "sys", "dev", "run"):
        (root / name).mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, root / "bin" / "busybox")
    for tool in _TOOLS:
        (root / "bin" / tool).symlink_to("busybox")
    subprocess.run(
        ["gcc", "-O1", "-static", "-o", str(root / "placed"), str(_PROGRAM)], check=True
    )
    (root / "init").write_text(_INIT)
    (root / "init").chmod(0o755)
    names = subprocess.run(["find", "."], cwd=root, check=True, capture_output=True).stdout
    packed = subprocess.run(
        ["cpio", "-o", "-H", "newc", "--quiet"],
        cwd=root,
        check=True,
        input=names,
        capture_output=True,
    ).stdout
    image = made / "ramdisk"
    image.write_bytes(packed)
    return image


def _write(said: str, folder: Path) -> int:
    """Lay the files out; how many they are."""
    count = 0
    facts: list[str] = []
    for part in said.partition("@KERNEL ")[2].split("\n@"):
        head, _, body = part.partition("\n")
        word, _, rest = head.partition(" ")
        if word == "FILE":
            path = folder / rest.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body + "\n" if body else "")
            count += 1
        elif word == "LINK":
            name, _, target = rest.partition(" ")
            path = folder / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.symlink_to(target)
            count += 1
        elif word != "END":
            facts.append(head)
    note = "Written by scripts/capture_two_nodes.py from a machine booted in QEMU.\n"
    (folder / "README").write_text(note + "".join(f"{fact}\n" for fact in facts))
    return count


if __name__ == "__main__":
    sys.exit(main())
