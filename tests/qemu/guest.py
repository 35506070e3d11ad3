# SPDX-License-Identifier: Apache-2.0
"""A virtual machine of two NUMA nodes that boots a kernel and runs this tree's code inside.

Emulated unless told otherwise, so that it runs anywhere: ``GPUCORRELATE_QEMU_ACCEL=kvm`` is for
machines whose KVM works. ``python -m scripts.qemu_guest`` boots one by hand.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.qemu.kernels import FOLDER_VARIABLE, ROOT, may_have
from tests.qemu.qmp import Monitor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from io import BufferedRWPair
    from typing import Self

    from tests.qemu.kernels import BootKernel

ACCEL_VARIABLE = "GPUCORRELATE_QEMU_ACCEL"
#: The longest that a boot and a command may take; seen were 15 to 60 s on two busy cores.
BOOT_S = 300.0
COMMAND_S = 900.0
_TRIES = 2

#: CPU 0 and half of the memory are node 0's; so is nothing of the PCI bus, of which the firmware
#: says no node. Node 1 has a bus of its own with a root port. The ports are for plugging in. The
#: display at the end is of a maker whose displays serve as GPUs, and of a model that no driver
#: here cares for.
_MACHINE = """
-M q35 -m 1536 -smp 2,sockets=2 -display none -no-reboot -nodefaults
-object memory-backend-ram,id=m0,size=768M -object memory-backend-ram,id=m1,size=768M
-numa node,nodeid=0,cpus=0,memdev=m0 -numa node,nodeid=1,cpus=1,memdev=m1
-numa dist,src=0,dst=1,val=21
-device pcie-root-port,id=port0,bus=pcie.0,chassis=1,slot=1
-device pcie-root-port,id=port2,bus=pcie.0,chassis=3,slot=3
-device pxb-pcie,id=far,bus_nr=128,bus=pcie.0,numa_node=1
-device pcie-root-port,id=port1,bus=far,chassis=2,slot=2
-device ati-vga,bus=port1
"""
# Two threads of emulation have soft-locked older kernels; one never did.
_ACCEL = {"tcg": "-accel tcg,thread=single -cpu max", "kvm": "-accel kvm -cpu host"}
_KERNEL = (
    "console=ttyS0 root=/dev/nvme0n1 rw init=/init quiet psi=1 mitigations=off panic=-1 "
    "rcupdate.rcu_cpu_stall_suppress=1"
)


def why_not() -> str:
    """Why no guest can be booted here; empty when one can, if its kernel can be fetched."""
    if platform.machine() != "x86_64":
        return f"the kernels are for x86-64, and this is {platform.machine()}"
    wanted = ("qemu-system-x86_64", "busybox", "mke2fs", "setpriv")
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [name for name in wanted if shutil.which(name, path=path) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (scripts/qemu_packages.sh does)"
    if not may_have():
        return f"no kernels to boot, and no apt to fetch some with; set {FOLDER_VARIABLE}"
    return ""


@dataclass(frozen=True)
class Done:
    """What became of a command.

    Attributes:
        code: Its exit code; negative for the signal that ended it.
        text: All that it printed.
    """

    code: int
    text: str


class Guest:
    """A booted machine; a context manager that turns it off.

    Args:
        booted: Its kernel.
        disk: What ``disk.build`` made; nothing is written to it.
        more: More for the kernel's command line; what comes last holds.
    """

    def __init__(self, booted: BootKernel, disk: Path, more: str = "") -> None:
        self.kernel = booted
        self._more = more
        self._disk = disk
        self._folder = Path(tempfile.mkdtemp(prefix="gpcq"))
        self._emulator: subprocess.Popen[bytes] | None = None
        self._line: BufferedRWPair | None = None
        self.monitor: Monitor

    def __enter__(self) -> Self:
        for left in reversed(range(_TRIES)):
            try:
                self._boot()
            except (OSError, AssertionError):
                self._off()
                if not left:
                    shutil.rmtree(self._folder)
                    raise
            except BaseException:
                self.__exit__()
                raise
            else:
                return self
        raise AssertionError("unreachable")

    def __exit__(self, *_: object) -> None:
        self._off()
        shutil.rmtree(self._folder)

    @property
    def console(self) -> str:
        """What the kernel said."""
        try:
            return (self._folder / "console").read_text(errors="replace")
        except OSError:
            return ""

    def run(
        self,
        *command: str | Path,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout_s: float = COMMAND_S,
    ) -> Done:
        """Run a command as root inside.

        Raises:
            AssertionError: it fails, and that matters; or it had to be ended.
        """
        given = {"PYTHONPATH": str(ROOT), "TERM": "dumb", **(env or {})}
        asked = {"run": [str(one) for one in command], "env": given, "timeout_s": timeout_s}
        self._say(asked)
        text: list[str] = []
        while "code" not in (heard := self._hear(timeout_s + 60)):
            text.append(heard["out"])
        done = Done(heard["code"], "".join(text))
        assert not heard.get("timed_out"), f"{command}: not done in {timeout_s} s:\n{done.text}"
        assert done.code == 0 or not check, f"{command}: exit code {done.code}\n{done.text}"
        return done

    def python(self, *arguments: str | Path, **options: Any) -> Done:
        """Run this Python inside; see ``run``."""
        return self.run(sys.executable, *arguments, **options)

    def gpucorrelate(self, *arguments: str, **options: Any) -> Done:
        """Run the product's command inside; see ``run``."""
        return self.python(
            "-c", "from gpucorrelate.cli.main import main; main()", *arguments, **options
        )

    def read(self, path: str) -> str:
        """A file's text."""
        return self.run("cat", path).text

    def write(self, path: str, text: str) -> None:
        """Write a file, as ``echo`` does."""
        self.run("sh", "-c", 'printf %s "$1" > "$2"', "sh", text, path)

    def start(self, log: str, *command: str | Path) -> None:
        """Run a command inside beside others; what it prints goes to a file there."""
        self.run("sh", "-c", '"$@" >"$0" 2>&1 &', log, *command)

    def _boot(self) -> None:
        for name in ("line", "monitor"):
            (self._folder / name).unlink(missing_ok=True)
        accel = os.environ.get(ACCEL_VARIABLE, "tcg")
        assert accel in _ACCEL, f"{ACCEL_VARIABLE}: {' or '.join(_ACCEL)}, not {accel}"
        # An emulator whose tests were killed would go on for ever.
        command = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "nice",
            "qemu-system-x86_64",
            *_ACCEL[accel].split(),
            *_MACHINE.split(),
        ]
        command += ["-drive", f"file={self._disk},if=none,id=d,format=raw,snapshot=on"]
        command += ["-device", "nvme,drive=d,serial=root,bus=pcie.0"]
        command += ["-serial", f"file:{self._folder / 'console'}"]
        command += ["-serial", f"unix:{self._folder / 'line'},server=on,wait=off"]
        command += ["-qmp", f"unix:{self._folder / 'monitor'},server=on,wait=off"]
        command += ["-kernel", str(self.kernel.image), "-append", f"{_KERNEL} {self._more}"]
        with (self._folder / "emulator").open("wb") as said:
            self._emulator = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
            )
        self._line = self._connected("line").makefile("rwb")
        self.monitor = Monitor(self._folder / "monitor")
        heard = self._hear(BOOT_S)
        assert heard.get("ready") == self.kernel.release, heard

    def _connected(self, name: str) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        end = time.monotonic() + 30
        while True:
            try:
                made.connect(str(self._folder / name))
            except OSError:
                assert self._alive() and time.monotonic() < end, self._said()
                time.sleep(0.05)
            else:
                self._socket = made
                return made

    def _alive(self) -> bool:
        return self._emulator is not None and self._emulator.poll() is None

    def _said(self) -> str:
        emulator = (self._folder / "emulator").read_text(errors="replace")
        return f"{emulator}\n{self.console[-3000:]}"

    def _say(self, what: Mapping[str, object]) -> None:
        assert self._line is not None
        self._line.write(json.dumps(what).encode() + b"\n")
        self._line.flush()

    def _hear(self, patience_s: float) -> dict[str, Any]:
        assert self._line is not None
        self._socket.settimeout(patience_s)
        try:
            data = self._line.readline()
        except TimeoutError:
            raise AssertionError(f"the guest does not answer:\n{self._said()}") from None
        assert data, f"the guest is gone:\n{self._said()}"
        found: dict[str, Any] = json.loads(data)
        return found

    def _off(self) -> None:
        if hasattr(self, "monitor"):
            self.monitor.close()
            del self.monitor
        if self._line is not None:
            with contextlib.suppress(OSError):
                self._line.close()
            self._socket.close()
            self._line = None
        if self._emulator is not None:
            self._emulator.kill()
            self._emulator.wait()
            self._emulator = None
