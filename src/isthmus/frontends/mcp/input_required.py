"""Asking a modern caller: the question is the answer to its call, and it comes back with another call.

What it brings back is a text that the hub sealed: bound to the caller, to what it called and with which arguments, and
to a time. A modern server's own state is in it; for a server of the earlier era, which waits for an answer to its
request, it names the call that is parked here meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections import OrderedDict
from collections.abc import Callable, Container, Mapping, MutableMapping
from functools import partial

import msgspec

from isthmus.core.calls.hub import Hub
from isthmus.core.calls.inflight import QUESTION_SECONDS, InFlight
from isthmus.core.catalog.labels import labels_of
from isthmus.core.catalog.view import View
from isthmus.core.ports.sealer import Sealer
from isthmus.core.settings import Limits
from isthmus.frontends.mcp.asker import Askable
from isthmus.frontends.mcp.parked import FULL, Lot, Owner, Parked, owner_of
from isthmus.model.callers import Caller
from isthmus.model.calls import Call
from isthmus.model.faults import BadReply, BadState, Fault
from isthmus.model.outcomes import Outcome, Result
from isthmus.model.questions import OnReply, Question
from isthmus.wire.mcp.inputs import STATE, read_responses, with_state, write_inputs
from isthmus.wire.mcp.messages import read_string

STATE_SECONDS = QUESTION_SECONDS

STATE_LENGTH_MAX = 1024 * 1024
"""The longest text that a caller is given to carry; half of `request_bytes` where that is less, as it has to bring its
arguments and answers along."""

USED_EACH_MAX = 50_000
"""States of one caller that it brought back and that have not ceased to hold; beyond, it has to wait for some to."""

GATHER_SECONDS = 0.02
"""How long a first question waits for others: many servers ask several things at once, and their caller should
not have to come back for each."""

HARMLESS = frozenset({"hint:read-only", "hint:idempotent"})
"""What is so of tools that may be run twice for one answer."""


class _State(msgspec.Struct, omit_defaults=True):
    """What is sealed: until when it holds, its own number, and whose state or which parked call it stands for."""

    until: float
    number: str
    server: str | None = None
    parked: str | None = None


_STATE = msgspec.json.Decoder(_State)


class Comebacks:
    """Everything that modern callers were asked. Calls are parked on the node that holds their link."""

    def __init__(self, sealer: Sealer, limits: Limits, *, gather_seconds: float = GATHER_SECONDS) -> None:
        self.limits = limits
        self._sealer = sealer
        self._gather_seconds = gather_seconds
        self._loop = asyncio.get_running_loop()
        self._lot = Lot()
        self._used: dict[Owner, OrderedDict[str, float]] = {}
        """Numbers of states that were brought back and must not be again, with when they cease to hold anyway."""

    def __len__(self) -> int:
        return len(self._lot)

    def retain(self, callers: Container[Caller]) -> None:
        """Give up the parked calls of everybody else: who was removed, or may now do other things."""
        for parked in self._lot:
            if parked.caller not in callers and parked.inflight is not None:
                parked.inflight.cancel("the caller was removed, or may do other things now")

    # -- asking ----------------------------------------------------------------------------------------------------

    def seal(self, call: Call, result: Result) -> Outcome:
        """A modern server's question, with its state sealed for this caller and this call, if that can be carried."""
        members = msgspec.json.decode(result.payload, type=dict[str, msgspec.Raw])
        state = self._seal(call, _State(self._until(), _number(), read_string(members.get(STATE))))
        longest = min(STATE_LENGTH_MAX, self.limits.request_bytes // 2)
        if len(state) > longest and result.asked_by is not None:
            return BadReply(result.asked_by, f"a state of {len(state)} bytes once sealed; callers carry {longest}")
        return msgspec.structs.replace(result, payload=msgspec.Raw(with_state(result.payload, state)))

    def ask(self, where: Askable, question: Question, reply: OnReply) -> None:
        """Park the call, and answer it with the question."""
        inflight = where.inflight
        parked = None if inflight is None else self._lot.park(inflight)
        if inflight is None or parked is None:
            reply(FULL)
            return
        parked.ask(question, reply)
        if not parked.questions:
            self._lot.leave(parked)
            return
        parked.on_end = partial(self._keep_end, parked)
        parked.where = where
        inflight.exchange, where.inflight = parked, None
        if self._gather_seconds:
            self._loop.call_later(self._gather_seconds, self._hand_out, parked, where)
        else:
            self._hand_out(parked, where)

    def retract(self, where: Askable, reply: OnReply) -> None:
        """Who is asked is parked, and what is parked forgets its questions itself."""

    def outlive(self, reply: OnReply, say: Callable[[bytes], None] | None) -> None:
        """The same."""

    def _hand_out(self, parked: Parked, where: Askable) -> None:
        """Let the caller go with the questions; or with how the call ended or goes on, if there are none any more."""
        parked.where = None
        if parked.outcome is not None or not parked.questions:
            self._rejoin(parked, where)
            return
        parked.number, parked.until = _number(), self._until()
        state = self._seal(where.call, _State(parked.until, parked.number, parked=parked.id))
        questions = {key: question for key, (question, _) in parked.questions.items()}
        where.end(Result(msgspec.Raw(write_inputs(questions, state)), is_typed=True))

    def _rejoin(self, parked: Parked, where: Askable) -> None:
        """Let the caller listen again, or tell it how the call ended meanwhile."""
        self._lot.leave(parked)
        if parked.outcome is not None:
            where.end(parked.outcome)
        else:
            assert parked.inflight is not None, "it has not ended"
            where.inflight = parked.inflight
            parked.inflight.exchange = where

    def _keep_end(self, parked: Parked) -> None:
        """Keep how a call ended for as long as its caller may come back to hear it."""
        if parked.number is not None:  # else it is just being handed out or resumed, and is told at once
            parked.clock = self._loop.call_at(parked.until, self._lot.leave, parked)

    # -- coming back -----------------------------------------------------------------------------------------------

    def go_on(self, call: Call, where: Askable, hub: Hub) -> InFlight | None:
        """Go on with what a call comes back to; None if it has been answered already."""
        view = hub.snapshot.view(call.caller.grants, call.surface, call.client_caps)
        state = self._opened(call)
        if state is not None and state.parked is not None:
            parked = self._unparked(state.parked, state.number, call, view)
            if parked is not None:
                self._resume(parked, where, call.extra)
                return where.inflight
        elif state is not None and self._use(state, call, _is_harmless(call, view, hub)):
            return self._start_again(state, call, where, hub)
        where.end(BadState())
        return None

    def _opened(self, call: Call) -> _State | None:
        text = read_string(call.extra.get(STATE))
        if text is None or len(text) > STATE_LENGTH_MAX:
            return None
        content = self._sealer.open(text, _bound_to(call))
        if content is None:
            return None
        state = _STATE.decode(content)
        return state if state.until > self._loop.time() else None

    def _start_again(self, state: _State, call: Call, where: Askable, hub: Hub) -> InFlight:
        """Send a modern server its own state back; a call that it did not get has not used the state up."""
        extra = {key: value for key, value in call.extra.items() if key != STATE}
        if state.server is not None:
            extra[STATE] = msgspec.Raw(msgspec.json.encode(state.server))
        inflight = hub.start(msgspec.structs.replace(call, extra=extra), where)
        used = _Used(self._used.get(owner_of(call), {}), state.number, inflight)
        if inflight.outcome is not None:
            used(inflight, inflight.outcome)
        else:
            inflight.keep = used
        return inflight

    def _unparked(self, id: str, number: str, call: Call, view: View) -> Parked | None:
        """The parked call, for the one state that was given out last and who may still call such a thing."""
        parked = self._lot.find(id)
        if parked is None or parked.number != number:
            return None
        if view.find(call.kind, call.name) is None:
            if parked.inflight is not None:
                parked.inflight.cancel("what was called is not there any more")
            return None
        parked.number = None
        return parked

    def _use(self, state: _State, call: Call, is_harmless: bool) -> bool:  # noqa: FBT001 - asked once, above
        """Whether a state may be brought back: once, unless doing it again would change nothing."""
        if is_harmless:
            return True
        used = self._used.setdefault(owner_of(call), OrderedDict())
        now = self._loop.time()
        while used and next(iter(used.values())) <= now:
            used.popitem(last=False)
        if state.number in used or len(used) >= USED_EACH_MAX:
            return False
        used[state.number] = state.until
        return True

    def _resume(self, parked: Parked, where: Askable, extra: Mapping[str, msgspec.Raw]) -> None:
        """Give the answers to the server that waits for them, and let the caller listen again."""
        # What follows at once (a link that breaks, another question) is still kept: the caller is answered once.
        for key, answer in (read_responses(dict(extra)) or {}).items():
            parked.answer(key, answer)
        self._hand_out(parked, where)

    # -- sealing ---------------------------------------------------------------------------------------------------

    def _seal(self, call: Call, state: _State) -> str:
        return self._sealer.seal(msgspec.json.encode(state), _bound_to(call))

    def _until(self) -> float:
        return self._loop.time() + STATE_SECONDS


class _Used:
    """Hears how a call ended that used a state up; if it was not sent at all, the state is good again."""

    def __init__(self, used: MutableMapping[str, float], number: str, inflight: InFlight) -> None:
        self._used = used
        self._number = number
        self._keep = inflight.keep

    def __call__(self, inflight: InFlight, outcome: Outcome) -> None:
        if isinstance(outcome, Fault) and outcome.executed == "no":
            self._used.pop(self._number, None)
        if self._keep is not None:
            self._keep(inflight, outcome)


def _number() -> str:
    return secrets.token_urlsafe(12)


def _bound_to(call: Call) -> bytes:
    """What a state belongs to: who called what, where, with which arguments, however these are spelt."""
    parts = (call.caller.tenant, call.caller.name, call.surface.style, call.surface.server or "", call.kind, call.name)
    digest = hashlib.blake2b(_spelt_alike(bytes(call.arguments)), digest_size=32)
    return "\0".join(parts).encode("utf-8", "surrogatepass") + b"\0" + digest.digest()


def _spelt_alike(arguments: bytes) -> bytes:
    """The same text for the same arguments, whatever their order and white space; numbers stay as they are written.

    What two readers could understand differently, a member that is given twice, is the same only letter by letter.
    """
    try:
        read = _READER.decode(arguments.decode())
        return b"=" + msgspec.json.encode(read, order="sorted")
    except (ValueError, RecursionError):
        return b"~" + arguments


def _once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member is given twice")
    return members


def _as_written(number: str) -> msgspec.Raw:
    return msgspec.Raw(number.encode())


_READER = json.JSONDecoder(object_pairs_hook=_once_each, parse_int=_as_written, parse_float=_as_written)
"""Slower than the decoder of everything else, which has no such hooks; only what is asked about is read by it."""


def _is_harmless(call: Call, view: View, hub: Hub) -> bool:
    """Whether doing it twice does no more than doing it once, by the word of a server that the operator trusts."""
    if call.kind != "tool":
        return True
    route = view.routes.get(call.name)
    server_status = None if route is None else hub.snapshot.server_statuses.get(route.feature.server)
    if route is None or server_status is None:
        return False
    return not HARMLESS.isdisjoint(labels_of(route.feature, server_status.rules).believed)
