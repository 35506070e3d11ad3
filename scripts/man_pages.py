# SPDX-License-Identifier: Apache-2.0
"""Write the man pages, from what the code declares and from the documentation's own words.

``python -m scripts.man_pages FOLDER`` writes ``FOLDER/man1/gpucorrelate.1``, a page for each
command, ``man5/gpucorrelate.toml.5`` and ``man8/gpucorrelate.service.8``. ``make install`` does so
with the program that it installs; nothing of it is kept in the repository.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import sys
from pathlib import Path

import gpucorrelate
from gpucorrelate.cli import exits
from gpucorrelate.cli.app import PROGRAM, cli
from gpucorrelate.daemon import configfile, configkeys
from gpucorrelate.daemon.config import CONTROL_ENV, DaemonConfig
from scripts import docs_commands, man_roff

ROOT = Path(__file__).parents[1]
_FILES = {
    "/etc/gpucorrelate/config.toml": "settings, see gpucorrelate.toml(5)",
    "/run/gpucorrelate/control.sock": "commands come in here; root and the group gpucorrelate",
    "/run/gpucorrelate/ingest.sock": "engines' agents connect here",
    "/var/lib/gpucorrelate/sessions/": "recordings, a folder for each session",
}
_ENVIRONMENT = {
    CONTROL_ENV: "The daemon's control socket, where --control does not name it.",
    "GPUCORRELATE_DEBUG": "1: an unexpected error shows where it came from.",
    "GPUCORRELATE_DISABLE": "In an engine's environment, 1: the agent is not loaded.",
    "GPUCORRELATE_INGEST": "In an engine's environment: the daemon's ingest socket.",
    "NO_COLOR": "Text is not coloured.",
}
_MEANINGS = {
    0: "Done.",
    1: "Failed.",
    2: "The command line makes no sense.",
    3: "No such process, request, step, session or file.",
    4: "Not permitted.",
    5: "No daemon answers.",
    6: "This host or this process cannot be observed.",
    7: "Bytes that are no recording, or no longer one.",
    8: "Something was lost (with --strict), or a cause cannot be attributed (verify).",
    130: "Interrupted.",
    141: "Whoever read the output went away.",
}

_DESCRIBED = {
    5: """A TOML file. Options of `gpucorrelate daemon` come before it. A file that others than
root can change is refused, and so is one with an unknown setting or a value out of bounds:
`gpucorrelate daemon --check-config` names the line. `systemctl reload gpucorrelate` takes a change
over and says
what needs a restart.""",
    8: """Loads the kernel probes, listens for engines' agents and for commands, and writes
recordings. It is ready (`systemctl start` returns) when the probes are loaded and the sockets are
open, and then gives up all capabilities but those below. Started again after a crash or an upgrade
it takes up the sessions that were running. It never stops an engine.

Members of the group `gpucorrelate` may trace their own processes. Messages are in `journalctl -u
gpucorrelate`; `systemctl reload` reads the settings again. Change what is below with `systemctl
edit gpucorrelate`.""",
}


def pages() -> dict[str, str]:
    """Name, such as ``man1/gpucorrelate.1`` -> text, of every page."""
    made = {"man1/gpucorrelate.1": _main()}
    for name in docs_commands.names():
        made[f"man1/gpucorrelate-{name}.1"] = _command(name)
    made["man5/gpucorrelate.toml.5"] = _settings()
    made["man8/gpucorrelate.service.8"] = _service()
    return made


def _date() -> str:
    """Of the build: SOURCE_DATE_EPOCH where it is set, so that builds can be repeated."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    zone = datetime.timezone.utc
    if epoch is not None and epoch.isdecimal():
        return datetime.datetime.fromtimestamp(int(epoch), zone).date().isoformat()
    return datetime.datetime.now(zone).date().isoformat()


def _page(name: str, section: int, short: str, *parts: list[str]) -> str:
    lines = man_roff.header(name, section, _date(), gpucorrelate.__version__)
    lines += [*man_roff.heading("Name"), f"{man_roff.escaped(name)} \\- {man_roff.escaped(short)}"]
    for part in parts:
        lines += part
    return "\n".join(lines) + "\n"


def _section(title: str, lines: list[str]) -> list[str]:
    return [*man_roff.heading(title), *(lines[1:] if lines[:1] == [".PP"] else lines)]


def _items(rows: dict[str, str]) -> list[str]:
    return [line for term, text in rows.items() for line in man_roff.item(term, text)]


def _see_also(*names: str) -> list[str]:
    return _section(
        "See also", [", ".join(f"\\fB{man_roff.escaped(n[:-3])}\\fR{n[-3:]}" for n in names)]
    )


def _main() -> str:
    commands = {
        f"{PROGRAM}-{name}(1)": docs_commands.described(name).short
        for name in docs_commands.names()
    }
    short = (cli.help or "").rstrip(".")
    return _page(
        PROGRAM,
        1,
        short[0].lower() + short[1:],
        _section("Synopsis", [f"{man_roff.bold(PROGRAM)} \\fICOMMAND\\fR [\\fIOPTION\\fR]..."]),
        _section("Description", man_roff.markdown(_intro())),
        _section("Commands", _items(commands)),
        _section("Exit status", _items({str(c): text for c, text in _MEANINGS.items()})),
        _section("Environment", _items(_ENVIRONMENT)),
        _section("Files", _items(_FILES)),
        _section("Examples", man_roff.code(_first_steps())),
        _see_also("gpucorrelate.toml(5)", "gpucorrelate.service(8)"),
    )


def _intro() -> str:
    """What the documentation's first page says before its first heading."""
    text = (ROOT / "docs/index.md").read_text("utf-8")
    return text.partition("\n")[2].partition("\n## ")[0].strip()


def _first_steps() -> list[str]:
    return [line for line in (cli.epilog or "").split("\n") if line.startswith("  ")]


def _command(name: str) -> str:
    it = docs_commands.described(name)
    usage = it.usage.removeprefix(f"{PROGRAM} {name}").strip()
    first = it.short.rstrip(".")
    cost = overhead(name)
    options = {one.written: one.text for one in it.options} | {
        "-h, --help": "Show the help and exit."
    }
    examples = man_roff.code(list(it.examples)) if it.examples else []
    return _page(
        f"{PROGRAM}-{name}",
        1,
        first,
        _section("Synopsis", [f"{man_roff.bold(f'{PROGRAM} {name}')} {man_roff.escaped(usage)}"]),
        _section("Description", [x for one in it.paragraphs for x in man_roff.paragraph(one)]),
        _section("Options", _items(options)),
        _section("Exit status", _items({str(one.code): one.when for one in it.exits})),
        _section("Examples", examples) if examples else [],
        _section("Overhead", man_roff.markdown(cost)) if cost else [],
        _see_also("gpucorrelate(1)", "gpucorrelate.service(8)"),
    )


def overhead(name: str) -> str:
    """What a command's page says of its cost; empty where it says nothing."""
    path = docs_commands.page_of(name)
    text = path.read_text("utf-8") if path.exists() else ""
    found = re.search(r"^## Overhead\n(.+?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return found[1].strip() if found else ""


def _settings() -> str:
    parts: list[str] = []
    table = ""
    for key in configkeys.all_keys():
        inside, _, name = key.name.rpartition(".")
        if inside != table:
            table = inside
            parts.append(f".SS [{table}]")
        default = f" Default: `{_default(key)}`."
        parts += man_roff.item(name, f"{key.text} ({key.allowed}.){default}".replace("``", "`"))
    return _page(
        "gpucorrelate.toml",
        5,
        "settings of the gpucorrelate daemon",
        _section("Synopsis", [man_roff.bold(str(configfile.DEFAULT_PATH))]),
        _section(
            "Description",
            man_roff.markdown(_DESCRIBED[5]),
        ),
        _section("Settings", parts),
        _see_also("gpucorrelate(1)", "gpucorrelate-daemon(1)", "gpucorrelate.service(8)"),
    )


def _default(key: configkeys.Key) -> str:
    value = key.default
    if value is None:
        config = DaemonConfig()
        value = config.control_path if key.name == "control_socket" else config.ingest_path
    return str(value).lower() if isinstance(value, bool) else str(value)


def _service() -> str:
    unit = (ROOT / "systemd/gpucorrelate.service").read_text("utf-8")
    shown = ("Type", "MemoryMax", "CPUQuota", "TasksMax", "WatchdogSec", "CapabilityBoundingSet")
    limits = {
        f"{key}=": value for key, value in re.findall(r"^(\w+)=(.*)$", unit, re.M) if key in shown
    }
    codes = {str(one.code): one.when for one in exits.of("daemon")}
    return _page(
        "gpucorrelate.service",
        8,
        "the gpucorrelate daemon under systemd",
        _section("Synopsis", [man_roff.bold("gpucorrelate.service")]),
        _section(
            "Description",
            man_roff.markdown(_DESCRIBED[8]),
        ),
        _section("Limits", _items(limits)),
        _section("Exit status", _items(codes)),
        _section("Files", _items(_FILES)),
        _section("Overhead", man_roff.markdown(overhead("daemon"))),
        _see_also("gpucorrelate(1)", "gpucorrelate-daemon(1)", "gpucorrelate.toml(5)"),
    )


def main() -> int:
    """Write the pages; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="such as /usr/local/share/man")
    folder = parser.parse_args().folder
    for name, text in pages().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
