"""Telling a modern caller how the tasks stand that it follows (`taskIds` of `subscriptions/listen`).

The hub asks their servers, as often as these like to be asked, on the way on which the caller's own questions go. So it
can neither be told of somebody else's task, nor miss what a server says while its link is being made anew; and a server
need not know how to tell. Held by a subscription's stream and given up with it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from isthmus.core.calls.hub import Hub
from isthmus.core.ports.exchange import Aside
from isthmus.frontends.mcp.kept_states import is_kept_id
from isthmus.frontends.mcp.tasks import aimed, shown_id
from isthmus.model.callers import Caller
from isthmus.model.calls import Call, Surface
from isthmus.model.events import Event
from isthmus.model.faults import ServerError
from isthmus.model.names import ServerName
from isthmus.model.outcomes import Outcome, Result
from isthmus.model.questions import NOT_ASKED, ClientCapabilities, OnReply, Question
from isthmus.wire.jsonrpc import INVALID_PARAMS, Payload, object_members
from isthmus.wire.mcp.requests import EMPTY_OBJECT
from isthmus.wire.mcp.tasks import read_poll_seconds, read_state, with_ids

if TYPE_CHECKING:
    from isthmus.frontends.mcp.kept_tasks import KeptTasks
    from isthmus.frontends.mcp.kept_waits import Following

FOLLOWED_MAX = 100
"""Tasks that one subscription may name; what it names beyond them is not even looked at."""

POLL_SECONDS = 5.0
"""How often a server is asked that does not say how often it likes to be."""

POLL_SECONDS_MIN, POLL_SECONDS_MAX = 1.0, 60.0
"""What a server may say: asked more often it would keep the hub busy, and more seldom its callers would wait."""

Tell: TypeAlias = Callable[[Mapping[str, Payload]], None]


class TaskPolls:
    """What one subscription follows. `tell` is called with each task as it stands, first and whenever it differs."""

    def __init__(
        self,
        hub: Hub,
        caller: Caller,
        surface: Surface,
        client_caps: ClientCapabilities,
        tell: Tell,
        kept: KeptTasks | None = None,
    ) -> None:
        """Without `kept` there are only tasks of servers."""
        self._hub = hub
        self._kept = kept
        self._caller = caller
        self._surface = surface
        self._profile = client_caps
        self._tell = tell
        self._followed: dict[str, _Followed | Following] = {}

    async def agree(self, ids: Iterable[str]) -> tuple[str, ...]:
        """Take on what the caller may follow, and return it; nothing is asked before `start`."""
        for id in islice(ids, FOLLOWED_MAX):
            followed = await self._keep_up(id) if is_kept_id(id) else self._poll(id)
            if followed is not None:
                self._followed[id] = followed
        return tuple(self._followed)

    async def _keep_up(self, id: str) -> Following | None:
        """A task of the hub's own need not be asked about."""
        if self._kept is None:
            return None
        return await self._kept.follow(self._caller, self._surface, self._profile, id, self._tell)

    def _poll(self, id: str) -> _Followed | None:
        view = self._hub.snapshot.view(self._caller.grants, self._surface, self._profile)
        asked = Call(self._caller, self._surface, id, EMPTY_OBJECT, kind="task", client_caps=self._profile)
        call = aimed(asked, view, self._hub.tasks)
        whose = None if call is None else call.surface.server
        if call is None or whose is None or "task_handles" not in view.servers[whose]:
            return None
        return _Followed(self._hub, call, whose, self._tell)

    def start(self) -> None:
        """Ask from now on."""
        for followed in self._followed.values():
            followed.look()

    def close(self) -> None:
        """Ask no more."""
        for followed in self._followed.values():
            followed.stop()


class _Followed(Aside):
    """One task: asked about again and again, until it has ended or its server does not know it."""

    def __init__(self, hub: Hub, call: Call, server: ServerName, tell: Tell) -> None:
        self._hub = hub
        self._call = call
        self._server = server
        self._tell = tell
        self._pause = POLL_SECONDS
        self._last = b""
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """Ask how it stands."""
        if not self._is_over:
            self._hub.start(self._call, self)

    def stop(self) -> None:
        """Ask no more; what was asked already is answered to nobody."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def emit(self, event: Event) -> None:
        """Nobody wants to hear it."""

    def ask(self, question: Question, reply: OnReply) -> None:
        """What a task asks is part of how it stands."""
        reply(NOT_ASKED)

    def end(self, outcome: Outcome) -> None:
        """Tell what is new, and ask again in a while."""
        if self._is_over:
            return
        if isinstance(outcome, Result):
            self._answered(outcome.payload)
        elif isinstance(outcome, ServerError) and outcome.code == INVALID_PARAMS:
            self._is_over = True  # it was forgotten
        if not self._is_over:
            self._timer = asyncio.get_running_loop().call_later(self._pause, self.look)

    def _answered(self, payload: msgspec.Raw) -> None:
        state = read_state(payload)
        if state is None or state.id != self._call.name:
            return  # it says nothing of this one
        self._is_over = state.is_over
        wanted = read_poll_seconds(payload) or POLL_SECONDS
        self._pause = min(max(wanted, POLL_SECONDS_MIN), POLL_SECONDS_MAX)
        digest = hashlib.blake2b(payload, digest_size=16).digest()
        if digest != self._last:
            self._last = digest
            told = with_ids(payload, partial(shown_id, self._call.caller, self._server))
            members = object_members(told) or {}
            self._tell({key: value for key, value in members.items() if key not in ("resultType", "_meta")})
