"""Access tokens that the hub issues for an API key. They are valid for an hour.

A token contains the encrypted digest of its key, and its expiry. The key is looked up with every request, so the
caller's permissions are always current, and revoking a key revokes its tokens. Tokens are not stored; only this hub
can create or read them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import struct
from collections.abc import Callable
from functools import cached_property
from typing import TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from isthmus.model.callers import Caller, Unprovable

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
