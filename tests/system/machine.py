# SPDX-License-Identifier: Apache-2.0
"""This machine's own systemd, booted again in namespaces over a throw-away copy of its files.

The files are an overlay whose upper layer is in memory, so nothing that happens inside is left
behind. Process ids, mounts, host name, IPC, network and cgroups are its own; the kernel is not.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.unit.daemon_kit import ROOT, wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

_SYSTEMD = Path("/lib/systemd/systemd")

# Jobs that need hardware, a console or the rest of a real machine.
_MASKED = (
    "console-getty.service",
    "dev-hugepages.mount",
    "dev-mqueue.mount",
    "getty.target",
    "proc-sys-fs-binfmt_misc.automount",
    "proc-sys-fs-binfmt_misc.mount",
    "sys-fs-fuse-connections.mount",
    "sys-kernel-debug.mount",
    "systemd-binfmt.service",
    "systemd-logind.service",
    "systemd-modules-load.service",
    "systemd-networkd.service",
    "systemd-remount-fs.service",
    "systemd-sysctl.service",
    "systemd-timesyncd.service",
    "systemd-tmpfiles-setup-dev.service",
    "tmp.mount",
)
_DEVICES = {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9}

_INIT = """
set -eu
new=/mnt
mount -t tmpfs -o size=1g tmpfs $new
mkdir $new/upper $new/work $new/root
mount -t overlay overlay -o lowerdir=/,upperdir=$new/upper,workdir=$new/work $new/root
root=$new/root
{binds}
mount -t proc proc $root/proc
mount --bind $root/proc/sys $root/proc/sys
mount -o remount,bind,ro $root/proc/sys
mount -t sysfs -o ro sysfs $root/sys
mount -t cgroup2 cgroup2 $root/sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs $root/dev
mkdir $root/dev/shm $root/dev/pts
{nodes}
ln -s /proc/self/fd $root/dev/fd
for place in dev/shm run tmp; do mount -t tmpfs tmpfs $root/$place; done
chmod 1777 $root/tmp $root/dev/shm
chmod 755 $root/run
: > $root/etc/machine-id
etc=$root/etc/systemd
rm -rf $etc/system/*.wants
for unit in {masked}; do ln -sf /dev/null $etc/system/$unit; done
ln -sf /lib/systemd/system/multi-user.target $etc/system/default.target
mkdir -p $etc/journald.conf.d
printf '[Journal]\\nStorage=volatile\\nReadKMsg=no\\n' > $etc/journald.conf.d/test.conf
{copies}
cd $root
mkdir -p .old
pivot_root . .old
umount -l /.old
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin {systemd} --log-target=journal
"""


def why_not() -> str:
    """Why no machine can be booted here; empty when one can."""
    if os.geteuid() != 0:
        return "not root"
    if not _SYSTEMD.exists() or shutil.which("dbus-daemon") is None:
        return "systemd or dbus is not installed"
    if _cgroup_parent() is None:
        return "no cgroup v2 hierarchy"
    for path in (ROOT, Path(sys.prefix)):
        if path.is_relative_to("/tmp") or path.is_relative_to("/run"):
            return f"{path} lies where a booted machine has a file system of its own"
    return ""


def _cgroup_parent() -> Path | None:
    for path in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")):
        if (path / "cgroup.procs").exists() and (path / "cgroup.controllers").exists():
            return path
    return None


class Machine:
    """A booted machine; a context manager that turns it off.

    Args:
        files: Text files to put in place before it boots, by path.
        tree: A folder whose files are laid over the machine's.
    """

    def __init__(self, files: Mapping[str, str], tree: Path | None = None) -> None:
        self._files = files
        self._tree = tree
        self._folder = Path(tempfile.mkdtemp(prefix="gpcm"))
        self._console = self._folder / "console"
        self._boot: subprocess.Popen[bytes] | None = None
        self._cgroup: Path | None = None
        self.pid = 0

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGRTMIN + 4)  # systemd's word for: power off
        if self._boot is not None:
            try:
                self._boot.wait(10 if self.pid else 0.1)
            except subprocess.TimeoutExpired:
                if self.pid:
                    os.kill(self.pid, signal.SIGKILL)
                self._boot.kill()
                self._boot.wait()
        if self._cgroup is not None:
            for path in sorted(self._cgroup.rglob("*"), reverse=True):
                if path.is_dir():
                    path.rmdir()
            self._cgroup.rmdir()
        shutil.rmtree(self._folder)

    def run(self, *command: str, check: bool = True) -> str:
        """What a command prints, run as root inside.

        Raises:
            AssertionError: it fails.
        """
        inside = ["nsenter", "-t", str(self.pid), "-m", "-p", "-u", "-i", "-n", "-C", "-r", "-w"]
        clean = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", f"PYTHONPATH={ROOT}"]
        done = subprocess.run(
            [*inside, *clean, *command], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def log(self, unit: str) -> str:
        """What a unit has written to the journal."""
        return self.run("journalctl", "-b", "--no-pager", "-o", "cat", "-u", unit)

    def _start(self) -> None:
        files = self._folder / "files"
        for name, text in self._files.items():
            path = files / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        parent = _cgroup_parent()
        assert parent is not None
        group = parent / f"gpucorrelate-test-{self._folder.name}"
        group.mkdir()
        self._cgroup = group
        namespaces = ["--mount", "--pid", "--fork", "--uts", "--ipc", "--net", "--cgroup"]
        script = self._folder / "init"
        script.write_text(_script([*([self._tree] if self._tree else []), files]))
        enter = f"echo $$ > {self._cgroup}/cgroup.procs; exec unshare --propagation private "
        enter += f"--kill-child {' '.join(namespaces)} bash {script}"
        with self._console.open("wb") as console:
            self._boot = subprocess.Popen(
                ["bash", "-c", enter],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        wait_for(self._booted, f"it boots: {self._console}")

    def _booted(self) -> bool:
        boot = self._boot
        assert boot is not None
        assert boot.poll() is None, self._console.read_text()
        if not self.pid:
            children = Path(f"/proc/{boot.pid}/task/{boot.pid}/children").read_text().split()
            names = {int(pid): Path(f"/proc/{pid}/comm") for pid in children}
            found = [pid for pid, comm in names.items() if comm.read_text() == "systemd\n"]
            self.pid = found[0] if found else 0
        if not self.pid:
            return False
        state = self.run("systemctl", "is-system-running", check=False)
        time.sleep(0.05)
        return state in ("running", "degraded")


def _script(trees: Sequence[Path]) -> str:
    """The init script: an overlay shows no file systems mounted below, so those are bound in."""
    needed = {str(ROOT), sys.prefix, sys.base_prefix}
    binds = [
        f"mkdir -p $root{shlex.quote(path)}; mount --rbind {shlex.quote(path)} "
        f"$root{shlex.quote(path)}"
        for path in sorted(needed)
        if not path.startswith("/usr")
    ]
    nodes = [f"mknod -m 666 $root/dev/{name} c 1 {minor}" for name, minor in _DEVICES.items()]
    return _INIT.format(
        binds="\n".join(binds),
        nodes="\n".join(nodes),
        masked=" ".join(_MASKED),
        copies="\n".join(
            f"cp -r --preserve=mode {shlex.quote(str(one))}/. $root/" for one in trees
        ),
        systemd=_SYSTEMD,
    )


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
