"""Asking an earlier caller: requests of the hub's own, down the stream of the call that they are about.

One table for each session or conversation; an answer that is in none of them is nobody's.
"""

from __future__ import annotations

import msgspec

from isthmus.faces.mcp.asker import Askable
from isthmus.faces.mcp.tasks import shown_params
from isthmus.model.calls import Call
from isthmus.model.outcomes import Result
from isthmus.model.questions import Answered, Declined, OnReply, Question
from isthmus.wire.jsonrpc import ErrorReply, Response, render

OPEN_MAX = 1_000
"""Questions that one caller may have before it, unanswered; the oldest is given up for one more. Most of so many are
of calls that ended long ago."""

CROWDED = Declined(-32603, "The caller has too many questions before it")
GONE = Declined(-32603, "The caller has left")


class Asked:
    """What one caller was asked and has not answered."""

    def __init__(self) -> None:
        self._open: dict[bytes, OnReply] = {}
        self._last = 0

    def seal(self, call: Call, result: Result) -> Result:
        """Servers whose results ask are asked again by the hub itself for such a caller: there is none to seal."""
        return result

    def ask(self, where: Askable, question: Question, reply: OnReply) -> None:
        """Send the question as a request, and wait for its answer."""
        if len(self._open) >= OPEN_MAX:
            self._open.pop(next(iter(self._open)))(CROWDED)
        self._last += 1
        id = msgspec.json.encode(f"isthmus-{self._last}")
        self._open[id] = reply
        members = {"jsonrpc": b'"2.0"', "id": id, "method": msgspec.json.encode(question.method)}
        where.say(render({**members, "params": shown_params(question.params, where.call)}))

    def take(self, message: Response | ErrorReply) -> bool:
        """Take an answer of the caller; False if nobody asked for it."""
        reply = None if message.id is None else self._open.pop(bytes(message.id), None)
        if reply is None:
            return False
        if isinstance(message, Response):
            reply(Answered(message.result))
        else:
            reply(Declined(message.code, message.message))
        return True

    def close(self) -> None:
        """Nobody will answer any more."""
        waiting, self._open = self._open, {}
        for reply in waiting.values():
            reply(GONE)
