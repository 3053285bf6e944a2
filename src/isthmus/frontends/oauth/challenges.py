"""`WWW-Authenticate` challenges for requests without a valid credential (RFC 6750, RFC 9728, RFC 9449).

`Authenticator` asks for them, for all frontends. `app.tokens` determines what is wrong with a credential; here it is
written so that clients can act on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from isthmus.frontends.http.auth import PLAIN_DENIAL, Denied, Fields
from isthmus.frontends.oauth.documents import RESOURCE_PATH
from isthmus.model.callers import FrontendName

_PLACES: Mapping[FrontendName, str] = {"mcp": "/mcp", "sse": "/sse"}
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
            words["resource_metadata"] = base + RESOURCE_PATH + _PLACES.get(frontend, "")
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
