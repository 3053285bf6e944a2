"""API keys, and the access tokens that the hub issues for them: from the headers of a request to its caller.

The hub stores digests, never keys; a configuration file may contain the digest instead of the key. Permissions are
decided elsewhere. `app.caller_identity` calls `credential_of` and `KeyRing.caller_of` for each request; `config` calls
the rest when it reads callers.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from isthmus.model.callers import Caller, Unprovable

KEY_LENGTH_MIN = 16
"""Shorter keys can be guessed over a network in reasonable time."""

_DIGEST_FORM = re.compile(r"sha256:([0-9a-fA-F]{64})")
_KEY_FORM = re.compile(r"[\x21-\x7e]+")


_Held: TypeAlias = tuple[bytes, Caller | None, float]
"""The digest of a key, its caller and its expiry."""

_NEVER = float("inf")
_NO_MATCH: _Held = (bytes(32), None, 0.0)


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
        held, caller, ends_at = self._held.get(digest, _NO_MATCH)
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
    if match := _DIGEST_FORM.fullmatch(text):
        return bytes.fromhex(match[1])
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


# -- access tokens -----------------------------------------------------------------------------------------------------
#
# The hub issues them for an API key. A token contains the encrypted digest of its key, and its expiry. The key is
# looked up with every request, so the caller's permissions are always current, and revoking a key revokes its tokens.
# Tokens are not stored; only this hub can create or read them.

PREFIX = b"ist1_"
"""The start of every token: no JWT begins like this, and secret scanners can search for it."""

LIFETIME_SECONDS = 3600

OPENED_MAX = 4096
"""The number of decrypted tokens in the cache."""

_NONCE_BYTES = 12
_CONTENT = struct.Struct(">32sQ")
_PURPOSE = b"isthmus: access tokens"
_LENGTH = len(PREFIX) + -(-4 * (_NONCE_BYTES + _CONTENT.size + 16) // 3)
"""The length of every token, without padding."""

HolderOf: TypeAlias = Callable[[bytes], Caller | Unprovable | None]
"""Returns the caller whose key has this digest; None for an unknown key, or one that is no longer valid."""


class AccessTokens:
    """Creates and reads tokens with one secret; see `identity.verifier.Verifier`."""

    def __init__(self, secret: Callable[[], bytes], holder_of: HolderOf, now: Callable[[], float]) -> None:
        """`secret` is called once, when the first token is created or read."""
        self._secret = secret
        self._holder_of = holder_of
        self._now = now
        self._opened: dict[bytes, tuple[bytes, int]] = {}
        """Decrypted tokens by their digests, because decryption is the slowest step."""

    @cached_property
    def _cipher(self) -> ChaCha20Poly1305:
        # A separate key for this purpose: the secret has other uses.
        key = HKDF(algorithm=SHA256(), length=32, salt=None, info=_PURPOSE).derive(self._secret())
        return ChaCha20Poly1305(key)

    def make(self, digest: bytes) -> str:
        """A token for the holder of the key with this digest, valid for `LIFETIME_SECONDS`."""
        nonce = os.urandom(_NONCE_BYTES)
        content = _CONTENT.pack(digest, int(self._now()) + LIFETIME_SECONDS)
        sealed = nonce + self._cipher.encrypt(nonce, content, PREFIX)
        return (PREFIX + base64.urlsafe_b64encode(sealed).rstrip(b"=")).decode()

    def caller_of(self, credential: bytes) -> Caller | Unprovable | None:
        """The caller of this token; None if it is invalid or expired, or its key is no longer valid."""
        held = self._held(credential)
        if held is None:
            return None
        digest, expires = held
        return self._holder_of(digest) if self._now() < expires else None

    def has_made(self, credential: bytes) -> bool:
        """Whether this hub issued the token, even if it has expired."""
        return self._held(credential) is not None

    def _held(self, credential: bytes) -> tuple[bytes, int] | None:
        """Return the digest and the expiry in a token, cached; None if this hub did not issue it."""
        if not credential.startswith(PREFIX) or len(credential) != _LENGTH:
            return None
        mark = hashlib.sha256(credential).digest()
        if (known := self._opened.get(mark)) is not None:
            return known
        text = credential[len(PREFIX) :]
        try:
            sealed = base64.b64decode(text + b"=", altchars=b"-_", validate=True)
            if base64.urlsafe_b64encode(sealed)[:-1] != text:
                return None  # another base64 spelling of the same bytes: any changed token is refused
            content = self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], PREFIX)
        except (binascii.Error, InvalidTag, ValueError):
            return None
        held: tuple[bytes, int] = _CONTENT.unpack(content)
        if len(self._opened) >= OPENED_MAX:
            self._opened.clear()
        self._opened[mark] = held
        return held

    def knows(self, _: Caller) -> bool:
        """False: the caller of such a token is known by its key."""
        return False
