# SPDX-License-Identifier: Apache-2.0
"""``make install`` and ``make uninstall``: what is put where, and what stays."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from scripts import man_pages
from tests.system.conftest import make
from tests.system.machine import Machine
from tests.system.service_kit import CONFIG, DROP_IN, PROGRAM, UNIT, WAITER, attach, is_active
from tests.unit.daemon_kit import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system

_ELSEWHERE = "/opt/gpucorrelate"


def files(folder: Path) -> set[str]:
    """Everything below a folder but the program's own, the documentation and man pages."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    own = ("/lib/gpucorrelate/", "/share/doc/gpucorrelate/", "/share/man/man")
    return {f"/{path}" for path in found if not any(one in f"/{path}" for one in own)}


def test_everything_is_where_the_documentation_says(installed: Path) -> None:
    found = files(installed)
    assert found == {
        "/usr/local/bin/gpucorrelate",
        "/usr/local/lib/systemd/system/gpucorrelate.service",
        "/usr/local/lib/sysusers.d/gpucorrelate.conf",
        "/usr/local/lib/tmpfiles.d/gpucorrelate.conf",
        "/usr/local/share/bash-completion/completions/gpucorrelate",
        "/usr/local/share/zsh/site-functions/_gpucorrelate",
        "/usr/local/share/fish/vendor_completions.d/gpucorrelate.fish",
        "/etc/gpucorrelate/config.toml",
    }
    man = {str(path.relative_to(installed / "usr/local/share/man"))
           for path in (installed / "usr/local/share/man").rglob("*.[158]")}  # fmt: skip
    assert man == set(man_pages.pages())
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    for path in found:
        assert f"`{path}`" in page
    for folder in (
        "/usr/local/lib/gpucorrelate/",
        "/usr/local/share/doc/gpucorrelate/",
        "/usr/local/share/man/",
    ):
        assert f"`{folder}`" in page
    unit = (installed / "usr/local/lib/systemd/system/gpucorrelate.service").read_text()
    assert f"\nExecStart={PROGRAM} daemon\n" in unit
    assert str(installed) not in (installed / "usr/local/bin/gpucorrelate").read_text()
    for place in installed.rglob("*"):
        assert not place.stat().st_mode & 0o022, f"others than root may change {place}"


def test_uninstall_takes_all_but_recordings_and_changed_settings(
    installed: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(installed, copy, symlinks=True)
    recording = copy / "var/lib/gpucorrelate/sessions/one/000001.gpcf"
    recording.parent.mkdir(parents=True)
    recording.write_bytes(b"x")
    config = copy / "etc/gpucorrelate/config.toml"
    with config.open("a") as file:
        file.write("\n# mine\n")
    said = make("uninstall", f"DESTDIR={copy}")
    assert "because it was changed" in said
    assert "recordings in" in said
    left = {path for path in copy.rglob("*") if not path.is_dir()}
    assert left == {recording, config}


def test_what_it_did_not_make_it_does_not_delete(tmp_path: Path) -> None:
    theirs = tmp_path / "usr/local/lib/gpucorrelate/precious"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("x")
    for target in ("install", "uninstall"):
        done = subprocess.run(
            ["make", target, f"DESTDIR={tmp_path}"],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode != 0
        assert "was not made by 'make install'" in done.stderr
        assert theirs.exists()
    done = subprocess.run(
        ["make", "install", "PREFIX=usr"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "PREFIX must be an absolute path" in done.stderr


@pytest.mark.kernel
def test_on_a_running_machine_it_comes_and_goes(installed: Path) -> None:
    made = {f"/etc/systemd/system/{UNIT}.d/test.conf": DROP_IN, "/opt/waiter.py": WAITER}
    with Machine(made, installed) as machine:
        machine.run("systemd-sysusers")
        machine.run("systemctl", "enable", "--now", UNIT)
        session = attach(machine)
        machine.run("systemctl", "stop", "waiter")
        said = machine.run("bash", f"{ROOT}/scripts/install.sh", "uninstall")
        assert "recordings in /var/lib/gpucorrelate" in said
        assert not is_active(machine)
        assert machine.run("systemctl", "is-enabled", UNIT, check=False) != "enabled"
        for path in (PROGRAM, CONFIG, "/usr/local/lib/gpucorrelate"):
            machine.run("test", "!", "-e", path)
        kept = machine.run("find", f"/var/lib/gpucorrelate/sessions/{session}", "-name", "*.gpcf")
        assert kept
        machine.run("getent", "group", "gpucorrelate")


@pytest.mark.slow
def test_another_prefix_has_its_unit_where_systemd_looks(tmp_path: Path) -> None:
    make("install", f"DESTDIR={tmp_path}", f"PREFIX={_ELSEWHERE}")
    assert files(tmp_path) == {
        f"{_ELSEWHERE}/bin/gpucorrelate",
        "/etc/systemd/system/gpucorrelate.service",
        "/etc/sysusers.d/gpucorrelate.conf",
        "/etc/tmpfiles.d/gpucorrelate.conf",
        f"{_ELSEWHERE}/share/bash-completion/completions/gpucorrelate",
        f"{_ELSEWHERE}/share/zsh/site-functions/_gpucorrelate",
        f"{_ELSEWHERE}/share/fish/vendor_completions.d/gpucorrelate.fish",
        "/etc/gpucorrelate/config.toml",
    }
    # Twice is as good as once, and changed settings are kept.
    config = tmp_path / "etc/gpucorrelate/config.toml"
    config.write_text("tick_ms = 30\n")
    make("install", f"DESTDIR={tmp_path}", f"PREFIX={_ELSEWHERE}")
    assert config.read_text() == "tick_ms = 30\n"
    make("uninstall", f"DESTDIR={tmp_path}", f"PREFIX={_ELSEWHERE}")
    assert files(tmp_path) == {"/etc/gpucorrelate/config.toml"}
