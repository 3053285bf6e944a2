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
from isthmus.upstream.known_lists import KnownLists
from isthmus.upstream.reconnector import Connect, Reconnector
from isthmus.upstream.settings import ServerSettings

log = structlog.get_logger(__name__)

LEAVE_SECONDS = 10.0
"""How long keepers have to close their links."""

TAKE_OVER_SECONDS = 60.0
"""How long a changed server may take to start before it is shown all the same; until then the old one serves."""


class Supervisor:
    """Keeps servers. Each is in `keepers` unless it is disabled."""

    def __init__(self, hub: Hub, crew: BackgroundTasks, connect: Connect, lists: KnownLists | None = None) -> None:
        """Without `lists` nothing is known of servers before they answer."""
        self._lists = lists
        self._hub = hub
        self._crew = crew
        self._connect = connect
        self.keepers: dict[ServerName, Reconnector] = {}
        self._tasks: dict[Reconnector, asyncio.Task[None]] = {}
        self._heirs: dict[ServerName, Reconnector] = {}
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
        keeper = self._start(settings)
        self.keepers[settings.name] = keeper
        keeper.show(is_awaited=is_awaited)

    def _show_disabled(self, settings: ServerSettings) -> None:
        lane = ServerQueue(settings.name, self._hub.limits)
        lane.explain("it is disabled in the configuration")
        self._hub.open_lane(lane, ServerStatus(settings.name, "disabled", "disabled", is_settled=True))

    def _start(self, settings: ServerSettings) -> Reconnector:
        lane = ServerQueue(
            settings.name,
            self._hub.limits,
            max_calls=settings.max_calls,
            max_queued=settings.max_queued,
            timeout=settings.timeout,
        )
        keeper = Reconnector(self._hub, self._crew, lane, settings, self._connect, self._lists)
        task = self._crew.spawn(f"keeper of {settings.name}", keeper.run(), on_crash=keeper.crashed)
        self._tasks[keeper] = task
        task.add_done_callback(lambda _done: self._ended(keeper))
        return keeper

    def _ended(self, keeper: Reconnector) -> None:
        self._tasks.pop(keeper, None)
        if not keeper.tried.done():
            keeper.tried.set_result(None)  # it was given up before it had tried; nobody need wait for that

    # -- changing --------------------------------------------------------------------------------------------------

    def change(self, settings: ServerSettings) -> None:
        """Take a server's new settings: at once where that is all there is to it, else with a new link.

        The old link serves until the new one does, so that nobody waits for the change.
        """
        present = self.keepers.get(settings.name)
        self._disinherit(settings.name)
        if present is None or settings.disabled:
            self.remove(settings.name)
            self.add(settings, is_awaited=False)
        elif starts_the_same(present.settings, settings):
            present.adjust(settings)
        else:
            heir = self._heirs[settings.name] = self._start(settings)
            heir.is_hidden = True
            heir.inherit(present)
            self._crew.spawn(f"change of {settings.name}", self._take_over(heir))

    def _disinherit(self, server: ServerName) -> None:
        heir = self._heirs.pop(server, None)
        if heir is not None:
            self._crew.spawn(f"end of {server}", self._end(heir))

    async def _take_over(self, heir: Reconnector) -> None:
        await heir.ready(TAKE_OVER_SECONDS)
        name = heir.settings.name
        if self._heirs.get(name) is not heir:
            return  # it was changed again, or removed
        del self._heirs[name]
        before = self.keepers[name]
        self.keepers[name] = heir
        before.is_hidden = True
        heir.show()
        self._hub.recall.forget(name)
        log.info("server changed", server=name)
        await self._drain(before)

    def renew(self, server: ServerName, subject: Subject | None) -> None:
        """A server is shown something else from now on, in everybody's name or in one caller's."""
        for keeper in (self.keepers.get(server), self._heirs.get(server)):
            if keeper is not None:
                keeper.renew(subject)

    # -- going -----------------------------------------------------------------------------------------------------

    def remove(self, server: ServerName) -> None:
        """Forget a server: nobody sees it from now on; the calls it works on may finish."""
        self._disinherit(server)
        keeper = self.keepers.pop(server, None)
        if keeper is not None:
            keeper.is_hidden = True
            self._hub.subscriptions.detach(server)
        self._hub.close_lane(server)
        if keeper is not None:
            self._crew.spawn(f"end of {server}", self._drain(keeper))

    async def _drain(self, keeper: Reconnector) -> None:
        """Let the calls of a server that nobody sees any more come to their end, then close its link."""
        keeper.is_leaving = True
        lane = keeper.lane
        idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lane.on_idle = lambda: None if idle.done() else idle.set_result(None)
        if lane.running or lane.queued:
            await asyncio.wait({idle}, timeout=self._hub.limits.drain_seconds)
        lane.on_idle = None
        lane.detach("it was removed from the configuration", is_failure=False)
        await self._end(keeper)

    async def _end(self, keeper: Reconnector) -> None:
        task = self._tasks.get(keeper)
        if task is not None:
            keeper.is_hidden = keeper.is_leaving = True
            task.cancel()
            await asyncio.wait({task}, timeout=LEAVE_SECONDS)

    async def aclose(self) -> None:
        """Close every link in good order, all at once; a server that is gone by then is not started again.

        Each link is closed where it is kept, by its keeper. Cancelling a keeper a second time, as the crew does,
        makes short work of a server that takes its time.
        """
        tasks = dict(self._tasks)
        for keeper, task in tasks.items():
            keeper.leave()
            task.cancel()
        if tasks:
            # A link is given up within seconds, however its server behaves; the crew ends what is left.
            await asyncio.wait(tasks.values(), timeout=LEAVE_SECONDS)


def starts_the_same(old: ServerSettings, new: ServerSettings) -> bool:
    """Whether a link made for the old settings serves the new ones just as well."""
    names = ("timeout", "max_calls", "max_queued", "rules", "pin", "extra", "secrets")
    gentle = {name: getattr(new, name) for name in names}
    return replace(old, **gentle) == new
