# SPDX-License-Identifier: Apache-2.0
"""Whole captures of a simulated serving engine, with exact truth.

``machine`` runs threads, ``device`` the streams of a GPU and ``queue`` shared memory; ``engine``,
``core`` and ``worker`` are the processes of a serving engine on them, ``disturb`` is what gets in
their way. All of them write the rows that the probes would have written (``records``, with
``loss`` taking out what is to be lost and ``clock`` what a device's clock makes of its times), and
keep for themselves what really let each stretch of time go on: ``truth`` follows that backward.
``check`` lets the product read the recording and compares. ``options`` says what can be varied,
``presets`` follow published figures, ``chance`` draws small engines.

What is not simulated, so that nothing here says anything of it: kernels of several ranks that
wait for each other, waits that are too short to be recorded one by one, CPU quotas, several
engine cores, and requests that are aborted or refused.
"""
