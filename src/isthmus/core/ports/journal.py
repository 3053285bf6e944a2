"""Where what must last is written. `storage` implements it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec


class Entry(msgspec.Struct, frozen=True):
    """One fact to keep: what kind it is, whose it is, when it became so, and its content as JSON."""

    kind: str
    owner: str
    at: float
    content: msgspec.Raw


class Journal(Protocol):
    """Keeps entries in the order they were committed."""

    async def commit(self, entries: Sequence[Entry]) -> None:
        """Return once the entries will survive whatever this journal promises to survive."""

    async def latest(self, kind: str, owner: str, limit: int) -> list[Entry]:
        """The newest `limit` entries of one kind and owner, oldest first."""
