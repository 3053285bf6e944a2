"""Authenticated encryption with ChaCha20-Poly1305, with a key of the process, the state folder or the cluster."""

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
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

NONCE_BYTES = 12


class ProcessSealer:
    """Encrypts with a key that exists only in this process, for values that refer to its memory."""

    def __init__(self) -> None:
        self._cipher = ChaCha20Poly1305(ChaCha20Poly1305.generate_key())

    def seal(self, content: bytes, bound_to: bytes) -> str:
        """Content as a text that only this hub can open."""
        return base64.urlsafe_b64encode(self.seal_bytes(content, bound_to)).decode()

    def open(self, sealed: str, bound_to: bytes) -> bytes | None:
        """The content; None if it was not sealed here, was changed, or is bound to something else."""
        if not sealed.isascii():
            return None
        try:
            raw = base64.b64decode(sealed, altchars=b"-_", validate=True)
            if base64.urlsafe_b64encode(raw).decode() != sealed:
                return None  # another base64 spelling of the same bytes: any changed text is refused
        except (binascii.Error, ValueError):
            return None
        return self.open_bytes(raw, bound_to)

    def seal_bytes(self, content: bytes, bound_to: bytes) -> bytes:
        """See `core.ports.Sealer`."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, content, bound_to)

    def open_bytes(self, sealed: bytes, bound_to: bytes) -> bytes | None:
        """See `core.ports.Sealer`."""
        try:
            return self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], bound_to)
        except (InvalidTag, ValueError):
            return None


KEY_FILE = "journal.key"
KEY_BYTES = 32


class StoredSealer:
    """Encrypts with a stored key, for values that must outlive the process."""

    def __init__(self, key: bytes, *old_keys: bytes) -> None:
        """Encrypt with `key`; what was encrypted with an old one can still be read."""
        self._key = key
        self._ciphers = [ChaCha20Poly1305(any_key) for any_key in (key, *old_keys)]

    def seal(self, content: bytes, bound_to: bytes) -> str:
        """See `core.ports.Sealer`."""
        return base64.urlsafe_b64encode(self.seal_bytes(content, bound_to)).decode()

    def open(self, sealed: str, bound_to: bytes) -> bytes | None:
        """See `core.ports.Sealer`; with any of the keys."""
        try:
            return self.open_bytes(base64.b64decode(sealed, altchars=b"-_", validate=True), bound_to)
        except ValueError:
            return None

    def seal_bytes(self, content: bytes, bound_to: bytes) -> bytes:
        """Encrypt. The nonce is derived from the content and its context, so no nonce is used for two contents."""
        bound = len(bound_to).to_bytes(8, "big") + bound_to
        nonce = blake2b(bound + content, key=self._key, digest_size=NONCE_BYTES).digest()
        return nonce + self._ciphers[0].encrypt(nonce, content, bound_to)

    def open_bytes(self, sealed: bytes, bound_to: bytes) -> bytes | None:
        """Decrypt; None if it was not encrypted with one of these keys and this context."""
        for cipher in self._ciphers:
            with suppress(InvalidTag, ValueError):
                return cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], bound_to)
        return None


def derived_key(secret: bytes, purpose: bytes) -> bytes:
    """A key for one purpose; it tells nothing about the secret or the keys of other purposes."""
    return HKDF(SHA256(), KEY_BYTES, None, purpose).derive(secret)


def stored_key(state: Path) -> bytes:
    """Read the key of a state folder, or create it.

    Raises:
        OSError: the key can neither be read nor created.
        ValueError: the file does not contain a key.
    """
    file = state / KEY_FILE
    with suppress(FileNotFoundError):
        return _read(file)
    create_key_file(file, secrets.token_hex(KEY_BYTES).encode())
    return _read(file)


def create_key_file(file: Path, content: bytes) -> None:
    """Create a key file, unless another process creates it first; then that one counts. Raises `OSError`."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        with suppress(FileExistsError):
            os.link(draft, file)
    finally:
        draft.unlink()


def _read(file: Path) -> bytes:
    text = file.read_text(encoding="ascii", errors="replace").strip()
    with suppress(ValueError):
        if len(key := bytes.fromhex(text)) == KEY_BYTES:
            return key
    raise ValueError(f"{file} does not contain the key of the journal; restore it, or move the file away")
