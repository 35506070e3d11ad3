# SPDX-License-Identifier: Apache-2.0
"""The console script as a process: pipes, signals, missing extras, other users, a daemon."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from gpucorrelate.cli import app, main, source
from tests.unit.test_cli_reports import save
from tests.unit.test_requests import recording

RUN = "from gpucorrelate.cli.main import main; main()"
NOBODY = 65534


def start(*args, **more):
    """The console script in a process of its own."""
    command = [sys.executable, "-c", more.pop("code", RUN), *map(str, args)]
    environment = {**os.environ, "GPUCORRELATE_CONTROL": "/nonexistent/control.sock"}
    environment |= more.pop("env", {})
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **more
    )


def finish(process, timeout=60):
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def wait_until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)
    return found


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return save(recording(40), tmp_path_factory.mktemp("recording") / "r.gpcf")


@pytest.mark.parametrize(
    "args",
    [
        ("status",),
        ("report",),
        ("requests",),
        ("attach", "--pid", os.getpid()),
        ("detach", "--all"),
        ("record", "-o", "{}/x.gpcf", "--pid", os.getpid()),
    ],
    ids=lambda args: args[0],
)
def test_no_daemon_is_a_line_a_hint_and_exit_code_5(args, tmp_path):
    code, out, err = finish(start(*(str(one).format(tmp_path) for one in args)))
    assert (code, out) == (5, "")
    assert err.startswith("gpucorrelate: no daemon answers on /nonexistent/control.sock\n  hint: ")
    assert len(err.splitlines()) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("extra", ["click", "rich", "numpy", "psutil"])
def test_a_missing_extra_is_the_line_that_installs_it(extra, file):
    block = f"import sys; sys.modules[{extra!r}] = None; "
    code, _, err = finish(start("report", file, code=block + RUN))
    if extra == "psutil" and code == 0:
        return  # reading a file needs none
    assert code == 1
    assert err.splitlines()[0].endswith("which is not installed")
    assert err.splitlines()[1] == "  hint: pip install 'gpucorrelate[cli]'"
    assert len(err.splitlines()) == 2


@pytest.mark.parametrize(
    "args", [("report",), ("requests", "--format", "json"), ("report", "--all"), ("steps",)]
)
def test_a_closed_pipe_is_quiet(args, file):
    read, write = os.pipe()
    os.close(read)
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, *args, str(file)], stdout=write, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    os.close(write)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == main.EXIT_BROKEN_PIPE


@pytest.mark.parametrize("closed", [(1,), (2,), (1, 2), (0, 1, 2)])
def test_output_that_is_closed_goes_nowhere(closed, file):
    shut = "import os; " + "".join(f"os.close({fd}); " for fd in closed)
    again = f"os.execv({sys.executable!r}, [{sys.executable!r}, '-c', {RUN!r}, *%r])"
    for args, expected in ((("requests", str(file)), 0), (("requests", "/nonexistent"), 3)):
        code, out, err = finish(start(code=shut + again % (args,)))
        assert code == expected
        assert "Error" not in err
        assert bool(err) == (expected == 3 and 2 not in closed)
        assert bool(out) == (expected == 0 and 1 not in closed)


def test_standard_output_that_is_full_is_one_line(file):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, "requests", str(file)], stdout=full,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.communicate(timeout=60)[1] in (
            "gpucorrelate: No space left on device\n",
            "gpucorrelate: standard output: No space left on device\n",
        )
    assert process.returncode == 1


def test_a_terminal_that_knows_no_letters_gets_ascii(file):
    code, out, err = finish(start("report", file, env={"PYTHONIOENCODING": "ascii"}))
    assert (code, err) == (0, "")
    assert "#" in out


def test_a_bug_is_one_line_and_a_stack_only_when_asked_for(monkeypatch, capsys):
    def broken(args):
        raise ZeroDivisionError("no\nway")

    monkeypatch.setattr(app, "invoke", broken)
    assert main.run(["status"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("gpucorrelate: unexpected ZeroDivisionError: no\\nway\n  hint: this is")
    assert "Traceback" not in err
    monkeypatch.setenv(main.DEBUG_ENV, "1")
    assert main.run(["status"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_is_quiet(monkeypatch, capsys):
    def interrupted(control):
        raise KeyboardInterrupt

    monkeypatch.setattr(source, "client_of", interrupted)
    monkeypatch.setattr("gpucorrelate.cli.status.client_of", interrupted)
    assert main.run(["status"]) == main.EXIT_INTERRUPTED
    assert capsys.readouterr().err.strip() == ""


def as_nobody(args):
    """Runs a command line in a fork that has given up root; code and what it said."""
    main.run([str(one) for one in args])  # loads what root alone may read, perhaps
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 99
        with contextlib.suppress(BaseException):
            os.close(read)
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            sys.stderr = sys.stdout = io.TextIOWrapper(
                os.fdopen(write, "wb", 0), write_through=True
            )
            code = main.run([str(one) for one in args])
        os._exit(code)
    os.close(write)
    with os.fdopen(read) as said:
        text = said.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text


class Daemon:
    """A daemon without kernel probes in a folder of its own."""

    def __init__(self, folder):
        self.control = folder / "run/control.sock"
        self.process = start(
            "daemon", "--no-ebpf", "--keep-privileges", "--runtime-dir", folder / "run",
            "--state-dir", folder / "state",
        )  # fmt: skip
        wait_until(lambda: self.control.exists() or self.process.poll() is not None)
        assert self.process.poll() is None, self.process.stderr.read()

    def ask(self, *args):
        return start(*args, "--control", self.control)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return finish(self.process)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    running = Daemon(tmp_path_factory.mktemp("daemon"))
    yield running
    code, _, err = running.stop()
    assert (code, "Traceback" in err) == (0, False)


@pytest.fixture
def target():
    """A process to attach to."""
    process = subprocess.Popen(["sleep", "300"])
    yield process
    process.kill()
    process.wait()


def sessions(daemon):
    code, out, _ = finish(daemon.ask("status", "--format", "json"))
    assert code == 0
    return {
        one["root_pid"]: one for one in json.loads(out)["sessions"] if one["state"] == "attached"
    }


def test_status_reads_as_text_and_as_json(daemon):
    code, out, _ = finish(daemon.ask("status"))
    assert code == 0
    assert out.startswith("daemon ")
    assert "counters" in out


def test_attach_ends_after_its_time_and_says_that_nothing_came(daemon, target):
    code, out, err = finish(daemon.ask("attach", "--pid", target.pid, "--duration", "0.5s"))
    assert code == 3
    assert "no request was seen" in out
    assert "the recording holds no request" in err
    assert "the time is over; detached" in err
    assert target.poll() is None
    assert sessions(daemon) == {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_attach_detaches_when_it_is_told_to_stop(daemon, target, number):
    process = daemon.ask("attach", "--pid", target.pid, "--format", "json")
    wait_until(lambda: target.pid in sessions(daemon))
    time.sleep(0.5)
    process.send_signal(number)
    code, out, err = finish(process)
    assert code == 3
    assert json.loads(out)["requests"] == 0
    assert "stopped; detached" in err
    assert sessions(daemon) == {}


def test_attach_ends_with_its_engine(daemon, target):
    process = daemon.ask("attach", "--pid", target.pid)
    while "following until Ctrl-C" not in (line := process.stderr.readline()):
        assert line, "the command ended before it followed"
    target.kill()
    target.wait()
    assert "the engine is gone" in finish(process)[2]


def test_a_killed_attach_leaves_nothing_traced(daemon, target):
    process = daemon.ask("attach", "--pid", target.pid, "--duration", "300s")
    wait_until(lambda: target.pid in sessions(daemon))
    process.kill()
    finish(process)
    wait_until(lambda: sessions(daemon) == {})


def test_the_daemon_that_goes_away_is_said_to_have(tmp_path_factory, target):
    running = Daemon(tmp_path_factory.mktemp("gone"))
    process = running.ask("attach", "--pid", target.pid)
    while "following until Ctrl-C" not in (line := process.stderr.readline()):
        assert line, "the command ended before it followed"
    running.process.kill()
    finish(running.process)
    code, _, err = finish(process)
    assert code == 5
    said = f"the daemon went away while attached to {target.pid}; the session goes on"
    assert said in err.splitlines()[-1]
    assert "start it" not in err


def test_a_recording_that_cannot_be_written_is_never_begun(daemon, target, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", "/proc/gpucorrelate-none", tmp_path / ("x" * 256)):
        code, _, err = finish(
            daemon.ask("record", "--force", "-o", place, "--pid", target.pid, "--duration", "60s")
        )
        assert code == (1 if str(place).startswith("/proc") else 2)
        assert "recording session" not in err
    assert list(tmp_path.iterdir()) == [tmp_path / "pipe"]


def test_a_session_can_be_left_to_the_daemon_and_detached(daemon, target):
    code, out, _ = finish(daemon.ask("attach", "--pid", target.pid, "--detach"))
    assert code == 0
    assert sessions(daemon)[target.pid]["session"] == out.strip()
    code, _, err = finish(daemon.ask("attach", "--pid", target.pid, "--duration", "0.2s"))
    assert "was attached already" in err
    assert "still attached" in err
    assert target.pid in sessions(daemon)
    assert finish(daemon.ask("detach", "--pid", target.pid))[0] == 0
    assert sessions(daemon) == {}
    assert finish(daemon.ask("detach", "--all"))[0] == 3
    assert finish(daemon.ask("report", "--session", out.strip()))[0] == 3


def test_a_recording_is_written_as_a_whole_and_never_over_another(daemon, target, tmp_path):
    path = tmp_path / "r.gpcf"
    code, _, err = finish(
        daemon.ask("record", "-o", path, "--pid", target.pid, "--duration", "0.3s")
    )
    assert code == 0, err
    assert sessions(daemon) == {}
    assert list(tmp_path.iterdir()) == [path]
    code, out, _ = finish(start("report", path))
    assert code == 3
    assert out.startswith("recording of ")
    before = path.read_bytes()
    code, _, err = finish(daemon.ask("record", "-o", path, "--pid", target.pid))
    assert code == 2
    assert "exists" in err
    assert path.read_bytes() == before
    assert sessions(daemon) == {}


def test_a_pid_that_cannot_be_traced_is_one_line(daemon):
    gone = subprocess.Popen(["true"])
    gone.wait()
    for pid, code in ((gone.pid, 3), (2, 6)):
        got, _, err = finish(daemon.ask("attach", "--pid", pid))
        if pid == 2 and "no process" in err:
            continue  # a pid namespace without kernel threads
        assert got == code
        assert err.startswith("gpucorrelate: ")
        assert len(err.splitlines()) <= 2


def test_a_session_that_is_not_there_is_not_found(daemon):
    code, _, err = finish(daemon.ask("report", "--session", "nope"))
    assert code == 3
    assert "'nope'" in err


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to be somebody else")
def test_another_user_is_refused_in_one_line(daemon):
    # The folder of the socket must be enterable, or the refusal would come from there.
    for folder in (daemon.control.parent, *daemon.control.parents):
        with contextlib.suppress(OSError):
            folder.chmod(folder.stat().st_mode | 0o011)
    code, text = as_nobody(("status", "--control", daemon.control))
    assert code == 4, text
    assert text.startswith("gpucorrelate: not permitted to use ")
    assert len(text.splitlines()) == 2


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to be somebody else")
def test_a_recording_that_may_not_be_read_is_one_line(file, tmp_path):
    secret = tmp_path / "secret.gpcf"
    secret.write_bytes(file.read_bytes())
    secret.chmod(0o600)
    code, text = as_nobody(("report", secret))
    assert code in (4, 7), text
    assert "Permission denied" in text
    assert len(text.splitlines()) <= 2


def test_too_little_memory_is_no_bug(monkeypatch, capsys):
    def invoke(_args):
        raise MemoryError

    monkeypatch.setattr(app, "invoke", invoke)
    assert main.run(["report"]) == 1
    said = capsys.readouterr().err
    assert "more memory than there is" in said
    assert "bug" not in said
