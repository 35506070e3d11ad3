# SPDX-License-Identifier: Apache-2.0
"""Runs inside a guest: commands come as JSON lines on a serial line, answers go back so.

A question is ``{"run": [...], "env": {...}, "timeout_s": 1.0}``. The answer is any number of
``{"out": "text"}`` and one ``{"code": 0}``, with ``"timed_out": true`` if it had to be ended.
Only the standard library, and little of it: emulated machines are slow.
"""

import json
import os
import select
import subprocess
import sys
import time

_CHUNK_BYTES = 4096


def main() -> None:
    """Answer until the line is hung up or says ``end``."""
    fd = os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY)
    _say(fd, {"ready": os.uname().release})
    line = b""
    while data := os.read(fd, _CHUNK_BYTES):
        *whole, line = (line + data).split(b"\n")
        for one in whole:
            asked = json.loads(one)
            if "end" in asked:
                _say(fd, {"code": 0})
                return
            _answer(fd, asked)


def _say(fd: int, what: dict[str, object]) -> None:
    data = json.dumps(what).encode() + b"\n"
    while data:
        data = data[os.write(fd, data) :]


def _answer(fd: int, asked: dict[str, object]) -> None:
    run, env, timeout_s = asked["run"], asked["env"], asked["timeout_s"]
    assert isinstance(run, list) and isinstance(env, dict) and isinstance(timeout_s, float)
    try:
        child = subprocess.Popen(
            run,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
            start_new_session=True,
        )
    except OSError as error:
        _say(fd, {"out": f"{run[0]}: {error}\n"})
        _say(fd, {"code": 127})
        return
    timed_out = not _carry(fd, child, time.monotonic() + timeout_s)
    if timed_out:
        child.kill()
    code = child.wait()
    assert child.stdout is not None
    child.stdout.close()
    _say(fd, {"code": code, "timed_out": timed_out})


def _carry(fd: int, child: "subprocess.Popen[bytes]", until: float) -> bool:
    """Pass on what it prints; whether it ended by itself."""
    assert child.stdout is not None
    pipe = child.stdout.fileno()
    # What it left behind may hold the pipe open: its own end is what counts.
    while time.monotonic() < until:
        over = child.poll() is not None
        if select.select([pipe], [], [], 0 if over else 0.1)[0]:
            data = os.read(pipe, _CHUNK_BYTES)
            if data:
                _say(fd, {"out": data.decode("utf-8", "replace")})
                continue
            child.wait()
            return True
        if over:
            return True
    return False


if __name__ == "__main__":
    main()
