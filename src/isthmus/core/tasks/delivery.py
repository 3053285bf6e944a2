"""What is sent of a task to those it names: one delivery for each change and each recipient.

Deliveries are documents, written together with the change that they tell of. Each holds how the task stood then, except
where that is the end of one with a large result: that is told as it is kept, since next to nothing follows. What proves
who sends it is not in it; that is looked up in the task, so that who was taken off its list is sent nothing more.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw

from isthmus.core.ports.courier import Receipt
from isthmus.core.ports.journal import Document
from isthmus.core.tasks.record import Record
from isthmus.model.conversation import ABSENT

DELIVERY = "delivery"
"""The kind of document that a delivery is."""

DeliveryState: TypeAlias = Literal["due", "delivered", "failed", "dropped"]
"""To be made; made; given up; not wanted any more, by whoever named the recipient."""

STATES: tuple[DeliveryState, ...] = ("due", "delivered", "failed", "dropped")

ATTEMPTS_MAX = 5
"""With the pauses between them, up to a quarter of an hour; nobody is to be kept busy by whom a caller named."""

FIRST_PAUSE_SECONDS = 0.5
PAUSE_GROWTH = 12.0
"""How much longer each pause is than the one before: soon enough for a restart, late enough for a repair."""
RETRY_AFTER_SECONDS_MAX = 3600.0
"""Who asks for more is asked again after this."""

REASON_LENGTH_MAX = 200

ENDED_BYTES_MAX = 64 * 1024
"""The record of an ended task that is written once more for each recipient."""

PASSING = frozenset({408, 425, 429})
"""Of the statuses that blame the request, those that may be different the next time."""


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One try: when it was, and what came of it."""

    at: float
    status: int | None = None
    reason: str = ""


class Delivery(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one recipient is to be told of one change."""

    task: str
    recipient: str
    number: int
    """The version of the task's record that it tells of."""
    host: str
    """Where it goes; only to be fair to others."""
    record: Raw = ABSENT
    """The record of then; absent if it is too large to be kept twice, and the task has ended."""
    told: int = 0
    """How many of its letters have arrived."""
    attempts: tuple[Attempt, ...] = ()
    next: float = 0.0
    """When it is tried again, in seconds of the epoch."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Delivery).decode


def deliveries_of(record: Record) -> tuple[Document, ...]:
    """What is to be sent of a change, as the journal keeps it."""
    if not record.recipients:
        return ()
    text = _encode(msgspec.structs.replace(record, recipients=()))
    told = ABSENT if record.is_ended and len(text) > ENDED_BYTES_MAX else Raw(text)
    return tuple(
        _document(record, Delivery(record.id, each.id, record.version, each.host or host_of(each.url), told))
        for each in record.recipients
    )


def _document(record: Record, delivery: Delivery) -> Document:
    id = id_of(delivery.task, delivery.recipient, delivery.number)
    return Document(DELIVERY, record.owner.key, id, 1, record.updated, _encode(delivery), record.id, "due")


def id_of(task: str, recipient: str, number: int) -> str:
    """What a delivery is kept under: JSON, because callers choose what is in it, and no two may be alike."""
    return _encode((task, recipient, number)).decode()


def host_of(url: str) -> str:
    """The part of an address that says whom it leads to."""
    return url.partition("://")[2].partition("/")[0].partition("?")[0].lower()


def delivery_of(document: Document) -> Delivery:
    """What the journal kept; raises `msgspec.MsgspecError` if it is none."""
    return _decode(document.body or b"")


def after(document: Document, delivery: Delivery, state: DeliveryState) -> Document:
    """How a delivery is kept from now on; of one that is over, only how it went."""
    kept = delivery if state == "due" else msgspec.structs.replace(delivery, record=ABSENT, next=0.0)
    return msgspec.structs.replace(document, version=document.version + 1, body=_encode(kept), state=state)


# -- what comes of an attempt ----------------------------------------------------------------------------------------


def is_arrived(receipt: Receipt) -> bool:
    """Whether the other side has it."""
    return receipt.status is not None and 200 <= receipt.status < 300


def is_hopeless(receipt: Receipt, attempts: int) -> bool:
    """Whether trying again would not help: it may not be sent, the other side does not want it, or it was enough."""
    if receipt.is_refused or attempts >= ATTEMPTS_MAX:
        return True
    # A status that points elsewhere is hopeless too: nobody looked at that address when it was named.
    return receipt.status is not None and receipt.status < 500 and receipt.status not in PASSING


def pause_after(receipt: Receipt, attempts: int, chance: float) -> float:
    """How long to leave the other side alone; `chance` is uniform in [0, 1), so that many do not come at once."""
    bound = FIRST_PAUSE_SECONDS * PAUSE_GROWTH ** (min(attempts, ATTEMPTS_MAX) - 1)
    wanted = min(receipt.retry_after or 0.0, RETRY_AFTER_SECONDS_MAX)
    return max(bound * chance, wanted)


def attempt_of(receipt: Receipt, at: float) -> Attempt:
    """What is kept of an attempt."""
    return Attempt(at, receipt.status, receipt.reason[:REASON_LENGTH_MAX])
