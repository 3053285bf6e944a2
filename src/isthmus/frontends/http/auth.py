"""Which HTTP requests may go on, for all frontends: Host and Origin with CORS, callers, and the limit of wrong keys.

`OriginGuard` decides which Host and Origin headers a request may carry, against DNS rebinding: a page on `evil.test`
can make a browser send requests to a hub on this machine, and the browser then names the site in `Host` or `Origin`.
For requests without `Origin` (images, frames, links) it is in `Sec-Fetch-Site`. Pages of the origins that the operator
lists may also read responses (CORS, https://fetch.spec.whatwg.org): the listener adds `cors_lines` to every response to
such a page, and `app` answers preflights with `Authenticator.preflight`.

`Authenticator` then finds the caller. `FailedAuthLimit` counts failures per address and nothing else. A valid key
always passes, because behind a proxy all callers share one address; so accepted requests never get there.
`Authenticator` counts wrong credentials in headers; frontends with other credentials (a form, a query) count them
themselves.
"""

from __future__ import annotations

import ipaddress
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import msgspec
import structlog

from isthmus.frontends.http.browser_sessions import SAFE_METHODS, Sessions, has_csrf_token
from isthmus.frontends.http.settings import client_address
from isthmus.model.callers import Caller, FrontendName, Unprovable

log = structlog.get_logger(__name__)

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
Fields: TypeAlias = Mapping[bytes, bytes]
"""Headers by name; repeated ones are joined (`request_cycle.join_headers`), which is never a valid host or key."""


class Denied(msgspec.Struct, frozen=True):
    """Why a request is denied."""

    status: int
    message: str
    headers: tuple[tuple[bytes, bytes], ...] = ()
    is_guess: bool = False
    """Whether the credential is not, and never was, valid."""


# -- Host and Origin --------------------------------------------------------------------------------------------------

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Names of this machine; no name server can point these elsewhere."""

CACHED_PAIRS = 1024
"""Distinct (Host, Origin) pairs remembered; a hub sees a handful, an attacker only empties the cache."""

CACHED_VALUE_BYTES = 256
"""Longer header values are judged anew each time, so that the cache stays under a megabyte."""

DEFAULT_PORTS = {"http": 80, "https": 443}

CORS_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"

CORS_HEADERS = (
    "accept",
    "a2a-extensions",
    "a2a-version",
    "authorization",
    "content-type",
    "dpop",
    "if-none-match",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
    "traceparent",
    "tracestate",
    "x-a2a-extensions",
    "x-api-key",
)
"""Request headers that pages may send. Further ones that a listed page asks for are allowed too (`Mcp-Param-*`)."""

CORS_EXPOSED = (
    "A2A-Extensions, A2A-Version, DPoP-Nonce, ETag, Location, Mcp-Protocol-Version, Mcp-Session-Id, Retry-After, "
    "WWW-Authenticate, X-A2A-Extensions"
)
"""Response headers that pages may read beside those that every page may."""

CORS_SECONDS = 7200
"""How long a browser may cache a preflight; this is Chromium's maximum."""

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]{1,128}")

# RFC 9110 allows more than any client sends. With the excluded characters (`#`, `?`, `/`, `@`, spaces), two readers
# could read one header as two different hosts.
_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
_ORIGIN = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#@\s]+)")


class OriginGuard:
    """Decides by Host and Origin whether a request is accepted.

    Host: on a loopback address only loopback names, the public URL's host and `allowed_hosts`; elsewhere every
    well-formed host, unless `allowed_hosts` is set.

    Origin: absent, one of `allowed_origins` (exact scheme, host and port), or the host and port of the request. On a
    loopback address every page of this machine is accepted. For the public URL's host, only that URL's own pages are.
    Where every Host is accepted, the request's own origin must be an IP address: the owner of a name can point it here.
    """

    def __init__(
        self,
        *,
        bind_host: str,
        public_url: str | None = None,
        allowed_hosts: Iterable[str] = (),
        allowed_origins: Iterable[str] = (),
    ) -> None:
        """Raises: ValueError naming the entry that is not a host, an origin or a URL."""
        named_hosts = {_configured_host(entry) for entry in allowed_hosts}
        self._listed = frozenset(_configured_origin(entry) for entry in allowed_origins)
        self._origins = {*self._listed}
        self._is_loopback = is_loopback(bind_host)
        self._hosts: set[str] | None = named_hosts or None
        if self._is_loopback:
            bound = f"[{bind_host}]" if ":" in bind_host and not bind_host.startswith("[") else bind_host
            self._hosts = named_hosts | LOOPBACK_NAMES | {_configured_host(bound)}
        self._public_host = ""
        if public_url is not None:
            # Behind a proxy the Host may be ours or the public one, and the page's Origin is the public one.
            parts = urlsplit(public_url)
            if not parts.scheme or not parts.netloc:
                raise ValueError(f"{public_url!r} is not a URL such as 'https://hub.example'")
            self._origins.add(_configured_origin(f"{parts.scheme}://{parts.netloc}"))
            self._public_host = _configured_host(parts.netloc)
            if self._hosts is not None:
                self._hosts.add(self._public_host)
        self._verdicts: dict[tuple[bytes, bytes | None], Denied | None] = {}
        self._cors: dict[bytes, bytes] = {}

    def check(self, fields: Fields) -> Denied | None:
        """None if a request with these headers (lower-case names) may go on, else how to refuse it.

        A header that was given twice is here once, with both values; such a list is neither host nor origin.
        """
        host = fields.get(b"host")
        if host is None:
            return Denied(400, "The request has no Host header.")
        origin = fields.get(b"origin")
        if origin is None and b"sec-fetch-site" in fields and _is_cross_site(fields):
            return Denied(403, "Pages of another site may not use this hub.")
        pair = (host, origin)
        if pair in self._verdicts:
            return self._verdicts[pair]
        verdict = self._decide(host.decode("latin-1"), None if origin is None else origin.decode("latin-1"))
        if len(host) + len(origin or b"") <= CACHED_VALUE_BYTES:
            if len(self._verdicts) >= CACHED_PAIRS:
                self._verdicts.clear()
            self._verdicts[pair] = verdict
        return verdict

    def cors_lines(self, origin: bytes) -> bytes:
        """Header lines that let a page of this origin read an answer; empty unless the operator lists the origin.

        They name the one origin and no credentials: browsers send no cookies, and a page sends its key itself.
        """
        lines = self._cors.get(origin)
        if lines is None:
            is_listed = bool(self._listed) and _parse_origin(origin.decode("latin-1")) in self._listed
            headers = b"access-control-allow-origin: %b\r\nvary: origin\r\naccess-control-expose-headers: %b\r\n"
            lines = headers % (origin, CORS_EXPOSED.encode()) if is_listed else b""
            if len(origin) <= CACHED_VALUE_BYTES:
                if len(self._cors) >= CACHED_PAIRS:
                    self._cors.clear()
                self._cors[origin] = lines
        return lines

    def _decide(self, host: str, origin: str | None) -> Denied | None:
        asked = _parse_authority(host)
        if asked is None:
            return Denied(400, f"The Host header {_shown(host)} is not a host.")
        if self._hosts is not None and asked[0] not in self._hosts:
            return Denied(421, f"This hub does not serve the host {_shown(host)}.")
        if origin is None or self._is_welcome(origin, *asked):
            return None
        return Denied(403, f"Pages of the origin {_shown(origin)} may not use this hub.")

    def _is_welcome(self, origin: str, asked_host: str, asked_port: int | None) -> bool:
        parsed = _parse_origin(origin)
        if parsed is None:
            return False
        if parsed in self._origins:
            return True
        scheme, host, port = parsed
        if scheme not in DEFAULT_PORTS:
            return False
        if self._is_loopback and host in LOOPBACK_NAMES:
            return True
        # Another port of the same host may belong to another program, and so may its pages.
        is_own = host == asked_host and port == (asked_port or DEFAULT_PORTS[scheme])
        return is_own and host != self._public_host and (self._hosts is not None or _is_address(host))


def preflight_lines(fields: Fields) -> bytes:
    """The header lines of a CORS preflight response, besides `cors_lines`."""
    asked = fields.get(b"access-control-request-headers", b"").decode("latin-1").lower()
    further = [name for name in map(str.strip, asked.split(",")) if _HEADER_NAME.fullmatch(name)]
    lines = [
        f"access-control-allow-methods: {CORS_METHODS}",
        f"access-control-allow-headers: {', '.join(dict.fromkeys((*CORS_HEADERS, *further)))}",
        f"access-control-max-age: {CORS_SECONDS}",
        "vary: access-control-request-headers, access-control-request-private-network",
    ]
    if fields.get(b"access-control-request-private-network") == b"true":
        lines.append("access-control-allow-private-network: true")
    return "".join(f"{line}\r\n" for line in lines).encode()


def _is_cross_site(fields: Fields) -> bool:
    """Whether a page of another site sent this, unless a person followed a link: such a page cannot read a new tab."""
    is_click = (
        fields.get(b"sec-fetch-mode") == b"navigate"
        and fields.get(b"sec-fetch-dest") == b"document"
        and fields.get(b"sec-fetch-user") == b"?1"
    )
    return fields[b"sec-fetch-site"] == b"cross-site" and not is_click


def is_loopback(host: str) -> bool:
    """Whether listening on `host` is reachable from this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_address(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return False


def _parse_authority(text: str) -> tuple[str, int | None] | None:
    """Split `host[:port]` into a comparable host and its port, or None if it is not one."""
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        return None
    host: str | None = match["host"].lower().removesuffix(".") or None
    if match["host"].startswith("["):
        try:
            host = f"[{ipaddress.IPv6Address(match['host'][1:-1]).compressed}]"
        except ValueError:
            host = None
    port = None if match["port"] is None else int(match["port"])
    return None if host is None or (port is not None and port > 65535) else (host, port)


def _parse_origin(text: str) -> tuple[str, str, int | None] | None:
    match = _ORIGIN.fullmatch(text)
    authority = None if match is None else _parse_authority(match["authority"])
    if match is None or authority is None:
        return None
    scheme = match["scheme"].lower()
    return scheme, authority[0], authority[1] or DEFAULT_PORTS.get(scheme)


def _configured_host(text: str) -> str:
    parsed = _parse_authority(text)
    if parsed is None:
        raise ValueError(f"{text!r} is not a host such as 'hub.example' or '[::1]'")
    return parsed[0]


def _configured_origin(text: str) -> tuple[str, str, int | None]:
    parsed = _parse_origin(text.removesuffix("/"))
    if parsed is None:
        raise ValueError(f"{text!r} is not an origin such as 'https://app.example'")
    return parsed


def _shown(value: str) -> str:
    return ascii(value[:100])


# -- the limit of wrong keys -------------------------------------------------------------------------------------------

WRONG_KEYS_PER_MINUTE: Final = 60

WINDOW_SECONDS: Final = 60.0

ROUNDING_SECONDS: Final = 1e-6
"""Rounding error of summed times."""

ADDRESSES_MAX: Final = 4096
"""Addresses that are remembered; beyond it, the one whose last failure is oldest is dropped."""

REPORT_SECONDS: Final = 60.0
"""The shortest interval between two log messages, however many wrong keys come."""

Client: TypeAlias = tuple[str, int] | None
"""The address of a client, as in ASGI; None on a socket without addresses."""

UNKNOWN: Final = ("", 0)

COMING_FROM: ContextVar[Client | str] = ContextVar("coming_from")
"""The address of the request that this task serves, set by the router. It is not set before a request has a task: the
request is authenticated again then and must not be counted twice."""


class FailedAuthLimit:
    """Limits the wrong keys per address and minute; beyond it they are answered with 429."""

    def __init__(self, per_minute: int = WRONG_KEYS_PER_MINUTE, now: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self.refused = 0
        """Requests answered with 429 since the start."""
        self.on_refused: Callable[[str, int], None] = lambda _address, _count: None
        """Called with each log message: an address, and the number of refusals since the last one, in all."""
        self.on_failed: Callable[[str], None] = lambda _address: None
        """Called with the address of each wrong key within the limit."""
        self._now = now
        self._paid_at: dict[str, float] = {}
        """By address, when all its failures are forgotten; the latest failure comes last."""
        self._reported_at = -math.inf
        self._reported = 0

    def failed(self, client: Client | str) -> int:
        """Count a wrong key; returns the seconds to wait before the next try, 0 if it may come at once."""
        address = client_address(client if isinstance(client, str) else (client or UNKNOWN)[0])
        now, over = self._now(), self.count(address)
        if over <= 0:
            self.on_failed(address)
            return 0
        self.refused += 1
        if now - self._reported_at >= REPORT_SECONDS:
            count, self._reported = self.refused - self._reported, self.refused
            self._reported_at = now
            log.warning("too many wrong keys: further ones are answered with 429", address=address, refused=count)
            self.on_refused(address, count)
        return math.ceil(over)

    def count(self, address: str) -> float:
        """Count a wrong key, which may have been sent to another node; returns the seconds above the limit."""
        now = self._now()
        paid_at = max(now, self._paid_at.pop(address, now)) + WINDOW_SECONDS / self.per_minute
        over = paid_at - now - WINDOW_SECONDS - ROUNDING_SECONDS
        # Failures beyond the limit do not prolong it: others may share the address.
        self._paid_at[address] = paid_at if over <= 0 else paid_at - WINDOW_SECONDS / self.per_minute
        if len(self._paid_at) > ADDRESSES_MAX:
            del self._paid_at[next(iter(self._paid_at))]
        return over

    def failed_here(self) -> int:
        """The same for the request that this task serves; 0 if its address is unknown."""
        client = COMING_FROM.get(UNKNOWN)
        return 0 if client is UNKNOWN else self.failed(client)


# -- callers ----------------------------------------------------------------------------------------------------------

Identify: TypeAlias = Callable[[Fields], Caller | Unprovable | None]
"""Returns the caller of a request by its headers; None if they contain no valid credential."""

Request: TypeAlias = MutableMapping[str, Any]
"""The ASGI scope of a request: its `method`, `raw_path` and `headers`."""
BASES = "isthmus.bases"
"""The scope member with the base URLs of a request that did not come through the hub's HTTP listener (gRPC)."""
Prove: TypeAlias = Callable[[Fields, Request], Caller | Unprovable | None]
"""Returns the caller of a DPoP-bound token with a proof for this request (RFC 9449)."""
ClaimProof: TypeAlias = Callable[[Fields, Request], Awaitable[None]]
"""Finds out whether another node has accepted the proof of this request; `Prove` refuses it then."""

CHALLENGE = b'Bearer realm="isthmus"'
RETRY = (b"retry-after", b"5")


PLAIN_DENIAL = Denied(
    401,
    "A valid key is needed: send Authorization: Bearer KEY or X-Api-Key: KEY. "
    "The hub's operator makes one with: isthmus token create NAME --allow PATTERN",
    ((b"www-authenticate", CHALLENGE),),
)

TOO_MANY = 429
SLOWED = "Too many wrong keys came from this address, and this one is wrong too. Wait, or send a valid key."


def slowed(seconds: int) -> Denied:
    """The denial after too many wrong keys."""
    return Denied(TOO_MANY, SLOWED, ((b"retry-after", b"%d" % seconds),))


Refuse: TypeAlias = Callable[[Fields, FrontendName], Denied]
"""Returns the denial of a request without a valid credential."""


class Authenticator:
    """Authenticates every request before a frontend reads it."""

    refuse: Refuse = staticmethod(lambda _fields, _frontend: PLAIN_DENIAL)
    """Replaced to say where to get a token, and what is wrong with the token that was sent."""

    on_turned_away: Callable[[str, int], None] = staticmethod(lambda _frontend, _status: None)
    """Called by the frontends for each denied request with the frontend and the status; replaced by the metrics."""

    prove: Prove | None = None
    """Set if there are trusted issuers, whose tokens may be bound to keys."""

    claim_proof: ClaimProof | None = None
    """Set in a cluster with a database. To be awaited before a request with a proof is authenticated."""

    sessions: Sessions | None = None
    """Set if the console is on: its pages send a cookie to the REST API instead of a key."""

    def __init__(self, origins: OriginGuard, identify: Identify) -> None:
        self.failed_auth_limit = FailedAuthLimit()
        self._origins = origins
        self._identify = identify

    def change(self, origins: OriginGuard, identify: Identify) -> None:
        """Use these from now on."""
        self._origins = origins
        self._identify = identify

    def admit(self, fields: Fields, frontend: FrontendName, request: Request | None = None) -> Caller | Denied:
        """The caller of a request to a frontend, or its denial; without `request`, DPoP proofs are not accepted."""
        if (denied := self._origins.check(fields)) is not None:
            return denied
        if b"cookie" in fields and frontend == "rest" and request is not None and self.sessions is not None:
            has_key = b"authorization" in fields or b"x-api-key" in fields
            session = None if has_key else self.sessions.find(fields)
            if session is not None:
                if request["method"] not in SAFE_METHODS and not has_csrf_token(session, fields):
                    return Denied(403, "A request of a signed-in page needs the session's X-Csrf-Token.")
                fields = {**fields, b"authorization": session.authorization}
        return self.identify(fields, frontend, request)

    def caller_of(self, fields: Fields, request: Request) -> Caller | None:
        """The caller of a request, for counting; a wrong credential does not count as an attempt here."""
        known = self._identify(fields)
        if known is None and self.prove is not None:
            known = self.prove(fields, request)
        return known if isinstance(known, Caller) else None

    def place(self, fields: Fields) -> Denied | None:
        """Check Host and Origin only, for frontends that check the credential themselves."""
        return self._origins.check(fields)

    def cors_lines(self, origin: bytes) -> bytes:
        """See `OriginGuard.cors_lines`."""
        return self._origins.cors_lines(origin)

    def preflight(self, fields: Fields) -> bytes | None:
        """The response headers for a CORS preflight from a listed origin; None for any other request."""
        origin = fields.get(b"origin")
        if origin is None or b"access-control-request-method" not in fields or not self.cors_lines(origin):
            return None
        return preflight_lines(fields)

    def identify(self, fields: Fields, frontend: FrontendName, request: Request | None = None) -> Caller | Denied:
        """The same by the credential alone, for transports that browsers cannot use (no Host or Origin)."""
        known = self._identify(fields)
        if known is None and request is not None and self.prove is not None:
            known = self.prove(fields, request)
        if isinstance(known, Caller):
            return known.on(frontend) if known.frontends else known
        if isinstance(known, Unprovable):
            return Denied(503, known.reason, (RETRY,))
        denied = self.refuse(fields, frontend)
        if denied.is_guess and (seconds := self.failed_auth_limit.failed_here()):
            return slowed(seconds)
        return denied
