"""API keys: from the headers of a request to the caller who sent it.

The hub keeps digests, never keys, and a file may hold the digest instead of the key. What a caller may do is
not decided here. Faces call `credential_of` and `KeyRing.caller_of` for each request; `config` calls the rest
when it reads callers.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence

from isthmus.model.callers import Caller

KEY_LENGTH_MIN = 16
"""Shorter keys can be guessed over a network in reasonable time."""

_VARIETY_MIN = 6
"""Fewer different characters than this are a finger kept on a key, not a key."""

_PLACEHOLDERS = ("changeme", "change-me", "change_me", "your-api-key", "your_api_key", "placeholder")
_DIGEST_FORM = re.compile(r"sha256:([0-9a-fA-F]{64})")
_KEY_FORM = re.compile(r"[\x21-\x7e]+")


class KeyRing:
    """The callers of a hub, found by key.

    Raises:
        ValueError: two callers have one key, so that it would be open who is calling.
    """

    __slots__ = ("_callers",)

    def __init__(self, callers: Sequence[tuple[bytes, Caller]]) -> None:
        self._callers = {digest: (digest, caller) for digest, caller in callers}
        if len(self._callers) != len(callers):
            raise ValueError("every caller must have a key of its own, not one that another has")

    def caller_of(self, key: str | bytes) -> Caller | None:
        """Return whose key this is; None if nobody's.

        The table is searched by digest, which a guesser cannot steer towards a match; the match itself is
        confirmed in constant time.
        """
        digest = digest_of(key)
        found = self._callers.get(digest)
        if found is None or not hmac.compare_digest(found[0], digest):
            return None
        return found[1]


def digest_of(key: str | bytes) -> bytes:
    """Return the form in which a key is kept and compared."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key).digest()


def parse_key(text: str) -> bytes:
    """Return the digest of a configured key, which is the key itself or `sha256:` and the digest in hex.

    Raises:
        ValueError: no client could send such a key. The message does not quote it.
    """
    if found := _DIGEST_FORM.fullmatch(text):
        return bytes.fromhex(found[1])
    if text.lower().startswith("sha256:"):
        raise ValueError("key must be 64 hex digits after sha256:, not what it is (hidden)")
    if not text:
        raise ValueError("key must be a text, not empty")
    if _KEY_FORM.fullmatch(text) is None:
        raise ValueError("key must be printable ASCII without spaces, not what it is (hidden)")
    return digest_of(text)


def weakness_of(text: str) -> str | None:
    """Say why a configured key is too weak to face a network; None if nothing speaks against it."""
    if text.startswith("sha256:"):
        return None  # only its owner knows the key
    if any(word in text.lower() for word in _PLACEHOLDERS):
        return "is a placeholder"
    if len(text) < KEY_LENGTH_MIN:
        return f"is shorter than {KEY_LENGTH_MIN} characters"
    if len(set(text)) < _VARIETY_MIN:
        return f"has fewer than {_VARIETY_MIN} different characters"
    return None


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
    key = _one_of(_token_of(authorization), None if api_key is None else api_key.strip())
    # An empty value is no key, and one with a space in it is nobody's: a list of two, for instance.
    return key if key and b" " not in key else None


def _token_of(authorization: bytes | None) -> bytes | None:
    """Return the token after `Bearer`; None if the header is absent or speaks of another scheme."""
    if authorization is None:
        return None
    scheme, _, token = authorization.strip().partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else None


def _one_of(token: bytes | None, api_key: bytes | None) -> bytes | None:
    if token is not None and api_key is not None and token != api_key:
        return None
    return api_key if token is None else token
