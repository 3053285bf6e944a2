"""Listening sockets for a host and a port, or an error that says what to do. Only the door calls it."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

BACKLOG = 2048
"""Connections the kernel keeps for us while the loop is busy."""

UNSENT_KERNEL_BYTES = 128 * 1024
"""Output the kernel may hold back; its default of 4 MiB would hide from us for long that a reader stalls."""

Address = tuple[Any, ...]


class DoorError(Exception):
    """The address cannot be listened on; the message says which, why, and what to do."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        shown = f"[{host}]" if ":" in host else host
        super().__init__(f"cannot listen on {shown}:{port}: {reason}")
        self.host = host
        self.port = port
        self.reason = reason


async def bind_all(host: str, port: int) -> list[socket.socket]:
    """Bind every address that `host` stands for, all to one port."""
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, address in await _resolve(host, port):
            # The system chooses a port once; a second address (::1 beside 127.0.0.1) has to take the same.
            chosen = sockets[0].getsockname()[1] if sockets else port
            try:
                sockets.append(_bind(family, (address[0], chosen, *address[2:])))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                missing = error  # No IPv6 here, say: the other addresses will do.
        if missing is not None and not sockets:
            raise missing
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise DoorError(host, port, advice(error)) from error
    return sockets


async def _resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _bind(family: socket.AddressFamily, address: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            # Accepted connections inherit it from their listener.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_KERNEL_BYTES)
        sock.bind(address)
        # Linux lets two sockets bind one port until one listens, so only this shows that the address is free.
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def advice(error: OSError) -> str:
    """What went wrong, and what somebody can do about it."""
    if isinstance(error, socket.gaierror):
        return "the host name is not known here; use an address of this machine, such as 127.0.0.1"
    if error.errno == errno.EADDRINUSE:
        return "the address is in use; stop the program that has it or choose another port"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "that is not permitted; choose a port above 1023 or run with the right to use this one"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine does not have that address; use 127.0.0.1, or 0.0.0.0 for all of them"
    return f"the system refused ({error.strerror})"
