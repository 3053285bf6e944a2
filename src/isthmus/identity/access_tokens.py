"""Access tokens that the hub itself gives out for a key, for an hour: made and read here.

A token holds the digest of the key that it was given for, sealed, and until when. So the key decides: who it belongs
to, what that caller may do and whether it is still good is asked anew with every request, and a key that was revoked
takes its tokens with it. Nothing is written down of them, and nobody but this hub can read or make one.
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
"""How these tokens begin: a letter that is no header of a JWT, and what secret scanners can look for."""

LIFETIME_SECONDS = 3600

OPENED_MAX = 4096
"""Tokens whose content is remembered."""

_NONCE_BYTES = 12
_CONTENT = struct.Struct(">32sQ")
_PURPOSE = b"isthmus: access tokens"
_LENGTH = len(PREFIX) + -(-4 * (_NONCE_BYTES + _CONTENT.size + 16) // 3)
"""Of every token, without padding."""

HolderOf: TypeAlias = Callable[[bytes], Caller | Unprovable | None]
"""Whose key has this digest; None if nobody's, or if it is good no more."""


class AccessTokens:
    """Makes tokens under one secret, and reads those made under it; see `identity.verifier.Verifier`."""

    def __init__(self, secret: Callable[[], bytes], holder_of: HolderOf, now: Callable[[], float]) -> None:
        """`secret` is asked for when the first token is made or shown, and not again."""
        self._secret = secret
        self._holder_of = holder_of
        self._now = now
        self._opened: dict[bytes, tuple[bytes, int]] = {}
        """What tokens hold that were shown before, by their digests: to open one takes longer than all else of it."""

    @cached_property
    def _cipher(self) -> ChaCha20Poly1305:
        # A key of its own for this purpose, whatever else the secret may be used for.
        key = HKDF(algorithm=SHA256(), length=32, salt=None, info=_PURPOSE).derive(self._secret())
        return ChaCha20Poly1305(key)

    def make(self, digest: bytes) -> str:
        """A token for who holds the key of this digest, good for `LIFETIME_SECONDS`."""
        nonce = os.urandom(_NONCE_BYTES)
        content = _CONTENT.pack(digest, int(self._now()) + LIFETIME_SECONDS)
        sealed = nonce + self._cipher.encrypt(nonce, content, PREFIX)
        return (PREFIX + base64.urlsafe_b64encode(sealed).rstrip(b"=")).decode()

    def caller_of(self, credential: bytes) -> Caller | Unprovable | None:
        """Whose token this is; None if it is none, has expired, or its key is good no more."""
        held = self._held(credential)
        if held is None:
            return None
        digest, expires = held
        return self._holder_of(digest) if self._now() < expires else None

    def has_made(self, credential: bytes) -> bool:
        """Whether this is a token of the hub's own, good or not any more."""
        return self._held(credential) is not None

    def _held(self, credential: bytes) -> tuple[bytes, int] | None:
        if not credential.startswith(PREFIX) or len(credential) != _LENGTH:
            return None
        mark = hashlib.sha256(credential).digest()
        return self._opened.get(mark) or self._open(credential, mark)

    def _open(self, credential: bytes, mark: bytes) -> tuple[bytes, int] | None:
        """What a token holds, which is remembered; None if it was not made here."""
        text = credential[len(PREFIX) :]
        try:
            sealed = base64.b64decode(text + b"=", altchars=b"-_", validate=True)
            if base64.urlsafe_b64encode(sealed)[:-1] != text:
                return None  # another spelling of the same bytes: a token that was changed is refused, however little
            content = self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], PREFIX)
        except (binascii.Error, InvalidTag, ValueError):
            return None
        held: tuple[bytes, int] = _CONTENT.unpack(content)
        if len(self._opened) >= OPENED_MAX:
            self._opened.clear()
        self._opened[mark] = held
        return held

    def knows(self, _: Caller) -> bool:
        """Nobody by a token alone: its caller is the one of its key."""
        return False
