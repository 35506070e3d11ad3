# SPDX-License-Identifier: Apache-2.0
"""Where the daemon's own metrics are served: an address of this machine and a port."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from gpucorrelate.probes.wire.errors import UsageError

_EXAMPLE = '127.0.0.1:9469" or "[::1]:9469'
_MOST_PORT = 65_535


@dataclass(frozen=True)
class Address:
    """An address to listen on.

    Attributes:
        host: An IP address.
        port: Port; 0: any that is free.
    """

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return ipaddress.ip_address(self.host).is_loopback

    @property
    def is_v6(self) -> bool:
        """Whether it is one of IPv6."""
        return ipaddress.ip_address(self.host).version == 6

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if self.is_v6 else f"{self.host}:{self.port}"


def parse(text: str) -> Address:
    """The address in a setting like ``127.0.0.1:9469``; names are not looked up.

    Raises:
        UsageError: it is none.
    """
    host, colon, port = text.rpartition(":")
    wrong = UsageError(f'metrics.listen = "{text[:60]}": must be like "{_EXAMPLE}"')
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > _MOST_PORT:
        raise wrong
    bracketed = host.startswith("[") and host.endswith("]")
    host = "127.0.0.1" if host == "localhost" else host.strip("[]") if bracketed else host
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        raise wrong from None
    if (found.version == 6) is not bracketed or getattr(found, "scope_id", None):
        raise wrong
    return Address(str(found), int(port))


def check(listen: str, *, remote: bool) -> None:
    """Refuse what cannot be listened on, or others than this machine could reach unasked.

    Raises:
        UsageError: it is not allowed.
    """
    if listen and not parse(listen).is_loopback and not remote:
        raise UsageError(
            f'metrics.listen = "{listen}": other machines could read it',
            hint='listen on "127.0.0.1:..." or "[::1]:...", or allow it: remote = true',
        )
