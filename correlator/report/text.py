# SPDX-License-Identifier: Apache-2.0
"""Reports as text for a terminal, a page or a mail: one entry per kind of report value."""

from gpucorrelate.correlator.report.page import TextOptions
from gpucorrelate.correlator.report.text_lists import render_requests, render_steps
from gpucorrelate.correlator.report.text_request import render_request
from gpucorrelate.correlator.report.text_step import render_step
from gpucorrelate.correlator.report.text_summary import render_summary

__all__ = [
    "TextOptions",
    "render_request",
    "render_requests",
    "render_step",
    "render_steps",
    "render_summary",
]
