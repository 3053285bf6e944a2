"""The reconnectors of all servers of one hub: servers are added, changed and removed without affecting the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import Hub
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.model.credentials import Subject
from isthmus.model.features import Topic
from isthmus.model.names import ServerName
from isthmus.upstream.listing import ListCache
from isthmus.upstream.reconnector import Connect, Reconnector
from isthmus.upstream.server_settings import ServerSettings, starts_the_same

log = structlog.get_logger(__name__)

LEAVE_SECONDS = 10.0
"""Time for reconnectors to close their links."""

TAKE_OVER_SECONDS = 60.0
"""How long a changed server may take to start before it replaces the old one in any case."""


class Supervisor:
    """Owns all servers. Each is in `reconnectors` unless it is disabled."""

    def __init__(self, hub: Hub, background: BackgroundTasks, connect: Connect, lists: ListCache | None = None) -> None:
        """Without `lists`, nothing is known of servers before they respond."""
        self.grace_of: Callable[[ServerSettings], float] = lambda _: 0.0
        """How long calls of a server wait for a new link after the last one."""
        self.on_lists_changed: Callable[[ServerName, Sequence[Topic]], None] = lambda _server, _topics: None
        """Called with the lists of a server that have changed."""
        self.on_asked: Callable[[ServerName], None] = lambda _server: None
        """Called once per server whose questions do not name their call."""
        self._lists = lists
        self._hub = hub
        self._background = background
        self._connect = connect
        self.reconnectors: dict[ServerName, Reconnector] = {}
        self._tasks: dict[Reconnector, asyncio.Task[None]] = {}
        self._successors: dict[ServerName, Reconnector] = {}
        """Reconnectors that replace another one as soon as they have a link."""

    # -- adding ----------------------------------------------------------------------------------------------------

    def add(self, settings: ServerSettings, *, is_awaited: bool = True) -> None:
        """Start a server; returns at once.

        Lists and calls wait a moment for it. A server that joins a running hub is announced when it is ready instead,
        so that no other call waits.
        """
        if settings.disabled:
            server_queue = ServerQueue(settings.name, self._hub.limits)
            server_queue.explain("it is disabled in the configuration")
            status = ServerStatus(settings.name, "disabled", "disabled", is_settled=True)
            self._hub.open_server_queue(server_queue, status)
            return
        reconnector = self._start(settings)
        self.reconnectors[settings.name] = reconnector
        reconnector.publish(is_awaited=is_awaited)

    def _start(self, settings: ServerSettings) -> Reconnector:
        server_queue = ServerQueue(
            settings.name,
            self._hub.limits,
            max_calls=settings.max_calls,
            max_queued=settings.max_queued,
            timeout=settings.timeout,
        )
        reconnector = Reconnector(self._hub, self._background, server_queue, settings, self._connect, self._lists)
        reconnector.grace = server_queue.grace = self.grace_of(settings)
        reconnector.on_lists_changed = lambda topics: self.on_lists_changed(settings.name, topics)
        reconnector.on_asked = lambda: self.on_asked(settings.name)
        task = self._background.spawn(
            f"reconnector of {settings.name}", reconnector.run(), on_crash=reconnector.crashed
        )
        self._tasks[reconnector] = task

        def ended(_task: asyncio.Task[None]) -> None:
            self._tasks.pop(reconnector, None)
            if not reconnector.tried.done():  # it was stopped before its first attempt
                reconnector.tried.set_result(None)

        task.add_done_callback(ended)
        return reconnector

    # -- changing --------------------------------------------------------------------------------------------------

    def change(self, settings: ServerSettings) -> None:
        """Apply a server's new settings: at once if possible, else with a new link.

        The old link serves until the new one is ready, so that no call waits for the change.
        """
        present = self.reconnectors.get(settings.name)
        self._drop_successor(settings.name)
        if present is None or settings.disabled:
            log_lines = self._hub.server_queues[settings.name].log
            self.remove(settings.name, "it was disabled")
            self.add(settings, is_awaited=False)
            self._hub.server_queues[settings.name].log = log_lines
            log_lines.add(time.time(), "hub", "disabled" if settings.disabled else "enabled")
        elif starts_the_same(present.settings, settings):
            present.adjust(settings)
        else:
            self._replace(present, settings)

    def restart(self, server: ServerName) -> bool:
        """Start a server anew beside the old one, which serves until it is ready; False if the hub starts none."""
        present = self.reconnectors.get(server)
        if present is None:
            return False
        self._drop_successor(server)
        present.server_queue.log.add(time.time(), "hub", "restarting: an operator asked for it")
        log.info("server restarting", server=server)
        self._replace(present, present.settings)
        return True

    def move(self, settings: ServerSettings) -> None:
        """Connect a server anew, at another node. The old link serves until then."""
        present = self.reconnectors.get(settings.name)
        if present is not None and present.active_link is not None:
            self._drop_successor(settings.name)
            self._replace(present, settings)
        elif present is not None:
            present.retry()

    def _replace(self, present: Reconnector, settings: ServerSettings) -> None:
        successor = self._successors[settings.name] = self._start(settings)
        successor.is_hidden = True
        successor.inherit(present)
        self._background.spawn(f"change of {settings.name}", self._take_over(successor))

    def _drop_successor(self, server: ServerName) -> None:
        successor = self._successors.pop(server, None)
        if successor is not None:
            self._background.spawn(f"end of {server}", self._end(successor))

    async def _take_over(self, successor: Reconnector) -> None:
        await successor.ready(TAKE_OVER_SECONDS)
        name = successor.settings.name
        if self._successors.get(name) is not successor:
            return  # it was changed again, or removed
        del self._successors[name]
        before = self.reconnectors[name]
        self.reconnectors[name] = successor
        before.is_hidden = True
        successor.publish()
        self._hub.result_cache.forget(name)
        log.info("server changed", server=name)
        await self._drain(before)

    def renew(self, server: ServerName, subject: Subject | None) -> None:
        """A server gets other credentials from now on, for everybody or for one caller."""
        for reconnector in (self.reconnectors.get(server), self._successors.get(server)):
            if reconnector is not None:
                reconnector.renew(subject)

    # -- removing --------------------------------------------------------------------------------------------------

    def remove(self, server: ServerName, why: str = "it was removed from the configuration") -> None:
        """Remove a server: it is hidden at once; its running calls may finish."""
        self._drop_successor(server)
        reconnector = self.reconnectors.pop(server, None)
        if reconnector is not None:
            reconnector.is_hidden = True
            self._hub.subscriptions.detach(server)
        self._hub.close_server_queue(server)
        if reconnector is not None:
            self._background.spawn(f"end of {server}", self._drain(reconnector, why))

    async def _drain(self, reconnector: Reconnector, why: str = "it was replaced") -> None:
        """Let the calls of a removed server finish, then close its link."""
        reconnector.is_leaving = True
        server_queue = reconnector.server_queue
        idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        server_queue.on_idle = lambda: None if idle.done() else idle.set_result(None)
        if server_queue.running or server_queue.queued:
            await asyncio.wait({idle}, timeout=self._hub.limits.drain_seconds)
        server_queue.on_idle = None
        server_queue.detach(why, is_failure=False)
        await self._end(reconnector)

    async def _end(self, reconnector: Reconnector) -> None:
        task = self._tasks.get(reconnector)
        if task is not None:
            reconnector.is_hidden = reconnector.is_leaving = True
            task.cancel()
            await asyncio.wait({task}, timeout=LEAVE_SECONDS)

    async def aclose(self) -> None:
        """Close every link in good order, all at once.

        Each reconnector closes its own link. A second cancellation, by the background tasks, cuts a slow close short.
        """
        tasks = dict(self._tasks)
        for reconnector, task in tasks.items():
            reconnector.leave()
            task.cancel()
        if tasks:
            # A link closes within seconds, however its server behaves; the background tasks end the rest.
            await asyncio.wait(tasks.values(), timeout=LEAVE_SECONDS)
