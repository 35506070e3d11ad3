# SPDX-License-Identifier: Apache-2.0
"""File descriptors: many, and never the last ones for what others decide.

Processes and agents each cost one. The last few are kept for reading procfs and writing
recordings, so that no number of peers can stop those.
"""

from __future__ import annotations

import resource

_RESERVED = 32


def allow_many() -> None:
    """Raise this process's limit as far as it goes; the usual 1,024 are soon used up."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def scarce(fd: int) -> bool:
    """Whether a descriptor is one of the last that this process may have.

    The kernel always gives the lowest free number.
    """
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most != resource.RLIM_INFINITY and fd >= most - _RESERVED
