"""Asking an earlier caller: requests of the hub's own, down the stream of the call that they are about.

One table for each session or conversation; an answer that is in none of them is nobody's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from isthmus.frontends.mcp.asker import Askable
from isthmus.frontends.mcp.tasks import own_result, shown_params
from isthmus.model.callers import Caller
from isthmus.model.calls import Call
from isthmus.model.outcomes import Result
from isthmus.model.questions import Answered, Declined, OnReply, Question, Reply
from isthmus.wire.jsonrpc import ErrorReply, Response, notification, render
from isthmus.wire.mcp.messages import CANCELLED, cancelled_params, is_object

OPEN_MAX = 1_000
"""Questions that one caller may have before it, unanswered; the oldest is given up for one more. Most of so many are
of calls that ended long ago."""

CROWDED = Declined(-32603, "The caller has too many questions before it")
GONE = Declined(-32603, "The caller has left")
NO_ANSWER = Declined(-32603, "The caller's answer is no object")


class Asked:
    """What one caller was asked and has not answered."""

    def __init__(self) -> None:
        self._open: dict[bytes, tuple[OnReply, Askable | None]] = {}
        """Whom each answer goes to, and the call on whose stream it was asked, while that runs."""
        self._caller: Caller | None = None
        """Who is asked, always the same."""
        self._last = 0

    def seal(self, call: Call, result: Result) -> Result:
        """Servers whose results ask are asked again by the hub itself for such a caller: there is none to seal."""
        return result

    def ask(self, where: Askable, question: Question, reply: OnReply) -> None:
        """Send the question as a request, and wait for its answer."""
        if len(self._open) >= OPEN_MAX and (oldest := self._close(next(iter(self._open)))) is not None:
            oldest(CROWDED)
        self._last += 1
        self._caller = where.call.caller
        id = msgspec.json.encode(f"isthmus-{self._last}")
        self._open[id] = (reply, where)
        members = {"jsonrpc": b'"2.0"', "id": id, "method": msgspec.json.encode(question.method)}
        where.put(id, render({**members, "params": shown_params(question, where.call)}))

    def retract(self, where: Askable, reply: OnReply) -> None:
        """Tell the caller to let a question be; what it answers all the same is nobody's."""
        id = self._find(reply)
        if id is not None:
            self._take_back(id, where.say)

    def outlive(self, reply: OnReply, say: Callable[[bytes], None] | None) -> Callable[[], None] | None:
        """See `Asker`."""
        id = self._find(reply)
        if id is None:
            return None
        self._open[id] = (reply, None)
        return partial(self._take_back, id, say)

    def _find(self, reply: OnReply) -> bytes | None:
        return next((id for id, (each, _) in self._open.items() if each is reply), None)

    def _take_back(self, id: bytes, say: Callable[[bytes], None] | None) -> None:
        if id in self._open:
            self._close(id)
            if say is not None:
                say(notification(CANCELLED, cancelled_params(id, "an answer is not needed any more")))

    def take(self, message: Response | ErrorReply) -> bool:
        """Take an answer of the caller; False if nobody asked for it."""
        reply = None if message.id is None else self._close(bytes(message.id))
        if reply is None:
            return False
        reply(self._read(message))
        return True

    def _read(self, message: Response | ErrorReply) -> Reply:
        if isinstance(message, ErrorReply):
            return Declined(message.code, message.message)
        if not is_object(message.result):
            return NO_ANSWER
        return Answered(message.result if self._caller is None else own_result(message.result, self._caller))

    def _close(self, id: bytes) -> OnReply | None:
        """A question is over: whom its answer goes to, if it was open."""
        reply, where = self._open.pop(id, (None, None))
        if where is not None:
            where.settle(id)
        return reply

    def close(self) -> None:
        """Nobody will answer any more."""
        waiting, self._open = self._open, {}
        for reply, _ in waiting.values():
            reply(GONE)
