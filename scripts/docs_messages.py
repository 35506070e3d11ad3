# SPDX-License-Identifier: Apache-2.0
"""Write the table of messages in docs/troubleshooting.md, from the code that raises them.

Every error of exit code 3 and above that a user can be shown, with what to do. ``python -m
scripts.docs_messages`` writes it; ``--check`` writes nothing and fails on a difference.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import pkgutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import gpucorrelate
from gpucorrelate.probes.wire.errors import EXIT_NOT_FOUND, ControlError, GpucorrelateError

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "troubleshooting.md"
BEGIN = "<!-- messages: begin (made by scripts/docs_messages.py) -->"
END = "<!-- messages: end -->"
FOLDERS = ("cli", "daemon", "correlator", "probes", "verify", "api")
#: Inside the engine, or told as damage of a stream: nobody sees them as a message.
_UNSEEN = ("probes/wire", "probes/agents", "daemon/messages.py", "daemon/values.py")
#: What stands for what differs.
GAP = "…"
#: What to do, for messages whose hint is empty or says it in code; by how they begin.
_REMEDIES = {
    "the daemon went away while attached": "wait: the session goes on when the daemon is back",
    "no FILE can be read": "the lines before it name what is wrong with each FILE",
    "…: no such file": "give the path of a file that is there",
    "this trace holds no device activity": "profile with ProfilerActivity.CUDA, or nsys "
    "profile --trace=cuda",
    "no request fits": "widen --id, --since and --until; `report` says what the recording holds",
    "…: no recording in this directory": "a session's folder holds 000001.gpcf; give that, or a "
    "file that `record` wrote",
    "…: the recording is empty": "it was cut off before anything was written: record again",
    "… sessions begin with": "write more of the session's id; `status` lists them",
    "process … is in no session": "`status` lists the sessions and their processes",
    "there is no session": "attach to an engine: gpucorrelate attach --pid PID",
    "session … has ended already": "nothing: its recording is kept, see `status`",
    "process … (…) is a kernel thread": "give a process of the engine: pgrep -af vllm",
    "process … (…) has exited": "give a process of the engine that runs now",
    "cannot listen on …: it exists": "something else is at that place: move it away, or give "
    "another --runtime-dir",
    "cannot listen on …": "the folder must be there and be the daemon's to write to",
    "no process … has steps": "one of those that are listed, with --process",
    "no process … (there are": "one of those that are listed, with --process",
    "no process …": "`pgrep -af vllm` lists running engines",
    "BPF ": "the installation is damaged: install again (`make native` in a checkout)",
    "no BPF ": "the installation is damaged: install again (`make native` in a checkout)",
    "waits cannot be traced": "`sudo gpucorrelate check` says what is missing, and the remedy",
    "yield runs cannot be traced": "run without --yields: the engine's agent tells of its polling",
    "the kernel cannot measure BPF programs": "leave the measuring out on this kernel",
    "no backend": "one of `libbpf`, `bcc`, `auto`",
    "they do not come from a file": "start the daemon with --config, or without options",
    "BCC is not installed": "apt-get install --no-install-recommends python3-bpfcc",
    "no step … was recorded": "list them: gpucorrelate steps",
    "no table …": "one of those that are listed",
    "cannot serve metrics on": "another address or port; one below 1024 needs root",
    "BCC cannot be run by": "apt-get install --no-install-recommends python3-bpfcc",
}
#: Where there is neither a hint nor a remedy.
_BY_CODE = {
    3: "`status`, `requests` and `steps` list what there is",
    4: "ask as root, or as the user that it belongs to",
    5: "`systemctl status gpucorrelate` has the daemon's last lines",
    6: "`sudo gpucorrelate check` says what is missing, and the remedy",
    7: "record it, or export it, again",
}


@dataclass(frozen=True, order=True)
class Message:
    """A message of the program.

    Attributes:
        code: Exit code.
        text: With ``…`` for what differs.
        remedy: What to do.
    """

    code: int
    text: str
    remedy: str


def messages() -> tuple[Message, ...]:
    """Every message of exit code 3 and above, by code and text."""
    codes = _exit_codes()
    found: dict[tuple[int, str], Message] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not path.relative_to(ROOT).as_posix().startswith(_UNSEEN):
                for message in _of_file(path, codes):
                    key = (message.code, message.text)
                    found[key] = max(message, found.get(key, message))
    return tuple(sorted(found.values()))


def _exit_codes() -> dict[str, int]:
    """Names of the project's error classes -> exit code, of 3 and above."""
    for module in pkgutil.walk_packages(gpucorrelate.__path__, "gpucorrelate."):
        if ".agents" not in module.name and "__main__" not in module.name:
            try:
                importlib.import_module(module.name)
            except (
                ImportError
            ):  # what needs an extra that is not here raises no classes of its own
                continue
    kinds = [GpucorrelateError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return {
        kind.__name__: kind.exit_code
        for kind in kinds
        if kind.exit_code >= EXIT_NOT_FOUND and kind is not ControlError
    }


def _of_file(path: Path, codes: dict[str, int]) -> Iterator[Message]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        for text in _texts(node.args[0]):
            if name in codes and any(c.isalpha() for c in text.replace("or", "")):
                hints = [k.value for k in node.keywords if k.arg == "hint"]
                said = _texts(hints[0]) if hints else ()
                hint = next((one for one in said if any(c.isalpha() for c in one)), "")
                remedy = _remedy(text, hint) or _BY_CODE.get(codes[name], "")
                yield Message(codes[name], text, remedy)


def _texts(node: ast.expr) -> tuple[str, ...]:
    """What an expression can say, as far as the source shows it."""
    if isinstance(node, ast.Constant):
        return (str(node.value),)
    if isinstance(node, ast.JoinedStr):
        parts = (str(v.value) if isinstance(v, ast.Constant) else GAP for v in node.values)
        return ("".join(parts),)
    if isinstance(node, ast.IfExp):
        return (*_texts(node.body), *_texts(node.orelse))
    if isinstance(node, ast.BoolOp):
        return tuple(text for value in node.values for text in _texts(value))
    return ()


def _remedy(text: str, hint: str) -> str:
    if hint:
        return hint
    fitting = (remedy for begin, remedy in _REMEDIES.items() if text.startswith(begin))
    return next(fitting, "")


def block() -> str:
    """The table, markers included."""
    lines = [BEGIN, ""]
    last = -1
    for one in messages():
        if one.code != last:
            lines += ["", f"### Exit code {one.code}", ""]
            lines += ["| message | what to do |", "|---|---|"]
            last = one.code
        lines.append(f"| `{_cell(one.text)}` | {_plain(one.remedy)} |")
    return "\n".join([*lines, "", END])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("`", "'")


def _plain(text: str) -> str:
    return _cell(text).replace("<", "\\<").replace("*", "\\*").replace("_", "\\_")


def renewed(text: str) -> str:
    """The page's text with the table as it should be.

    Raises:
        ValueError: the markers are not there.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE}: the markers of the table are not there")
    return f"{before}{block()}{after}"


def main() -> int:
    """Write the table, or say that it is not as it should be; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 on a difference")
    check = parser.parse_args().check
    old = PAGE.read_text("utf-8")
    new = renewed(old)
    if new != old and check:
        print("docs/troubleshooting.md: not what the code says", file=sys.stderr)
        return 1
    if new != old:
        PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
