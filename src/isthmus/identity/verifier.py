"""The seam between who is calling and how that was proved.

The hub's own keys come first (`identity.keys`); what they do not know is shown to each `Verifier` in turn: signed
tokens of issuers, access tokens that the hub gave out, and what an extension brings. `app.identity` asks them.
"""

from __future__ import annotations

from typing import Protocol

from isthmus.model.callers import Caller, Unprovable


class Verifier(Protocol):
    """One way to prove who is calling. Nothing here waits: it is asked on the way of every call."""

    def caller_of(self, credential: bytes) -> Caller | Unprovable | None:
        """Whose credential this is; None if it is not one of these, or not valid; it never raises.

        `Unprovable` if it is one of these and nobody can tell just now whether it is valid.
        """

    def knows(self, caller: Caller) -> bool:
        """Whether a caller that it named is good still: what the others have opened is ended within a second."""
