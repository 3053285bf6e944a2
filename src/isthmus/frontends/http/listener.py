"""The HTTP listener: one address, opened, drained and closed.

uvicorn alone keeps sockets that never finish a request head, cannot disconnect a client that stops reading, and does
not end while a stream is open. This does all three with uvicorn's parser. One timer per listener inspects every
connection, so that requests need no timers of their own.

It knows nothing of MCP, callers or routes: `app` builds a `HttpListener` around an ASGI application, and frontends
find the client of a request as a `Peer` in the scope. `app` handles signals.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import socket
import sys
from collections.abc import Callable
from typing import Any, cast

import structlog
from uvicorn.config import Config

from isthmus.frontends.http.connection import HoldResponse, HttpServerConnection, ListenerState
from isthmus.frontends.http.request_cycle import PEER, App, Peer, SyncHandler, call_contained
from isthmus.frontends.http.settings import HttpListenerSettings
from isthmus.frontends.http.websocket_upgrade import OnUpgrade

BACKLOG = 2048
"""Connections that the kernel queues while the event loop is busy."""

UNSENT_KERNEL_BYTES = 128 * 1024
"""Unsent output in the kernel; its default of 4 MiB would hide a stalled client for long."""

Address = tuple[Any, ...]


UNKNOWN_HOST = "the host name is not known here; use an address of this machine, such as 127.0.0.1"


class ListenError(Exception):
    """The address cannot be used; the message says which, why, and what to do."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        shown = f"[{host}]" if ":" in host else host
        super().__init__(f"cannot listen on {shown}:{port}: {reason}")
        self.host = host
        self.port = port
        self.reason = reason


async def bind_all(host: str, port: int, *, shares_port: bool = False, listens: bool = True) -> list[socket.socket]:
    """Bind every address of `host`, all to one port. Other processes of this user may share the port, if it says so.

    Sockets that do not listen keep the port for those that will.
    """
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            # The system chooses a port once; a second address (::1 beside 127.0.0.1) must use the same.
            chosen = sockets[0].getsockname()[1] if sockets else port
            try:
                sockets.append(
                    _bind(family, (address[0], chosen, *address[2:]), shares_port=shares_port, listens=listens)
                )
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                missing = error  # No IPv6 here, say: the other addresses will do.
        if missing is not None and not sockets:
            raise missing
    except UnicodeError as error:  # a part of the name is empty or longer than 63 characters
        raise ListenError(host, port, UNKNOWN_HOST) from error
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise ListenError(host, port, advice(error)) from error
    return sockets


def _bind(family: socket.AddressFamily, address: tuple[Any, ...], *, shares_port: bool, listens: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            # Accepted connections inherit it from their listener.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_KERNEL_BYTES)
        sock.bind(address)
        # Linux lets two sockets bind one port until one listens, so only this shows that the address is free.
        if listens:
            sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def advice(error: OSError) -> str:
    """What went wrong, and what to do about it."""
    if isinstance(error, socket.gaierror):
        return UNKNOWN_HOST
    if error.errno == errno.EADDRINUSE:
        return "the address is in use"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "that is not permitted; choose a port above 1023 or run with the permission to use this one"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine does not have that address; use 127.0.0.1, or 0.0.0.0 for all of them"
    return f"the system refused ({error.strerror})"


if sys.platform != "win32":
    import resource

log = structlog.get_logger(__name__)

__all__ = ["PEER", "App", "HttpListener", "HttpListenerSettings", "ListenError", "Peer"]

DRAIN_INSPECT_SECONDS = 0.02
"""How often connections are inspected during a drain."""

LAME_DUCK_SECONDS = 0.25
"""How long idle connections stay open after a drain has started, so that requests on their way are answered."""

DESCRIPTORS_REPORT_SECONDS = 60.0
"""How often missing file descriptors are logged."""

CLOSE_SECONDS = 0.5
"""How long closing waits for cancelled requests; a second signal must end the hub within a second."""


class HttpListener:
    """One listening address that serves one ASGI application on the running loop.

    Its owner opens it, later drains it (once) and always closes it. It starts no tasks itself.
    """

    def __init__(self, app: App, settings: HttpListenerSettings) -> None:
        self._settings = settings
        self._config = _uvicorn_config(app)
        self._state = ListenerState(settings)
        self._listeners: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None
        self._on_drain: list[Callable[[], None]] = []
        self._emptied: asyncio.Future[bool] | None = None
        self._listening = -1
        self._report_descriptors_at = float("-inf")

    @property
    def is_draining(self) -> bool:
        """Whether the listener has stopped accepting."""
        return self._state.idle_until is not None

    def connections(self) -> int:
        """Open connections."""
        return len(self._state.connections)

    def offer(self, at_once: SyncHandler) -> None:
        """Offer every request that has arrived whole to `at_once` before the application."""
        self._state.at_once = at_once

    def count_responses(self, hold: HoldResponse) -> None:
        """Have long responses counted until their clients have read them."""
        self._state.hold_response = hold

    def offer_sockets(self, on_upgrade: OnUpgrade) -> None:
        """Let `on_upgrade` decide on requests for a WebSocket. An open WebSocket leaves the listener."""
        self._state.on_upgrade = on_upgrade

    def allow_pages(self, cors_lines: Callable[[bytes], bytes]) -> None:
        """Add these header lines to every response to a web page; `cors_lines` gets the page's origin."""
        self._state.cors_lines = cors_lines

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Call `callback` when draining begins, so that a frontend can end its idle streams."""
        self._on_drain.append(callback)

    async def open(self, sockets: list[socket.socket] | None = None) -> int:
        """Start serving and return the port, which the system chooses if the settings say 0.

        The sockets may be bound already, by `bind_all`.

        Raises:
            ListenError: the address is in use, not permitted or not of this machine.
        """
        loop = asyncio.get_running_loop()
        if sockets is None:
            sockets = await bind_all(self._settings.host, self._settings.port)
        make = functools.partial(HttpServerConnection, self._config, self._state)
        self._listeners = [await loop.create_server(make, sock=sock, backlog=BACKLOG) for sock in sockets]
        self._timer = loop.call_later(self._settings.inspect_seconds, self._inspect_all)
        self._listening = sockets[0].fileno()
        return int(sockets[0].getsockname()[1])

    async def drain(self, within: float | None = None) -> bool:
        """Stop accepting, call the `on_drain` callbacks, and wait for the running requests.

        Returns False if some still run after `within` seconds (default: the settings'), or `close` came first.
        """
        if self._timer is None:
            return True  # Not open.
        loop = asyncio.get_running_loop()
        if not self.is_draining:
            self._state.idle_until = loop.time() + LAME_DUCK_SECONDS
            self._stop_accepting()
            for connection in tuple(self._state.connections):
                connection.shutdown()
            for callback in self._on_drain:
                call_contained(callback)
        if self._emptied is None:
            self._emptied = loop.create_future()
        self._inspect_all()
        seconds = self._settings.drain_seconds if within is None else within
        await asyncio.wait({self._emptied}, timeout=seconds)
        return self._emptied.done() and self._emptied.result()

    async def close(self) -> None:
        """Abort what is left; a running `drain` returns. Ends within a second, and may be called again."""
        self._stop_accepting()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in tuple(self._state.connections):
            connection.transport.abort()
        tasks = {task for task in self._state.tasks if task is not asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        if self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(False)

    def _stop_accepting(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners = []

    def _inspect_all(self) -> None:
        """Inspect every connection, and schedule the next inspection."""
        assert self._timer is not None, "set while open"
        self._timer.cancel()
        loop = asyncio.get_running_loop()
        seconds = DRAIN_INSPECT_SECONDS if self.is_draining else self._settings.inspect_seconds
        self._timer = loop.call_later(seconds, self._inspect_all)
        now = loop.time()
        if self._listeners:
            self._check_descriptors(now)
        for connection in tuple(self._state.connections):
            if isinstance(connection, HttpServerConnection):
                connection.inspect(now)
        is_busy = bool(self._state.connections or self._state.tasks)
        if self._emptied is not None and not self._emptied.done() and not is_busy:
            self._emptied.set_result(True)

    def _check_descriptors(self, now: float) -> None:
        """Log when all descriptors are in use: uvloop silently accepts and closes connections then."""
        try:
            os.close(os.dup(self._listening))
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or now < self._report_descriptors_at:
                return
            self._report_descriptors_at = now + DESCRIPTORS_REPORT_SECONDS
            log.error(
                "out of file descriptors: new connections are closed",
                limit=None if sys.platform == "win32" else resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                connections=len(self._state.connections),
                fix="raise the limit (ulimit -n, LimitNOFILE= in systemd), or lower limits.connections",
            )


def _uvicorn_config(app: App) -> Config:
    config = Config(
        cast(Any, app),
        interface="asgi3",
        http=HttpServerConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
    )
    config.load()
    return config
