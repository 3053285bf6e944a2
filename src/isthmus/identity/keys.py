"""API keys: from the headers of a request to its caller.

The hub stores digests, never keys; a configuration file may contain the digest instead of the key. Permissions are
decided elsewhere. `app.identity` calls `credential_of` and `KeyRing.caller_of` for each request; `config` calls the
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
"""The digest of a key, its caller and its expiry."""

_NEVER = float("inf")
_NOBODY: _Held = (bytes(32), None, 0.0)


class KeyTooShort(ValueError):
    """The key is short enough to be guessed."""


class KeyRing:
    """The callers of a hub by their keys.

    Raises:
        ValueError: two callers have the same key.
    """

    __slots__ = ("_held", "_now")

    def __init__(
        self,
        callers: Sequence[tuple[bytes, Caller]],
        expiries: Mapping[bytes, float] = MappingProxyType({}),
        now: Callable[[], float] = time.time,
    ) -> None:
        """`callers` are pairs of key digest and caller; `expiries` has the end of keys that expire."""
        self._held: dict[bytes, _Held] = {
            digest: (digest, caller, expiries.get(digest, _NEVER)) for digest, caller in callers
        }
        self._now = now
        if len(self._held) != len(callers):
            raise ValueError("two callers have the same key; give each caller its own key")

    def caller_of(self, key: str | bytes) -> Caller | None:
        """Return the caller of a key; None if the key is unknown or has expired.

        Short keys never match; a digest does not reveal the key's length.
        """
        return self.holder(digest_of(key)) if len(key) >= KEY_LENGTH_MIN else None

    def holder(self, digest: bytes) -> Caller | None:
        """Return the caller of the key with this digest.

        Lookup by digest gives a guesser nothing to steer towards a match. The comparison takes constant time, and an
        unknown key is compared with a dummy, so that all keys take the same path.
        """
        held, caller, ends_at = self._held.get(digest, _NOBODY)
        if not hmac.compare_digest(held, digest):
            return None
        return caller if ends_at is _NEVER or self._now() < ends_at else None

    def callers(self) -> frozenset[Caller]:
        """All callers with a currently valid key."""
        now = self._now()
        return frozenset(caller for _, caller, ends_at in self._held.values() if caller is not None and now < ends_at)


def digest_of(key: str | bytes) -> bytes:
    """Return the digest under which a key is stored and compared."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key).digest()


def parse_key(text: str) -> bytes:
    """Return the digest of a configured key: either the key itself, or `sha256:` and its digest in hex.

    Raises:
        ValueError: the key is too short, or no client could send it. The message does not quote it.
    """
    if found := _DIGEST_FORM.fullmatch(text):
        return bytes.fromhex(found[1])
    if text.lower().startswith("sha256:"):
        raise ValueError("key must have 64 hex digits after sha256: (value hidden)")
    if not text:
        raise ValueError("key must not be empty")
    if _KEY_FORM.fullmatch(text) is None:
        raise ValueError("key must be printable ASCII without spaces (value hidden)")
    check_length(text)
    return digest_of(text)


def check_length(key: str) -> None:
    """Check the length of a key.

    Raises:
        KeyTooShort: the key is too short. The message does not quote it.
    """
    if len(key) < KEY_LENGTH_MIN:
        raise KeyTooShort(f"key must have {KEY_LENGTH_MIN} characters or more, not {len(key)}")


def credential_of(fields: Mapping[bytes, bytes]) -> bytes | None:
    """Return the key of a request, from `Authorization: Bearer` or `X-Api-Key`.

    `fields` maps lower-case header names to values; repeated headers are joined to a list. None if there is no key,
    or if it is ambiguous: a repeated header, or both headers with different keys. If the hub guessed, it might choose
    another caller than a proxy in front of it.
    """
    authorization = fields.get(b"authorization")
    if authorization is not None and authorization[:7] == b"Bearer " and b"x-api-key" not in fields:
        token = authorization[7:]
        if token and b" " not in token:
            return token  # the usual form
    api_key = fields.get(b"x-api-key")
    if api_key is not None and authorization is not None and is_bound(authorization):
        return None
    scheme, _, rest = (authorization or b"").strip().partition(b" ")
    key = rest.strip() if scheme.lower() == b"bearer" else None
    if api_key is not None:
        api_key = api_key.strip()
        if key is not None and not hmac.compare_digest(key, api_key):
            return None
        key = api_key if key is None else key
    # An empty value is no key. A value with a space matches no key; it may be a list of two.
    return key if key and b" " not in key else None


def bound_of(fields: Mapping[bytes, bytes]) -> tuple[bytes, bytes] | None:
    """Return the token of `Authorization: DPoP` and its proof (RFC 9449); None if there is no such token.

    A missing or repeated proof is returned as it is; the check of the proof refuses it.
    """
    authorization = fields.get(b"authorization", b"")
    if not is_bound(authorization) or b"x-api-key" in fields:
        return None
    token = authorization.strip()[5:].strip()
    return (token, fields.get(b"dpop", b"")) if token and b" " not in token else None


def is_bound(authorization: bytes) -> bool:
    """Whether an `Authorization` header contains a token that is bound to a key."""
    return authorization.lstrip()[:5].lower() == b"dpop "
