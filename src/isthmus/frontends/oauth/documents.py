"""OAuth metadata documents of the hub: as a protected resource (RFC 9728) and as a token issuer (RFC 8414).

Pure. The base URL is the configured public one, else one of the hub's known addresses. A request selects one of these
by its Host header and cannot introduce another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

RESOURCE_PATH = "/.well-known/oauth-protected-resource"
SERVER_PATH = "/.well-known/oauth-authorization-server"
TOKEN_PATH = "/oauth/token"  # noqa: S105 - an address
AUTHORIZE_PATH = "/oauth/authorize"

_PLACES = re.compile(r"|/mcp|/sse|/a2a|/v1|/mcp/[A-Za-z0-9_-]{1,50}")
"""Paths of resources. Whether a server of that name exists is not revealed."""

_HAS_PORT = re.compile(r":[0-9]+$")
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_ANYWHERE = ("0.0.0.0", "::", "[::]")  # noqa: S104 - to recognize them


class TrustedIssuer(Struct, frozen=True):
    """A trusted issuer, as far as it is published."""

    issuer: str
    audience: tuple[str, ...]
    scopes: tuple[str, ...]
    binds_all: bool = False
    """Whether its tokens must be bound to keys (RFC 9449)."""


class OwnAddresses:
    """The base URLs of the hub."""

    def __init__(self, public_url: str | None, host: str, port: int, names: Iterable[str] = ()) -> None:
        """`names` are further host names of the hub, with or without ports."""
        self._public = None if public_url is None else public_url.rstrip("/")
        bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
        hosts = _LOOPBACK if host in _ANYWHERE or host in _LOOPBACK else (bracketed,)
        called = [f"{each}:{port}" for each in hosts]
        for name in names:
            called += (name,) if _HAS_PORT.search(name) else (name, f"{name}:{port}")
        self._by_name = {name.lower(): f"http://{name}" for name in called}
        self._usual = f"http://{called[0]}"

    def base(self, fields: Mapping[bytes, bytes]) -> str:
        """The base URL for the sender of a request, without a slash at its end."""
        if self._public is not None:
            return self._public
        return self._by_name.get(fields.get(b"host", b"").decode("latin-1").lower(), self._usual)


def place_in(path: str) -> str | None:
    """The resource path in the path of its metadata; None if there is no such resource."""
    place = path.removeprefix(RESOURCE_PATH)
    return place if path.startswith(RESOURCE_PATH) and _PLACES.fullmatch(place) else None


def resource_document(
    base: str, place: str, issuers: Sequence[TrustedIssuer], *, gives_tokens: bool, algorithms: Sequence[str] = ()
) -> dict[str, Any]:
    """The metadata of the hub or of one resource path; `algorithms` are those of DPoP proofs."""
    scopes = dict.fromkeys(scope for issuer in issuers for scope in issuer.scopes)
    # A resource is named by the audience that covers it most closely, because tokens are issued for that.
    audiences = (audience for issuer in issuers for audience in issuer.audience)
    covering = (audience for audience in audiences if _covers(audience, base + place))
    document: dict[str, Any] = {
        "resource": max(covering, key=len, default=base + place),
        "authorization_servers": [*(issuer.issuer for issuer in issuers), *([base] if gives_tokens else [])],
        "bearer_methods_supported": ["header"],
        "resource_name": "Isthmus",
    }
    if scopes:
        document["scopes_supported"] = list(scopes)
    if issuers and algorithms:
        document["dpop_signing_alg_values_supported"] = list(algorithms)
        if not gives_tokens and all(issuer.binds_all for issuer in issuers):
            document["dpop_bound_access_tokens_required"] = True
    return document


def _covers(audience: str, address: str) -> bool:
    try:
        ours, theirs = urlsplit(address), urlsplit(audience)
    except ValueError:  # an audience need not be a URL, and a requested resource may be anything
        return False
    is_here = (ours.scheme, ours.netloc) == (theirs.scheme, theirs.netloc)
    return is_here and f"{ours.path.rstrip('/')}/".startswith(f"{theirs.path.rstrip('/')}/")


def is_own_resource(resource: str, base: str, issuers: Sequence[TrustedIssuer]) -> bool:
    """Whether a token may be requested for this: the hub, or a resource in it."""
    return _covers(base, resource) or any(resource in issuer.audience for issuer in issuers)


def server_document(base: str) -> dict[str, Any]:
    """The metadata of the token endpoint."""
    return {
        "issuer": base,
        # It always returns an error. Some clients require it, although RFC 8414 makes it optional.
        "authorization_endpoint": base + AUTHORIZE_PATH,
        "token_endpoint": base + TOKEN_PATH,
        "response_types_supported": [],
        "grant_types_supported": ["client_credentials"],
        "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
    }
