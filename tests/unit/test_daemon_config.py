# SPDX-License-Identifier: Apache-2.0
"""The daemon's settings file: what is taken, what is refused and how that is said."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomllib
from hypothesis import given
from hypothesis import strategies as st

from gpucorrelate.cli.settings import daemon_settings
from gpucorrelate.daemon import configfile, configkeys
from gpucorrelate.daemon.config import GIB, MIB, DaemonConfig, Limits, MetricsConfig
from gpucorrelate.daemon.reload import RELOADABLE, reload
from gpucorrelate.probes.wire.errors import (
    GpucorrelateError,
    NotFoundError,
    NotPermittedError,
    UsageError,
)
from tests.unit.daemon_kit import ROOT, Yard, wait_for

PLACE = Path("/etc/gpucorrelate/config.toml")


def parsed(text: str) -> DaemonConfig:
    return configfile.config_of(configfile.parse(text, PLACE), {})


def uncommented(text: str) -> str:
    """The default file as it is when every default is written out."""
    return re.sub(r"^#([a-z_]+ = )", r"\1", text, flags=re.MULTILINE)


def test_the_installed_file_is_what_the_code_says() -> None:
    """``make gen`` writes it."""
    installed = (ROOT / "systemd" / "config.toml").read_text(encoding="utf-8")
    assert installed == configkeys.render_default()
    assert tomllib.loads(installed) == {"limits": {}, "metrics": {}}


def test_the_defaults_in_the_file_are_the_defaults_of_the_code() -> None:
    default = DaemonConfig()
    whole = parsed(uncommented(configkeys.render_default()))
    assert (whole.control_socket, whole.ingest_socket) == (
        default.control_path,
        default.ingest_path,
    )
    assert dataclasses.replace(whole, control_socket=None, ingest_socket=None) == default


def test_every_setting_can_be_set_and_is_explained() -> None:
    sections = {"limits": Limits, "metrics": MetricsConfig}
    names = [f.name for f in dataclasses.fields(DaemonConfig) if f.name not in sections]
    for section, settings in sections.items():
        names += [f"{section}.{field.name}" for field in dataclasses.fields(settings)]
    found = configkeys.all_keys()
    assert [key.name for key in found] == names
    for key in found:
        assert key.text, f"{key.name} is not documented in its class"
    assert set(configkeys.BOUNDS) <= set(names)
    assert set(RELOADABLE) <= set(names)


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("tik_ms = 3", 1, "unknown setting 'tik_ms'; did you mean 'tick_ms'?"),
        ("# one\n\ntick_ms = 3000", 3, "tick_ms = 3000: must be a whole number, from 1 to 1000"),
        ("tick_ms = 0", 1, "from 1 to 1000"),
        ("tick_ms = 1.5", 1, "must be a whole number"),
        ("tick_ms = true", 1, "must be a whole number"),
        ('tick_ms = "20"', 1, "must be a whole number"),
        ("poll_ms = 5", 1, "from 10 to 60000, or 0"),
        ("ebpf = 1", 1, "ebpf = 1: must be true or false"),
        ("segment_bytes = '64 MB'", 1, 'a size like "64 MiB", from 4 KiB to 1 GiB'),
        ("segment_bytes = '64 TiB'", 1, "from 4 KiB to 1 GiB"),
        ("nice = -21", 1, "from -20 to 19"),
        ('state_dir = "here"', 1, "must be an absolute path, in quotes"),
        ('state_dir = "/a/../b"', 1, "must be an absolute path"),
        ('state_dir = ""', 1, "must be an absolute path"),
        ('group = "a\\nb"', 1, "must be a text in quotes"),
        ('log_level = "loud"', 1, 'must be one of "debug", "info", "warning", "error"'),
        (f'control_socket = "/{"x" * 110}"', 1, "of at most 107 bytes"),
        ("[limits]\nclients = 0", 2, "limits.clients = 0: must be a whole number"),
        ("[limits]\nx = 1", 2, "unknown setting 'limits.x'"),
        ("limits.clients = 0", 1, "limits.clients = 0"),
        ("[limits]\ncontrol_idle_s = inf", 2, "must be a number, from 0.1 to 3600"),
        ("[limit]\nclients = 5", 1, "unknown setting 'limit'"),
        ("[[limits]]\nclients = 5", 1, "unknown setting 'limits'"),
        ("a =", 1, "Invalid value"),
        ("tick_ms = 20\ntick_ms = 30", 2, "Cannot overwrite a value"),
        ("# x\nx", 2, "Expected '='"),
        ("require_ebpf = true\nebpf = false", 2, "ebpf: kernel probes cannot be both"),
        ("total_max_bytes = '1 GiB'\nsession_max_bytes = '2 GiB'", 2, "below that on one"),
        ("group = 'no-such-group'", 1, "there is no group 'no-such-group'"),
    ],
)
def test_what_is_wrong_is_told_with_its_line_and_what_is_allowed(
    text: str, line: int, told: str
) -> None:
    with pytest.raises(UsageError) as caught:
        parsed(text)
    assert caught.value.message.startswith(f"{PLACE}:{line}: ")
    assert told in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == 2


def test_an_unknown_setting_is_answered_with_those_there_are() -> None:
    with pytest.raises(UsageError) as caught:
        parsed("nonsense = 1")
    assert "tick_ms" in caught.value.hint
    assert "clients_per_uid" not in caught.value.hint
    with pytest.raises(UsageError) as caught:
        parsed("[limits]\nnonsense = 1")
    assert "clients_per_uid" in caught.value.hint
    assert "tick_ms" not in caught.value.hint


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [('"64 MiB"', 64 * MIB), ('"64MiB"', 64 * MIB), ("8192", 8192), ('"8192"', 8192)],
)
def test_sizes_may_have_units(written: str, size_bytes: int) -> None:
    assert parsed(f"segment_bytes = {written}").segment_bytes == size_bytes


def test_options_come_before_the_file_and_the_file_before_the_defaults() -> None:
    file = configfile.parse("tick_ms = 7\nyields = true\n[limits]\nclients = 3", PLACE)
    config = configfile.config_of(file, {"tick_ms": 9})
    assert (config.tick_ms, config.yields, config.limits.clients) == (9, True, 3)
    assert config.poll_share_ppm == DaemonConfig().poll_share_ppm


def test_one_limit_alone_moves_those_that_would_contradict_it() -> None:
    assert parsed('total_max_bytes = "1 GiB"').session_max_bytes == GIB
    assert parsed('session_max_bytes = "32 GiB"').total_max_bytes == 32 * GIB
    small = parsed('session_max_bytes = "1 MiB"')
    assert small.segment_bytes * 2 <= small.session_max_bytes
    kept = parsed('session_max_bytes = "1 GiB"\nsegment_bytes = "1 MiB"')
    assert kept.segment_bytes == MIB


@given(st.text(max_size=200))
def test_no_text_is_anything_but_settings_or_one_line(text: str) -> None:
    try:
        parsed(text)
    except UsageError as exc:
        assert exc.message.startswith(f"{PLACE}:")
        assert exc.message.isprintable() or "\n" not in exc.message


@given(
    st.sampled_from([key.name for key in configkeys.all_keys()]),
    st.one_of(st.integers(), st.floats(), st.booleans(), st.text(max_size=20)),
)
def test_no_value_of_a_setting_is_anything_but_taken_or_refused(name: str, value: Any) -> None:
    key = next(key for key in configkeys.all_keys() if key.name == name)
    try:
        taken = configfile._checked("here:1", key, value)
    except UsageError as exc:
        assert key.allowed in exc.message
        return
    assert type(taken) is key.kind or isinstance(taken, key.kind)


def as_file(folder: Path, data: bytes, mode: int = 0o644) -> Path:
    path = folder / "config.toml"
    path.write_bytes(data)
    path.chmod(mode)
    return path


def test_files_that_are_none_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file"):
        configfile.read(tmp_path / "nothing")
    with pytest.raises(UsageError, match="is no file"):
        configfile.read(tmp_path)
    with pytest.raises(UsageError, match=r"config\.toml:2: no UTF-8 text"):
        configfile.read(as_file(tmp_path, b"tick_ms = 5\n# \xff\n"))
    with pytest.raises(UsageError, match="longer than"):
        configfile.read(as_file(tmp_path, b"#" * (2 << 20)))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="is no file"):
        configfile.read(pipe)


@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
def test_root_takes_no_settings_that_others_can_change(tmp_path: Path) -> None:
    for mode in (0o666, 0o664, 0o646):
        with pytest.raises(NotPermittedError, match="others than root can change it"):
            configfile.read(as_file(tmp_path, b"", mode))
    path = as_file(tmp_path, b"tick_ms = 5\n")
    assert configfile.read(path) is not None
    os.chown(path, 65534, 65534)
    with pytest.raises(NotPermittedError) as caught:
        configfile.read(path)
    assert caught.value.exit_code == 4
    assert str(path) in caught.value.hint


def test_options_become_settings() -> None:
    given_ = {"session_max_mib": 8, "no_ebpf": True, "yields": True, "state_dir": Path("s")}
    config = daemon_settings({**given_, "config": None}).read()
    assert config.session_max_bytes == 8 * MIB
    assert (config.ebpf, config.yields) == (False, True)
    assert config.state_dir == Path.cwd() / "s"


def test_what_is_reloaded_holds_and_the_rest_waits() -> None:
    old = DaemonConfig()
    new = parsed('tick_ms = 5\nring_bytes = "1 MiB"\n[limits]\nsessions = 1\nthreads = 9')
    found = reload(old, new)
    assert found.changed == ("tick_ms", "limits.sessions")
    assert found.left == ("ring_bytes", "limits.threads")
    assert (found.config.tick_ms, found.config.limits.sessions) == (5, 1)
    assert found.config.ring_bytes == old.ring_bytes
    assert found.config.limits.threads == old.limits.threads
    assert reload(old, old).text == "changed: nothing"


def test_a_reload_that_would_contradict_what_stays_is_refused() -> None:
    small = parsed('session_max_bytes = "1 MiB"')
    with pytest.raises(GpucorrelateError, match="two segments"):
        reload(DaemonConfig(), small)


def daemon_command(yard: Yard, *more: str) -> list[str]:
    places = ["--runtime-dir", str(yard.folder / "r"), "--state-dir", str(yard.folder / "s")]
    code = "from gpucorrelate.cli.main import main; main()"
    return [sys.executable, "-c", code, "daemon", "--no-ebpf", *places, *more]


def test_a_running_daemon_reloads_and_keeps_what_holds_when_the_file_is_wrong() -> None:
    yard = Yard()
    path = as_file(yard.folder, b"")
    log = (yard.folder / "log").open("wb")
    process = subprocess.Popen(
        daemon_command(yard, "--config", str(path)), cwd=ROOT, stderr=log, start_new_session=True
    )
    try:
        client = yard.daemon().client
        wait_for(lambda: _answers(client), "it answers")
        path.write_text("[limits]\nsessions = 1\nthreads = 5\n")
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: "limits.threads" in str(client.status().warnings), "it tells the rest")
        own = subprocess.Popen(["/bin/sleep", "60"])
        other = subprocess.Popen(["/bin/sleep", "60"])
        try:
            client.attach(own.pid)
            with pytest.raises(GpucorrelateError, match="1 sessions already"):
                client.attach(other.pid)
            path.write_text("[limits]\nsessions = 'x'\n")
            process.send_signal(signal.SIGHUP)
            told = f"{path}:2: limits.sessions"
            wait_for(lambda: told in str(client.status().warnings), "it tells what is wrong")
            with pytest.raises(GpucorrelateError, match="1 sessions already"):
                client.attach(other.pid)
            path.write_text("[limits]\nsessions = 2\n")
            process.send_signal(signal.SIGHUP)
            wait_for(
                lambda: "settings:" not in str(client.status().warnings), "nothing is left to tell"
            )
            client.attach(other.pid)
        finally:
            for child in (own, other):
                child.kill()
                child.wait()
        process.terminate()
        assert process.wait(20) == 0
        lines = (yard.folder / "log").read_text().splitlines()
        assert [line.split(" ")[0] for line in lines if "settings" in line] == [
            "WARNING",
            "ERROR",
            "WARNING",
        ]
        assert "Traceback" not in "".join(lines)
    finally:
        process.kill()
        process.wait()
        log.close()
        yard.clear()


def _answers(client: Any) -> bool:
    try:
        client.status()
    except GpucorrelateError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        ("tick_ms = 20\n", 0, "settings are right"),
        ("tick_ms = -1\n", 2, ":1: tick_ms = -1: must be"),
        ("total_max_bytes = 9000\nsession_max_bytes = 10000", 2, ":2: session_max_bytes: the"),
    ],
)
def test_settings_can_be_checked_without_running(
    tmp_path: Path, text: str, code: int, told: str
) -> None:
    path = as_file(tmp_path, text.encode())
    command = [*daemon_command(Yard()), "--check-config", "--config", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == code, done.stderr
    assert told in done.stdout + done.stderr
    assert len((done.stdout + done.stderr).splitlines()) == 1
