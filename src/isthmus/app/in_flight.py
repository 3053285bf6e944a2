"""Holds callers to the bytes that they may have under way, before a face reads a long body.

`Routes` asks it for every request that is not answered at once. A request that is too much is refused with 429, in
the words of the face that its path leads to; nothing of it was executed.
"""

from __future__ import annotations

from isthmus.core.access.bytes_in_flight import BytesInFlight
from isthmus.faces.http.bodies import JSON, joined
from isthmus.faces.http.gate import Gate
from isthmus.faces.http.turn import PEER, App, Message, Peer, Receive, Send, header_lines
from isthmus.faces.mcp.faults import error_reply
from isthmus.faces.rest.exchange import answer_problem
from isthmus.faces.rest.faults import problem_of
from isthmus.faces.rest.http import is_rest
from isthmus.model.faults import TooManyBytes

COUNTED_BYTES = 64 * 1024
"""Shorter bodies are not counted; the door reads as much ahead of every connection."""


class CountedRequests:
    """Lets requests through to an application as long as their callers have room."""

    def __init__(self, app: App, gate: Gate, in_flight: BytesInFlight, longest: int) -> None:
        """`longest` is what a body counts as that announces no length."""
        self._app = app
        self._gate = gate
        self._in_flight = in_flight
        self._longest = longest

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        size = self._size(scope)
        if size <= COUNTED_BYTES:
            return await self._app(scope, receive, send)
        caller = self._gate.caller_of(joined(scope["headers"]), scope)
        if caller is None:  # the face says why nobody is let in
            return await self._app(scope, receive, send)
        refused = self._in_flight.enter(caller, size)
        if refused is not None:
            return _refuse(scope["extensions"][PEER], scope["path"], refused)
        try:
            return await self._app(scope, receive, send)
        finally:
            self._in_flight.leave(caller, size)

    def _size(self, scope: Message) -> int:
        """How long a request's body is at most."""
        for name, value in scope["headers"]:
            if name == b"content-length":
                return int(value)
            if name == b"transfer-encoding":
                return self._longest
        return 0


def _refuse(peer: Peer, path: str, refused: TooManyBytes) -> None:
    if is_rest(path):
        answer_problem(peer, problem_of(refused))
        return
    lines = JSON + header_lines([(b"retry-after", b"1")])
    peer.answer(429, lines, error_reply(None, refused, "modern"))
