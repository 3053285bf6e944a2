"""What a request is told that shows no credential, or one that lets nobody in (RFC 6750, RFC 9728).

The gate asks, for every face alike. What is wrong with a credential is decided elsewhere; here it is put into words
that clients act on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

from msgspec import Struct

from isthmus.faces.http.gate import PLAIN_DENIAL, Denied, Fields
from isthmus.faces.oauth.documents import RESOURCE_PATH
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


Explain: TypeAlias = Callable[[Fields], Shown | None]
"""What is wrong with the credential of a request; None if it shows none."""

Address: TypeAlias = Callable[[Fields], str | None]
"""Where the hub is spoken to by who sent this request; None if there is nothing to be found out there."""


class Challenges:
    """Writes refusals."""

    def __init__(self, address: Address, explain: Explain) -> None:
        self._address = address
        self._explain = explain

    def refuse(self, fields: Fields, face: Face) -> Denied:
        """What somebody is told whom nobody knows."""
        shown = self._explain(fields)
        words = {"realm": "isthmus"}
        if (base := self._address(fields)) is not None:
            words["resource_metadata"] = base + RESOURCE_PATH + _PLACES.get(face, "")
        if shown is None:
            return _denied(401, PLAIN_DENIAL.message, words)
        if shown.is_scope_missing:
            scopes = {"scope": " ".join(shown.scopes)} if shown.scopes else {}
            told = {"error": "insufficient_scope", "error_description": shown.reason}
            return _denied(403, f"The token is not enough: {shown.reason}", {**words, **told, **scopes})
        is_guess = not shown.is_genuine
        if not shown.reason:
            return _denied(401, PLAIN_DENIAL.message, {**words, "error": "invalid_token"}, is_guess=is_guess)
        told = {"error": "invalid_token", "error_description": shown.reason}
        return _denied(401, f"The token is not valid: {shown.reason}", {**words, **told}, is_guess=is_guess)


def _denied(status: int, message: str, words: dict[str, str], *, is_guess: bool = False) -> Denied:
    line = ", ".join(f'{name}="{_NOT_QUOTABLE.sub("?", value)}"' for name, value in words.items())
    return Denied(status, message, ((b"www-authenticate", f"Bearer {line}".encode("ascii")),), is_guess)
