"""Fetches small documents from authorization servers, through the egress guard.

Most addresses here are untrusted: they come from a server's challenge or a document. Each must be https and public,
unless the operator configured its origin. Redirects are not followed, at most 64 KiB are read, and a request may take
five seconds. `discovery`, `client_registration`, `token_endpoint` and `interactive_login` use this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias
from urllib.parse import urlencode

from isthmus.core.background import BackgroundTasks
from isthmus.model.credentials import URL_LENGTH_MAX
from isthmus.transport.egress import Egress, HttpOrigin, parse_url
from isthmus.transport.http_client import HttpClient, HttpResponse, ResponseLost, request_head

DOCUMENT_BYTES_MAX = 64 * 1024
FETCH_SECONDS = 5.0

IsNamed: TypeAlias = Callable[[HttpOrigin], bool]
"""Whether the operator configured an origin; it may then be private and without TLS."""


class UrlRefused(Exception):
    """The address is not allowed; nothing was sent."""


class FetchFailed(Exception):
    """There was no complete response; the message says why, without secrets."""


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

    async def get(self, what: str, url: str, headers: Mapping[str, str] | None = None) -> HttpResponse:
        """Fetch a document. Raises `UrlRefused` or `FetchFailed`."""
        return await self._fetch(what, "GET", url, {"accept": "application/json", **(headers or {})}, None)

    async def post(self, what: str, url: str, fields: Mapping[str, str], headers: Mapping[str, str]) -> HttpResponse:
        """Send a form. Raises `UrlRefused` or `FetchFailed`."""
        kinds = {"accept": "application/json", "content-type": "application/x-www-form-urlencoded"}
        return await self._fetch(what, "POST", url, {**kinds, **headers}, urlencode(fields).encode())

    async def post_json(
        self, what: str, url: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> HttpResponse:
        """Send a JSON document. Raises `UrlRefused` or `FetchFailed`."""
        kinds = {"accept": "application/json", "content-type": "application/json"}
        return await self._fetch(what, "POST", url, {**kinds, **(headers or {})}, body)

    async def _fetch(
        self, what: str, verb: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> HttpResponse:
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
        try:
            return await client.fetch(head, body, limit_bytes=DOCUMENT_BYTES_MAX, within=FETCH_SECONDS)
        except TimeoutError:
            raise FetchFailed(f"{what} at {origin} did not answer within {FETCH_SECONDS:g} s") from None
        except ResponseLost as lost:
            raise FetchFailed(f"{what} at {origin}: {lost}") from None
        finally:
            await client.aclose()
