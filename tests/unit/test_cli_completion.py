# SPDX-License-Identifier: Apache-2.0
"""What shells offer for a half-written command line: in a real bash, zsh and fish."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpucorrelate.cli import completion
from gpucorrelate.correlator import tables
from scripts import completions
from tests.unit.daemon_kit import Yard

ROOT = Path(__file__).parents[2]


@pytest.fixture
def program(tmp_path):
    """The command on a path of its own, and the shells' scripts."""
    binary = tmp_path / "bin" / "gpucorrelate"
    binary.parent.mkdir()
    binary.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from gpucorrelate.cli.main import main\nmain()\n"
    )
    binary.chmod(0o755)
    for shell in completions.SHELLS:
        (tmp_path / shell).write_text(completions.source(shell))
    work = tmp_path / "work"
    work.mkdir()
    return tmp_path


def run(program, command, **environment):
    done = subprocess.run(
        command,
        cwd=program / "work",
        env={
            "PATH": f"{program / 'bin'}:/usr/bin:/bin",
            "HOME": str(program),
            "LC_ALL": "C.UTF-8",
            "TERM": "dumb",
            "GPUCORRELATE_CONTROL": str(program / "none.sock"),
            **environment,
        },
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


def bash(program, line, **environment):
    """What bash would offer at the end of a line; ``default`` for its own completion of files."""
    script = f"""
        source {program / "bash"}
        compopt() {{ printf 'compopt:%s\\n' "$2"; }}
        read -ra COMP_WORDS <<<"$1"
        [[ $1 == *" " ]] && COMP_WORDS+=("")
        COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        COMP_LINE=$1
        _gpucorrelate_completion gpucorrelate "${{COMP_WORDS[COMP_CWORD]}}"
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    return run(program, ["bash", "--norc", "-c", script, "bash", line], **environment)


def test_bash_completes_commands_options_and_choices(program):
    assert bash(program, "gpucorrelate rep") == ["report"]
    assert "--slowest" in bash(program, "gpucorrelate report --slo")
    assert bash(program, "gpucorrelate report --format sp") == ["speedscope"]
    assert bash(program, "gpucorrelate nonsen") == []


def test_recordings_of_the_folder_that_is_being_written_are_offered(program):
    for name in ("bad.gpcf", "good.gpcf", "notes.txt"):
        (program / "work" / name).touch()
    (program / "work" / "sub").mkdir()
    (program / "work" / "sub" / "deep.gpcf").touch()
    assert bash(program, "gpucorrelate report ") == ["bad.gpcf", "good.gpcf"]
    assert bash(program, "gpucorrelate report ba") == ["bad.gpcf"]
    assert bash(program, "gpucorrelate report sub/") == ["sub/deep.gpcf"]
    assert bash(program, "gpucorrelate compare good.gpcf b") == ["bad.gpcf"]
    assert bash(program, "gpucorrelate tables osrt") == ["osrt_sum"]
    assert bash(program, "gpucorrelate tables osrt_sum b") == ["bad.gpcf"]


def test_without_a_recording_or_with_a_name_to_be_quoted_the_shell_completes_files(program):
    assert bash(program, "gpucorrelate report no") == ["compopt:default"]
    (program / "work" / "with space.gpcf").touch()
    assert bash(program, "gpucorrelate report wi") == ["compopt:default"]


def test_sessions_of_the_daemon_are_offered(program):
    yard = Yard()
    try:
        daemon = yard.daemon()
        daemon.start()
        client = daemon.client
        sleeper = subprocess.Popen(["sleep", "60"])
        try:
            session = client.attach(sleeper.pid).session.session
            control = {"GPUCORRELATE_CONTROL": str(client.path)}
            assert bash(program, "gpucorrelate report --session ", **control) == [session]
            assert bash(program, f"gpucorrelate detach --session {session[:5]}", **control) == [
                session
            ]
            assert bash(program, "gpucorrelate report --session x", **control) == []
        finally:
            sleeper.kill()
            sleeper.wait()
    finally:
        yard.clear()


def test_without_a_daemon_nothing_is_offered_and_nothing_said(program):
    assert bash(program, "gpucorrelate report --session ") == []


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(program):
    script = f"source {program / 'fish'}; complete -C 'gpucorrelate rep'"
    assert "report" in run(program, ["fish", "--no-config", "-c", script])


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_takes_the_script(program):
    script = (
        f"autoload -U compinit; compinit -u; source {program / 'zsh'}; print $_comps[gpucorrelate]"
    )
    assert run(program, ["zsh", "-f", "-c", script]) == ["_gpucorrelate_completion"]


def test_completing_needs_no_numpy(program):
    code = (
        "import sys; sys.argv = ['gpucorrelate']\n"
        "from gpucorrelate.cli.main import main\n"
        "try: main([])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'psutil', 'pyarrow', 'textual'} & set(sys.modules)\n"
        "sys.stderr.write(' '.join(heavy))\n"
    )
    (program / "work" / "bad.gpcf").touch()
    for words in ("gpucorrelate report ", "gpucorrelate report --session ", "gpucorrelate "):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=program / "work",
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                completion.ENV: "bash_complete",
                "COMP_WORDS": words,
                "COMP_CWORD": str(len(words.split())),
            },
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stderr == ""


def test_tables_are_those_that_there_are():
    assert set(completion.TABLES) == set(tables.NAMES)
