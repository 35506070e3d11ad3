# SPDX-License-Identifier: Apache-2.0
"""A recording as typed values and as tables, for notebooks, scripts and SQL.

``gpucorrelate.open`` is the way in; docs/api.md has a tour, docs/schema.md every column.
"""

from gpucorrelate.api.runs import Run, open_run
from gpucorrelate.api.schema import SCHEMA_VERSION, TABLES, Column, TableSchema
from gpucorrelate.api.tables import Table
from gpucorrelate.api.values import (
    Capability,
    Cause,
    Change,
    Counter,
    Fact,
    GpuOp,
    HostNumber,
    LedgerEntry,
    Loss,
    Membership,
    Request,
    Segment,
    Step,
    StepSegment,
    Token,
    Wait,
)

__all__ = [
    "SCHEMA_VERSION",
    "TABLES",
    "Capability",
    "Cause",
    "Change",
    "Column",
    "Counter",
    "Fact",
    "GpuOp",
    "HostNumber",
    "LedgerEntry",
    "Loss",
    "Membership",
    "Request",
    "Run",
    "Segment",
    "Step",
    "StepSegment",
    "Table",
    "TableSchema",
    "Token",
    "Wait",
    "open_run",
]
