"""What the hub says of itself to OAuth clients: as a protected resource (RFC 9728) and as who gives tokens (RFC 8414).

Documents and addresses only; no I/O. An address is the published one, else one of those that the hub is known to have.
A request may choose among these by the name that it used, and can bring none of its own.
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
"""What clients take for a resource here. Whether a server of the name is there, nobody is told."""

_HAS_PORT = re.compile(r":[0-9]+$")
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_ANYWHERE = ("0.0.0.0", "::", "[::]")  # noqa: S104 - to recognise them


class Trusted(Struct, frozen=True):
    """An issuer as clients are told of it."""

    issuer: str
    audience: tuple[str, ...]
    scopes: tuple[str, ...]
    binds_all: bool = False
    """Whether its tokens must be bound to keys (RFC 9449)."""


class OwnAddresses:
    """Where the hub is spoken to."""

    def __init__(self, public_url: str | None, host: str, port: int, names: Iterable[str] = ()) -> None:
        """`names` are further hosts by which it may be called, with their ports if they have one."""
        self._public = None if public_url is None else public_url.rstrip("/")
        hosts = _LOOPBACK if host in _ANYWHERE or host in _LOOPBACK else (_bracketed(host),)
        called = [*(f"{each}:{port}" for each in hosts), *(form for name in names for form in _forms(name, port))]
        self._by_name = {name.lower(): f"http://{name}" for name in called}
        self._usual = f"http://{called[0]}"

    def base(self, fields: Mapping[bytes, bytes]) -> str:
        """The address to speak of to who sent this request, without a slash at its end."""
        if self._public is not None:
            return self._public
        return self._by_name.get(fields.get(b"host", b"").decode("latin-1").lower(), self._usual)


def _forms(name: str, port: int) -> tuple[str, ...]:
    """How a host may be called: as it is written, and where that names no port, with the one listened on."""
    return (name,) if _HAS_PORT.search(name) else (name, f"{name}:{port}")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def place_in(path: str) -> str | None:
    """The path of the resource whose metadata are asked for by a path; None if that is not about one here."""
    place = path.removeprefix(RESOURCE_PATH)
    return place if path.startswith(RESOURCE_PATH) and _PLACES.fullmatch(place) else None


def resource_document(
    base: str, place: str, issuers: Sequence[Trusted], *, gives_tokens: bool, algorithms: Sequence[str] = ()
) -> dict[str, Any]:
    """What a client must know to get a token for the hub, or for one place in it; `algorithms` are those of proofs."""
    scopes = dict.fromkeys(scope for issuer in issuers for scope in issuer.scopes)
    document: dict[str, Any] = {
        "resource": _resource(base + place, issuers),
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


def _resource(address: str, issuers: Sequence[Trusted]) -> str:
    """The name of a resource: the audience that covers it most closely, since tokens must be made for that."""
    audiences = (audience for issuer in issuers for audience in issuer.audience)
    return max((each for each in audiences if _covers(each, address)), key=len, default=address)


def _covers(audience: str, address: str) -> bool:
    try:
        ours, theirs = urlsplit(address), urlsplit(audience)
    except ValueError:  # one of them is no address, as audiences need not be, and as anybody may ask for
        return False
    is_here = (ours.scheme, ours.netloc) == (theirs.scheme, theirs.netloc)
    return is_here and f"{ours.path.rstrip('/')}/".startswith(f"{theirs.path.rstrip('/')}/")


def is_own_resource(resource: str, base: str, issuers: Sequence[Trusted]) -> bool:
    """Whether a token may be asked for this: the hub, or something in it."""
    return _covers(base, resource) or any(resource in issuer.audience for issuer in issuers)


def server_document(base: str) -> dict[str, Any]:
    """What a client must know to get a token for a key."""
    return {
        "issuer": base,
        # Nothing is there but a refusal. Readers of this document insist on it, though it may be left out (RFC 8414).
        "authorization_endpoint": base + AUTHORIZE_PATH,
        "token_endpoint": base + TOKEN_PATH,
        "response_types_supported": [],
        "grant_types_supported": ["client_credentials"],
        "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
    }
