# SPDX-License-Identifier: Apache-2.0
"""The control socket: who may ask what, and callers that do not keep to the protocol."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpucorrelate.daemon.client import Client
from gpucorrelate.daemon.config import DaemonConfig
from gpucorrelate.daemon.messages import LENGTH, MessageError, MessageReader, pack
from gpucorrelate.daemon.values import AttachAnswer, DaemonStatus, Progress, from_map, to_map
from gpucorrelate.probes.wire.errors import (
    ControlError,
    DaemonUnreachableError,
    GpucorrelateError,
    UsageError,
)
from tests.unit.daemon_kit import Yard, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.daemon_kit import DaemonProcess

_NOBODY = 65534


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    with Yard() as made:
        yield made


@pytest.fixture(scope="module")
def daemon(yard: Yard) -> DaemonProcess:
    return yard.daemon(limits={"control_clients": 8}).start()


def raw(daemon: DaemonProcess) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(10)
    sock.connect(str(daemon.client.path))
    return sock


def answer(sock: socket.socket) -> dict[str, Any] | None:
    """The next answer; None when the daemon hung up."""
    reader = MessageReader(1 << 22)
    while True:
        try:
            data = sock.recv(65536)
        except ConnectionResetError:
            return None
        if not data:
            return None
        for message in reader.feed(data):
            return message


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ({}, "no operation"),
        ({"op": "reboot"}, "no operation 'reboot'"),
        ({"op": ["status"]}, "no operation"),
        ({"op": "attach"}, "not a process id"),
        ({"op": "attach", "pid": "1"}, "not a process id"),
        ({"op": "attach", "pid": True}, "not a process id"),
        ({"op": "detach", "session": "../../etc"}, "no session"),
        ({"op": "detach", "session": 5}, "not a session id"),
        ({"op": "detach", "session": "x" * 65}, "not a session id"),
        ({"op": "open", "session": "nothing"}, "no session 'nothing'"),
        ({"op": "progress"}, "there is no session"),
        ({"op": "detach", "pid": 1}, "is in no session"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    daemon: DaemonProcess, question: dict[str, Any], text: str
) -> None:
    sock = raw(daemon)
    sock.sendall(pack(question))
    told = answer(sock)
    assert told is not None
    assert told["ok"] is False
    assert text in told["error"]
    assert "\n" not in told["error"]
    assert told["exit"] in (2, 3)
    sock.sendall(pack({"op": "status"}))
    again = answer(sock)
    assert again is not None
    assert again["ok"], "the connection can still be used"
    sock.close()


@pytest.mark.parametrize(
    "data",
    [
        LENGTH.pack(1 << 30),
        LENGTH.pack(3) + b"\xc1\xc1\xc1",
        LENGTH.pack(1) + msgpack.packb(5),
        LENGTH.pack(3) + msgpack.packb({1: 2}),
        LENGTH.pack(0),
    ],
)
def test_what_is_no_message_ends_the_connection(daemon: DaemonProcess, data: bytes) -> None:
    sock = raw(daemon)
    sock.sendall(data)
    told = answer(sock)
    assert told is None or told["ok"] is False
    assert answer(sock) is None
    sock.close()
    assert daemon.client.status().pid


def test_a_question_may_come_byte_by_byte(daemon: DaemonProcess) -> None:
    sock = raw(daemon)
    for byte in pack({"op": "status"}):
        sock.sendall(bytes([byte]))
    told = answer(sock)
    assert told is not None
    assert told["status"]["version"]
    sock.close()


def test_too_many_callers_are_turned_away_and_the_rest_served(daemon: DaemonProcess) -> None:
    socks = [raw(daemon) for _ in range(12)]
    for sock in socks:
        try:
            sock.sendall(pack({"op": "status"}))
        except BrokenPipeError:
            continue
    told = [answer(sock) for sock in socks]
    assert any(told)
    assert any(one is None for one in told)
    for sock in socks:
        sock.close()
    wait_for(lambda: _answers(daemon), "there is room again")


def _answers(daemon: DaemonProcess) -> bool:
    daemon.client.close()
    try:
        return bool(daemon.client.status().pid)
    except DaemonUnreachableError:
        return False


def test_a_caller_that_asks_and_never_reads_is_dropped(daemon: DaemonProcess) -> None:
    sock = raw(daemon)
    question = pack({"op": "status"})
    try:
        for _ in range(20_000):
            sock.sendall(question)
    except (BrokenPipeError, ConnectionResetError, TimeoutError):
        pass
    sock.close()
    assert daemon.client.status().pid


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    question=st.dictionaries(
        st.sampled_from(["op", "pid", "session", "x"]),
        st.one_of(
            st.sampled_from(["status", "attach", "detach", "open", "progress", "sessions"]),
            st.integers(-(1 << 40), 0),
            st.none(),
            st.binary(max_size=20),
            st.text(max_size=20),
            st.lists(st.integers(0, 9), max_size=3),
        ),
    )
)
def test_any_map_gets_an_answer(daemon: DaemonProcess, question: dict[str, Any]) -> None:
    sock = raw(daemon)
    sock.sendall(pack(question))
    told = answer(sock)
    assert told is not None
    assert isinstance(told["ok"], bool)
    sock.close()


def as_nobody(path: Path, *questions: list[Any]) -> list[Any]:
    """What the client says to another user; in a child, since there is no way back."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        told: list[Any] = []
        try:
            os.setgroups([])
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)
            told = [_ask(Client(path), *question) for question in questions]
        finally:
            os.write(theirs, json.dumps(told).encode())
            os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as pipe:  # noqa: PTH123 - a descriptor
        told = json.loads(pipe.read())
    os.waitpid(pid, 0)
    return told


def _ask(client: Client, name: str, *arguments: Any) -> list[Any]:
    try:
        value = getattr(client, name)(*arguments)
        if name == "open_session":
            value = list(value)
    except GpucorrelateError as exc:
        return [type(exc).__name__, exc.message, exc.exit_code]
    return ["ok", repr(value)[:1000]]


@pytest.fixture
def shared_daemon() -> Iterator[DaemonProcess]:
    """A daemon that another user can reach: what membership in its group would do."""
    if os.geteuid() != 0:
        pytest.skip("not root: no other user can be played")
    yard = Yard()
    yard.folder.chmod(0o755)
    made = yard.daemon().start()
    made.client.path.chmod(0o666)
    yield made
    yard.clear()


def test_other_users_see_and_trace_only_what_is_theirs(shared_daemon: DaemonProcess) -> None:
    daemon = shared_daemon
    roots = subprocess.Popen(["/bin/sleep", "60"])
    theirs = subprocess.Popen(["/bin/sleep", "60"], user=_NOBODY, group=_NOBODY)
    try:
        mine = daemon.client.attach(roots.pid).session.session
        told = as_nobody(
            daemon.client.path,
            ["sessions"],
            ["attach", roots.pid],
            ["progress", mine],
            ["open_session", mine],
            ["detach", mine],
            ["attach", theirs.pid],
            ["progress"],
            ["open_session"],
            ["detach"],
        )
        assert told[0] == ["ok", "()"]
        for refused in told[1:5]:
            assert refused[0] == "ControlError"
            assert "another user" in refused[1]
            assert refused[2] == 4
        assert [one[0] for one in told[5:]] == ["ok"] * 4
        assert f"root_pid={theirs.pid}" in told[5][1]
        states = {s.root_pid: s.state for s in daemon.client.sessions()}
        assert states == {roots.pid: "attached", theirs.pid: "detached"}
        # Root may look at everything.
        assert daemon.client.progress(mine).session == mine
    finally:
        for child in (roots, theirs):
            child.kill()
            child.wait()


def test_a_user_outside_the_group_is_told_what_to_do(shared_daemon: DaemonProcess) -> None:
    shared_daemon.client.path.chmod(0o660)
    (told,) = as_nobody(shared_daemon.client.path, ["status"])
    assert told[0] == "NotPermittedError"
    assert told[2] == 4


def test_callers_that_ask_nothing_do_not_lock_the_others_out() -> None:
    own = Yard()
    try:
        daemon = own.daemon(limits={"control_clients": 4, "control_idle_s": 0.5}).start()
        daemon.client.close()
        half = pack({"op": "status"})[:-1]
        socks = [raw(daemon) for _ in range(4)]
        for sock in socks:
            sock.sendall(half)
        for sock in socks:
            assert answer(sock) is None, "it is hung up on"
            sock.close()
        with Client(daemon.client.path) as client:
            pid = client.status().pid
            wait_for(lambda: _idle(client), "the daemon hangs up")
            assert client.status().pid == pid, "asked again, it connects again"
    finally:
        own.clear()


def _idle(client: Client) -> bool:
    assert client._socket is not None
    return bool(select.select([client._socket], [], [], 0)[0])


def test_another_user_cannot_take_all_places(shared_daemon: DaemonProcess) -> None:
    shared_daemon.client.close()
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)
            socks = [raw(shared_daemon) for _ in range(100)]
            os.write(theirs, b"%d" % len(socks))
            time.sleep(60)
        finally:
            os._exit(0)
    try:
        assert os.read(ours, 9) == b"100"
        with Client(shared_daemon.client.path) as client:
            assert client.status().pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ours)
        os.close(theirs)


def test_a_session_for_a_while_ends_by_itself_even_after_a_restart() -> None:
    yard = Yard()
    child = subprocess.Popen(["/bin/sleep", "60"])
    try:
        daemon = yard.daemon().start()
        session = daemon.client.attach(child.pid, for_s=3).session.session
        assert daemon.client.attach(child.pid, for_s=0.001).already, "nothing is changed"
        daemon.kill()
        daemon = yard.daemon().start()
        assert daemon.client.progress(session).state == "attached"
        wait_for(lambda: daemon.client.sessions()[0].state == "detached", "its time is over")
        assert "time" in daemon.client.sessions()[0].reason
    finally:
        child.kill()
        child.wait()
        yard.clear()


def test_a_held_session_ends_with_its_connection() -> None:
    child = subprocess.Popen(["/bin/sleep", "60"])
    yard = Yard()
    try:
        daemon = yard.daemon().start()
        with Client(daemon.client.path) as client:
            session = client.attach(child.pid, hold=True).session.session
            with Client(daemon.client.path) as other:
                assert other.attach(child.pid, hold=True).already
            assert client.progress(session).state == "attached"
        wait_for(lambda: daemon.client.progress(session).state == "detached", "it ends")
    finally:
        child.kill()
        child.wait()
        yard.clear()


@pytest.mark.parametrize("for_s", [0, -1, True, "5", float("nan"), float("inf"), 1e300])
def test_a_duration_that_is_none_is_refused(daemon: DaemonProcess, for_s: Any) -> None:
    with pytest.raises(ControlError, match="not a duration"):
        daemon.client.attach(os.getpid(), for_s=for_s)


def test_nobody_listening_is_said_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DaemonUnreachableError, match="no daemon answers on") as caught:
        Client(tmp_path / "control.sock").status()
    assert "systemctl start gpucorrelate" in caught.value.hint
    assert caught.value.exit_code == 5


def test_the_socket_of_the_environment_is_used(
    daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCORRELATE_CONTROL", str(daemon.client.path))
    with Client() as client:
        assert client.status().pid == daemon.client.status().pid


def test_a_caller_that_opens_and_never_takes_holds_few_descriptors(daemon: DaemonProcess) -> None:
    child = subprocess.Popen(["/bin/sleep", "60"])
    sock = raw(daemon)
    sock.setblocking(False)
    assert daemon.process is not None
    files = Path(f"/proc/{daemon.process.pid}/fd")
    try:
        daemon.client.attach(child.pid)
        place = daemon.session_dir(daemon.client.sessions()[0].session)
        daemon.client.detach()
        for number in range(100, 180):
            (place / f"{number:06d}.gpcf").write_bytes(b"")
        before = len(list(files.iterdir()))
        waiting = [-1, -2]
        while waiting[-1] != waiting[-2]:  # until the next answer finds no room
            sock.send(pack({"op": "status"}))
            daemon.client.status()
            size = fcntl.ioctl(sock, termios.FIONREAD, bytes(4))
            waiting.append(int.from_bytes(size, "little"))
        sock.send(pack({"op": "open"}) * 12)
        daemon.client.status()
        held = len(list(files.iterdir())) - before
        assert 81 <= held <= 81 + 8, "those of one answer, and what comes and goes"
        assert daemon.client.status().pid
    finally:
        sock.close()
        child.kill()
        child.wait()


def test_sessions_are_meant_by_id_its_beginning_or_as_the_latest(daemon: DaemonProcess) -> None:
    children = [subprocess.Popen(["/bin/sleep", "60"]) for _ in range(2)]
    try:
        first, second = (daemon.client.attach(child.pid).session.session for child in children)
        assert daemon.client.progress(first).session == first
        assert daemon.client.progress().session == second
        with pytest.raises(ControlError, match=r"\d sessions begin with"):
            daemon.client.progress(first[:9])
        pairs = enumerate(zip(first, second, strict=False), 1)
        length = next(at for at, (a, b) in pairs if a != b)
        assert daemon.client.progress(first[:length]).session == first
        assert daemon.client.detach(pid=children[0].pid).session == first
        assert daemon.client.detach().session == second
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_values_come_back_as_they_went() -> None:
    for value in (DaemonStatus("1"), Progress("s", warnings=("a", "b"))):
        data = msgpack.unpackb(msgpack.packb(to_map(value)))
        assert from_map(type(value), data) == value


def test_values_of_a_neighbouring_version_are_understood() -> None:
    data = to_map(Progress("s")) | {"news": 5}
    del data["tokens"]
    assert from_map(Progress, data) == Progress("s")


@pytest.mark.parametrize(
    ("cls", "data"),
    [
        (Progress, {}),
        (Progress, {"session": 5}),
        (Progress, []),
        (AttachAnswer, {"session": "x"}),
        (Progress, {"session": "s", "warnings": [1]}),
        (Progress, {"session": "s", "warnings": "text"}),
    ],
)
def test_values_that_are_wrong_are_refused(cls: type, data: object) -> None:
    from gpucorrelate.daemon.values import ValueFormatError

    with pytest.raises(ValueFormatError):
        from_map(cls, data)


def test_messages_have_a_limit_both_ways() -> None:
    with pytest.raises(MessageError, match="limit"):
        pack({"x": "y" * 100}, 50)
    with pytest.raises(MessageError, match="limit"):
        list(MessageReader(10).feed(LENGTH.pack(11)))


@pytest.mark.parametrize(
    "bad",
    [
        {"segment_bytes": 1},
        {"session_max_bytes": 1},
        {"total_max_bytes": 1},
        {"tick_ms": 0},
        {"ebpf": False, "require_ebpf": True},
        {"ring_bytes": (1 << 30) + 1},
        {"ring_bytes": 0},
        {"total_max_bytes": (1 << 60) + 1},
        {"group": "no such group"},
        {"group": ""},
    ],
)
def test_settings_that_contradict_each_other_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        DaemonConfig(**bad)


def test_the_log_says_once_that_kernel_probes_are_off_and_why(daemon: DaemonProcess) -> None:
    lines = [line for line in daemon.log.read_text().splitlines() if "kernel probes" in line]
    assert len(lines) == 1
    assert "WARNING" in lines[0]
    assert "switched off" in lines[0]
