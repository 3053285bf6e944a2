"""Checks arguments whose check would hold the event loop. `app.validation` implements it with a worker process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from isthmus.core.calls.inflight import InFlight


class Validation(Protocol):
    """Checks the arguments of single calls elsewhere."""

    def validate(self, inflight: InFlight, then: Callable[[InFlight], None]) -> None:
        """Call `then` if the arguments fit, now or later; otherwise end the call."""
