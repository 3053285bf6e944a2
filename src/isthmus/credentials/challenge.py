"""Parses the WWW-Authenticate header of a refused request (RFC 6750, RFC 9728).

The header is untrusted; malformed parts are ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SCOPE_LENGTH_MAX = 1_000

_SCHEME = re.compile(r"(?:^|,)\s*(?:bearer|dpop)\b", re.IGNORECASE)
_DPOP = re.compile(r"(?:^|,)\s*dpop\b(?!\s*=)", re.IGNORECASE)
_PARAMETER = re.compile(r'\b(resource_metadata|scope|error)\s*=\s*(?:"([^"\\]*)"|([^\s,"]+))', re.IGNORECASE)
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+(?: [\x21\x23-\x5b\x5d-\x7e]+)*")
_ERROR = re.compile(r"[a-z_]{1,64}")


@dataclass(frozen=True, slots=True)
class Challenge:
    """The parameters of a challenge that the hub uses; empty if they were absent."""

    resource_metadata: str = ""
    scope: str = ""
    error: str = ""
    wants_proof: bool = False
    """Whether the server accepts tokens that are bound to a key (RFC 9449)."""


def read_challenge(header: str) -> Challenge:
    """Read a WWW-Authenticate header, starting at the first challenge for a token."""
    if (found := _SCHEME.search(header)) is None:
        return Challenge()
    told: dict[str, str] = {}
    for name, quoted, bare in _PARAMETER.findall(header[found.end() :]):
        told.setdefault(name.lower(), quoted or bare)
    scope, error = told.get("scope", ""), told.get("error", "")
    return Challenge(
        resource_metadata=told.get("resource_metadata", ""),
        scope=scope if len(scope) <= SCOPE_LENGTH_MAX and _SCOPE.fullmatch(scope) else "",
        error=error if _ERROR.fullmatch(error) else "",
        wants_proof=_DPOP.search(header) is not None,
    )


def joined(*scopes: str) -> str:
    """Join several scopes without duplicates, in order."""
    return " ".join(dict.fromkeys(word for scope in scopes for word in scope.split()))
