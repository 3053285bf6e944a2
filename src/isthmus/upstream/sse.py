"""A link over HTTP+SSE of MCP 2024-11-05: one event stream from the server, one POST per message to it.

The stream's first event names the endpoint for the POSTs; all responses arrive on the stream. This transport exists
only in the legacy era. For Streamable HTTP see `upstream.streamable_http`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from isthmus.core.background import BackgroundTasks
from isthmus.core.ports import Credentials
from isthmus.core.settings import Limits
from isthmus.model.fault_table import BadReply
from isthmus.model.names import ServerName
from isthmus.transport.egress import Egress
from isthmus.transport.http_client import EVENT_STREAM, ConnectionLost, Ticket, media_type
from isthmus.upstream.base_link import BaseLink, ConnectFailed, WrongCarrier
from isthmus.upstream.http_shared import (
    ADVICE,
    OK,
    UNAUTHORIZED,
    CallerHeaders,
    HttpEndpoint,
    HttpRequest,
    OneWayPosts,
    login_url,
    same_origin_target,
)
from isthmus.upstream.response_waiters import CallWaiter, PendingRequest, Waiter, lost, turned_away
from isthmus.upstream.server_settings import Era
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import ErrorReply, Payload
from isthmus.wire.lines import Oversized
from isthmus.wire.mcp.messages import Implementation
from isthmus.wire.sse import SseDecoder

SPARE_CONNECTIONS = 8
"""Connections beside those for calls: the stream, pings, listings, notifications."""

ACCEPTED = (200, 201, 202, 204)
REDIRECTS = (301, 302, 307, 308)
TURNED_AWAY = (301, 302, 307, 308, 401, 403, 404, 405, 406, 415)
"""Statuses that prove the server did not accept the message; without its session (404) it cannot have."""

FORBIDDEN = (401, 403)
SERVER_TROUBLE = 500
HOPS_MAX = 3

WORDS_BYTES = 4 * 1024
"""How much of a refusal is read for the server's error message."""

LINGER_SECONDS = 1.0
"""How long a POST may stay open after its response came on the stream."""


class SseLink(BaseLink):
    """One event stream, and the POSTs to the endpoint that it named."""

    carrier = "sse"
    is_duplex = True
    start_seconds = 20.0
    takes_methods = True

    def __init__(
        self,
        server: ServerName,
        me: Implementation,
        limits: Limits,
        *,
        url: str,
        credentials: Credentials,
        egress: Egress,
        background: BackgroundTasks,
        max_calls: int,
    ) -> None:
        super().__init__(server, me, limits)
        connections = max_calls + SPARE_CONNECTIONS
        self._endpoint = HttpEndpoint(server, url, limits, credentials, egress, background, connections=connections)
        self._client = self._endpoint.client
        self._one_way_posts = OneWayPosts(self._client)
        self.stays = False
        """Whether redirects are followed only to the same URL; the endpoint for messages may be anywhere in the
        origin."""
        self.caller_headers = CallerHeaders()
        self._stream: _Stream | None = None
        self._post_target = ""
        """Where messages are sent, once known."""
        self._head: bytes | None = None
        """The head of every POST, from then on."""

    # -- opening ---------------------------------------------------------------------------------------------------

    async def handshake(self, era: Era) -> None:
        """Open the stream, read the endpoint, and initialize; there is only one era.

        Raises:
            WrongCarrier: the address gives no such stream.
            ConnectFailed: the endpoint is at another origin, or cannot be reached.
            Fault: the server did not answer `initialize`.
        """
        at = self._endpoint
        for _ in range(HOPS_MAX):
            self._stream = stream = _Stream(self)
            head = self._endpoint.head("GET", {"accept": EVENT_STREAM, "cache-control": "no-store"})
            stream.ticket = self._client.send(head, None, stream)
            try:
                async with asyncio.timeout(self.start_seconds):
                    endpoint, location = await stream.opened
            except TimeoutError:
                if not stream.is_stream:
                    raise ConnectFailed(f"it did not answer within {self.start_seconds:g} s") from None
                raise WrongCarrier(f"its stream named no endpoint within {self.start_seconds:g} s") from None
            if location is None:
                break
            place = same_origin_target(at.origin, at.target, location, "redirects to", stays=self.stays)
            at.target = place
        else:
            raise ConnectFailed("it redirects in circles")
        self._post_target = same_origin_target(at.origin, at.target, endpoint, "wants its messages sent to")
        self._head = self._new_head()
        await self._initialize()
        # Many servers refuse messages before `initialized`, and another connection may be faster.
        await self._one_way_posts.wait_sent()

    def _new_head(self) -> bytes:
        return self._endpoint.head("POST", {"content-type": "application/json"}, self._post_target)

    def _present_head(self) -> bytes:
        """The head of every POST, with the current credentials."""
        assert self._head is not None  # senders check that first
        if self._endpoint.has_new_credentials():
            self._head = self._new_head()
        return self._head

    def listen(self) -> None:
        """Changes arrive on the open stream."""

    # -- sending ---------------------------------------------------------------------------------------------------

    def _dispatch(self, id: int, method: str, params: bytes, waiter: Waiter) -> None:
        if self._head is None or self.lost.done():
            reason = self.lost.result() if self.lost.done() else "it is not running"
            waiter.fail(lost(self.server, reason, may_have_left=False))
            return
        lines: bytes | None = b""
        if isinstance(waiter, CallWaiter) and waiter.inflight.call.headers:
            lines = self.caller_headers.lines_for(waiter.inflight)
        if lines is None:
            return
        wire_id = None
        if isinstance(waiter, CallWaiter):
            wire_id = self.requests.caller_request_id(waiter.inflight.call)
        body = jsonrpc.request(id, method, params) if wire_id is None else jsonrpc.request_as(wire_id, method, params)
        self.requests.pending[id] = posted = PostedRequest(self, id, waiter)
        posted.lines, posted.wire_id = lines, wire_id
        posted.ticket = self._client.send(self._present_head() + lines, body, posted)

    def _say(self, message: bytes, *, about: PendingRequest | None = None, is_awaited: bool = False) -> None:
        if self._head is None or self.lost.done():
            return
        head = self._present_head() + (b"" if about is None else about.lines)
        if about is not None and not about.was_read:
            self._one_way_posts.cancel_unread(head, message, partial(self._is_cancel_wanted, about))
        else:
            post = self._one_way_posts.answer if is_awaited else self._one_way_posts.send
            post(head, message)

    def _can_reply(self) -> bool:
        return self._one_way_posts.has_room()

    def undelivered(self, posted: PostedRequest, lost_: ConnectionLost) -> None:
        """A POST broke before it was accepted. The response may still come, but that is unknown."""
        if self.requests.pending.pop(posted.id, None) is not None:
            self.on_doubt()
            posted.waiter.fail(lost(self.server, lost_.reason, may_have_left=lost_.may_have_left))

    def refused(self, posted: PostedRequest, status: int, words: str, login: str | None) -> None:
        """The server did not accept a POST; its session may be gone."""
        if self.requests.pending.pop(posted.id, None) is not None:
            self.on_doubt()
            detail = self.redact(f"HTTP {status}{words}")
            if status in TURNED_AWAY:
                if status == UNAUTHORIZED:
                    self.on_unauthorized()
                posted.waiter.fail(turned_away(self.server, f"it answered {detail}", status, login))
            else:
                posted.waiter.fail(BadReply(self.server, detail))

    def _match_request(self, id: Payload | None) -> PendingRequest | None:
        posted = self.requests.pop(id)
        if isinstance(posted, PostedRequest):
            posted.on_response()
        return posted

    # -- ending ----------------------------------------------------------------------------------------------------

    def _fail(self, reason: str) -> None:
        self._on_broken(reason)
        if self._stream is not None:
            self._stream.close()

    async def aclose(self) -> None:
        """Close the stream, which ends the session, and every connection."""
        self._on_broken("closed by the hub", is_dead=False)
        if self._stream is not None:
            self._stream.close()
        await self._client.aclose()


class PostedRequest(HttpRequest):
    """One request's POST. Its HTTP response only says whether the message was accepted."""

    __slots__ = ("_is_done", "_link", "_login", "_status", "_words")

    def __init__(self, link: SseLink, id: int, waiter: Waiter) -> None:
        super().__init__(id, waiter)
        self._link = link
        self._is_done = False
        self._status = 0
        self._login: str | None = None
        self._words = b""

    @property
    def was_read(self) -> bool:
        """Whether the server has said that it accepts the message."""
        return self._status != 0

    def on_response(self) -> None:
        """The response came on the stream, perhaps before the server accepted the POST."""
        if not self._is_done and self.ticket is not None:
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self.ticket.abort)

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """Read whether the message was accepted."""
        self._status = status
        self._login = login_url(status, headers)

    def on_body(self, chunk: bytes) -> None:
        """Collect the error message of a refusal."""
        if self._status in ACCEPTED:
            return
        self._words += chunk
        if len(self._words) > WORDS_BYTES:
            self.on_end()
            self.abandon()

    def on_end(self) -> None:
        """The POST was accepted or refused."""
        self._is_done = True
        if self._status not in ACCEPTED:
            message = jsonrpc.decode(self._words) if self._words else None
            words = f" ({message.message})" if isinstance(message, ErrorReply) and message.message else ""
            self._link.refused(self, self._status, words + ADVICE.get(self._status, ""), self._login)

    def on_lost(self, lost_: ConnectionLost) -> None:
        """The connection broke; an accepted message stays accepted."""
        self._is_done = True
        if self._status not in ACCEPTED:
            self._link.undelivered(self, lost_)


class _Stream:
    """The event stream. `opened` ends with the endpoint, or with the location of a redirect."""

    def __init__(self, link: SseLink) -> None:
        self._link = link
        self._decoder: SseDecoder | None = None
        self._is_done = False
        self._has_endpoint = False
        self.ticket: Ticket | None = None
        self.opened: asyncio.Future[tuple[str, str | None]] = asyncio.get_running_loop().create_future()

    @property
    def is_stream(self) -> bool:
        """Whether the server answered with an event stream."""
        return self._decoder is not None

    def close(self) -> None:
        """Stop reading."""
        self._is_done = True
        if self.ticket is not None:
            self.ticket.abort()

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """Accept an event stream or a redirect, refuse anything else."""
        if status == OK and media_type(headers) == EVENT_STREAM:
            self._decoder = SseDecoder(self._link.limits.reply_bytes)
            return
        self._is_done = True
        if self.opened.done():
            return
        if status in REDIRECTS:
            self.opened.set_result(("", headers.get("location", "")))
        elif status in FORBIDDEN or status >= SERVER_TROUBLE:
            failed = ConnectFailed(f"it answered HTTP {status}{ADVICE.get(status, '')}")
            failed.login, failed.status = login_url(status, headers), status
            self.opened.set_exception(failed)
        else:  # not about credentials or trouble, so another transport may work
            kind = media_type(headers)[:60] or "no content type"
            wrong = WrongCarrier(f"it gives no event stream: it answered HTTP {status} with {kind}")
            self.opened.set_exception(wrong)

    def on_body(self, chunk: bytes) -> None:
        """Handle events."""
        if self._decoder is None:
            return
        for event in self._decoder.feed(chunk):
            if self._is_done:
                return
            if isinstance(event, Oversized):
                reason = f"it sent an event of over {event.limit_bytes} bytes"
                if self._has_endpoint:
                    self._link._fail(reason)
                else:
                    self._stream_ended(reason)
                    self.close()
            elif self._has_endpoint:
                if event.event == "message" and event.data:
                    self._link.read(event.data)
            elif event.event == "endpoint" and not self.opened.done():
                self._has_endpoint = True
                self.opened.set_result((event.data.decode(errors="replace"), None))

    def on_end(self) -> None:
        """The server ended the stream."""
        self._stream_ended("it ended its event stream")

    def on_lost(self, lost_: ConnectionLost) -> None:
        """The stream broke, or could not be opened."""
        self._stream_ended(lost_.reason)

    def _stream_ended(self, reason: str) -> None:
        if self._is_done:
            return
        self._is_done = True
        if self._has_endpoint:
            self._link.connection_ended(reason)
        elif not self.opened.done():
            self.opened.set_exception(ConnectFailed(reason))
