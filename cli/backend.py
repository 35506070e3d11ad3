# SPDX-License-Identifier: Apache-2.0
"""The option of the commands that load the kernel probes themselves: what loads them."""

from __future__ import annotations

import click

from gpucorrelate.daemon.config import BACKENDS

backend_option = click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default=BACKENDS[0],
    show_default=True,
    help="What loads the kernel probes; auto: libbpf where it works, else BCC if it is there.",
)
