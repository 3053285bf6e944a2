"""Closing a connection so that nothing more of it leaves. Connections that keep account of what left call it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress


def cut(transport: asyncio.Transport) -> None:
    """Close `transport` so that nothing it still holds is written, not even by a write already under way.

    uvloop's abort() alone leaves the write to run until the handle is closed, one turn of the loop later; a
    request reported as not sent could then still arrive.
    """
    if not transport.is_closing() and transport.get_write_buffer_size() > 0:
        sock = transport.get_extra_info("socket")
        with suppress(OSError), socket.fromfd(sock.fileno(), sock.family, sock.type) as twin:
            twin.shutdown(socket.SHUT_RDWR)
    transport.abort()
