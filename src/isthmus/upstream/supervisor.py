"""The keepers of all servers of one hub: servers come, change and go without the others noticing."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import Hub
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.model.credentials import Subject
from isthmus.model.names import ServerName
from isthmus.upstream.list_cache import ListCache
from isthmus.upstream.reconnector import Connect, Reconnector
from isthmus.upstream.settings import ServerSettings

log = structlog.get_logger(__name__)

LEAVE_SECONDS = 10.0
"""How long keepers have to close their links."""

TAKE_OVER_SECONDS = 60.0
"""How long a changed server may take to start before it is shown all the same; until then the old one serves."""


class Supervisor:
    """Keeps servers. Each is in `reconnectors` unless it is disabled."""

    def __init__(self, hub: Hub, background: BackgroundTasks, connect: Connect, lists: ListCache | None = None) -> None:
        """Without `lists` nothing is known of servers before they answer."""
        self._lists = lists
        self._hub = hub
        self._background = background
        self._connect = connect
        self.reconnectors: dict[ServerName, Reconnector] = {}
        self._tasks: dict[Reconnector, asyncio.Task[None]] = {}
        self._successors: dict[ServerName, Reconnector] = {}
        """Keepers that are to take another's place as soon as they have a link."""

    # -- coming ----------------------------------------------------------------------------------------------------

    def add(self, settings: ServerSettings, *, is_awaited: bool = True) -> None:
        """Start keeping a server; returns at once.

        Who lists or calls meanwhile waits a moment for it. One that joins a hub at work is announced when it is
        there instead: nobody who calls another is to wait.
        """
        if settings.disabled:
            self._show_disabled(settings)
            return
        reconnector = self._start(settings)
        self.reconnectors[settings.name] = reconnector
        reconnector.show(is_awaited=is_awaited)

    def _show_disabled(self, settings: ServerSettings) -> None:
        server_queue = ServerQueue(settings.name, self._hub.limits)
        server_queue.explain("it is disabled in the configuration")
        self._hub.open_server_queue(server_queue, ServerStatus(settings.name, "disabled", "disabled", is_settled=True))

    def _start(self, settings: ServerSettings) -> Reconnector:
        server_queue = ServerQueue(
            settings.name,
            self._hub.limits,
            max_calls=settings.max_calls,
            max_queued=settings.max_queued,
            timeout=settings.timeout,
        )
        reconnector = Reconnector(self._hub, self._background, server_queue, settings, self._connect, self._lists)
        task = self._background.spawn(f"keeper of {settings.name}", reconnector.run(), on_crash=reconnector.crashed)
        self._tasks[reconnector] = task
        task.add_done_callback(lambda _done: self._ended(reconnector))
        return reconnector

    def _ended(self, reconnector: Reconnector) -> None:
        self._tasks.pop(reconnector, None)
        if not reconnector.tried.done():
            reconnector.tried.set_result(None)  # it was given up before it had tried; nobody need wait for that

    # -- changing --------------------------------------------------------------------------------------------------

    def change(self, settings: ServerSettings) -> None:
        """Take a server's new settings: at once where that is all there is to it, else with a new link.

        The old link serves until the new one does, so that nobody waits for the change.
        """
        present = self.reconnectors.get(settings.name)
        self._drop_successor(settings.name)
        if present is None or settings.disabled:
            self.remove(settings.name)
            self.add(settings, is_awaited=False)
        elif starts_the_same(present.settings, settings):
            present.adjust(settings)
        else:
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
        successor.show()
        self._hub.result_cache.forget(name)
        log.info("server changed", server=name)
        await self._drain(before)

    def renew(self, server: ServerName, subject: Subject | None) -> None:
        """A server is shown something else from now on, in everybody's name or in one caller's."""
        for reconnector in (self.reconnectors.get(server), self._successors.get(server)):
            if reconnector is not None:
                reconnector.renew(subject)

    # -- going -----------------------------------------------------------------------------------------------------

    def remove(self, server: ServerName) -> None:
        """Forget a server: nobody sees it from now on; the calls it works on may finish."""
        self._drop_successor(server)
        reconnector = self.reconnectors.pop(server, None)
        if reconnector is not None:
            reconnector.is_hidden = True
            self._hub.subscriptions.detach(server)
        self._hub.close_server_queue(server)
        if reconnector is not None:
            self._background.spawn(f"end of {server}", self._drain(reconnector))

    async def _drain(self, reconnector: Reconnector) -> None:
        """Let the calls of a server that nobody sees any more come to their end, then close its link."""
        reconnector.is_leaving = True
        server_queue = reconnector.server_queue
        idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        server_queue.on_idle = lambda: None if idle.done() else idle.set_result(None)
        if server_queue.running or server_queue.queued:
            await asyncio.wait({idle}, timeout=self._hub.limits.drain_seconds)
        server_queue.on_idle = None
        server_queue.detach("it was removed from the configuration", is_failure=False)
        await self._end(reconnector)

    async def _end(self, reconnector: Reconnector) -> None:
        task = self._tasks.get(reconnector)
        if task is not None:
            reconnector.is_hidden = reconnector.is_leaving = True
            task.cancel()
            await asyncio.wait({task}, timeout=LEAVE_SECONDS)

    async def aclose(self) -> None:
        """Close every link in good order, all at once; a server that is gone by then is not started again.

        Each link is closed where it is kept, by its keeper. Cancelling a keeper a second time, as the crew does,
        makes short work of a server that takes its time.
        """
        tasks = dict(self._tasks)
        for reconnector, task in tasks.items():
            reconnector.leave()
            task.cancel()
        if tasks:
            # A link is given up within seconds, however its server behaves; the crew ends what is left.
            await asyncio.wait(tasks.values(), timeout=LEAVE_SECONDS)


def starts_the_same(old: ServerSettings, new: ServerSettings) -> bool:
    """Whether a link made for the old settings serves the new ones just as well."""
    names = ("timeout", "max_calls", "max_queued", "rules", "pin", "extra", "secrets")
    gentle = {name: getattr(new, name) for name in names}
    return replace(old, **gentle) == new
