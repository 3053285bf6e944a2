"""Repeated messages run once: by their content, and by idempotency keys.

A client that got no response sends its message again under the same id. It gets the task of the first message, until
ten minutes after that has ended. The task's id is derived from the message, so the journal itself knows which messages
were received. A client that adds an Idempotency-Key gets the first task for a day; the key is stored in the journal
with the task.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress

import msgspec

from isthmus.core.ports import Document, Journal
from isthmus.core.tasks.record import TaskOwner, TaskRecord

DEDUP_KEY = "repeat"
"""The `Document.kind` of idempotency keys."""

KEY_SECONDS = 24 * 3600.0
"""How long a key is valid."""

JOINED_SECONDS = 600.0
"""How long after its task's end the same message joins it. After that it is a new one: some clients restart their
message ids with every process."""

_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


def message_digest(*said: object) -> str:
    """A digest that is equal for equal messages, whatever the layout of their JSON."""
    text = _encode(said)
    # Protobuf clients order object members at random, differently after a restart. Values that Python cannot hold (a
    # number beyond a double, unbounded nesting) are compared as text.
    with suppress(msgspec.MsgspecError, RecursionError):
        text = _encode_sorted(msgspec.json.decode(text))
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def task_id_for(owner: TaskOwner, digest: str) -> str:
    """The id of the task that a message starts, by the digest of its content.

    The journal accepts an id once: a repeated message finds its task, also after a crash, without a lookup or a write.
    """
    return hashlib.blake2b(f"{owner.key}\n{digest}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def is_joined(record: TaskRecord, now: float) -> bool:
    """Whether a repeated message joins the task that it started; otherwise it is a new message.

    A caller that sent more messages to the task, or cancelled it, has received the first response: if it repeats the
    message after the task's end, it means a new task.
    """
    if not record.is_ended:
        return True
    has_answer = record.is_withdrawn or sum(each.role == "user" for each in record.said) > 1
    return not has_answer and now < record.updated + JOINED_SECONDS


class _StoredKey(msgspec.Struct, frozen=True):
    digest: str
    task: str


_decode = msgspec.json.Decoder(_StoredKey).decode


class IdempotencyKey(msgspec.Struct, frozen=True):
    """A key that a caller has used: for which message and task, and when."""

    digest: str
    task: str
    version: int
    at: float

    def is_valid(self, now: float) -> bool:
        """Whether it still stands for its task."""
        return now < self.at + KEY_SECONDS


async def read_key(journal: Journal, owner: TaskOwner, key: str) -> IdempotencyKey | None:
    """The last use of a key, which may have expired."""
    document = await journal.read(DEDUP_KEY, owner.key, key)
    if document is None or document.body is None:
        return None
    stored = _decode(document.body)
    return IdempotencyKey(stored.digest, stored.task, document.version, document.at)


def key_document(
    owner: TaskOwner, key: str, digest: str, task: str, at: float, before: IdempotencyKey | None
) -> Document:
    """The document that stores a use of a key."""
    version = 1 if before is None else before.version + 1
    return Document(DEDUP_KEY, owner.key, key, version, at, _encode(_StoredKey(digest, task)))
