# SPDX-License-Identifier: Apache-2.0
"""Whole captures of a simulated serving engine, with exact truth.

``machine`` runs threads, ``device`` the streams of a GPU, ``engine`` the processes of a serving
engine on them, ``disturb`` what gets in their way. All of them write the rows that the probes
would have written (``records``), and keep for themselves what really let each stretch of time go
on; ``truth`` follows that backward. ``check`` lets the product read the recording and compares.
"""
