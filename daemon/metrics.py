# SPDX-License-Identifier: Apache-2.0
"""The daemon's own metrics: on or off by its settings, and never in the way of anything else."""

from __future__ import annotations

import importlib.util
import logging
import time
from typing import TYPE_CHECKING

from gpucorrelate.daemon import metrics_address
from gpucorrelate.probes.wire.errors import DaemonError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpucorrelate.daemon.config import MetricsConfig
    from gpucorrelate.daemon.metrics_server import MetricsServer
    from gpucorrelate.daemon.metrics_text import Requests
    from gpucorrelate.daemon.request_meter import RequestMeter
    from gpucorrelate.daemon.values import DaemonStatus

log = logging.getLogger(__name__)

#: How often it is tried again to listen where that was not possible.
_RETRY_S = 10.0
_PACKAGE = "prometheus_client"


def demand_package(config: MetricsConfig) -> None:
    """Make sure that metrics can be served, where they are to be.

    Raises:
        UsageError: the package for it is not installed.
    """
    if config.listen and importlib.util.find_spec(_PACKAGE) is None:
        raise UsageError(
            f"metrics need {_PACKAGE}, which is not installed",
            hint="pip install 'gpucorrelate[metrics]', or leave metrics.listen empty",
        )


class Metrics:
    """The server of the metrics, present or not. All methods are for the daemon's loop.

    Args:
        config: The settings.
        status: Gives the daemon's status as a user may see it; root's is asked for.
        control: The daemon's control socket, for the process that counts requests.

    Attributes:
        fault: Why there are none though they are asked for; empty while all is well.
    """

    def __init__(
        self, config: MetricsConfig, status: Callable[[int], DaemonStatus], control: Path
    ) -> None:
        self.fault = ""
        self._config = config
        self._status = status
        self._control = control
        self._server: MetricsServer | None = None
        self._meter: RequestMeter | None = None
        self._retry_s = 0.0

    def open(self) -> None:
        """Begin to serve; what stands in the way is told, and tried again by ``tick``."""
        self.close()
        self.fault = ""
        if not self._config.listen:
            return
        self._retry_s = time.monotonic() + _RETRY_S
        # What it needs is loaded by those alone who want it.
        from gpucorrelate.daemon.metrics_server import MetricsServer

        try:
            server = MetricsServer(metrics_address.parse(self._config.listen), self._requests)
        except DaemonError as exc:
            if not self.fault:
                log.warning("%s (%s)", exc.message, exc.hint or "tried again")
            self.fault = f"{exc.message}{f' ({exc.hint})' if exc.hint else ''}"
            return
        if self._config.requests:
            self._count_requests()
        server.start()
        self._server = server
        log.info("metrics on %s, port %d", self._config.listen, server.port)

    def reconfigure(self, config: MetricsConfig) -> None:
        """From now on serve elsewhere, or no more, or again."""
        if config != self._config:
            self._config = config
            self.open()

    def tick(self) -> None:
        """A turn of the loop: give what is asked for."""
        server = self._server
        if server is None:
            if self.fault and time.monotonic() >= self._retry_s:
                self._try_again()
            return
        server.turned_s = time.monotonic()
        if server.wanted:
            server.give(self._status(0))

    def close(self) -> None:
        """Serve no more."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        meter, self._meter = self._meter, None
        if meter is not None:
            meter.close()

    def _count_requests(self) -> None:
        from gpucorrelate.daemon import request_meter

        self._meter = request_meter.RequestMeter(request_meter.command(self._control))
        self._meter.start()

    def _requests(self) -> Requests | None:
        """What was counted, for the server's thread."""
        from gpucorrelate.daemon.metrics_text import Requests

        meter = self._meter
        if meter is None:
            return None
        return Requests(meter.latest, meter.starts, self._config.exemplars)

    def _try_again(self) -> None:
        known = self.fault
        self.open()
        if not self.fault:
            log.warning("metrics are served: what stood in the way is gone: %s", known)
