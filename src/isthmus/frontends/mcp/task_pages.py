"""A caller's own tasks, page by page: what is known of them, and of those that run how they stand now.

Only the earlier era has such a list. The dialogue asks for pages.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from isthmus.core.calls.hub import Hub
from isthmus.core.catalog.view import View
from isthmus.core.ports.exchange import Aside
from isthmus.core.watch.tasks import Task
from isthmus.frontends.mcp.kept_states import is_listed
from isthmus.frontends.mcp.tasks import is_seen, stated
from isthmus.model.callers import Caller
from isthmus.model.calls import Call, Surface
from isthmus.model.events import Event
from isthmus.model.faults import ServerError
from isthmus.model.outcomes import Outcome
from isthmus.model.questions import NO_CAPABILITIES, NOT_ASKED, ClientCapabilities, OnReply, Question
from isthmus.wire.jsonrpc import INVALID_PARAMS, Payload
from isthmus.wire.mcp.requests import EMPTY_OBJECT
from isthmus.wire.mcp.tasks import list_result

if TYPE_CHECKING:
    from isthmus.frontends.mcp.kept_tasks import KeptTasks

PAGE_MAX = 50
"""Tasks on a page, which is also how many servers are asked about for it."""

ASK_SECONDS = 2.0
"""How long a server has to say how a task stands; then what it said last is listed."""


class TaskPages:
    """The list of one caller's tasks, as one of its conversations sees it."""

    def __init__(
        self,
        hub: Hub,
        caller: Caller,
        surface: Surface,
        kept: KeptTasks | None = None,
        *,
        client_caps: ClientCapabilities = NO_CAPABILITIES,
        session: str = "",
    ) -> None:
        """Without `kept` there are only tasks of servers."""
        self._hub = hub
        self._kept = kept
        self._caller = caller
        self._surface = surface
        self._profile = client_caps
        self._session = session

    async def page(self, view: View, cursor: str | None) -> bytes | None:
        """The result with the page that a cursor leads to, the first without one; None if it leads nowhere.

        Those come first that the hub keeps, then those of servers.
        """
        after = "" if cursor is None else _read_cursor(cursor)
        if isinstance(after, int):
            return await self._page(view, after, ())
        page = None if after is None else await self._kept_page(view, after)
        if page is None:
            return None
        kept, token = page
        return list_result(kept, _write_cursor(token)) if token else await self._page(view, 0, kept)

    async def _kept_page(self, view: View, token: str) -> tuple[list[Payload], str] | None:
        """Some of those that the hub keeps, and what leads to more."""
        if self._kept is None:
            return None if token else ([], "")
        try:
            return await self._kept.page(self._caller, self._surface, view, token, PAGE_MAX, self._session)
        except ValueError:
            return None

    async def _page(self, view: View, after: int, kept: Sequence[Payload]) -> bytes:
        """A page with some of those of servers behind what the hub keeps."""
        own = self._hub.tasks.of(self._caller, self._session)
        own = [task for task in own if is_listed(task.session, self._caller, self._session)]
        found = [task for task in own if task.number > after and is_seen(task, view, self._surface)]
        page = found[: PAGE_MAX - len(kept)]
        gone = await self._ask_about([task for task in page if not task.state.is_over])
        listed = [stated(task, self._caller) for task in page if task not in gone]
        last = page[-1].number if page else after
        return list_result([*kept, *listed], _write_cursor(last) if len(found) > len(page) else None)

    async def _ask_about(self, tasks: Sequence[Task]) -> set[Task]:
        """Ask how tasks stand, all at once; what is answered is noted by the hub. Returns those that are not there."""
        glances = [_Glance(task) for task in tasks]
        asked = [self._hub.start(self._call_about(glance.task), glance) for glance in glances]
        try:
            if glances:
                await asyncio.wait([glance.over for glance in glances], timeout=ASK_SECONDS)
        finally:
            for inflight in asked:  # not by their deadlines, which would speak against the server
                inflight.cancel("the list does not wait for it")
        gone = {glance.task for glance in glances if glance.is_gone}
        self._forget(gone)
        return gone

    def _call_about(self, task: Task) -> Call:
        return Call(
            self._caller,
            Surface("own", task.server),
            task.state.id,
            EMPTY_OBJECT,
            kind="task",
            client_caps=self._profile,
            session=self._session if self._profile else "",
        )

    def _forget(self, gone: Iterable[Task]) -> None:
        for task in gone:
            if task.session in ("", self._session):  # else another conversation's process may have it
                self._hub.tasks.forget(task)


class _Glance(Aside):
    """Asks how one task stands."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.is_gone = False
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def emit(self, event: Event) -> None:
        """Nobody wants to hear it."""

    def ask(self, question: Question, reply: OnReply) -> None:
        """The caller asked for a list only."""
        reply(NOT_ASKED)

    def end(self, outcome: Outcome) -> None:
        """The server answered, or did not."""
        self.is_gone = isinstance(outcome, ServerError) and outcome.code == INVALID_PARAMS
        self.over.set_result(None)


def _write_cursor(last: int | str) -> str:
    """What leads on: behind a number among tasks of servers, or by the journal's token among those of the hub."""
    return base64.urlsafe_b64encode(msgspec.json.encode(last)).decode()


def _read_cursor(cursor: str) -> int | str | None:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor.encode()), type=int | str)
    except (binascii.Error, UnicodeError, ValueError):  # what msgspec raises is a ValueError too
        return None
