"""How callers learn where to get a token: metadata documents and `WWW-Authenticate` challenges. Pure.

The documents describe the hub as a protected resource (RFC 9728) and as a token issuer (RFC 8414). Challenges answer
requests without a valid credential (RFC 6750, RFC 9728, RFC 9449): `Authenticator` asks for them, for all frontends,
`app.tokens` determines what is wrong with a credential, and here it is written so that clients can act on it.

The base URL is the configured public one, else one of the hub's known addresses. A request selects one of these by its
Host header and cannot introduce another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from isthmus.frontends.http.auth import PLAIN_DENIAL, Denied, Fields
from isthmus.model.callers import FrontendName

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


# -- challenges --------------------------------------------------------------------------------------------------------

_RESOURCE_OF: Mapping[FrontendName, str] = {"mcp": "/mcp", "sse": "/sse"}
"""The resource paths of frontends; other frontends use the hub as a whole."""

_NOT_QUOTABLE = re.compile(r"[^\x20\x21\x23-\x5b\x5d-\x7e]")


class RejectedCredential(Struct, frozen=True):
    """A request's credential that is not valid, and why."""

    reason: str = ""
    """Shown to the caller; empty if there is nothing to add."""
    is_scope_missing: bool = False
    """It is genuine but has no scope that allows anything."""
    is_genuine: bool = False
    """It was valid once, so it is not a guess: the caller should get a new one."""
    scopes: tuple[str, ...] = ()
    """Scopes that would allow something."""
    is_bound: bool = False
    """It is a token that is bound to a key (RFC 9449)."""
    is_proof_wrong: bool = False
    """The token is valid but its proof is not."""
    nonce: str = ""
    """The nonce for the next proof, if this one had no valid nonce."""


Explain: TypeAlias = Callable[[Fields], RejectedCredential | None]
"""Explains why a request's credential is not valid; None if it has none."""

Address: TypeAlias = Callable[[Fields], str | None]
"""The hub's base URL for the sender of a request; None if no metadata is published."""


class Challenges:
    """Writes the denials of unauthenticated requests."""

    def __init__(self, address: Address, explain: Explain, algorithms: Callable[[], Sequence[str]] = tuple) -> None:
        """`algorithms` are those of DPoP proofs; empty if no token can be bound to a key."""
        self._address = address
        self._explain = explain
        self._algorithms = algorithms

    def refuse(self, fields: Fields, frontend: FrontendName) -> Denied:
        """The denial of a request without a valid credential."""
        rejected = self._explain(fields)
        words = {"realm": "isthmus"}
        if (base := self._address(fields)) is not None:
            words["resource_metadata"] = base + RESOURCE_PATH + _RESOURCE_OF.get(frontend, "")
        algorithms = " ".join(self._algorithms())
        if rejected is not None and rejected.is_bound and algorithms:
            return _denied_bound(rejected, {**words, "algs": algorithms})
        denied = _refusal(rejected, words)
        if algorithms and denied.status == 401:
            # Bearer comes first: some clients read only the first challenge.
            return replace(denied, headers=(*denied.headers, _challenge("DPoP", {"algs": algorithms})))
        return denied


def _denied_bound(rejected: RejectedCredential, words: dict[str, str]) -> Denied:
    """The denial of a bound token or its proof (RFC 9449, section 7.1)."""
    if rejected.is_scope_missing:
        return _refusal(rejected, words, "DPoP")
    if not rejected.is_proof_wrong:
        details = {"error": "invalid_token", "error_description": rejected.reason}
        denied = _denied(401, f"The token is not valid: {rejected.reason}", {**words, **details}, "DPoP")
        return replace(denied, is_guess=not rejected.is_genuine)
    details = {
        "error": "use_dpop_nonce" if rejected.nonce else "invalid_dpop_proof",
        "error_description": rejected.reason,
    }
    denied = _denied(401, f"The proof is not valid: {rejected.reason}", {**words, **details}, "DPoP")
    nonce = ((b"dpop-nonce", rejected.nonce.encode("ascii")),) if rejected.nonce else ()
    return replace(denied, headers=(*denied.headers, *nonce))


def _refusal(rejected: RejectedCredential | None, words: dict[str, str], scheme: str = "Bearer") -> Denied:
    if rejected is None:
        return _denied(401, PLAIN_DENIAL.message, words)
    if rejected.is_scope_missing:
        scopes = {"scope": " ".join(rejected.scopes)} if rejected.scopes else {}
        details = {"error": "insufficient_scope", "error_description": rejected.reason}
        return _denied(403, f"The token is not enough: {rejected.reason}", {**words, **details, **scopes}, scheme)
    is_guess = not rejected.is_genuine
    if not rejected.reason:
        return _denied(401, PLAIN_DENIAL.message, {**words, "error": "invalid_token"}, is_guess=is_guess)
    details = {"error": "invalid_token", "error_description": rejected.reason}
    return _denied(401, f"The token is not valid: {rejected.reason}", {**words, **details}, is_guess=is_guess)


def _denied(
    status: int, message: str, words: dict[str, str], scheme: str = "Bearer", *, is_guess: bool = False
) -> Denied:
    return Denied(status, message, (_challenge(scheme, words),), is_guess)


def _challenge(scheme: str, words: Mapping[str, str]) -> tuple[bytes, bytes]:
    line = ", ".join(f'{name}="{_NOT_QUOTABLE.sub("?", value)}"' for name, value in words.items())
    return b"www-authenticate", f"{scheme} {line}".encode("ascii")
