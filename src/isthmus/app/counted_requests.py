"""Bounds the bytes that a caller has in progress, before a frontend reads a long body.

It wraps the routes for every request that is not answered at once. A request that exceeds the bound gets 429 in the
form of its path's frontend; nothing of it was executed.
"""

from __future__ import annotations

from isthmus.core.access.bytes_in_flight import BytesInFlight
from isthmus.frontends.http.auth import Authenticator
from isthmus.frontends.http.request_cycle import (
    JSON,
    PEER,
    App,
    Message,
    Peer,
    Receive,
    Send,
    header_lines,
    join_headers,
)
from isthmus.frontends.mcp.exchange import code_of, data_of
from isthmus.frontends.rest.faults import problem_of
from isthmus.frontends.rest.http import answer_problem, is_rest
from isthmus.model.faults import TooManyBytes
from isthmus.wire import jsonrpc

COUNTED_BYTES = 64 * 1024
"""Shorter bodies are not counted; the listener reads that much ahead of every connection."""


class CountedRequests:
    """Passes requests to an application as long as their callers have room."""

    def __init__(self, app: App, auth: Authenticator, in_flight: BytesInFlight, longest: int) -> None:
        """`longest` is the size that counts for a body without a length."""
        self._app = app
        self._auth = auth
        self._in_flight = in_flight
        self._longest = longest

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        size = self._size(scope)
        if size <= COUNTED_BYTES:
            return await self._app(scope, receive, send)
        caller = self._auth.caller_of(join_headers(scope["headers"]), scope)
        if caller is None:  # the frontend says why
            return await self._app(scope, receive, send)
        refused = self._in_flight.enter(caller, size)
        if refused is not None:
            return _refuse(scope["extensions"][PEER], scope["path"], refused)
        try:
            return await self._app(scope, receive, send)
        finally:
            self._in_flight.leave(caller, size)

    def _size(self, scope: Message) -> int:
        """The maximum length of a request's body."""
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
    peer.answer(429, lines, jsonrpc.error(None, code_of(refused), refused.message, data_of(refused)))
