"""A link that can be asked to tell of updates of single resources. `upstream` implements it."""

from __future__ import annotations

from typing import Protocol


class Announcer(Protocol):
    """Asks one server."""

    async def subscribe(self, uri: str) -> None:
        """Have the server tell when this resource is updated; raises `Fault` if it refuses or cannot be reached."""

    def unsubscribe(self, uri: str) -> None:
        """Tell it that nobody wants to know any more; what it answers is of no interest."""
