"""Host, Origin and CORS: which sites' pages may use the hub.

`OriginGuard` decides which Host and Origin headers a request may carry, against DNS rebinding: a page on `evil.test`
can make a browser send requests to a hub on this machine, and the browser then names the site in `Host` or `Origin`.
For requests without `Origin` (images, frames, links) it is in `Sec-Fetch-Site`. Pages of the origins that the operator
lists may also read responses (CORS, https://fetch.spec.whatwg.org): the listener adds `cors_lines` to every response to
such a page, and `app` answers preflights with `preflight_lines`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

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


@dataclass(frozen=True, slots=True)
class OriginRefusal:
    """The status and the sentence to answer with; the request must go no further."""

    status: int
    message: str


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
        self._verdicts: dict[tuple[bytes, bytes | None], OriginRefusal | None] = {}
        self._cors: dict[bytes, bytes] = {}

    def check(self, fields: Mapping[bytes, bytes]) -> OriginRefusal | None:
        """None if a request with these headers (lower-case names) may go on, else how to refuse it.

        A header that was given twice is here once, with both values; such a list is neither host nor origin.
        """
        host = fields.get(b"host")
        if host is None:
            return OriginRefusal(400, "The request has no Host header.")
        origin = fields.get(b"origin")
        if origin is None and b"sec-fetch-site" in fields and _is_cross_site(fields):
            return OriginRefusal(403, "Pages of another site may not use this hub.")
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

    def _decide(self, host: str, origin: str | None) -> OriginRefusal | None:
        asked = _parse_authority(host)
        if asked is None:
            return OriginRefusal(400, f"The Host header {_shown(host)} is not a host.")
        if self._hosts is not None and asked[0] not in self._hosts:
            return OriginRefusal(421, f"This hub does not serve the host {_shown(host)}.")
        if origin is None or self._is_welcome(origin, *asked):
            return None
        return OriginRefusal(403, f"Pages of the origin {_shown(origin)} may not use this hub.")

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


def preflight_lines(fields: Mapping[bytes, bytes]) -> bytes:
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


def _is_cross_site(fields: Mapping[bytes, bytes]) -> bool:
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
