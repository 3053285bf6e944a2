"""Texts that callers carry for the hub and can neither read nor change. `credentials` implements it."""

from __future__ import annotations

from typing import Protocol


class Sealer(Protocol):
    """Seals and opens; `bound_to` is what a sealed text belongs to, and it opens for nothing else."""

    def seal(self, content: bytes, bound_to: bytes) -> str:
        """Content as a text that only this hub can open."""

    def open(self, sealed: str, bound_to: bytes) -> bytes | None:
        """The content; None if it was not sealed here, was changed, or is bound to something else."""
