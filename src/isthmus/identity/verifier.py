"""The interface of everything that can identify a caller by a credential.

`app.caller_identity` tries the hub's own keys first (`identity.keys`), then each `Verifier` in turn: signed tokens of
issuers, access tokens that the hub issued, and extensions.
"""

from __future__ import annotations

from typing import Protocol

from isthmus.model.callers import Caller, Unprovable


class Verifier(Protocol):
    """Identifies callers by one kind of credential. It is called for every request, so it must not wait."""

    def caller_of(self, credential: bytes) -> Caller | Unprovable | None:
        """The caller of a credential; None if it is invalid or of another kind. It never raises.

        `Unprovable` if it is of this kind but cannot be checked at the moment.
        """

    def knows(self, caller: Caller) -> bool:
        """Whether a caller that this verifier identified is still valid; if not, its sessions end within a second."""
