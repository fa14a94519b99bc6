"""Messages between SOLGym's processes: JSON data, raw bytes and file descriptors over a Unix socket.

Not pickle: what comes back from a process in which candidates ran must not be able to do anything here.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, Final

__all__ = ["receive_message", "send_message"]

_HEADER: Final = struct.Struct("<QQ")


def send_message(
    sock: socket.socket, message: dict[str, Any], payload: bytes = b"", fd: int | None = None
) -> None:
    """Send a message: JSON data, raw bytes, and optionally a file descriptor."""
    text = json.dumps(message).encode()
    data = _HEADER.pack(len(text), len(payload)) + text + payload
    if fd is not None:
        data = data[socket.send_fds(sock, [data[: _HEADER.size]], [fd]) :]
    sock.sendall(data)


def receive_message(sock: socket.socket) -> tuple[dict[str, Any], bytes, int | None]:
    """Receive what ``send_message`` sent.

    Raises:
        EOFError: the other side is gone.
    """
    header, fds, _, _ = socket.recv_fds(sock, _HEADER.size, 1)
    header += _receive_exactly(sock, _HEADER.size - len(header))
    text_bytes, payload_bytes = _HEADER.unpack(header)
    message: dict[str, Any] = json.loads(_receive_exactly(sock, text_bytes))
    return message, _receive_exactly(sock, payload_bytes), fds[0] if fds else None


def _receive_exactly(sock: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        part = sock.recv(min(count - len(received), 1 << 20))
        if not part:
            raise EOFError("the connection was closed")
        received += part
    return bytes(received)
