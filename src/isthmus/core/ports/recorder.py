"""Who keeps count of what happened. `telemetry` implements it."""

from __future__ import annotations

from typing import Protocol

from isthmus.model.calls import Call
from isthmus.model.names import ServerName
from isthmus.model.outcomes import Outcome


class Recorder(Protocol):
    """Hears of every call once, on the path of the call: implementations count, they do not format or write."""

    def ended(self, call: Call, server: ServerName | None, outcome: Outcome, seconds: float) -> None:
        """A call is over; `server` is None when none was found for it."""

    def late(self, server: ServerName) -> None:
        """A server answered a call that had already ended, or that never was."""
