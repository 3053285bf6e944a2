"""Tasks of the hub's own, for servers that have none: a call that is kept, so that its caller can leave and come back.

Before 2026-07-28 a caller asks for one; since then a call becomes one that is not over soon, if its caller knows what
to do with a task. Both are tasks of the one engine. What servers do themselves is passed on and not seen here. The
dialogue hands over what is asked; to a caller's side of a call, this is a link like that to a server.
"""

from __future__ import annotations

import asyncio
import secrets
import weakref
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Raw

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.deadlines import Deadlines
from isthmus.core.calls.hub import Hub
from isthmus.core.calls.inflight import InFlight
from isthmus.core.calls.stages import Stage, admit, fill, find, validate
from isthmus.core.catalog.view import View
from isthmus.core.ports.exchange import Exchange, Lasting
from isthmus.core.ports.journal import Journal
from isthmus.core.tasks.draft import Draft, NotBegun
from isthmus.core.tasks.engine import Engine
from isthmus.core.tasks.live import Live
from isthmus.core.tasks.record import TASK as TASK_DOCUMENT
from isthmus.core.tasks.record import Owner, Record, owner_of
from isthmus.frontends.mcp.caller_side import CallerSide
from isthmus.frontends.mcp.kept_states import (
    ACKNOWLEDGED,
    REALM,
    Brief,
    brief_of,
    created_earlier,
    created_modern,
    earlier_members,
    is_kept_id,
    is_listed,
    is_seen,
    questions_of,
    status_of,
    told_earlier,
    told_modern,
    until,
)
from isthmus.frontends.mcp.kept_waits import Following, News, Waiting
from isthmus.frontends.mcp.settings import TaskSettings
from isthmus.model.callers import Caller
from isthmus.model.calls import TASK_KINDS, Call, Surface
from isthmus.model.faults import Bug, Draining, NotWritten, TaskEnded, UnknownTask
from isthmus.model.features import Ability
from isthmus.model.names import ServerName
from isthmus.model.questions import Answered, ClientCapabilities
from isthmus.wire.jsonrpc import Payload, object_members, render
from isthmus.wire.mcp.inputs import RESPONSES
from isthmus.wire.mcp.messages import is_object
from isthmus.wire.mcp.tasks import KNOWN, TASK, read_ttl

CHECKS: tuple[Stage, ...] = (admit, find, fill, validate)
"""What would be refused anyway does not become a task first."""

AGAIN_SECONDS = 1.0
"""How long a call stays what it is whose server has tasks enough; then it is looked at again."""

EXPIRING_MAX = 10_000
"""Ended tasks that are forgotten on time; the others are when they are asked for, or when everybody's are."""


class KeptTasks:
    """The tasks that the hub runs for MCP callers."""

    def __init__(
        self,
        hub: Hub,
        engine: Engine,
        journal: Journal,
        background: BackgroundTasks,
        settings: Callable[[], TaskSettings],
        keep: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        """`settings` and `keep` say what holds now; the latter, for how many seconds an ended task is kept at most."""
        self._hub = hub
        self._engine = engine
        self._journal = journal
        self._background = background
        self._settings = settings
        self._keep = keep
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._slow = Deadlines(self._loop)
        """Calls of which it is not known yet whether they are over soon."""
        self._expiring = 0

    # -- what is offered -------------------------------------------------------------------------------------------

    @property
    def are_offered(self) -> bool:
        """Whether the operator wants them."""
        return self._settings().provide

    def are_for(self, view: View, server: ServerName, ability: Ability) -> bool:
        """Whether a server's tools may be run as tasks here: those that it runs so itself, it runs."""
        return self.are_offered and ability not in view.servers.get(server, frozenset({ability}))

    def is_wanted(self, call: Call) -> bool:
        """Whether a call of the earlier era asks for a task that is to be the hub's own."""
        if call.kind != "tool" or TASK not in call.extra:
            return False
        view = self._hub.snapshot.view(call.caller.grants, call.surface, call.client_caps)
        route = view.routes.get(call.name)
        return route is not None and self.are_for(view, route.feature.server, "tasks")

    # -- beginning -------------------------------------------------------------------------------------------------

    def create(self, call: Call, exchange: Exchange) -> InFlight:
        """Have a tool run as a task; the answer is the task."""
        inflight = self._hub.attend(call, exchange, self)
        refused = next((fault for check in CHECKS if (fault := check(self._hub, inflight)) is not None), None)
        if refused is not None:
            inflight.finish(refused)
        else:
            self._work("a task's beginning", inflight, self._create(inflight, call, exchange))
        return inflight

    async def _create(self, inflight: InFlight, call: Call, exchange: Exchange) -> None:
        server = inflight.target.feature.server
        report = exchange.reporter() if isinstance(exchange, Lasting) else None
        news = News(self._hub, call.caller, server, self._ended, session=call.session, report=report)
        try:
            draft = self._draft(server, _as_task(call), news, self._ttl(call), session=call.session)
            live = await self._engine.begin(draft)
        except NotBegun as refused:
            inflight.finish(NotWritten(str(refused)))
            return
        if inflight.outcome is None:
            inflight.finish(created_earlier(live.record))
        else:  # its caller gave it up, and never hears of it
            self._engine.cancel(live, "the caller gave the task up")
        news.begin(live)

    def _ttl(self, call: Call) -> float:
        """How long a task is kept: as its caller likes, but no longer than any is."""
        wanted = read_ttl(call.extra[TASK]) if TASK in call.extra else None
        return min(wanted, self._keep()) if isinstance(wanted, float) else self._keep()

    def _draft(
        self, server: ServerName, call: Call, news: News, ttl: float, *, session: str = "", is_running: bool = False
    ) -> Draft:
        return Draft(
            call.caller,
            "",
            REALM,
            (),
            "working",
            None if is_running else call,
            brief=Raw(msgspec.json.encode(Brief(server, ttl, session))),
            realm=REALM,
            listeners=(news,),
            is_running=is_running,
        )

    def _ended(self, live: Live) -> None:
        """A task is over: forget it when its time has come, if that is before everybody's."""
        record = live.record
        if brief_of(record).ttl_seconds < self._keep() and self._expiring < EXPIRING_MAX:
            self._expiring += 1
            self._loop.call_later(max(0.0, until(record) - self._now()), self._expire, record.owner, record.id)

    def _expire(self, owner: Owner, id: str) -> None:
        self._expiring -= 1
        with suppress(RuntimeError):  # the hub is closing, and who comes next looks for itself
            self._background.spawn("a task's expiry", self._forget(owner, id))

    async def _forget(self, owner: Owner, id: str) -> None:
        with suppress(OSError):  # who comes next looks for itself
            await self._unexpired(await self._engine.find(owner, id))

    # -- calls that become tasks -----------------------------------------------------------------------------------

    def watch(self, inflight: InFlight) -> None:
        """Make a task of a running call if it is not over soon; its caller knows tasks."""
        view = self._hub.snapshot.view(inflight.call.caller.grants, inflight.call.surface, inflight.call.client_caps)
        route = inflight.route
        if route is not None and self.are_for(view, route.feature.server, "task_handles"):
            self._slow.add(_Patience(inflight, self._promote), self._settings().after)

    def _promote(self, inflight: InFlight) -> None:
        exchange = inflight.exchange
        if inflight.outcome is not None or not isinstance(exchange, CallerSide) or self._hub.is_draining:
            return
        # As a task, one that waits to be sent would be kept as one that may have been.
        is_held_up = inflight.server_queue is not None and not inflight.may_have_run
        if not is_held_up and (inflight.server_queue is None or inflight.server_queue.let_last(inflight)):
            self._background.spawn("a call that becomes a task", self._keep_running(inflight, exchange))
        else:  # or tasks hold enough of its server; there may be fewer by and by
            self._slow.add(_Patience(inflight, self._promote), AGAIN_SECONDS)

    async def _keep_running(self, inflight: InFlight, exchange: CallerSide) -> None:
        server = inflight.target.feature.server
        news = News(self._hub, inflight.call.caller, server, self._ended, session=None)
        draft = self._draft(server, inflight.call, news, self._keep(), is_running=True)
        try:
            live = await self._engine.begin(draft)
        except NotBegun:
            _stay(inflight)
            return
        if inflight.outcome is not None or inflight.exchange is not exchange:
            self._engine.discard(live)  # it has been answered, or its caller asked, in the meantime
            _stay(inflight)
            return
        # What its server asks from now on is put to the task, and not answered by another call.
        inflight.call = msgspec.structs.replace(inflight.call, comes_back=False)
        self._engine.hand_over(live, inflight)
        inflight.prolong()
        exchange.end(created_modern(live.record))
        news.begin(live)

    # -- asking about them -----------------------------------------------------------------------------------------

    def ask(self, call: Call, exchange: Exchange) -> InFlight:
        """Answer what is asked about a task of the hub's own."""
        assert call.kind in TASK_KINDS, call.kind
        inflight = self._hub.attend(call, exchange, self)
        self._work(f"answer about a task ({call.kind})", inflight, self._answer(inflight))
        return inflight

    async def _answer(self, inflight: InFlight) -> None:
        call = inflight.call
        try:
            live = await self.find(call.caller, call.surface, call.client_caps, call.name)
        except OSError as error:  # the journal's word for what it cannot do now
            inflight.finish(NotWritten(str(error)))
            return
        if live is None:
            inflight.finish(UnknownTask())
        elif inflight.outcome is None:
            await self._answer_about(inflight, live)

    async def _answer_about(self, inflight: InFlight, live: Live) -> None:
        is_modern = KNOWN in inflight.call.client_caps
        match inflight.call.kind:
            case "task_result":
                inflight.carriage = Waiting(self._engine, inflight, live)
            case "task_cancel":
                await self._cancel(inflight, live, is_modern=is_modern)
            case "task_update":
                self._update(live, inflight.call.extra)
                await self._engine.until_kept(live)
                inflight.finish(ACKNOWLEDGED)
            case _:
                record = live.kept or live.record
                inflight.finish(told_modern(record) if is_modern else told_earlier(record))

    async def _cancel(self, inflight: InFlight, live: Live, *, is_modern: bool) -> None:
        is_cancelled = self._engine.cancel(live, "the caller gave the task up")
        await self._engine.until_kept(live)
        if is_modern:
            inflight.finish(ACKNOWLEDGED)
        elif is_cancelled:
            inflight.finish(told_earlier(live.record))
        else:
            inflight.finish(TaskEnded(status_of(live.record)))

    def _update(self, live: Live, extra: Mapping[str, Raw]) -> None:
        """Give the server what its caller answered; an answer to what is not asked now is nobody's."""
        answers = object_members(extra.get(RESPONSES, b"")) or {}
        for key, asked in questions_of(live.record).items():
            if key in answers and is_object(answers[key]):
                self._engine.answer_besides(live, asked.number, Answered(answers[key].copy()))

    async def find(self, caller: Caller, surface: Surface, client_caps: ClientCapabilities, id: str) -> Live | None:
        """One of a caller's tasks, if it may know of it here and its time has not passed."""
        if not is_kept_id(id) or not self.are_offered:
            return None
        live = await self._unexpired(await self._engine.find(owner_of(caller, REALM), id))
        view = self._hub.snapshot.view(caller.grants, surface, client_caps)
        return live if live is not None and is_seen(brief_of(live.record), view, surface) else None

    async def _unexpired(self, live: Live | None) -> Live | None:
        if live is None or not live.record.is_ended or self._now() < until(live.record):
            return live
        await self._engine.until_kept(live)
        self._engine.discard(live)
        return None

    async def page(
        self, caller: Caller, surface: Surface, view: View, token: str, limit: int, session: str = ""
    ) -> tuple[list[Payload], str]:
        """Some of a caller's tasks as they stand, the newest first, and what leads to the next ones.

        Where the caller is anyone, only those that were asked for in this `session`.

        Raises `ValueError` for a token that no page gave.
        """
        page = await self._journal.page(TASK_DOCUMENT, owner_of(caller, REALM).key, limit=limit, token=token)
        records = [self._engine.newest(document) for document in page.documents]
        found = [record for record in records if record is not None and self._is_listed(record, view, surface)]
        seen = [record for record in found if is_listed(brief_of(record).session, caller, session)]
        return [render(earlier_members(record)) for record in seen], page.next

    def _is_listed(self, record: Record, view: View, surface: Surface) -> bool:
        is_over = record.is_ended and self._now() >= until(record)
        return not is_over and is_seen(brief_of(record), view, surface)

    async def follow(
        self,
        caller: Caller,
        surface: Surface,
        client_caps: ClientCapabilities,
        id: str,
        tell: Callable[[Mapping[str, Payload]], None],
    ) -> Following | None:
        """What tells how a task stands, first and whenever that changes; None if there is no such task, or now."""
        with suppress(OSError):
            live = await self.find(caller, surface, client_caps, id)
            return None if live is None else Following(live, tell)
        return None

    # -- being a link to who asks (see `core.ports.link.Link`) -----------------------------------------------------

    def send(self, inflight: InFlight) -> None:
        """Nothing is sent again: what is asked here is answered here."""

    def may_have_run(self, inflight: InFlight) -> bool:
        """Asking runs nothing."""
        return False

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """Who waited for a result waits no longer; the task goes on."""
        if isinstance(inflight.carriage, Waiting):
            inflight.carriage.leave()

    def _work(self, name: str, inflight: InFlight, work: Coroutine[Any, Any, None]) -> None:
        try:
            self._background.spawn(name, work, on_crash=lambda _: _blame(inflight))
        except RuntimeError:  # the crew is closed, with the hub
            inflight.finish(Draining())


class _Patience:
    """Waits until a call has taken too long to be waited for; one that is over meanwhile is not held."""

    __slots__ = ("_inflight", "_then")

    def __init__(self, inflight: InFlight, then: Callable[[InFlight], None]) -> None:
        self._inflight = weakref.ref(inflight)
        self._then = then

    def expire(self) -> None:
        """See `core.calls.deadlines.Expiring`."""
        if (inflight := self._inflight()) is not None:
            self._then(inflight)

    def cancel(self, why: str) -> None:
        """Whoever waits for the call hears of its end."""


def _stay(inflight: InFlight) -> None:
    """A call that was to become a task goes on as what it was."""
    if inflight.server_queue is not None:
        inflight.server_queue.lasts_no_more(inflight)


def _blame(inflight: InFlight) -> None:
    """A defect of the hub's costs one answer; the crew has told of it."""
    inflight.finish(Bug(secrets.token_hex(6)))


def _as_task(call: Call) -> Call:
    """A task's call: it outlasts its conversation, whose link stays until the last call on it is over."""
    extra = {key: value for key, value in call.extra.items() if key != TASK}
    return msgspec.structs.replace(call, extra=extra, lasts=True)
