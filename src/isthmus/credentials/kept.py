"""Sealing for what is written down: ChaCha20-Poly1305 under a key in the state folder, outside of the database.

What callers entrust to a task, such as the proof that its updates are sent with, is kept so: whoever has the database,
or a copy of it, has none of that. The same text sealed twice is the same, so that it can be seen to be kept already.
`app.pushes` has one.
"""

from __future__ import annotations

import base64
import os
import secrets
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

KEY_FILE = "journal.key"
KEY_BYTES = 32
NONCE_BYTES = 12


class KeptSealer:
    """See `core.ports.sealer.Sealer`."""

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


def kept_key(state: Path) -> bytes:
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
