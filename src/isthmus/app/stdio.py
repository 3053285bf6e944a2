"""The hub on this process's standard streams, for one caller. The hub ends when the caller leaves.

`frontends.mcp.duplex` speaks the protocol; this module has the streams, the signals and the shutdown. Standard input
may be a pipe, a socket, a file or a terminal, so a thread reads it. The loop never waits for the reader of standard
output. The command line calls this.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import stat
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from isthmus.app.audit import close_audit, open_audit
from isthmus.app.definition_pins import DefinitionPins
from isthmus.app.hub import PARENT, RunningHub
from isthmus.app.reload import ConfigurationSource, Reloader
from isthmus.app.state_folder import claim
from isthmus.config.settings import Configuration
from isthmus.core.settings import Limits
from isthmus.frontends.mcp.duplex import McpStdio
from isthmus.model.calls import Surface
from isthmus.storage.memory import MemoryJournal
from isthmus.storage.server_lists import ServerListFiles

log = structlog.get_logger(__name__)

NAME = "stdio"
"""The name of this hub and its frontend in the audit log."""

CHUNK_BYTES = 64 * 1024
CHUNKS_AHEAD = 2
"""Chunks in flight from the reading thread to the loop: one in use, one being read."""

WITHDRAWAL_SECONDS = 0.1
"""How long servers may react to a cancellation before their links are closed."""

CLOSE_SECONDS = 2.0
"""How long the last responses may take to be written at the end."""


async def run_stdio(
    configuration: Configuration,
    environment: Mapping[str, str],
    source: ConfigurationSource | None = None,
    *,
    surface: Surface | None = None,
    set_name: str | None = None,
    stdin: int = 0,
    stdout: int = 1,
) -> None:
    """Serve until the caller closes `stdin` and has its responses, or until a signal.

    Only the protocol is written to `stdout`; both descriptors stay open. With a `source`, its files are watched and
    changes are applied. With `set_name`, only that set is served. Tasks last as long as the hub; calls are in the audit
    log.

    Raises:
        ConfigError: the audit log is required and cannot be opened.
    """
    if surface is None and (warning := claim(configuration, is_open=False)):
        log.warning(warning)
    pins = DefinitionPins(configuration, is_lasting=False)
    journal = MemoryJournal()
    audit_log = await open_audit(configuration, journal, NAME)
    audit = None if audit_log is None else audit_log.audit
    # A hub whose only server is a running hub lists the same as that hub.
    lists = ServerListFiles(Path(configuration.hub.state)) if surface is None else None
    running = RunningHub(configuration, environment, journal, pins=pins, lists=lists, audit=audit)
    try:
        if audit_log is not None:
            audit_log.follow(running, pins)
        if source is not None:
            Reloader(running, source, on_reloaded=None if audit_log is None else audit_log.reloaded).start()
        served = running.surface if set_name is None else Surface(running.surface.style, set=set_name)
        await _Conversation(running, surface or served, stdin, stdout).run()
    finally:
        await running.aclose()
        await pins.aclose()
        if lists is not None:
            await lists.aclose()
        await close_audit(audit_log, journal)
        # Last: an unhandled signal would kill the hub and leave its servers behind.
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)


class _Conversation:
    """The session of the only caller."""

    def __init__(self, running: RunningHub, surface: Surface, stdin: int, stdout: int) -> None:
        self._running = running
        self._limits = running.hub.limits
        self._loop = asyncio.get_running_loop()
        self._stopped: asyncio.Future[str] = self._loop.create_future()
        self._outlet = Outlet(stdout, self._limits, self._stop)
        mcp_methods = running.mcp_methods()
        mcp_methods.frontend = NAME
        self._frontend = McpStdio(
            mcp_methods, PARENT, surface, running.background, self._outlet.write, lambda: self._outlet.is_full
        )
        self._inlet = Inlet(stdin, self._frontend.feed, self._outlet)

    async def run(self) -> None:
        """Serve to the end."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop, signal.Signals(number).name)
        try:
            self._inlet.start()
            served = self._running.background.spawn("standard streams", self._serve())
            await asyncio.wait({served, self._stopped}, return_when=asyncio.FIRST_COMPLETED)
            await self._end()
        finally:
            self._outlet.close()

    def _stop(self, why: str) -> None:
        if not self._stopped.done():
            self._stopped.set_result(why)

    async def _serve(self) -> None:
        """Accept requests until the caller closes its end, then let running calls finish."""
        await self._inlet.ended.wait()
        try:
            await asyncio.wait_for(self._frontend.finish(), self._limits.drain_seconds)
        except TimeoutError:
            log.warning("calls are still running after the caller has left", seconds=self._limits.drain_seconds)

    async def _end(self) -> None:
        """Cancel running calls, so that they are answered, too, and write the last responses."""
        why = self._stopped.result() if self._stopped.done() else "the caller has left"
        self._inlet.stop()
        self._running.hub.refuse_new_calls()
        if self._running.hub.running():
            self._frontend.cancel_all(why)
            await asyncio.sleep(WITHDRAWAL_SECONDS)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._frontend.finish()
                await self._outlet.flushed()
        except TimeoutError:
            log.warning("the caller did not read its last responses", unsent=self._outlet.unsent_bytes)


class Inlet:
    """Reads any kind of descriptor in a thread, which pauses while the caller reads no responses."""

    def __init__(self, descriptor: int, feed: Callable[[bytes], None], outlet: Outlet) -> None:
        self.ended = asyncio.Event()
        self._descriptor = descriptor
        self._feed = feed
        self._outlet = outlet
        self._loop = asyncio.get_running_loop()
        self._permits = threading.Semaphore(CHUNKS_AHEAD)
        self._withheld = 0
        self._is_stopped = False
        outlet.on_room = self._resume

    def start(self) -> None:
        """Start reading. A thread that is blocked in a read does not keep the process alive."""
        threading.Thread(target=self._read, name="standard input", daemon=True).start()

    def stop(self) -> None:
        """Stop reading."""
        self._is_stopped = True

    # In the thread.

    def _read(self) -> None:
        try:
            while chunk := self._next():
                self._loop.call_soon_threadsafe(self._receive, chunk)
            self._loop.call_soon_threadsafe(self.ended.set)
        except RuntimeError:
            return  # the loop is closed

    def _next(self) -> bytes:
        self._permits.acquire()
        while True:
            try:
                return os.read(self._descriptor, CHUNK_BYTES)
            except BlockingIOError:
                # The parent made it non-blocking, or it is the same socket as standard output.
                select.select([self._descriptor], [], [])
            except OSError:
                return b""  # the terminal hung up, or there is no standard input

    # In the loop.

    def _receive(self, chunk: bytes) -> None:
        if self._is_stopped:
            return
        self._feed(chunk)
        if self._outlet.is_full:
            self._withheld += 1
        else:
            self._permits.release()

    def _resume(self) -> None:
        for _ in range(self._withheld):
            self._permits.release()
        self._withheld = 0


class Outlet:
    """Writes to a descriptor without blocking the loop.

    Pipes and sockets are written as they become writable. Files and terminals are written at once: files never block,
    and a terminal's flags are shared with the shell and must not change. The hub gives up on a reader that leaves
    over `lag_bytes` unread for `lag_seconds`, or far more at any time.

    asyncio's pipe transport does not work here: on a socket that is also standard input, it treats incoming data as
    the end of the connection.
    """

    def __init__(self, descriptor: int, limits: Limits, on_lost: Callable[[str], None]) -> None:
        self.unsent_bytes = 0
        self.on_room: Callable[[], None] = lambda: None
        self._descriptor = descriptor
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[memoryview] = deque()
        self._full_bytes = limits.lag_bytes
        self._lag_seconds = limits.lag_seconds
        self._most_bytes = limits.lag_bytes + 4 * limits.reply_bytes
        self._sent_bytes = 0
        self._is_waiting = False
        self._is_lost = False
        self._lag: asyncio.TimerHandle | None = None
        self._empty: asyncio.Future[None] | None = None
        mode = os.fstat(descriptor).st_mode
        self._can_wait = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
        if self._can_wait:
            os.set_blocking(descriptor, False)

    @property
    def is_full(self) -> bool:
        """Whether the reader is so far behind that the hub should stop reading requests."""
        return self.unsent_bytes > self._full_bytes

    def write(self, data: bytes) -> None:
        """Send `data`, now or when the descriptor is writable."""
        if self._is_lost:
            return
        self._unsent.append(memoryview(data))
        self.unsent_bytes += len(data)
        if not self._is_waiting:
            self._send()
        elif self.unsent_bytes > self._most_bytes:
            self._give_up("the caller does not read its answers")

    async def flushed(self) -> None:
        """Return once everything is written, or cannot be."""
        if self._unsent:
            self._empty = self._loop.create_future()
            await self._empty

    def close(self) -> None:
        """Drop unwritten data and restore the descriptor."""
        self._forget()
        if self._can_wait:
            os.set_blocking(self._descriptor, True)

    def _send(self) -> None:
        try:
            while self._unsent:
                count = os.write(self._descriptor, self._unsent[0])
                self.unsent_bytes -= count
                self._sent_bytes += count
                if rest := self._unsent[0][count:]:
                    self._unsent[0] = rest
                else:
                    self._unsent.popleft()
        except BlockingIOError:
            if not self._is_waiting:
                self._is_waiting = True
                self._loop.add_writer(self._descriptor, self._send)
                self._watch()
        except OSError as error:
            self._give_up(f"cannot write to the caller ({error.strerror})")
        else:
            self._done()

    def _watch(self) -> None:
        self._lag = self._loop.call_later(self._lag_seconds, self._judge, self._sent_bytes)

    def _judge(self, sent_bytes: int) -> None:
        """Give up on a reader that is far behind and has read nothing since the last check."""
        if self.is_full and self._sent_bytes == sent_bytes:
            self._give_up("the caller does not read its answers")
        else:
            self._watch()

    def _done(self) -> None:
        """Everything is written."""
        if self._is_waiting:
            self._is_waiting = False
            self._loop.remove_writer(self._descriptor)
            if self._lag is not None:
                self._lag.cancel()
            self.on_room()
        if self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def _give_up(self, why: str) -> None:
        self._forget()
        self._on_lost(why)

    def _forget(self) -> None:
        self._is_lost = True
        self._unsent.clear()
        self.unsent_bytes = 0
        self._done()
