"""Sends push notifications to addresses that callers named: one POST behind the egress guard, and a receipt.

It does not retry, follows no redirect and uses only the status of a response. The outbox of tasks decides what follows
from a receipt.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import TypeAlias

from isthmus.core.background import BackgroundTasks
from isthmus.core.ports import PushReceipt
from isthmus.transport.egress import Egress, HttpOrigin, parse_url
from isthmus.transport.http_client import ConnectionLost, HttpClient, request_head

CARRY_SECONDS = 10.0
"""How long one POST may take, from the name lookup to the end of the response."""

LOOK_SECONDS = 3.0
"""How long the name lookup for the check of an address may take."""

CONNECTIONS_MAX = 8
"""Connections to one origin."""

CLIENTS_MAX = 256
"""Origins with a client; idle connections close after some seconds anyway."""

ANSWER_BYTES_MAX = 64 * 1024
"""How much of a response's body is read; it is ignored."""

PRIVATE = ("its address is ", "its name belongs to ")
"""How the egress guard's reasons begin for addresses that the operator can permit."""

IsAllowed: TypeAlias = Callable[[str], bool]
"""Whether the operator listed an address literally, so that it may be private."""


class PushClient:
    """See `core.ports.PushSender`."""

    def __init__(self, egress: Egress, background: BackgroundTasks, is_allowed: IsAllowed) -> None:
        self._egress = egress
        self._background = background
        self._is_allowed = is_allowed
        self._loop = asyncio.get_running_loop()
        self._clients: OrderedDict[tuple[HttpOrigin, bool], HttpClient] = OrderedDict()

    async def refusal(self, url: str, *, is_trusted: bool) -> str | None:
        """See `core.ports.PushSender`."""
        try:
            origin, _ = parse_url(url)
        except ValueError as error:
            return str(error)
        if is_trusted and self._is_allowed(url):
            return None
        reason = await self._egress.refusal(origin, within=LOOK_SECONDS)
        if reason is None:
            return None
        text = f"{origin.host} may not be dialled: {reason}"
        if not reason.startswith(PRIVATE):
            return text
        also = "" if is_trusted else ", and targets = true for the caller"
        return f'{text}; to permit it, the operator sets [targets] allow = ["{origin}"]{also}'

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, *, is_trusted: bool) -> PushReceipt:
        """See `core.ports.PushSender`."""
        give_up = self._loop.time() + CARRY_SECONDS
        if (reason := await self.refusal(url, is_trusted=is_trusted)) is not None:
            return PushReceipt(reason=reason, is_refused=True)
        origin, target = parse_url(url)
        try:
            head = request_head("POST", target, origin, headers)
        except ValueError as error:
            return PushReceipt(reason=str(error), is_refused=True)
        client = self._client(origin, is_configured=is_trusted and self._is_allowed(url))
        return await self._post(client, head, body, give_up - self._loop.time())

    async def aclose(self) -> None:
        """Close every connection."""
        while self._clients:
            _, client = self._clients.popitem()
            await client.aclose()

    def _client(self, origin: HttpOrigin, *, is_configured: bool) -> HttpClient:
        key = (origin, is_configured)
        client = self._clients.pop(key, None)
        if client is None:
            client = HttpClient(
                origin,
                self._egress,
                self._background,
                is_configured=is_configured,
                limit=CONNECTIONS_MAX,
                connect_seconds=CARRY_SECONDS,
            )
        self._clients[key] = client
        if len(self._clients) > CLIENTS_MAX:
            self._clients.popitem(last=False)
        return client

    async def _post(self, client: HttpClient, head: bytes, body: bytes, within: float) -> PushReceipt:
        answer = _PushResponse(self._loop.create_future())
        ticket = client.send(head, body, answer)
        try:
            done, _ = await asyncio.wait({answer.receipt}, timeout=max(within, 0.0))
        finally:
            ticket.abort()
        if done:
            return answer.receipt.result()
        return PushReceipt(answer.status, f"no whole answer within {CARRY_SECONDS:g} s")


class _PushResponse:
    """Receives the response to one POST; only its status counts."""

    def __init__(self, receipt: asyncio.Future[PushReceipt]) -> None:
        self.receipt = receipt
        self.status: int | None = None
        self._retry_after: float | None = None
        self._bytes = 0

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """See `transport.http_client.ResponseSink`."""
        self.status = status
        self._retry_after = read_retry_after(headers.get("retry-after", ""), time.time())

    def on_body(self, chunk: bytes) -> None:
        """See `transport.http_client.ResponseSink`; more than enough is as good as the end."""
        self._bytes += len(chunk)
        if self._bytes > ANSWER_BYTES_MAX:
            self._end("")

    def on_end(self) -> None:
        """See `transport.http_client.ResponseSink`."""
        self._end("")

    def on_lost(self, lost: ConnectionLost) -> None:
        """See `transport.http_client.ResponseSink`; with a status, the request was received."""
        self._end(lost.reason)

    def _end(self, reason: str) -> None:
        if not self.receipt.done():
            self.receipt.set_result(PushReceipt(self.status, reason, retry_after=self._retry_after))


def read_retry_after(text: str, now: float) -> float | None:
    """The seconds in a Retry-After header, in either of its two forms; None if it is invalid."""
    text = text.strip()
    if text.isdecimal() and text.isascii():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, OverflowError, TypeError):
        return None
