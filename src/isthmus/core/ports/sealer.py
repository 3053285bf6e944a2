"""Texts that others cannot change, or whose origin they can check. `credentials` implements it."""

from __future__ import annotations

from typing import Protocol


class Sealer(Protocol):
    """Seals and opens; `bound_to` is what a sealed text belongs to, and it opens for nothing else."""

    def seal(self, content: bytes, bound_to: bytes) -> str:
        """Content as a text that only this hub can open."""

    def open(self, sealed: str, bound_to: bytes) -> bytes | None:
        """The content; None if it was not sealed here, was changed, or is bound to something else."""


class Signer(Protocol):
    """Signs what is sent, with a key of which everybody may have the public half."""

    def key_set(self) -> bytes:
        """That half, as a JSON Web Key Set; may take a part of a second. Raises: OSError, ValueError."""

    def token_for(self, body: bytes, now: float) -> str:
        """The token that proves that a body of JSON was sent now, from here. Raises: OSError, ValueError."""
