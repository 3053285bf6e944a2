"""Sealing by ChaCha20-Poly1305 under a key that lives and dies with the process."""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

NONCE_BYTES = 12


class ProcessSealer:
    """Whatever it sealed can be opened by this process alone: nothing sealed outlives what it speaks of."""

    def __init__(self) -> None:
        self._cipher = ChaCha20Poly1305(ChaCha20Poly1305.generate_key())

    def seal(self, content: bytes, bound_to: bytes) -> str:
        """See `core.ports.Sealer`."""
        nonce = os.urandom(NONCE_BYTES)
        sealed = nonce + self._cipher.encrypt(nonce, content, bound_to)
        return base64.urlsafe_b64encode(sealed).decode()

    def open(self, sealed: str, bound_to: bytes) -> bytes | None:
        """See `core.ports.Sealer`."""
        if not sealed.isascii():
            return None
        try:
            raw = base64.b64decode(sealed, altchars=b"-_", validate=True)
            if base64.urlsafe_b64encode(raw).decode() != sealed:
                return None  # another spelling of the same bytes: a text that was changed is refused, however little
            return self._cipher.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], bound_to)
        except (binascii.Error, InvalidTag, ValueError):
            return None


KEY_FILE = "journal.key"
KEY_BYTES = 32


class StoredSealer:
    """See `core.ports.Sealer`."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._cipher = ChaCha20Poly1305(key)

    def seal(self, content: bytes, bound_to: bytes) -> str:
        """Seal; the nonce is made of what is sealed and what that is bound to, and so never serves two texts."""
        bound = len(bound_to).to_bytes(8, "big") + bound_to
        nonce = blake2b(bound + content, key=self._key, digest_size=NONCE_BYTES).digest()
        return base64.urlsafe_b64encode(nonce + self._cipher.encrypt(nonce, content, bound_to)).decode()

    def open(self, sealed: str, bound_to: bytes) -> bytes | None:
        """What was sealed; None if it was not, or not so."""
        try:
            raw = base64.b64decode(sealed, altchars=b"-_", validate=True)
            return self._cipher.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], bound_to)
        except (InvalidTag, ValueError):
            return None


def stored_key(state: Path) -> bytes:
    """The key in a state folder, which is made if there is none.

    Raises:
        OSError: it can neither be read nor made.
        ValueError: the file does not hold one.
    """
    file = state / KEY_FILE
    with suppress(FileNotFoundError):
        return _read(file)
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = file.with_name(f"{KEY_FILE}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(secrets.token_hex(KEY_BYTES).encode())
            stream.flush()
            os.fsync(stream.fileno())
        with suppress(FileExistsError):
            os.link(draft, file)  # whoever came first has made the key of all
    finally:
        draft.unlink()
    return _read(file)


def _read(file: Path) -> bytes:
    text = file.read_text(encoding="ascii", errors="replace").strip()
    with suppress(ValueError):
        if len(key := bytes.fromhex(text)) == KEY_BYTES:
            return key
    raise ValueError(f"{file} does not hold the key of the journal; put it back, or move the file away")
