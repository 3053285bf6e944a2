"""What a request is told that shows no credential, or one that lets nobody in (RFC 6750, RFC 9728).

The gate asks, for every face alike. What is wrong with a credential is decided elsewhere; here it is put into words
that clients act on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from isthmus.frontends.http.auth import PLAIN_DENIAL, Denied, Fields
from isthmus.frontends.oauth.documents import RESOURCE_PATH
from isthmus.model.callers import Face

_PLACES: Mapping[Face, str] = {"mcp": "/mcp", "sse": "/sse"}
"""Where a face is; those of others are in the hub as a whole."""

_NOT_QUOTABLE = re.compile(r"[^\x20\x21\x23-\x5b\x5d-\x7e]")


class Shown(Struct, frozen=True):
    """What is wrong with the credential of a request."""

    reason: str = ""
    """For whoever sent it; empty if there is nothing to add."""
    is_scope_missing: bool = False
    """It is genuine, and allows nothing."""
    is_genuine: bool = False
    """It was somebody's, and is good no more: whoever shows it is no guesser, and is to get another."""
    scopes: tuple[str, ...] = ()
    """Those that would allow something."""
    is_bound: bool = False
    """It came as a token that is bound to a key (RFC 9449)."""
    is_proof_wrong: bool = False
    """It is good, and the proof that came with it is not."""
    nonce: str = ""
    """What the next proof must have, if this one lacked a good nonce."""


Explain: TypeAlias = Callable[[Fields], Shown | None]
"""What is wrong with the credential of a request; None if it shows none."""

Address: TypeAlias = Callable[[Fields], str | None]
"""Where the hub is spoken to by who sent this request; None if there is nothing to be found out there."""


class Challenges:
    """Writes refusals."""

    def __init__(self, address: Address, explain: Explain, algorithms: Callable[[], Sequence[str]] = tuple) -> None:
        """`algorithms` are those of proofs; none while no token can be bound to a key."""
        self._address = address
        self._explain = explain
        self._algorithms = algorithms

    def refuse(self, fields: Fields, face: Face) -> Denied:
        """What somebody is told whom nobody knows."""
        shown = self._explain(fields)
        words = {"realm": "isthmus"}
        if (base := self._address(fields)) is not None:
            words["resource_metadata"] = base + RESOURCE_PATH + _PLACES.get(face, "")
        algorithms = " ".join(self._algorithms())
        if shown is not None and shown.is_bound and algorithms:
            return _denied_bound(shown, {**words, "algs": algorithms})
        denied = _refusal(shown, words)
        if algorithms and denied.status == 401:
            # Bearer comes first: there are clients that look at the first word alone.
            return replace(denied, headers=(*denied.headers, _challenge("DPoP", {"algs": algorithms})))
        return denied


def _denied_bound(shown: Shown, words: dict[str, str]) -> Denied:
    """What somebody is told whose bound token or its proof is not good (RFC 9449, section 7.1)."""
    if shown.is_scope_missing:
        return _refusal(shown, words, "DPoP")
    if not shown.is_proof_wrong:
        told = {"error": "invalid_token", "error_description": shown.reason}
        denied = _denied(401, f"The token is not valid: {shown.reason}", {**words, **told}, "DPoP")
        return replace(denied, is_guess=not shown.is_genuine)
    told = {"error": "use_dpop_nonce" if shown.nonce else "invalid_dpop_proof", "error_description": shown.reason}
    denied = _denied(401, f"The proof is not valid: {shown.reason}", {**words, **told}, "DPoP")
    nonce = ((b"dpop-nonce", shown.nonce.encode("ascii")),) if shown.nonce else ()
    return replace(denied, headers=(*denied.headers, *nonce))


def _refusal(shown: Shown | None, words: dict[str, str], scheme: str = "Bearer") -> Denied:
    if shown is None:
        return _denied(401, PLAIN_DENIAL.message, words)
    if shown.is_scope_missing:
        scopes = {"scope": " ".join(shown.scopes)} if shown.scopes else {}
        told = {"error": "insufficient_scope", "error_description": shown.reason}
        return _denied(403, f"The token is not enough: {shown.reason}", {**words, **told, **scopes}, scheme)
    is_guess = not shown.is_genuine
    if not shown.reason:
        return _denied(401, PLAIN_DENIAL.message, {**words, "error": "invalid_token"}, is_guess=is_guess)
    told = {"error": "invalid_token", "error_description": shown.reason}
    return _denied(401, f"The token is not valid: {shown.reason}", {**words, **told}, is_guess=is_guess)


def _denied(
    status: int, message: str, words: dict[str, str], scheme: str = "Bearer", *, is_guess: bool = False
) -> Denied:
    return Denied(status, message, (_challenge(scheme, words),), is_guess)


def _challenge(scheme: str, words: Mapping[str, str]) -> tuple[bytes, bytes]:
    line = ", ".join(f'{name}="{_NOT_QUOTABLE.sub("?", value)}"' for name, value in words.items())
    return b"www-authenticate", f"{scheme} {line}".encode("ascii")
