"""Finds out what a server lists to those who can be asked something. `upstream` implements it."""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol

from isthmus.model.callers import Caller
from isthmus.model.questions import ClientCapabilities


class Learning(NamedTuple):
    """Ends when it is known, or cannot be; `began` is when it was first asked for, by the loop's clock."""

    done: asyncio.Future[None]
    began: float


class Learner(Protocol):
    """Asks one server; what it learns is published as a part of the server's standing."""

    def learn(self, caller: Caller, client_caps: ClientCapabilities) -> Learning | None:
        """See to it that it is known what this caller is listed; None if there is nothing to wait for."""
