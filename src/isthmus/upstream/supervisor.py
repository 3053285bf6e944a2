"""Keeps servers up: connects all at once in the background, tries again, and publishes how each one stands.

One keeper per server, so that whatever a server does costs only its own tools. The supervisor decides when there is
a link; lanes decide what goes on it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec
import structlog

from isthmus.core.calls.hub import Hub
from isthmus.core.calls.lane import Lane
from isthmus.core.catalog.snapshot import Standing
from isthmus.core.crew import Crew
from isthmus.core.ports.link import Link
from isthmus.model.faults import BadReply, Fault, ServerError
from isthmus.model.names import ServerName
from isthmus.model.tools import Tool
from isthmus.upstream.backoff import Backoff
from isthmus.upstream.link import BaseLink, ConnectFailed
from isthmus.upstream.settings import Era, ServerSettings

log = structlog.get_logger(__name__)

Connect: TypeAlias = Callable[[ServerSettings], Awaitable[BaseLink]]
"""Makes a link that has not been greeted yet; raises `ConnectFailed`."""

PING_SECONDS = 30.0
"""A link without calls is asked this often whether the server is still there."""

REFRESH_SECONDS = 60.0
"""A list this old is asked for anew: many servers change their tools and cannot say so."""

PONG_SECONDS = 10.0
HEALTHY_SECONDS = 10.0
"""A link that lived this long, or answered a call, was well: its loss starts the pauses anew."""

LEAVE_SECONDS = 10.0
"""How long keepers have to close their links."""

REASON_LENGTH_MAX = 300
"""A reason may quote the server, and every listing repeats it to every caller."""

LOOK_AGAIN_SECONDS = 1.0
"""After the first, a server's announcements of change are followed at most this often, and so are doubts about it."""


class Supervisor:
    """The keepers of all servers of one hub."""

    def __init__(self, hub: Hub, crew: Crew, connect: Connect) -> None:
        self._hub = hub
        self._crew = crew
        self._connect = connect
        self.keepers: dict[ServerName, Keeper] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, settings: ServerSettings) -> None:
        """Start keeping a server; returns at once."""
        lane = Lane(
            settings.name,
            self._hub.limits,
            max_calls=settings.max_calls,
            max_queued=settings.max_queued,
            timeout=settings.timeout,
        )
        if settings.disabled:
            lane.explain("it is disabled in the configuration")
            self._hub.open_lane(lane, Standing(settings.name, "disabled", "disabled", is_settled=True))
            return
        keeper = self.keepers[settings.name] = Keeper(self._hub, lane, settings, self._connect)
        self._hub.open_lane(lane, Standing(settings.name, reason="it has not answered yet"))
        task = self._crew.spawn(f"keeper of {settings.name}", keeper.run(), on_crash=keeper.crashed)
        self._tasks.append(task)

    def add_local(self, server: ServerName, link: Link, tools: tuple[Tool, ...]) -> None:
        """Add a server that lives in this process and is always there."""
        lane = Lane(server, self._hub.limits)
        lane.attach(link)
        self._hub.open_lane(lane, Standing(server, "ready", tools=tools, is_settled=True))

    async def aclose(self) -> None:
        """Close every link in good order, all at once; a server that is gone by then is not started again.

        Each link is closed where it is kept, by its keeper. Cancelling a keeper a second time, as the crew does,
        makes short work of a server that takes its time.
        """
        for keeper, task in zip(self.keepers.values(), self._tasks, strict=True):
            keeper.leave()
            task.cancel()
        if self._tasks:
            # A link is given up within seconds, however its server behaves; the crew ends what is left.
            await asyncio.wait(self._tasks, timeout=LEAVE_SECONDS)


class Keeper:
    """Keeps one server: connect, greet, list, watch, and again when it is lost."""

    def __init__(self, hub: Hub, lane: Lane, settings: ServerSettings, connect: Connect) -> None:
        self._hub = hub
        self._lane = lane
        self._settings = settings
        self._connect = connect
        self._backoff = Backoff()
        self._standing = Standing(settings.name)
        self._era: Era = settings.reach.era
        self._is_stale = False
        self._is_doubtful = False
        self._listed_at = 0.0
        self._news: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Keep the server up until cancelled."""
        while True:
            await self._attempt()
            await asyncio.sleep(self._backoff.next(random.random()))  # noqa: S311 - spread, not secrecy

    def crashed(self, error: BaseException) -> None:
        """A defect in the keeper itself: say so instead of looking merely slow."""
        self._lane.detach("a defect in the hub stopped it; see the log", is_failure=True)
        self._stand("stopped", f"a defect in the hub: {error}")

    def leave(self) -> None:
        """Tell who still waits that the hub goes; the link is closed when `run` is cancelled."""
        self._lane.detach("the hub is shutting down", is_failure=False)

    # -- one life of a link ----------------------------------------------------------------------------------------

    async def _attempt(self) -> None:
        """Connect and watch until the link is lost."""
        try:
            link = await self._connect(self._settings)
        except ConnectFailed as failed:
            self._give_up(str(failed), None)
            return
        # Heard before the calls on the link end, so that a lost link counts as one failure and not as many.
        link.on_lost = lambda reason: self._give_up(reason, link.last_words)
        try:
            await self._live(link)
        except (Fault, ConnectFailed) as failed:
            self._give_up(self._why(link, failed), link.last_words)
        finally:
            link.on_lost = lambda _reason: None
            await link.aclose()

    async def _live(self, link: BaseLink) -> None:
        await link.greet(self._known_era())
        self._era = link.dialect.era
        tools, notes = await link.list_tools()
        link.on_changed = self._note_change
        link.on_doubt = self._note_doubt
        self._lane.attach(link)
        self._stand("ready", None, detail=None, tools=tuple(tools), notes=tuple(notes), era=link.dialect.version)
        log.info("server ready", server=link.server, tools=len(tools), protocol=link.dialect.version)
        link.listen()
        began = self._listed_at = asyncio.get_running_loop().time()
        try:
            await self._watch(link)
        finally:
            if self._lane.answered or asyncio.get_running_loop().time() - began > HEALTHY_SECONDS:
                self._backoff.reset()

    def _known_era(self) -> Era:
        """The configured era, or what the last attempt taught."""
        configured = self._settings.reach.era
        return self._era if configured == "auto" else configured

    def _why(self, link: BaseLink, failed: Exception) -> str:
        """Words for a failed attempt; if it died of the probe, the next one does without."""
        self._era = "legacy" if link.is_probing and link.lost.done() else "auto"
        return link.lost.result() if link.lost.done() else str(getattr(failed, "why", failed))

    async def _watch(self, link: BaseLink) -> None:
        """Follow changes, ping a link that is idle or in doubt, and refresh an old list, until it is lost."""
        while not link.lost.done():
            news = self._news = asyncio.get_running_loop().create_future()
            if self._is_doubtful:
                await self._ping(link)
            elif self._is_stale:
                await self._relist(link)
            else:
                await asyncio.wait({link.lost, news}, timeout=PING_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if not news.done():
                    self._is_stale = asyncio.get_running_loop().time() - self._listed_at > REFRESH_SECONDS
                    self._is_doubtful |= not self._is_stale and not self._lane.running

    def _note_change(self) -> None:
        """The server announced a change: list again, once, however often it says so."""
        self._is_stale = True
        self._wake()

    def _note_doubt(self) -> None:
        """A request found nobody: see whether the server is still there, instead of letting every call find out."""
        self._is_doubtful = True
        self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def _ping(self, link: BaseLink) -> None:
        self._is_doubtful = False
        try:
            await link.ping(PONG_SECONDS)
        except Fault as silent:
            # One that works may be too busy to answer, or has stopped listening and finishes what it has.
            if not self._lane.running:
                raise ConnectFailed(_in_words(silent)) from silent
            await asyncio.wait({link.lost}, timeout=LOOK_AGAIN_SECONDS)

    async def _relist(self, link: BaseLink) -> None:
        """List again: one at a time, the first at once and then at most one a second, however many were announced."""
        self._is_stale = False
        self._listed_at = asyncio.get_running_loop().time()
        try:
            tools, notes = await link.list_tools()
        except Fault as failed:
            # A list that it cannot give now is no reason to take the calls from it that it works on.
            log.warning("server announced a change and gave no list", server=link.server, reason=str(failed))
            self._is_stale = self._is_doubtful = not isinstance(failed, BadReply | ServerError)
        else:
            self._stand("ready", None, tools=tuple(tools), notes=tuple(notes), era=link.dialect.version)
        await asyncio.wait({link.lost}, timeout=LOOK_AGAIN_SECONDS)

    # -- telling ---------------------------------------------------------------------------------------------------

    def _give_up(self, reason: str, last_words: str | None) -> None:
        """There is no link, or none any more: calls and listings hear why, and the log, unless it is no news."""
        reason = self._settings.redact(reason)[:REASON_LENGTH_MAX]
        detail = None if last_words is None else self._settings.redact(last_words)
        if reason != self._standing.reason:
            log.warning("server not connected", server=self._settings.name, reason=reason, detail=detail)
        self._lane.detach(reason, is_failure=True)
        self._stand("retrying", reason, detail=detail)

    def _stand(self, state: str, reason: str | None, **changes: object) -> None:
        self._standing = msgspec.structs.replace(self._standing, state=state, reason=reason, is_settled=True, **changes)
        self._hub.publish(self._standing)


def _in_words(silent: Fault) -> str:
    why = str(getattr(silent, "why", silent))
    return f"it does not answer any more ({why})" if isinstance(silent, BadReply) else why
