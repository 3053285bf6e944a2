"""What a task is made of, and who it deals with: a draft of it, why it was not begun, what it does, who listens."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec
from msgspec import Raw

from isthmus.core.ports.exchange import Exchange
from isthmus.core.ports.journal import Document
from isthmus.core.tasks.record import Ending, Recipient, Record
from isthmus.core.tasks.reports import Noted
from isthmus.model.callers import Caller
from isthmus.model.calls import Call
from isthmus.model.conversation import ABSENT, Message, TaskState
from isthmus.model.outcomes import Outcome


class NotBegun(Exception):
    """Why there is no task. No fault of a call: none was made."""


class NotKept(NotBegun):
    """The journal could not be written."""

    def __init__(
        self, message: str = "The task could not be written down, so it was not begun; the hub's log says why"
    ) -> None:
        super().__init__(message)


class TooMuchSaid(NotKept):
    """So much is kept of what the caller said, and of which nothing came, that no more of it is."""

    def __init__(self, seconds: float) -> None:
        minutes = max(1, round(seconds / 60))
        super().__init__(
            f"Too much was said within an hour that told the agent nothing to do; name a tool, or try in {minutes} min"
        )


class TooMuchKept(NotKept):
    """So much is kept of the caller's tasks that have not ended that no more of it is."""

    def __init__(self, open_bytes: int, more_bytes: int, room_bytes: int, most: int, setting: str) -> None:
        super().__init__(
            f"Your tasks that have not ended keep {open_bytes} bytes, and {more_bytes} more would be over the "
            f"{room_bytes} that such tasks may have of the {most} that are kept of a caller's tasks ({setting}); wait "
            "for some of them to end, or cancel them"
        )


class TooManyKeys(NotKept):
    """So many keys of the caller's messages are kept that no more of them are."""

    def __init__(self, key_bytes: int, room_bytes: int, setting: str) -> None:
        super().__init__(
            f"Your Idempotency-Keys of the last day take {key_bytes} bytes, and {room_bytes} is the most, half of what "
            f"is kept of a caller's tasks ({setting}); send the message without a key, or later"
        )


class Taken(NotBegun):
    """The caller has a task of this id already."""

    def __init__(self, id: str) -> None:
        super().__init__(f"There is a task {id!r} already")


class Listener(Protocol):
    """Hears how a task goes on. Both are called from the loop and must not wait."""

    def moved(self, record: Record) -> None:
        """The task stands differently, which is kept by now."""

    def happened(self, record: Record, noted: Noted) -> None:
        """Its tool reported something, which the journal does not keep."""


@runtime_checkable
class Leaving(Protocol):
    """A listener behind which somebody stands and waits for the task's end."""

    def left(self) -> None:
        """The hub goes away before the task's call was sent: the hub that comes next goes on with it."""


class Underway(Protocol):
    """Work that has begun: a call in flight, or an errand."""

    @property
    def outcome(self) -> Outcome | None:
        """How it ended; None as long as it has not."""

    def cancel(self, why: str) -> None:
        """Give it up."""


class Errand(Protocol):
    """What a task has to do where that is more than a call, such as to reach a server first."""

    def start(self, exchange: Exchange) -> Underway:
        """Begin with it; `exchange.end` is called exactly once, and may have been when this returns."""


class Draft(msgspec.Struct, frozen=True):
    """A task to be made. Without a call it waits for the next message, or has ended already."""

    caller: Caller
    context: str
    origin: str
    said: tuple[Message, ...]
    state: TaskState = "submitted"
    call: Call | Errand | None = None
    ending: Ending | None = None
    brief: Raw = ABSENT
    metadata: Raw = ABSENT
    id: str = ""
    besides: tuple[Document, ...] = ()
    """What is kept together with it, or not at all."""
    recipients: tuple[Recipient, ...] = ()
    """Those who are told of each change."""
    realm: str = ""
    """See `Owner.realm`."""
    listeners: tuple[Listener, ...] = ()
    """Those who hear all of it, from the beginning."""
    is_running: bool = False
    """Its call runs already, and is handed over once the task is kept (`Engine.hand_over`)."""
    waits_for_login: bool = False
    """See `Live.waits_for_login`."""
