# SPDX-License-Identifier: Apache-2.0
"""The generated files agree with the schema, and C lays records out as numpy does."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.probes.ebpf import build, layout
from gpucorrelate.probes.ebpf.ring import RECORD
from gpucorrelate.probes.wire import cgen, schema

if TYPE_CHECKING:
    from pathlib import Path


def test_the_committed_files_are_what_the_schema_says() -> None:
    assert cgen.stale(cgen.files()) == []
    assert cgen.stale(build.generated()) == []
    assert cgen.main(["--check"]) == 0
    assert build.main(["--check"]) == 0


def test_a_changed_file_is_stale(tmp_path: Path) -> None:
    good, changed, gone = tmp_path / "good", tmp_path / "changed", tmp_path / "gone"
    good.write_text("x\n")
    changed.write_text("y\n")
    assert cgen.stale(((good, "x\n"), (changed, "x\n"), (gone, "x\n"))) == [changed, gone]


def test_check_fails_on_a_stale_file_and_writing_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cgen, "HEADER_PATH", tmp_path / "ebpf" / "events.gen.h")
    monkeypatch.setattr(cgen, "DOCS_PATH", tmp_path / "docs" / "events.md")
    assert cgen.main(["--check"]) == 1
    assert "events.gen.h" in capsys.readouterr().err
    assert cgen.main([]) == 0
    assert cgen.main(["--check"]) == 0


def test_the_record_is_as_long_as_its_fields() -> None:
    assert RECORD.itemsize == cgen.record_size() == 80
    # With the ring's 8-byte header a record must keep the next one aligned.
    assert (RECORD.itemsize + 8) % 8 == 0


_OFFSETS = """
#include <stddef.h>
#include <stdio.h>
#include <linux/types.h>
#include "events.gen.h"
#define SHOW(field) printf("%s %zu %zu\\n", #field, offsetof(struct gpc_rec, field), \\
                           sizeof(((struct gpc_rec *)0)->field))
int main(void)
{
@SHOWS@
        printf("GPC_WAIT_EPOLL %d\\n", GPC_WAIT_EPOLL);
        return 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_c_compiler_lays_the_record_out_as_numpy_does(tmp_path: Path) -> None:
    shows = "\n".join(f"        SHOW({column.name});" for column in schema.KERNEL_RECORD)
    source = tmp_path / "offsets.c"
    source.write_text(_OFFSETS.replace("@SHOWS@", shows))
    program = tmp_path / "offsets"
    subprocess.run(["cc", "-I", str(cgen.HEADER_PATH.parent), "-o", program, source], check=True)
    lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split(
        "\n"
    )
    assert f"GPC_WAIT_EPOLL {schema.WaitKind.EPOLL:d}" in lines
    fields = RECORD.fields
    assert fields is not None
    for name in RECORD.names or ():
        dtype, offset = fields[name][:2]
        assert f"{name} {offset} {dtype.itemsize}" in lines


def test_every_kind_and_column_is_documented() -> None:
    text = cgen.event_docs()
    for kind in schema.KINDS:
        assert f"## `{kind.name}` ({kind.id})" in text
        for column in kind.columns:
            assert f"| `{column.name}` | {column.ctype} |" in text
    assert "| 1 | OPEN | still waiting when it was reported" in text


def test_slots_do_not_overlap_and_fit() -> None:
    for members, words in (
        (layout.ConfigSlot, layout.CONFIG_WORDS),
        (layout.ControlSlot, layout.CONTROL_WORDS),
        (layout.CpuSlot, layout.CPU_WORDS),
    ):
        values = [int(member) for member in members]
        assert len(set(values)) == len(values)
        assert max(values) < words
    # The kernel counts a drop at the position of its record's kind.
    for kind in schema.KernelRecord:
        assert int(layout.CpuSlot[f"DROP_{kind.name}"]) == int(kind)
