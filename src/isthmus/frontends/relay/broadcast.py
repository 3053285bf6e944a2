"""What a device asks of every server of its agent at once: one call each, and one answer of all that they say.

No task waits for it: each call ends by itself, at the latest when its time is over, and the last one's end is the
answer's moment. Made by `faces.relay.device`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from isthmus.core.calls.inflight import InFlight
from isthmus.core.ports import AgentServer
from isthmus.frontends.relay.agents import REASON_LENGTH, Agent
from isthmus.frontends.relay.faults import BROADCAST_WORDS, fault_reply, no_such_method, not_connected, refusal
from isthmus.model.calls import NOT_ASKED, Call, Event, OnReply, Outcome, Question, Result, Surface
from isthmus.model.faults import BadReply, Fault, ServerError, UnknownTool
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import Payload, object_members
from isthmus.wire.mcp import modern
from isthmus.wire.mcp.messages import Members
from isthmus.wire.relay.messages import (
    LIST_MEMBERS,
    MissingServer,
    add_server_id,
    broadcast_result,
    error_entry,
    list_result,
    read_entries,
    server_counts,
)

PAGES_MAX = 100
"""Pages of one server's list that are asked for; further ones are left out, and the server is named."""

SHORTEST_SECONDS = 0.001
"""What is left for a page whose time is over: a call must have some."""

BROKEN_OFF = "its list has more pages than are asked for"
NOT_ASKED_REASON = "a rule forbids devices some of it, and so anything but its tools"


Done: TypeAlias = "Callable[[Broadcast, bytes], None]"


class _Voice:
    """One server's part in it: the caller's side of the call to that server, and what came of it."""

    __slots__ = ("_whole", "entries", "fault", "has_answered", "inflight", "pages", "seat")

    def __init__(self, whole: Broadcast, seat: AgentServer) -> None:
        self._whole = whole
        self.seat = seat
        self.inflight: InFlight | None = None
        self.has_answered = False
        self.fault: Fault | None = None
        self.entries: list[bytes] = []
        """What it listed, or its one answer, each with its id."""
        self.pages = 0

    def emit(self, event: Event) -> None:
        """What happens meanwhile is told nobody: there is one answer."""

    def ask(self, question: Question, reply: OnReply) -> None:
        """Devices cannot be asked."""
        reply(NOT_ASKED)

    def end(self, outcome: Outcome) -> None:
        """It has answered, or will not."""
        self.inflight = None
        self._whole.heard(self, outcome)


class Asked(msgspec.Struct, frozen=True):
    """What is asked of everybody. `size` is how long the message was that asked it, `device` who did."""

    id: bytes
    method: str
    params: Members
    meta: Members
    size: int
    device: str


class Broadcast:
    """One question to all servers that are here. `done` is given the answer, once, unless it is withdrawn before."""

    def __init__(self, agent: Agent, asked: Asked, done: Done) -> None:
        """`start` follows."""
        self.asked = asked
        self._agent = agent
        self._member = LIST_MEMBERS.get(asked.method)
        self._done: Done | None = done
        self._until = agent.hub.now() + agent.settings.wait
        self._voices = [_Voice(self, seat) for seat in agent.seats() if seat.is_here]
        self._absent = agent.absent()
        self._open = len(self._voices)
        self._room_bytes = agent.settings.frame_bytes
        """What may still be added: more would not reach the device, and must not be kept until the last has spoken."""

    @property
    def is_over(self) -> bool:
        """Whether it was answered or withdrawn."""
        return self._done is None

    def start(self) -> None:
        """Ask every server; with none to ask it is answered at once."""
        if not self._voices:
            self._give(not_connected(self.asked.id, self._agent.name, "没有已连接的MCP服务器"))
        params = msgspec.Raw(jsonrpc.render(self.asked.params))  # one text for all, who may be many
        for voice in self._voices:
            if not self.is_over:
                self._ask(voice, params, self._agent.settings.wait)

    def hurry(self, why: str) -> None:
        """Answer now, with what was heard: whoever is still asked is asked no longer, and that ends their part."""
        for voice in self._voices:
            if voice.inflight is not None:
                voice.inflight.cancel(why)

    def cancel(self, why: str) -> None:
        """Withdraw it: nobody waits for the answer any more."""
        self._done = None
        self.hurry(why)

    def _ask(self, voice: _Voice, params: msgspec.Raw, seconds: float) -> None:
        call = Call(
            self._agent.caller,
            Surface("own", voice.seat.server),
            self.asked.method,
            params,
            self.asked.meta,
            kind="method",
            face="relay",
            timeout=seconds,
            sharer=self.asked.device,
        )
        inflight = self._agent.hub.start(call, voice)
        if inflight.outcome is None:
            voice.inflight = inflight

    def heard(self, voice: _Voice, outcome: Outcome) -> None:
        """A server's call has ended."""
        if self.is_over:
            return
        if isinstance(outcome, Fault):
            voice.fault = outcome
        elif not self._take(voice, outcome):
            return
        self._open -= 1
        is_enough = voice.has_answered and self._agent.settings.aggregate == "first"
        if self._room_bytes < 0:
            self._give(self._too_long())
        elif is_enough or not self._open:
            self._give(self._answer([voice] if is_enough else self._voices))

    def _take(self, voice: _Voice, result: Result) -> bool:
        """Keep what a server answered; False if it is asked for more, and not done with its part."""
        if len(memoryview(result.payload)) > self._room_bytes:  # nothing is made of what is not sent
            self._room_bytes = -1
            return True
        payload = (modern.as_legacy(result.payload) or result.payload) if result.is_typed else result.payload
        page = _whole(payload) if self._member is None else read_entries(payload, self._member)
        if page is None:
            voice.fault = BadReply(
                voice.seat.server, f"it has no {self._member or 'members'}, too many of them, or a member twice"
            )
            return True
        entries, cursor = page
        tags = [text for entry in entries if (text := add_server_id(entry, voice.seat.server_id)) is not None]
        voice.entries += tags
        voice.pages += 1
        self._room_bytes -= sum(map(len, tags))
        is_last = cursor is None or "cursor" in self.asked.params or voice.pages >= PAGES_MAX or self._room_bytes < 0
        if not is_last:
            left = max(self._until - self._agent.hub.now(), SHORTEST_SECONDS)
            params = jsonrpc.render({**self.asked.params, "cursor": msgspec.json.encode(cursor)})
            self._ask(voice, msgspec.Raw(params), left)
            return False
        if voice.pages >= PAGES_MAX:
            self._absent.append(MissingServer(voice.seat.server_id, BROKEN_OFF))
        voice.has_answered = True
        return True

    def _too_long(self) -> bytes:
        details = f"应答过大: 上限 {self._agent.settings.frame_bytes} 字节"
        return refusal(self.asked.id, self._agent.name, details, executed="yes")

    def _give(self, answer: bytes) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(self, answer)
        self.cancel("the answer is complete without it")

    # -- one answer of many ----------------------------------------------------------------------------------------

    def _answer(self, voices: Sequence[_Voice]) -> bytes:
        if not any(voice.has_answered for voice in voices):
            return self._failure(voices)
        write = self._responses_of if self._member is None else self._list_of
        return jsonrpc.result(self.asked.id, write(voices))

    def _list_of(self, voices: Sequence[_Voice]) -> bytes:
        """One list of all; who answered with an error is named beside it, since in it that would be an entry."""
        assert self._member is not None
        heard = [voice for voice in voices if voice.has_answered]
        entries = [entry for voice in heard for entry in voice.entries]
        return list_result(self._member, entries, self._totals(heard, voices))

    def _responses_of(self, voices: Sequence[_Voice]) -> bytes:
        """One answer of each that answered, be it an error."""
        heard = [voice for voice in voices if voice.has_answered or isinstance(voice.fault, ServerError)]
        return broadcast_result([entry for voice in heard for entry in _answers_of(voice)], self._totals(heard, voices))

    def _totals(self, heard: Sequence[_Voice], voices: Sequence[_Voice]) -> dict[str, Payload]:
        if len(voices) < len(self._voices):  # the first answer is enough, so that nobody is missed
            total = len(self._voices) + len(self._absent)
            return {**server_counts(len(heard), ()), "total_servers": b"%d" % total}
        return server_counts(len(heard), self._missing([voice for voice in voices if voice not in heard]))

    def _missing(self, silent: Sequence[_Voice]) -> list[MissingServer]:
        """Who did not answer, of those who were to be asked and of those who are away."""
        told = [MissingServer(voice.seat.server_id, _why(voice.fault)) for voice in silent if voice.fault is not None]
        return [*told, *self._absent]

    def _failure(self, voices: Sequence[_Voice]) -> bytes:
        """All failed: what a server said, if one did, else why none answered, else that none may be asked."""
        faults = sorted((voice.fault for voice in voices if voice.fault is not None), key=_weight)
        fault = faults[0]
        if isinstance(fault, UnknownTool):  # not for this device: no server may be asked just anything
            return no_such_method(self.asked.id, self.asked.method)
        silent = [voice for voice in voices if not isinstance(voice.fault, ServerError)]
        return fault_reply(
            self.asked.id, fault, self._agent.name, self.asked.method, BROADCAST_WORDS, self._missing(silent)
        )


def _weight(fault: Fault) -> int:
    """The least is told: a server's own words, and only for want of anything else that somebody may not be asked."""
    return 0 if isinstance(fault, ServerError) else 2 if isinstance(fault, UnknownTool) else 1


def _why(fault: Fault) -> str:
    return NOT_ASKED_REASON if isinstance(fault, UnknownTool) else fault.message[:REASON_LENGTH]


def _whole(payload: Payload) -> tuple[list[Payload], None] | None:
    """An answer that is no list, as one that has one entry and no further page; None if it cannot be tagged."""
    return None if object_members(payload) is None else ([payload], None)


def _answers_of(voice: _Voice) -> list[bytes]:
    error = voice.fault
    if isinstance(error, ServerError):
        return [error_entry(error.code, error.message, error.data, voice.seat.server_id)]
    return voice.entries
