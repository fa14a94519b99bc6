"""The server's side of ``hardware.process``: answer requests until the owner is gone, then end with it."""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import signal
import socket
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from solgym.hardware.messages import receive_message, send_message

__all__ = ["Operation", "die_with", "serve"]

Operation = Callable[..., "dict[str, Any] | tuple[dict[str, Any], bytes]"]
"""Takes a request's ``payload`` and ``fd`` and its other keys; returns the reply, or it and bytes."""


def serve(sock: socket.socket, operations: Mapping[str, Operation]) -> None:
    """Answer requests, each named in the message's ``op``, until the other side is gone."""
    while True:
        try:
            message, payload, fd = receive_message(sock)
        except (EOFError, ConnectionError):
            return
        answer = b""
        try:
            reply = operations[message.pop("op")](payload=payload, fd=fd, **message)
            if isinstance(reply, tuple):
                reply, answer = reply
        except Exception as error:
            reply = {"fault": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        send_message(sock, reply | {"resident_bytes": _resident_bytes()}, answer)


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


def die_with(alive: int) -> None:
    """Arrange that this process is ended when the other end of the pipe ``alive`` is closed, whatever it is
    doing.

    PR_SET_PDEATHSIG would not do: it fires when the *thread* that started the process ends, and a read only
    notices once the candidate has returned. A pipe that signals its owner on hang-up has neither problem.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGIO})
    fcntl.fcntl(alive, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(alive, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    poller = select.poll()
    poller.register(alive, 0)
    if poller.poll(0):
        os._exit(0)
