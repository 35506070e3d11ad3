# SPDX-License-Identifier: Apache-2.0
"""Put the demo's report into README.md: ``python -m scripts.readme_report demo-out/slowest.txt``.

What stands between the two markers is replaced; nothing in the README is written by hand that
a run did not print.
"""

from __future__ import annotations

import sys
from pathlib import Path

_README = Path(__file__).resolve().parents[1] / "README.md"
_BEGIN = "<!-- report: begin -->"
_END = "<!-- report: end -->"


def main() -> int:
    """Replace the report; the exit code."""
    if len(sys.argv) != 2:
        print("usage: python -m scripts.readme_report FILE", file=sys.stderr)
        return 2
    report = Path(sys.argv[1]).read_text().rstrip()
    head, begin, rest = _README.read_text().partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    if not begin or not end:
        print(f"{_README.name} has no {_BEGIN} ... {_END}", file=sys.stderr)
        return 1
    _README.write_text(f"{head}{begin}\n```text\n{report}\n```\n{end}{tail}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
