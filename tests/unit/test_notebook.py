# SPDX-License-Identifier: Apache-2.0
"""The notebook of docs/api.md, and the page's own examples, on a run of a simulated engine."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import gpucorrelate
from tests.truth.synthetic.check import simulate
from tests.unit.test_perfetto import OPTIONS

if TYPE_CHECKING:
    from gpucorrelate.api import Run

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "bad.gpcf"
    path.write_bytes(simulate(OPTIONS)[1])
    return path


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs(path: Path, recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("GPUCORRELATE_RUN", str(recording))
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in cells:
        cell.outputs = []
    client = nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(recording.parent)}}
    )
    client.execute()
    assert len(cells) > 5
    assert all(cell.execution_count for cell in cells)
    assert sum(bool(cell.outputs) for cell in cells) > len(cells) // 2


def test_what_a_notebook_shows_is_of_a_real_run() -> None:
    nbformat = pytest.importorskip("nbformat")
    assert NOTEBOOKS
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        shown = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.outputs]
        assert len(shown) > 5
        assert all(one.output_type != "error" for cell in shown for one in cell.outputs)


def test_the_examples_of_the_page_run(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(recording.parent)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "api.md").read_text("utf-8"), re.DOTALL)
    assert len(blocks) > 5
    with gpucorrelate.open("bad.gpcf") as run:
        names = [row.request_id for row in run.requests]
        Path("clients.csv").write_text(
            "request_id,tenant\n" + "".join(f"{name},t\n" for name in names)
        )
        known: dict[str, object] = {"run": run, "gpucorrelate": gpucorrelate}
        for block in blocks:
            _execute(block.replace("chatcmpl-8f3a", names[0]), known)
        by_quarter = known["by_quarter"]
        assert sorted(set(by_quarter["quarter"])) == [1, 2, 3, 4]  # type: ignore[index]
        _means_agree(run, by_quarter)


def _execute(block: str, known: dict[str, object]) -> None:
    exec(compile(ast.parse(block), "docs/api.md", "exec"), known)


def _means_agree(run: Run, by_quarter: object) -> None:
    """The sums of the page's table are the quarters' means of TTFT."""
    ttft = sorted(row.ttft_ns for row in run.requests if row.ttft_ns is not None)
    sizes = [len(ttft) // 4 + (n < len(ttft) % 4) for n in range(4)]
    at = 0
    for quarter, size in enumerate(sizes, 1):
        rows = by_quarter[by_quarter["quarter"] == quarter]  # type: ignore[index]
        mean_ms = sum(ttft[at : at + size]) / size / 1e6
        assert rows["ms"].sum() == pytest.approx(mean_ms)
        at += size
