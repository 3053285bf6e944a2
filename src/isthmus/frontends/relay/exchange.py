"""The device's side of one call: progress if it asked for it, no answers to questions, and the end as the answer."""

from __future__ import annotations

from typing import Protocol

import msgspec

from isthmus.core.calls.inflight import InFlight
from isthmus.frontends.relay.waiting import Wait
from isthmus.model.calls import NOT_ASKED, Event, OnReply, Outcome, Progress, Question
from isthmus.model.faults import Cancelled
from isthmus.wire.jsonrpc import notification
from isthmus.wire.mcp.messages import PROGRESS, progress_params


class Calling(Protocol):
    """Whose call it is."""

    def report(self, message: bytes) -> None:
        """Tell the device what it can do without."""

    def call_ended(self, exchange: DeviceExchange, outcome: Outcome) -> None:
        """The call is over."""


class DeviceExchange:
    """One call's caller. `size` is how long the message was that asked for it."""

    __slots__ = ("_line", "_token", "id", "inflight", "name", "size", "wait")

    def __init__(self, line: Calling, id: msgspec.Raw, name: str, token: msgspec.Raw | None, size: int) -> None:
        """`name` is what the device calls the tool, `token` its own for progress."""
        self._line = line
        self._token = token
        self.id = id
        self.name = name
        self.size = size
        self.inflight: InFlight | None = None
        self.wait: Wait | None = None
        """Set while the call waits for its server to be listed, before it starts."""

    def cancel(self, why: str) -> None:
        """Withdraw the call, which ends it, started or not."""
        if self.inflight is not None:
            self.inflight.cancel(why)
        elif self.wait is not None:
            self.wait.stop()
            self.wait = None
            self.end(Cancelled(why, executed="no"))

    def emit(self, event: Event) -> None:
        """Pass progress on, if the device asked for it."""
        if self._token is not None and isinstance(event, Progress):
            self._line.report(notification(PROGRESS, progress_params(self._token, event.members)))

    def ask(self, question: Question, reply: OnReply) -> None:
        """Devices say that they can be asked, and do not answer."""
        reply(NOT_ASKED)

    def end(self, outcome: Outcome) -> None:
        """Answer."""
        self.inflight = None  # it holds this side, which must not hold it
        self._line.call_ended(self, outcome)
