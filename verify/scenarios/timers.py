# SPDX-License-Identifier: Apache-2.0
"""Waits that a timer ends."""

from __future__ import annotations

import ctypes
import os
import time

from gpucorrelate.verify.scenarios.kit import LIBC, Stage, checked, sleep, watched


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


def nanosleep(stage: Stage) -> None:
    """``clock_nanosleep``. It ends when the timer does; what comes after is no sleep."""
    stage.begin()
    for control in stage.rounds():
        delay = 0 if control else stage.delay()
        with stage.operation(control=control) as op:
            stage.work()
            rest = sleep(delay)
            stage.work()
        op.inject(rest.times, "sleep", "timer", queued_ns=rest.queued_ns)


def timerfd(stage: Stage) -> None:
    """A read of a timerfd, which in controls has expired before."""
    timer = checked(LIBC.timerfd_create(time.CLOCK_MONOTONIC, 0))
    stage.begin()
    for control in stage.rounds():
        delay = 1 if control else stage.delay()
        setting = _Itimerspec(_Timespec(0, 0), _Timespec(0, delay))
        with stage.operation(control=control) as op:
            stage.work()
            with watched() as wait:
                checked(LIBC.timerfd_settime(timer, 0, ctypes.byref(setting), None))
                os.read(timer, 8)
            stage.work()
        if not control:
            begun = wait.times[0]
            op.inject((begun, begun + delay), "sleep", "timer", queued_ns=wait.queued_ns)
