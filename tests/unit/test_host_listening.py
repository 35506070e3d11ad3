# SPDX-License-Identifier: Apache-2.0
"""Where a process listens, by what the kernel says of its sockets."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucorrelate.probes.host.listening import Listener, parse_tcp, read_listeners

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"


def line(address: str, state: str = "0A", inode: int = 7) -> str:
    return f"   0: {address} 00000000:0000 {state} 0:0 00:0 0 0 0 {inode} 1 0000 100 0 0 10 0\n"


def test_listening_sockets_with_their_addresses() -> None:
    text = HEAD + line("0100007F:1F40") + line("00000000:0050", inode=8)
    text += line("0100007F:1F41", state="01") + "nonsense\n"
    text += line("00000000000000000000000001000000:1F90", inode=9)
    assert parse_tcp(text) == (
        Listener("127.0.0.1", 8000, 7),
        Listener("0.0.0.0", 80, 8),
        Listener("::1", 8080, 9),
    )


def test_how_a_socket_bound_to_everything_is_reached() -> None:
    assert Listener("0.0.0.0", 1, 1).reached_by == "127.0.0.1"
    assert Listener("::", 1, 1).reached_by == "::1"
    assert Listener("10.0.0.1", 1, 1).reached_by == "10.0.0.1"


@given(st.text(max_size=300))
def test_no_text_breaks_the_reading(text: str) -> None:
    parse_tcp(text)
    parse_tcp(HEAD + text)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_real_socket_of_ones_own(host: str) -> None:
    family = socket.AF_INET if "." in host else socket.AF_INET6
    try:
        server = socket.socket(family)
        server.bind((host, 0))
    except OSError as exc:
        pytest.skip(f"no {host} here: {exc}")
    with server:
        port = server.getsockname()[1]
        assert (host, port) not in [(one.host, one.port) for one in read_listeners(os.getpid())]
        server.listen()
        assert (host, port) in [(one.host, one.port) for one in read_listeners(os.getpid())]
        # It is not its parent's, though that one lives in the same network.
        assert port not in [one.port for one in read_listeners(os.getppid())]
    assert port not in [one.port for one in read_listeners(os.getpid())]


def test_a_process_of_another_network_is_not_reached(tmp_path: Path) -> None:
    for pid, net in (("7", "net:[1]"), ("self", "net:[2]")):
        (tmp_path / pid / "ns").mkdir(parents=True)
        (tmp_path / pid / "ns/net").symlink_to(net)
    (tmp_path / "7/net").mkdir()
    (tmp_path / "7/net/tcp").write_text(HEAD + line("0100007F:1F40"))
    (tmp_path / "7/fd").mkdir()
    (tmp_path / "7/fd/3").symlink_to("socket:[7]")
    assert read_listeners(7, tmp_path) == ()
    (tmp_path / "self/ns/net").unlink()
    (tmp_path / "self/ns/net").symlink_to("net:[1]")
    assert read_listeners(7, tmp_path) == (Listener("127.0.0.1", 8000, 7),)
    assert read_listeners(8, tmp_path) == ()
