"""Sealing by ChaCha20-Poly1305 under a key that lives and dies with the process."""

from __future__ import annotations

import base64
import binascii
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

NONCE_BYTES = 12


class ProcessSealer:
    """Whatever it sealed can be opened by this process alone: nothing sealed outlives what it speaks of."""

    def __init__(self) -> None:
        self._cipher = ChaCha20Poly1305(ChaCha20Poly1305.generate_key())

    def seal(self, content: bytes, bound_to: bytes) -> str:
        """See `core.ports.sealer.Sealer`."""
        nonce = os.urandom(NONCE_BYTES)
        sealed = nonce + self._cipher.encrypt(nonce, content, bound_to)
        return base64.urlsafe_b64encode(sealed).decode()

    def open(self, sealed: str, bound_to: bytes) -> bytes | None:
        """See `core.ports.sealer.Sealer`."""
        if not sealed.isascii():
            return None
        try:
            raw = base64.b64decode(sealed, altchars=b"-_", validate=True)
            if base64.urlsafe_b64encode(raw).decode() != sealed:
                return None  # another spelling of the same bytes: a text that was changed is refused, however little
            return self._cipher.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], bound_to)
        except (binascii.Error, InvalidTag, ValueError):
            return None
