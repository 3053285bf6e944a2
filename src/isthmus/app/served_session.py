"""An MCP session in which another hub uses one server of this one, over any channel of messages.

`app.dial_sessions` has one for each server that `isthmus dial` offers, `app.cluster_servers` one for each server that
another node of the cluster uses. A `DuplexSession` answers; this adds what both need: bounds on what is unanswered and
on the length of answers, and the two ways in which it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from isthmus.app.hub import RunningHub
from isthmus.frontends.mcp.duplex import CallOrigin, DuplexSession
from isthmus.frontends.mcp.exchange import JsonRpcReply, refuse
from isthmus.model.callers import Caller
from isthmus.model.calls import Surface
from isthmus.model.fault_table import REFUSED, SENT_AND_LOST
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import ErrorReply, Request, Response
from isthmus.wire.mcp.forwarded_methods import CALLS, STATE
from isthmus.wire.mcp.messages import Implementation, Members
from isthmus.wire.relay import mux

SMALL_BYTES = 16 * 1024
"""Shorter requests are not counted; the limits on running and queued calls bound their number."""

UNANSWERED_BYTES_MAX = 16 * 1024 * 1024
"""The maximum size of a server's unanswered requests, so that a hanging server cannot exhaust memory."""

ALL_UNANSWERED_BYTES_MAX = 64 * 1024 * 1024
"""The same for all servers together."""

_NOT_RUN = b'{"executed":"no","reason":"overloaded"}'
_GONE = b'{"executed":"no","reason":"not_connected"}'
_RUN = b'{"executed":"yes","reason":"bad_reply"}'


class UnansweredBytes:
    """Adds up the size of the unanswered requests of all servers that one process offers."""

    def __init__(self) -> None:
        self._sessions: set[ServedSession] = set()

    def join(self, session: ServedSession) -> None:
        """Include this session in the total."""
        self._sessions.add(session)

    def leave(self, session: ServedSession) -> None:
        """Remove a session from the total."""
        self._sessions.discard(session)

    def unanswered_bytes(self) -> int:
        """The total size of the arguments of unfinished calls."""
        return sum(session.unanswered_bytes() for session in self._sessions)


@dataclass(frozen=True, slots=True)
class ServedServer:
    """Which server a session offers, and to whom."""

    me: Implementation
    """Its name and version for the other hub."""
    caller: Caller
    """The other hub; everything but calls belongs to it."""
    surface: Surface
    resolve_caller: Callable[[Members], CallOrigin]
    """Returns the caller of a call from its `_meta`."""
    session: str
    frontend: str
    """Names for logs and the audit log."""
    gone: str
    """Why calls are refused after `ServedSession.leave`."""


class ServedSession:
    """One server's session on one connection. Ending it cancels the other hub's pending calls."""

    def __init__(
        self,
        running: RunningHub,
        share: UnansweredBytes,
        served: ServedServer,
        deliver: Callable[[bytes], None],
        is_crowded: Callable[[], bool],
    ) -> None:
        self.limit_bytes = running.hub.limits.reply_bytes - mux.HEAD_BYTES_MAX
        """The maximum size of a message to the other hub; on a shared socket that hub announces it."""
        self._depth = running.hub.limits.depth
        self._share = share
        self._deliver = deliver
        self._gone = served.gone
        self._is_done = self._is_leaving = False
        mcp_methods = running.mcp_methods(served.me, has_hub_tasks=False)
        mcp_methods.frontend = served.frontend
        self._session = DuplexSession(
            mcp_methods,
            served.caller,
            served.surface,
            running.background,
            self._send,
            is_crowded,
            session=served.session,
            resolve_caller=served.resolve_caller,
        )
        share.join(self)

    def receive(self, message: bytes) -> None:
        """Receive a message from the other hub."""
        if self._is_done:
            return
        if self._is_leaving:
            refused = self._refuse_if_leaving(message)
        else:
            refused = self._refuse_if_too_much(message) if len(message) > SMALL_BYTES else None
        if refused is not None:
            self._send(refused.body)
        else:
            self._session.receive(message, self._session.send_refusal)

    def unanswered_bytes(self) -> int:
        """The total size of the arguments of unfinished calls."""
        return self._session.arguments_bytes()

    def leave(self) -> None:
        """Refuse new calls; accepted ones are still answered."""
        self._is_leaving = True

    async def finish(self) -> None:
        """Wait until everything is answered."""
        await self._session.finish()

    def has_asked(self) -> bool:
        """Whether an accepted call waits for answers, with which the other hub calls again on this session."""
        return self._session.has_asked()

    def _refuse_if_leaving(self, message: bytes) -> JsonRpcReply | None:
        """Refuse a call that was sent before the other hub learned that the server leaves."""
        request = jsonrpc.decode(message, max_depth=self._depth)
        if not isinstance(request, Request) or request.method not in CALLS or STATE in request.params:
            return None  # with a state it continues an accepted call
        return refuse(request.id, REFUSED, self._gone, _GONE)

    def _refuse_if_too_much(self, message: bytes) -> JsonRpcReply | None:
        """Refuse a large request if its server, or all together, have too many unanswered bytes."""
        if len(message) + self.unanswered_bytes() <= UNANSWERED_BYTES_MAX and (
            len(message) + self._share.unanswered_bytes() <= ALL_UNANSWERED_BYTES_MAX
        ):
            return None
        request = jsonrpc.decode(message, max_depth=self._depth)
        if not isinstance(request, Request):
            return None
        return refuse(request.id, REFUSED, "The server has too many unanswered requests", _NOT_RUN)

    def _send(self, message: bytes) -> None:
        if self._is_done:
            return
        if len(message) <= self.limit_bytes:
            self._deliver(message)
        elif (instead := self._too_long_error(message)) is not None:
            self._deliver(instead)

    def _too_long_error(self, message: bytes) -> bytes | None:
        """Replace a response that is too large for the other hub by an error; other large messages are dropped."""
        answer = jsonrpc.decode(message, max_depth=self._depth, max_values=None)
        if not isinstance(answer, Response | ErrorReply):
            return None
        text = f"The response has {len(message)} bytes, and the hub accepts at most {self.limit_bytes}"
        return jsonrpc.error(answer.id, SENT_AND_LOST, text, _RUN)

    def end(self, why: str) -> None:
        """The connection is gone: cancel all running calls."""
        if not self._is_done:
            self._is_done = True
            self._share.leave(self)
            self._session.stop_notifying()
            self._session.cancel_all(why)
