"""Asking a modern caller: the question is the answer to its call, and it comes back with another call.

What it brings back is a text that the hub sealed: bound to the caller, to what it called and with which arguments, and
to a time. A modern server's own state is in it; for a server of the earlier era, which waits for an answer to its
request, it names the call that is parked here meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from isthmus.core.calls.inflight import QUESTION_SECONDS, InFlight
from isthmus.core.catalog.view import View
from isthmus.core.ports.sealer import Sealer
from isthmus.faces.mcp.asker import Askable
from isthmus.model.calls import Call
from isthmus.model.events import Event
from isthmus.model.outcomes import Outcome, Result
from isthmus.model.questions import Answered, Declined, OnReply, Question
from isthmus.wire.mcp.inputs import STATE, read_responses, with_state, write_inputs
from isthmus.wire.mcp.messages import read_string

STATE_SECONDS = QUESTION_SECONDS
PARKED_MAX = 1_000
PARKED_EACH_MAX = 100
"""Calls of one caller that may wait here for it to come back."""

USED_EACH_MAX = 50_000
"""States of one caller that it brought back and that have not ceased to hold; beyond, it has to wait for some to."""

GATHER_SECONDS = 0.02
"""How long a first question waits for others: many servers ask several things at once, and their caller should
not have to come back for each."""

KEPT_SECONDS = 60.0
"""How long the end of a parked call waits for its caller to come back."""

FULL = Declined(-32603, "Too many calls wait for their callers to come back")


class _State(msgspec.Struct, omit_defaults=True):
    """What is sealed: until when it holds, its own number, and whose state or which parked call it stands for."""

    until: float
    number: str
    server: str | None = None
    parked: str | None = None


_STATE = msgspec.json.Decoder(_State)

Owner: TypeAlias = tuple[str, str]


class Parked:
    """A call whose caller has to come back: stands in for it, and keeps what happens meanwhile."""

    def __init__(self, inflight: InFlight) -> None:
        self.id = secrets.token_urlsafe(16)
        self.number: str | None = None
        """Of the state that its caller has now: every other one has been brought back."""
        self.inflight = inflight
        self.questions: dict[str, tuple[Question, OnReply]] = {}
        self.outcome: Outcome | None = None
        self.on_end: Callable[[], None] = _nothing
        self._last = 0

    def emit(self, event: Event) -> None:
        """Nobody listens now."""

    def ask(self, question: Question, reply: OnReply) -> None:
        """Keep the question until the caller comes back."""
        self._last += 1
        self.questions[f"q{self._last}"] = (question, reply)

    def end(self, outcome: Outcome) -> None:
        """Keep how the call ended until the caller comes back."""
        self.outcome = outcome
        self.on_end()


class Comebacks:
    """Everything that modern callers were asked. Calls are parked on the node that holds their link."""

    def __init__(self, sealer: Sealer, *, gather_seconds: float = GATHER_SECONDS) -> None:
        self._sealer = sealer
        self._gather_seconds = gather_seconds
        self._loop = asyncio.get_running_loop()
        self._parked: dict[str, Parked] = {}
        self._counts: Counter[Owner] = Counter()
        self._used: dict[Owner, OrderedDict[str, float]] = {}
        """Numbers of states that were brought back and must not be again, with when they cease to hold anyway."""

    def __len__(self) -> int:
        return len(self._parked)

    # -- asking ----------------------------------------------------------------------------------------------------

    def seal(self, call: Call, result: Result) -> Result:
        """A modern server's question, with its state sealed for this caller and this call."""
        members = msgspec.json.decode(result.payload, type=dict[str, msgspec.Raw])
        state = self._seal(call, _State(self._until(), _number(), read_string(members.get(STATE))))
        return msgspec.structs.replace(result, payload=msgspec.Raw(with_state(result.payload, state)))

    def ask(self, where: Askable, question: Question, reply: OnReply) -> None:
        """Park the call, and answer it with the question."""
        inflight, owner = where.inflight, _owner(where.call)
        if inflight is None or len(self._parked) >= PARKED_MAX or self._counts[owner] >= PARKED_EACH_MAX:
            reply(FULL)
            return
        parked = Parked(inflight)
        parked.ask(question, reply)
        self._parked[parked.id] = parked
        self._counts[owner] += 1
        parked.on_end = lambda: self._keep_end(parked)
        self._stand_in(parked, where)
        if self._gather_seconds:
            self._loop.call_later(self._gather_seconds, self._hand_out, parked, where)
        else:
            self._hand_out(parked, where)

    def _stand_in(self, parked: Parked, where: Askable) -> None:
        parked.inflight.exchange = parked
        where.inflight = None

    def _hand_out(self, parked: Parked, where: Askable) -> None:
        """Let the caller go with the questions; or with how the call ended, if it did meanwhile."""
        if parked.outcome is not None:
            self._forget(parked)
            where.end(parked.outcome)
            return
        parked.number = _number()
        state = self._seal(where.call, _State(self._until(), parked.number, parked=parked.id))
        questions = {key: question for key, (question, _) in parked.questions.items()}
        where.end(Result(msgspec.Raw(write_inputs(questions, state)), is_typed=True))

    def _keep_end(self, parked: Parked) -> None:
        self._loop.call_later(KEPT_SECONDS, self._forget, parked)

    def _forget(self, parked: Parked) -> None:
        if self._parked.pop(parked.id, None) is not None:
            self._counts -= Counter({_owner(parked.inflight.call): 1})

    # -- coming back -----------------------------------------------------------------------------------------------

    def open(self, call: Call, view: View) -> Parked | Call | None:
        """What a call comes back to: a parked one, or itself with the server's own state; None if that is not its."""
        state = self._opened(call)
        if state is None:
            return None
        if state.parked is not None:
            return self._unparked(state.parked, state.number)
        if not self._use(state, call, view):
            return None
        extra = {key: value for key, value in call.extra.items() if key != STATE}
        if state.server is not None:
            extra[STATE] = msgspec.Raw(msgspec.json.encode(state.server))
        return msgspec.structs.replace(call, extra=extra)

    def _opened(self, call: Call) -> _State | None:
        text = read_string(call.extra.get(STATE))
        content = None if text is None else self._sealer.open(text, _bound_to(call))
        if content is None:
            return None
        state = _STATE.decode(content)
        return state if state.until > self._loop.time() else None

    def _unparked(self, id: str, number: str) -> Parked | None:
        """The parked call, for the one state that was given out last."""
        parked = self._parked.get(id)
        if parked is None or parked.number != number:
            return None
        parked.number = None
        return parked

    def _use(self, state: _State, call: Call, view: View) -> bool:
        """Whether a state may be brought back: once, unless doing it again would change nothing."""
        if _is_harmless(call, view):
            return True
        used = self._used.setdefault(_owner(call), OrderedDict())
        now = self._loop.time()
        while used and next(iter(used.values())) <= now:
            used.popitem(last=False)
        if state.number in used or len(used) >= USED_EACH_MAX:
            return False
        used[state.number] = state.until
        return True

    def resume(self, parked: Parked, where: Askable, extra: Mapping[str, msgspec.Raw]) -> None:
        """Give the answers to the server that waits for them, and let the caller listen again."""
        # What follows at once (a link that breaks, another question) is still kept: the caller is answered once.
        for key, answer in (read_responses(dict(extra)) or {}).items():
            _, reply = parked.questions.pop(key, (None, None))
            if reply is not None:
                reply(Answered(answer))
        if parked.outcome is not None:
            self._forget(parked)
            where.end(parked.outcome)
        elif parked.questions:
            self._hand_out(parked, where)
        else:
            self._forget(parked)
            where.inflight = parked.inflight
            parked.inflight.exchange = where

    # -- sealing ---------------------------------------------------------------------------------------------------

    def _seal(self, call: Call, state: _State) -> str:
        return self._sealer.seal(msgspec.json.encode(state), _bound_to(call))

    def _until(self) -> float:
        return self._loop.time() + STATE_SECONDS


def _number() -> str:
    return secrets.token_urlsafe(12)


def _owner(call: Call) -> Owner:
    return call.caller.tenant, call.caller.name


def _bound_to(call: Call) -> bytes:
    """What a state belongs to: who called what, where, with which arguments, however these are spelt."""
    try:
        arguments = msgspec.json.encode(msgspec.json.decode(call.arguments), order="sorted")
    except msgspec.MsgspecError:
        arguments = bytes(call.arguments)  # a number too large to read, say: then as it was written
    parts = (call.caller.tenant, call.caller.name, call.surface.style, call.surface.server or "", call.kind, call.name)
    digest = hashlib.blake2b(arguments, digest_size=32)
    return "\0".join(parts).encode("utf-8", "surrogatepass") + b"\0" + digest.digest()


class _Hints(msgspec.Struct, rename="camel"):
    read_only_hint: bool | None = None
    idempotent_hint: bool | None = None


def _is_harmless(call: Call, view: View) -> bool:
    """Whether doing it twice does no more than doing it once, by its server's own word."""
    if call.kind != "tool":
        return True
    route = view.routes.get(call.name)
    raw = None if route is None else route.feature.definition.get("annotations")
    try:
        hints = _Hints() if raw is None else msgspec.json.decode(raw, type=_Hints)
    except msgspec.MsgspecError:
        return False
    return bool(hints.read_only_hint or hints.idempotent_hint)


def _nothing() -> None: ...
