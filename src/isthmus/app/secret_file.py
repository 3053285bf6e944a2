"""A secret that a hub makes for itself: it is there whole or not at all, and only its user may read it.

Used by `oauth` and `relay_keys`, of which each reads its own and says what is wrong with it.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path


def offer_secret(file: Path, size_bytes: int) -> None:
    """Put a new one there, unless somebody else just did: two that start at once have the same.

    Raises:
        OSError: it cannot be kept there.
    """
    draft = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "w", encoding="ascii") as stream:
            stream.write(secrets.token_hex(size_bytes) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        with suppress(FileExistsError):
            os.link(draft, file)
    finally:
        os.unlink(draft)
