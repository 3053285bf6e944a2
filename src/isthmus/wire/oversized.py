"""What every framer yields instead of a message that is longer than its limit."""

from __future__ import annotations

from msgspec import Struct

LIMIT_BYTES = 16 * 1024 * 1024
"""Enough for any reply that the hub forwards, and all the memory that a flooding peer can cost."""


class Oversized(Struct, frozen=True):
    """One message was longer than `limit_bytes`; its bytes are gone, the messages after it are not."""

    limit_bytes: int
