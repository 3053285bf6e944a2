"""Push notifications of task changes: one delivery per change and recipient, and the rules of retrying it.

Deliveries are documents, written in the same transaction as the change. Each holds the record as it was then, except
for the end of a task with a large result: then the task itself is read when it is sent. Credentials are not part of it
but are read from the task, so that a removed recipient receives nothing more.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw

from isthmus.core.journal import Document
from isthmus.core.ports import PushReceipt
from isthmus.core.tasks.record import TaskRecord
from isthmus.model.tasks import ABSENT

DELIVERY = "delivery"
"""The `Document.kind` of deliveries."""

DeliveryState: TypeAlias = Literal["due", "delivered", "failed", "dropped"]
"""`failed`: given up. `dropped`: the recipient or its caller was removed."""

STATES: tuple[DeliveryState, ...] = ("due", "delivered", "failed", "dropped")

ATTEMPTS_MAX = 5
"""With the pauses between them up to a quarter of an hour; callers name recipients, and must not keep the hub busy."""

FIRST_PAUSE_SECONDS = 0.5
PAUSE_GROWTH = 12.0
"""Each pause is so many times the one before: soon enough for a restart, late enough for a repair."""
RETRY_AFTER_SECONDS_MAX = 3600.0
"""The longest `Retry-After` that is respected."""

REASON_LENGTH_MAX = 200

ENDED_BYTES_MAX = 64 * 1024
"""The largest record of an ended task that is copied into each delivery."""

RETRYABLE = frozenset({408, 425, 429})
"""The 4xx statuses that may be different the next time."""


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One attempt: its time and its result."""

    at: float
    status: int | None = None
    reason: str = ""


class Delivery(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change of one task for one recipient."""

    task: str
    recipient: str
    number: int
    """The version of the task's record."""
    host: str
    """The recipient's host; only used to share attempts fairly."""
    record: Raw = ABSENT
    """The record at that time; absent if the task has ended and the record is too large to copy."""
    delivered: int = 0
    """How many of its requests have arrived."""
    attempts: tuple[Attempt, ...] = ()
    next: float = 0.0
    """When it is tried again, in seconds of the epoch."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Delivery).decode


def deliveries_of(record: TaskRecord) -> tuple[Document, ...]:
    """The deliveries of a change, as documents."""
    if not record.recipients:
        return ()
    text = _encode(msgspec.structs.replace(record, recipients=()))
    copied = ABSENT if record.is_terminal and len(text) > ENDED_BYTES_MAX else Raw(text)
    return tuple(
        Document(
            DELIVERY,
            record.owner.key,
            delivery_id(record.id, each.id, record.version),
            1,
            record.updated,
            _encode(Delivery(record.id, each.id, record.version, each.host or host_of(each.url), copied)),
            record.id,
            "due",
        )
        for each in record.recipients
    )


def delivery_id(task: str, recipient: str, number: int) -> str:
    """The `Document.id` of a delivery: JSON, because callers choose the parts and ids must not collide."""
    return _encode((task, recipient, number)).decode()


def host_of(url: str) -> str:
    """The host and port of a URL."""
    return url.partition("://")[2].partition("/")[0].partition("?")[0].lower()


def delivery_of(document: Document) -> Delivery:
    """Decode a delivery; raises `msgspec.MsgspecError`."""
    return _decode(document.body or b"")


def delivery_document(document: Document, delivery: Delivery, state: DeliveryState) -> Document:
    """The next version of a delivery's document; a finished delivery keeps only its attempts."""
    stored = delivery if state == "due" else msgspec.structs.replace(delivery, record=ABSENT, next=0.0)
    return msgspec.structs.replace(document, version=document.version + 1, body=_encode(stored), state=state)


# -- the result of an attempt ------------------------------------------------------------------------------------------


def is_delivered(receipt: PushReceipt) -> bool:
    """Whether the recipient accepted it."""
    return receipt.status is not None and 200 <= receipt.status < 300


def is_hopeless(receipt: PushReceipt, attempts: int) -> bool:
    """Whether retrying is pointless: it is forbidden, the recipient rejects it, or it was tried often enough."""
    if receipt.is_refused or attempts >= ATTEMPTS_MAX:
        return True
    # Redirects count as rejections: the address they lead to was never checked.
    return receipt.status is not None and receipt.status < 500 and receipt.status not in RETRYABLE


def pause_after(receipt: PushReceipt, attempts: int, chance: float) -> float:
    """The seconds until the next attempt; `chance` is uniform in [0, 1) and spreads the attempts of many deliveries."""
    bound = FIRST_PAUSE_SECONDS * PAUSE_GROWTH ** (min(attempts, ATTEMPTS_MAX) - 1)
    wanted = min(receipt.retry_after or 0.0, RETRY_AFTER_SECONDS_MAX)
    return max(bound * chance, wanted)


def attempt_of(receipt: PushReceipt, at: float) -> Attempt:
    """What is stored of an attempt."""
    return Attempt(at, receipt.status, receipt.reason[:REASON_LENGTH_MAX])
