"""API keys: from the headers of a request to the caller who sent it.

The hub keeps digests, never keys, and a file may hold the digest instead of the key. What a caller may do is
not decided here. `app.identity` calls `credential_of` and `KeyRing.caller_of` for each request; `config` calls the
rest when it reads callers.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from isthmus.model.callers import Caller

KEY_LENGTH_MIN = 16
"""Shorter keys can be guessed over a network in reasonable time."""

_DIGEST_FORM = re.compile(r"sha256:([0-9a-fA-F]{64})")
_KEY_FORM = re.compile(r"[\x21-\x7e]+")


_Held: TypeAlias = tuple[bytes, Caller | None, float]
"""The digest of a key, whose it is, and when it ends."""

_NEVER = float("inf")
_NOBODY: _Held = (bytes(32), None, 0.0)


class KeyTooShort(ValueError):
    """A key that can be guessed."""


class KeyRing:
    """The callers of a hub, found by key.

    Raises:
        ValueError: two callers have one key, so that it would be open who is calling.
    """

    __slots__ = ("_held", "_now")

    def __init__(
        self,
        callers: Sequence[tuple[bytes, Caller]],
        expiries: Mapping[bytes, float] = MappingProxyType({}),
        now: Callable[[], float] = time.time,
    ) -> None:
        """`callers` are by the digests of their keys, of which some end at a time (`expiries`)."""
        self._held: dict[bytes, _Held] = {
            digest: (digest, caller, expiries.get(digest, _NEVER)) for digest, caller in callers
        }
        self._now = now
        if len(self._held) != len(callers):
            raise ValueError("every caller must have a key of its own, not one that another has")

    def caller_of(self, key: str | bytes) -> Caller | None:
        """Return whose key this is; None if nobody's, or if it has expired.

        One that is too short is nobody's, though a file may have its digest, from which nobody sees that it is.
        """
        return self.holder(digest_of(key)) if len(key) >= KEY_LENGTH_MIN else None

    def holder(self, digest: bytes) -> Caller | None:
        """Return whose key has this digest.

        The table is searched by digest, which a guesser cannot steer towards a match; what is found is compared in
        constant time, and nobody is found for whom there is nothing: all keys go the same way.
        """
        held, caller, ends_at = self._held.get(digest, _NOBODY)
        if not hmac.compare_digest(held, digest):
            return None
        return caller if ends_at is _NEVER or self._now() < ends_at else None

    def callers(self) -> frozenset[Caller]:
        """Everybody who has a key that is good now."""
        now = self._now()
        return frozenset(caller for _, caller, ends_at in self._held.values() if caller is not None and now < ends_at)


def digest_of(key: str | bytes) -> bytes:
    """Return the form in which a key is kept and compared."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key).digest()


def parse_key(text: str) -> bytes:
    """Return the digest of a configured key, which is the key itself or `sha256:` and the digest in hex.

    Raises:
        ValueError: it is too short, or no client could send it. The message does not quote it.
    """
    if found := _DIGEST_FORM.fullmatch(text):
        return bytes.fromhex(found[1])
    if text.lower().startswith("sha256:"):
        raise ValueError("key must be 64 hex digits after sha256:, not what it is (hidden)")
    if not text:
        raise ValueError("key must be a text, not empty")
    if _KEY_FORM.fullmatch(text) is None:
        raise ValueError("key must be printable ASCII without spaces, not what it is (hidden)")
    check_length(text)
    return digest_of(text)


def check_length(key: str) -> None:
    """Accept a key by its length; there is no other test of one.

    Raises:
        KeyTooShort: it is. The message does not quote it.
    """
    if len(key) < KEY_LENGTH_MIN:
        raise KeyTooShort(f"key must have {KEY_LENGTH_MIN} characters or more, not {len(key)}")


def credential_of(fields: Mapping[bytes, bytes]) -> bytes | None:
    """Return the one key that a request carries, as `Authorization: Bearer` or `X-Api-Key`.

    `fields` are headers by their names in lower case, those given twice as one list. None if there is no key, or if
    more than one could be meant: two of a header, or both with different keys. Guessing would let a proxy and the hub
    disagree on who calls.
    """
    authorization = fields.get(b"authorization")
    if authorization is not None and authorization[:7] == b"Bearer " and b"x-api-key" not in fields:
        token = authorization[7:]
        if token and b" " not in token:
            return token  # as nearly everybody sends it
    api_key = fields.get(b"x-api-key")
    if api_key is not None and authorization is not None and is_bound(authorization):
        return None
    key = _one_of(_token_of(authorization), None if api_key is None else api_key.strip())
    # An empty value is no key, and one with a space in it is nobody's: a list of two, for instance.
    return key if key and b" " not in key else None


def bound_of(fields: Mapping[bytes, bytes]) -> tuple[bytes, bytes] | None:
    """Return the token that a request shows as `Authorization: DPoP`, and its proof (RFC 9449); None if it shows none.

    What is missing or there twice is no proof, of which whoever checks it says so.
    """
    authorization = fields.get(b"authorization", b"")
    if not is_bound(authorization) or b"x-api-key" in fields:
        return None
    token = authorization.strip()[5:].strip()
    return (token, fields.get(b"dpop", b"")) if token and b" " not in token else None


def is_bound(authorization: bytes) -> bool:
    """Whether a header shows a token that is bound to a key."""
    return authorization.lstrip()[:5].lower() == b"dpop "


def _token_of(authorization: bytes | None) -> bytes | None:
    """Return the token after `Bearer`; None if the header is absent or speaks of another scheme."""
    if authorization is None:
        return None
    scheme, _, token = authorization.strip().partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else None


def _one_of(token: bytes | None, api_key: bytes | None) -> bytes | None:
    if token is not None and api_key is not None and not hmac.compare_digest(token, api_key):
        return None
    return api_key if token is None else token
