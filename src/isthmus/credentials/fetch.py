"""Fetches small documents from authorization servers, through the egress guard.

Most addresses here are untrusted: they come from a server's challenge or a document. Each must be https and public,
unless the operator configured its origin. Redirects are not followed, at most 64 KiB are read, and a request may take
five seconds. `discovery`, `token_endpoint` and `authorization` use this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias
from urllib.parse import urlencode

from isthmus.core.background import BackgroundTasks
from isthmus.model.credentials import URL_LENGTH_MAX
from isthmus.transport.egress import Egress, HttpOrigin, parse_url
from isthmus.transport.http import ConnectionLost, HttpClient, request_head

DOCUMENT_BYTES_MAX = 64 * 1024
FETCH_SECONDS = 5.0

IsNamed: TypeAlias = Callable[[HttpOrigin], bool]
"""Whether the operator configured an origin; it may then be private and without TLS."""


class UrlRefused(Exception):
    """The address is not allowed; nothing was sent."""


class FetchFailed(Exception):
    """There was no complete response; the message says why, without secrets."""


class Fetched(NamedTuple):
    """A complete response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Fetcher:
    """Fetches documents for one login."""

    def __init__(
        self, egress: Egress, background: BackgroundTasks, is_named: IsNamed, named_egress: Egress | None = None
    ) -> None:
        """Fetching needs a running loop.

        `named_egress` connects to configured origins, which may use a private certificate authority.
        """
        self._egress = egress
        self._named_egress = named_egress or egress
        self._background = background
        self._is_named = is_named

    def check(self, what: str, url: str) -> HttpOrigin:
        """Return the origin of an address that the hub or a person may visit.

        Raises:
            UrlRefused: the address is malformed, too long, or not allowed.
        """
        # Not quoted: it is an untrusted text of any length.
        if len(url) > URL_LENGTH_MAX:
            raise UrlRefused(f"{what} is longer than {URL_LENGTH_MAX} characters")
        if not (url.isascii() and url.isprintable()):
            raise UrlRefused(f"{what} is an address with invalid characters")
        try:
            origin, _ = parse_url(url)
        except ValueError:
            raise UrlRefused(f"{what} is no http or https address") from None
        if not origin.is_secure and not self._is_named(origin):
            raise UrlRefused(f"{what} leads to {origin}, without TLS; add it to origins if you trust it")
        return origin

    def is_named(self, url: str) -> bool:
        """Whether the operator configured the origin of this address. Raises `UrlRefused`."""
        return self._is_named(self.check("it", url))

    async def check_place(self, what: str, url: str) -> None:
        """Like `check`, and resolve its name; connecting checks it again. Raises `UrlRefused`."""
        origin = self.check(what, url)
        if self._is_named(origin):
            return
        if (reason := await self._egress.refusal(origin, within=FETCH_SECONDS)) is not None:
            raise UrlRefused(f"{what} leads to {origin.host}, which is not allowed: {reason}")

    async def get(self, what: str, url: str, headers: Mapping[str, str] | None = None) -> Fetched:
        """Fetch a document. Raises `UrlRefused` or `FetchFailed`."""
        return await self._fetch(what, "GET", url, {"accept": "application/json", **(headers or {})}, None)

    async def post(self, what: str, url: str, fields: Mapping[str, str], headers: Mapping[str, str]) -> Fetched:
        """Send a form. Raises `UrlRefused` or `FetchFailed`."""
        kinds = {"accept": "application/json", "content-type": "application/x-www-form-urlencoded"}
        return await self._fetch(what, "POST", url, {**kinds, **headers}, urlencode(fields).encode())

    async def post_json(self, what: str, url: str, body: bytes, headers: Mapping[str, str] | None = None) -> Fetched:
        """Send a JSON document. Raises `UrlRefused` or `FetchFailed`."""
        kinds = {"accept": "application/json", "content-type": "application/json"}
        return await self._fetch(what, "POST", url, {**kinds, **(headers or {})}, body)

    async def _fetch(self, what: str, verb: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Fetched:
        origin = self.check(what, url)
        try:
            head = request_head(verb, parse_url(url)[1], origin, headers)
        except ValueError as error:
            raise UrlRefused(f"{what}: {error}") from error
        is_named = self._is_named(origin)
        client = HttpClient(
            origin,
            self._named_egress if is_named else self._egress,
            self._background,
            is_configured=is_named,
            limit=1,
            connect_seconds=FETCH_SECONDS,
        )
        sink = _DocumentReader(asyncio.get_running_loop().create_future())
        ticket = client.send(head, body, sink)
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                return await sink.done
        except TimeoutError:
            raise FetchFailed(f"{what} at {origin} did not answer within {FETCH_SECONDS:g} s") from None
        except _Broken as broken:
            raise FetchFailed(f"{what} at {origin}: {broken}") from None
        finally:
            ticket.abort()
            await client.aclose()


class _Broken(Exception):
    """The response was incomplete."""


class _DocumentReader:
    """Receives one response up to the size limit."""

    def __init__(self, done: asyncio.Future[Fetched]) -> None:
        self.done = done
        self._status = 0
        self._headers: Mapping[str, str] = {}
        self._body = bytearray()

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """See `transport.http.ResponseSink`."""
        self._status, self._headers = status, headers

    def on_body(self, chunk: bytes) -> None:
        """See `transport.http.ResponseSink`."""
        self._body += chunk
        if len(self._body) > DOCUMENT_BYTES_MAX:
            self._fail(f"a response of over {DOCUMENT_BYTES_MAX} bytes")

    def on_end(self) -> None:
        """See `transport.http.ResponseSink`."""
        if not self.done.done():
            self.done.set_result(Fetched(self._status, self._headers, bytes(self._body)))

    def on_lost(self, lost: ConnectionLost) -> None:
        """See `transport.http.ResponseSink`."""
        self._fail(lost.reason)

    def _fail(self, why: str) -> None:
        if not self.done.done():
            self.done.set_exception(_Broken(why))
