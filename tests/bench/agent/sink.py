# SPDX-License-Identifier: Apache-2.0
"""The other end of an agent's socket: reads all, understands nothing, says what it is told.

``python sink.py SOCKET``; each line on standard input (``start`` or ``stop``) goes to every
agent connected. On end of input it prints the bytes it read and ends.
"""

from __future__ import annotations

import selectors
import socket
import struct
import sys

import msgpack


def message(op: str) -> bytes:
    """A control message of the ingest protocol."""
    body: bytes = msgpack.packb({"op": op, "session": "bench"})
    return struct.pack("<I", len(body)) + body


def main(path: str) -> None:
    """Serve until standard input ends."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ, listener)
    selector.register(sys.stdin, selectors.EVENT_READ)
    peers: list[socket.socket] = []
    total = 0
    print("ready", flush=True)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                peer, _ = listener.accept()
                selector.register(peer, selectors.EVENT_READ, peer)
                peers.append(peer)
            elif key.data is None:
                line = sys.stdin.readline()
                if not line:
                    print(total, flush=True)
                    return
                for peer in peers:
                    peer.sendall(message(line.strip()))
            else:
                peer = key.data
                data = peer.recv(1 << 20)
                total += len(data)
                if not data:
                    selector.unregister(peer)
                    peers.remove(peer)


if __name__ == "__main__":
    main(sys.argv[1])
