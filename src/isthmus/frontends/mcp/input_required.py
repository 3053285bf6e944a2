"""Asking callers for input during a call: elicitation, sampling and roots, in both eras.

A legacy caller receives a request on the stream of its call (`LegacyClientInput`). A modern caller receives an
`input_required` result and calls again with the answers (`ModernClientInput`). The `requestState` that it brings back
is sealed: it is bound to the caller, to the called thing and its arguments, and to a time. It contains a modern
server's own state. A legacy server waits for the answer to its request, so for that one the state names the call that
is suspended here meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator, MutableMapping, Set
from functools import partial
from typing import TypeAlias

import msgspec

from isthmus.core.calls.hub import Hub
from isthmus.core.calls.running_call import QUESTION_SECONDS, InFlight
from isthmus.core.catalog.tool_rules import labels_of
from isthmus.core.catalog.view import View
from isthmus.core.ports import Sealer
from isthmus.core.settings import Limits
from isthmus.frontends.mcp.exchange import AskableExchange
from isthmus.frontends.mcp.tasks import public_params, server_result
from isthmus.model.callers import Caller
from isthmus.model.calls import TOO_LATE, Answered, Call, Declined, Event, OnReply, Outcome, Question, Result
from isthmus.model.fault_table import BadReply, BadState, Fault, ServerError, Unanswered
from isthmus.model.names import ServerName
from isthmus.wire.jsonrpc import ErrorReply, Response, notification, render
from isthmus.wire.mcp.forwarded_methods import STATE, read_refusal, read_responses, with_state, write_input_required
from isthmus.wire.mcp.messages import CANCELLED, cancelled_params, is_object, read_string

MIB = 1024 * 1024

OPEN_MAX = 1_000
"""Unanswered requests of one legacy caller; one more cancels the oldest. Most of so many belong to ended calls."""

CROWDED = Declined(-32603, "The caller has too many unanswered requests")
GONE = Declined(-32603, "The caller has left")
NO_ANSWER = Declined(-32603, "The caller's answer is not an object")

SUSPENDED_MAX = 1_000
SUSPENDED_EACH_MAX = 100
"""Calls that may be suspended, in all and for one caller."""

QUESTIONS_BYTES_MAX = 4 * MIB
"""All questions of one call, so that one server cannot use up its caller's storage."""

STORED_BYTES_MAX = 256 * MIB
STORED_EACH_BYTES_MAX = 32 * MIB
"""Questions and outcomes stored in all and for one caller: room for a reply of the largest size, and some more."""

FULL = Declined(-32603, "Too many calls wait for input from their callers")
LARGE = Declined(-32603, "The question is too large to store until the caller returns")

STATE_SECONDS = QUESTION_SECONDS

STATE_LENGTH_MAX = 1024 * 1024
"""The longest state that a caller is given; half of `request_bytes` where that is less, because the state comes back
together with arguments and answers."""

ASKED_MAX = 10_000
"""States of modern servers that are remembered until their callers return; the oldest are forgotten."""

USED_EACH_MAX = 50_000
"""Used states remembered for one caller until they expire; beyond it, the caller has to wait for that."""

GATHER_SECONDS = 0.02
"""How long a first question waits for more: many servers ask several at once, and one round trip should do."""

HARMLESS = frozenset({"hint:read-only", "hint:idempotent"})
"""Labels of tools that may run twice for one answer."""

Owner: TypeAlias = tuple[str, str]
"""A caller's tenant and name."""


def owner_of(call: Call) -> Owner:
    """The tenant and name of a call's caller."""
    return call.caller.tenant, call.caller.name


# -- legacy: requests to the caller --------------------------------------------------------------------------------


class LegacyClientInput:
    """The open requests to one legacy caller. There is one for each session."""

    def __init__(self) -> None:
        self._open: dict[bytes, tuple[OnReply, AskableExchange | None]] = {}
        """By request id: who gets the answer, and the call on whose stream it was sent, while that runs."""
        self._caller: Caller | None = None
        self._last = 0

    def seal(self, call: Call, result: Result) -> Result:
        """Links resolve `input_required` results for legacy callers by requests, so there is nothing to seal."""
        return result

    def ask(self, exchange: AskableExchange, question: Question, reply: OnReply) -> None:
        """Send the question as a request."""
        if len(self._open) >= OPEN_MAX and (oldest := self._close(next(iter(self._open)))) is not None:
            oldest(CROWDED)
        self._last += 1
        self._caller = exchange.call.caller
        id = msgspec.json.encode(f"isthmus-{self._last}")
        self._open[id] = (reply, exchange)
        members = {"jsonrpc": b'"2.0"', "id": id, "method": msgspec.json.encode(question.method)}
        exchange.send_request(id, render({**members, "params": public_params(question, exchange.call)}))

    def retract(self, exchange: AskableExchange, reply: OnReply) -> None:
        """Cancel a request; a later answer to it is ignored."""
        id = self._find(reply)
        if id is not None:
            self._cancel(id, exchange.send)

    def outlive(self, reply: OnReply, send: Callable[[bytes], None] | None) -> Callable[[], None] | None:
        """See `ClientInput`."""
        id = self._find(reply)
        if id is None:
            return None
        self._open[id] = (reply, None)
        return partial(self._cancel, id, send)

    def _find(self, reply: OnReply) -> bytes | None:
        return next((id for id, (each, _) in self._open.items() if each is reply), None)

    def _cancel(self, id: bytes, send: Callable[[bytes], None] | None) -> None:
        if id in self._open:
            self._close(id)
            if send is not None:
                send(notification(CANCELLED, cancelled_params(id, "the answer is no longer needed")))

    def receive(self, message: Response | ErrorReply) -> bool:
        """Receive the caller's answer; False if no request has its id."""
        reply = None if message.id is None else self._close(bytes(message.id))
        if reply is None:
            return False
        if isinstance(message, ErrorReply):
            reply(Declined(message.code, message.message))
        elif not is_object(message.result):
            reply(NO_ANSWER)
        else:
            reply(Answered(message.result if self._caller is None else server_result(message.result, self._caller)))
        return True

    def _close(self, id: bytes) -> OnReply | None:
        """Remove a request; returns who gets its answer, if it was open."""
        reply, exchange = self._open.pop(id, (None, None))
        if exchange is not None:
            exchange.settle_request(id)
        return reply

    def close(self) -> None:
        """The caller has left: decline every open request."""
        requests, self._open = self._open, {}
        for reply, _ in requests.values():
            reply(GONE)


# -- modern: suspended calls ---------------------------------------------------------------------------------------


class SuspendedCall:
    """A call that waits for its caller to return with input. Replaces the caller's exchange meanwhile."""

    def __init__(self, inflight: InFlight, calls: SuspendedCalls) -> None:
        self.id = secrets.token_urlsafe(16)
        self.caller = inflight.call.caller
        self.owner = owner_of(inflight.call)
        self._is_admitted = inflight.call.is_admitted
        self.number: str | None = None
        """The number of the state that the caller has now; all others are used up."""
        self.until = 0.0
        """When that state expires."""
        self.waiting_exchange: AskableExchange | None = None
        """The caller's exchange, until it ends with the questions."""
        self.inflight: InFlight | None = inflight
        """The call, until it has ended."""
        self.questions: dict[str, tuple[Question, OnReply]] = {}
        self.outcome: Outcome | None = None
        self.on_end: Callable[[], None] = lambda: None
        self.expiry: asyncio.TimerHandle | None = None
        """Runs while an outcome is stored."""
        self.size_bytes = 0
        self._calls = calls
        self._questions_bytes = 0
        self._last = 0

    def emit(self, event: Event) -> None:
        """Dropped: the caller is not connected."""

    def ask(self, question: Question, reply: OnReply) -> None:
        """Store the question until the caller returns, if there is room for it."""
        size = _size_of(question.params)
        if self._questions_bytes + size > QUESTIONS_BYTES_MAX or not self._calls.reserve(self, size):
            reply(LARGE)
            return
        self._questions_bytes += size
        self._last += 1
        self.questions[f"q{self._last}"] = (msgspec.structs.replace(question, params=question.params.copy()), reply)

    def answer(self, key: str, answer: msgspec.Raw) -> None:
        """Send an answer to the server that asked; anything but an object leaves the question open."""
        if key in self.questions and is_object(answer):
            refused = read_refusal(answer) if self._is_admitted else None
            self._close(key)(Answered(answer) if refused is None else refused)

    def retract(self, reply: OnReply) -> None:
        """Drop the question; an answer to it is ignored."""
        for key in [key for key, (_, each) in self.questions.items() if each is reply]:
            self._close(key)

    def retract_later(self, reply: OnReply) -> Callable[[], None]:
        """The same after the call's end: questions are stored with the outcome, within the same limits."""
        return partial(self.retract, reply)

    def end(self, outcome: Outcome) -> None:
        """Store the outcome until the caller returns."""
        if self.number is None or self.inflight is None:
            self.outcome = outcome
        else:
            self.outcome, size = _copy_alone(outcome)
            if not self._calls.reserve(self, size):
                detail = f"{size} bytes, too many to store until the caller returns"
                self.outcome = BadReply(self.inflight.target.feature.server, detail)
        self.inflight = None  # frees the arguments
        self.on_end()

    def close(self) -> None:
        """The caller does not return: decline every question."""
        if self.expiry is not None:
            self.expiry.cancel()
        for key in list(self.questions):
            self._close(key)(TOO_LATE)

    def _close(self, key: str) -> OnReply:
        question, reply = self.questions.pop(key)
        size = _size_of(question.params)
        self._questions_bytes -= size
        self._calls.release(self, size)
        return reply


class SuspendedCalls:
    """All suspended calls, limited in number and bytes, in all and for each caller."""

    def __init__(self) -> None:
        self._calls: dict[str, SuspendedCall] = {}
        self._counts: dict[Owner, int] = {}
        self._bytes: dict[Owner, int] = {}
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[SuspendedCall]:
        return iter(tuple(self._calls.values()))

    def find(self, id: str) -> SuspendedCall | None:
        """The suspended call with this id."""
        return self._calls.get(id)

    def suspend(self, inflight: InFlight) -> SuspendedCall | None:
        """Suspend a call; None if too many are suspended."""
        suspended = SuspendedCall(inflight, self)
        if len(self._calls) >= SUSPENDED_MAX or self._counts.get(suspended.owner, 0) >= SUSPENDED_EACH_MAX:
            return None
        self._calls[suspended.id] = suspended
        _add(self._counts, suspended.owner, 1)
        return suspended

    def remove(self, suspended: SuspendedCall) -> None:
        """A call is no longer suspended: its caller has returned, or never will."""
        if suspended.id in self._calls:
            self.release(suspended, suspended.size_bytes)
            del self._calls[suspended.id]
            _add(self._counts, suspended.owner, -1)
            suspended.close()

    def reserve(self, suspended: SuspendedCall, size: int) -> bool:
        """Let a suspended call store so many more bytes; False if that exceeds a limit."""
        each = self._bytes.get(suspended.owner, 0)
        if self._size_bytes + size > STORED_BYTES_MAX or each + size > STORED_EACH_BYTES_MAX:
            return False
        self._count(suspended, size)
        return True

    def release(self, suspended: SuspendedCall, size: int) -> None:
        """A suspended call stores so many bytes less; a removed one has released all of its bytes."""
        if suspended.id in self._calls:
            self._count(suspended, -size)

    def _count(self, suspended: SuspendedCall, size: int) -> None:
        suspended.size_bytes += size
        self._size_bytes += size
        _add(self._bytes, suspended.owner, size)


def _add(counts: dict[Owner, int], owner: Owner, more: int) -> None:
    """Add to a count; a count of zero is removed from the table."""
    counts[owner] = counts.get(owner, 0) + more
    if not counts[owner]:
        del counts[owner]


def _size_of(raw: msgspec.Raw) -> int:
    return len(memoryview(raw))


def _copy_alone(outcome: Outcome) -> tuple[Outcome, int]:
    """An outcome that does not keep the message in memory that it is a part of, and its size."""
    if isinstance(outcome, Result):
        return msgspec.structs.replace(outcome, payload=outcome.payload.copy()), _size_of(outcome.payload)
    if isinstance(outcome, ServerError) and outcome.data is not None:
        outcome.data = outcome.data.copy()
        return outcome, len(outcome.message) + _size_of(outcome.data)
    return outcome, len(outcome.message)


# -- modern: input_required results and requestState ---------------------------------------------------------------


class _State(msgspec.Struct, omit_defaults=True):
    """What a `requestState` seals: its expiry and number, and a server's own state or the id of a suspended call."""

    until: float
    number: str
    server: str | None = None
    suspended: str | None = None


_STATE = msgspec.json.Decoder(_State)


class ModernClientInput:
    """All questions to modern callers. Calls are suspended on the node that has their link."""

    def __init__(self, sealer: Sealer, limits: Limits, *, gather_seconds: float = GATHER_SECONDS) -> None:
        self.limits = limits
        self.prefix = ""
        """What states begin with: in a cluster, the tag of the node that can open them."""
        self._sealer = sealer
        self._gather_seconds = gather_seconds
        self._loop = asyncio.get_running_loop()
        self._calls = SuspendedCalls()
        self._used: dict[Owner, OrderedDict[str, float]] = {}
        """Numbers of used states, which must not be used again, with their expiry."""
        self._asked: OrderedDict[str, tuple[ServerName, float]] = OrderedDict()
        """Modern servers whose callers have not returned, by the number of the state, and its expiry."""

    def __len__(self) -> int:
        return len(self._calls)

    def asking(self) -> Set[ServerName]:
        """The servers that have asked a caller something and wait for its answer."""
        now = self._loop.time()
        while self._asked and next(iter(self._asked.values()))[1] <= now:
            self._asked.popitem(last=False)
        suspended = (each.inflight for each in self._calls)
        legacy = {inflight.target.feature.server for inflight in suspended if inflight is not None}
        return legacy | {server for server, _ in self._asked.values()}

    def retain(self, callers: Container[Caller]) -> None:
        """Cancel the suspended calls of all other callers: those removed, or whose permissions changed."""
        for suspended in self._calls:
            if suspended.caller not in callers and suspended.inflight is not None:
                suspended.inflight.cancel("the caller was removed, or its permissions changed")

    # -- asking ----------------------------------------------------------------------------------------------------

    def seal(self, call: Call, result: Result) -> Outcome:
        """A modern server's `input_required` result with its state sealed for this caller and call."""
        members = msgspec.json.decode(result.payload, type=dict[str, msgspec.Raw])
        number, until = _new_number(), self._expiry()
        state = self._seal(call, _State(until, number, read_string(members.get(STATE))))
        longest = min(STATE_LENGTH_MAX, self.limits.request_bytes // 2)
        if len(state) > longest and result.asked_by is not None:
            return BadReply(result.asked_by, f"a state of {len(state)} bytes once sealed; the limit is {longest}")
        if result.asked_by is not None:
            self._asked[number] = result.asked_by, until
            if len(self._asked) > ASKED_MAX:
                self._asked.popitem(last=False)
        return msgspec.structs.replace(result, payload=msgspec.Raw(with_state(result.payload, state)))

    def ask(self, exchange: AskableExchange, question: Question, reply: OnReply) -> None:
        """Suspend the call, and end the exchange with the question."""
        inflight = exchange.inflight
        suspended = None if inflight is None else self._calls.suspend(inflight)
        if inflight is None or suspended is None:
            reply(FULL)
            return
        suspended.ask(question, reply)
        if not suspended.questions:
            self._calls.remove(suspended)
            return
        suspended.on_end = partial(self._expire_outcome, suspended)
        suspended.waiting_exchange = exchange
        inflight.exchange, exchange.inflight = suspended, None
        if self._gather_seconds:
            self._loop.call_later(self._gather_seconds, self._send_questions, suspended, exchange)
        else:
            self._send_questions(suspended, exchange)

    def retract(self, exchange: AskableExchange, reply: OnReply) -> None:
        """Nothing to do: the call is suspended, and a `SuspendedCall` drops its questions itself."""

    def outlive(self, reply: OnReply, send: Callable[[bytes], None] | None) -> None:
        """Nothing to do, as for `retract`."""

    def _send_questions(self, suspended: SuspendedCall, exchange: AskableExchange) -> None:
        """End the exchange with the open questions; without any, reconnect it or end it with the outcome."""
        suspended.waiting_exchange = None
        if suspended.outcome is not None:
            self._calls.remove(suspended)
            exchange.end(suspended.outcome)
        elif not suspended.questions:
            self._calls.remove(suspended)
            assert suspended.inflight is not None, "it has not ended"
            exchange.inflight = suspended.inflight
            suspended.inflight.exchange = exchange
        else:
            suspended.number, suspended.until = _new_number(), self._expiry()
            state = self._seal(exchange.call, _State(suspended.until, suspended.number, suspended=suspended.id))
            questions = {key: question for key, (question, _) in suspended.questions.items()}
            exchange.end(Result(msgspec.Raw(write_input_required(questions, state)), is_typed=True))

    def _expire_outcome(self, suspended: SuspendedCall) -> None:
        """Store an outcome until the caller's state expires."""
        if suspended.number is not None:  # else the caller is connected and receives it at once
            suspended.expiry = self._loop.call_at(suspended.until, self._calls.remove, suspended)

    # -- the caller returns ----------------------------------------------------------------------------------------

    def resume(self, call: Call, exchange: AskableExchange, hub: Hub) -> InFlight | None:
        """Resume what a call with a `requestState` belongs to; None if it has been answered already."""
        view = hub.snapshot.view(call.caller.grants, call.surface, call.client_caps)
        state = self._open_state(call)
        if state is not None and state.suspended is not None:
            suspended = self._find_suspended(state.suspended, state.number, call, view)
            if suspended is not None:
                # The exchange stays detached: a link that breaks now, or another question, must not end it twice.
                for key, answer in (read_responses(dict(call.extra)) or {}).items():
                    suspended.answer(key, answer)
                self._send_questions(suspended, exchange)
                return exchange.inflight
        elif state is not None and (refused := _read_any_refusal(call)) is not None:
            self._asked.pop(state.number, None)
            assert call.surface.server is not None, "another node calls one server"
            exchange.end(Unanswered(call.surface.server, refused.message))
            return None
        elif state is not None and self._use(state, call, is_harmless=_is_harmless(call, view, hub)):
            return self._call_again(state, call, exchange, hub)
        exchange.end(BadState())
        return None

    def _open_state(self, call: Call) -> _State | None:
        text = read_string(call.extra.get(STATE))
        if text is None or len(text) > STATE_LENGTH_MAX:
            return None
        if not text.startswith(self.prefix):
            return None
        content = self._sealer.open(text[len(self.prefix) :], _binding_of(call))
        if content is None:
            return None
        state = _STATE.decode(content)
        return state if state.until > self._loop.time() else None

    def _call_again(self, state: _State, call: Call, exchange: AskableExchange, hub: Hub) -> InFlight:
        """Send a modern server its own state back. A call that was not sent leaves the state usable."""
        extra = {key: value for key, value in call.extra.items() if key != STATE}
        if state.server is not None:
            extra[STATE] = msgspec.Raw(msgspec.json.encode(state.server))
        inflight = hub.start(msgspec.structs.replace(call, extra=extra), exchange)
        self._asked.pop(state.number, None)
        used: MutableMapping[str, float] = self._used.get(owner_of(call), {})
        keep = inflight.keep

        def release_if_unsent(inflight: InFlight, outcome: Outcome) -> Outcome | None:
            if isinstance(outcome, Fault) and outcome.executed == "no":
                used.pop(state.number, None)
            return outcome if keep is None else keep(inflight, outcome)

        if inflight.outcome is not None:
            release_if_unsent(inflight, inflight.outcome)
        else:
            inflight.keep = release_if_unsent
        return inflight

    def _find_suspended(self, id: str, number: str, call: Call, view: View) -> SuspendedCall | None:
        """The suspended call of the latest state, if the caller may still call that."""
        suspended = self._calls.find(id)
        if suspended is None or suspended.number != number:
            return None
        if view.find(call.kind, call.name) is None:
            if suspended.inflight is not None:
                suspended.inflight.cancel("what was called no longer exists")
            return None
        suspended.number = None
        return suspended

    def _use(self, state: _State, call: Call, *, is_harmless: bool) -> bool:
        """Use up a state; False if it was used before and repeating the call could do harm."""
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

    def _seal(self, call: Call, state: _State) -> str:
        return self.prefix + self._sealer.seal(msgspec.json.encode(state), _binding_of(call))

    def _expiry(self) -> float:
        return self._loop.time() + STATE_SECONDS


def _read_any_refusal(call: Call) -> Declined | None:
    """What a caller at another node refused, if anything: a modern server, which would get this, cannot be told."""
    answers = (read_responses(dict(call.extra)) or {}) if call.is_admitted else {}
    return next((refused for answer in answers.values() if (refused := read_refusal(answer)) is not None), None)


def _new_number() -> str:
    return secrets.token_urlsafe(12)


def _binding_of(call: Call) -> bytes:
    """What a state is bound to: the caller, what it called, on which surface, and the arguments in any spelling."""
    surface = (call.surface.style, call.surface.server or "", call.surface.set or "")
    parts = (call.caller.tenant, call.caller.name, *surface, call.kind, call.name)
    digest = hashlib.blake2b(_canonical(bytes(call.arguments)), digest_size=32)
    return "\0".join(parts).encode("utf-8", "surrogatepass") + b"\0" + digest.digest()


def _canonical(arguments: bytes) -> bytes:
    """The same text for the same arguments, whatever their order and white space; numbers stay as they are written.

    Arguments with a repeated member, which two readers could understand differently, must match byte by byte.
    """
    try:
        read = _READER.decode(arguments.decode())
        return b"=" + msgspec.json.encode(read, order="sorted")
    except (ValueError, RecursionError):
        return b"~" + arguments


def _unique_members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member is repeated")
    return members


def _as_written(number: str) -> msgspec.Raw:
    return msgspec.Raw(number.encode())


_READER = json.JSONDecoder(object_pairs_hook=_unique_members, parse_int=_as_written, parse_float=_as_written)
"""Slower than msgspec, which has no such hooks; used only for calls that ask for input."""


def _is_harmless(call: Call, view: View, hub: Hub) -> bool:
    """Whether a call may run twice, according to a server that the operator trusts."""
    if call.kind != "tool":
        return True
    route = view.routes.get(call.name)
    server_status = None if route is None else hub.snapshot.server_statuses.get(route.feature.server)
    if route is None or server_status is None:
        return False
    return not HARMLESS.isdisjoint(labels_of(route.feature, server_status.rules).believed)
