"""What is said twice is done once: messages that come again, and keys by which callers ask for that.

A message whose answer never came is sent again by its caller, under the same id: it gets the task of the first one
until ten minutes after that has ended. The task's id is made from the message, so the journal itself says which
messages it knows. A caller that gives its message a key of its own gets the first answer for a day; that is kept in the
journal, together with the task.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress

import msgspec

from isthmus.core.ports.journal import Document, Journal
from isthmus.core.tasks.record import Owner, Record

REPEAT = "repeat"
"""The kind of document that a key is."""

KEPT_SECONDS = 24 * 3600.0
"""How long a key holds."""

JOINED_SECONDS = 600.0
"""How long after its task's end the same message joins it. Later it is a new one: there are clients that count their
ids anew in every process."""

_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


def digest_of(*said: object) -> str:
    """What two messages have in common if they are the same, however their JSON is laid out."""
    text = _encode(said)
    # Protobuf orders the members of an object by chance, and otherwise after its client's restart. What Python cannot
    # hold (a number beyond a double, nesting without end) is known by how it is written.
    with suppress(msgspec.MsgspecError, RecursionError):
        text = _encode_sorted(msgspec.json.decode(text))
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def task_of(owner: Owner, digest: str) -> str:
    """The id of the task that a message begins, by the digest of its content.

    The journal takes an id once: whoever sends the message again finds the task, also after a crash, and nothing has to
    be looked up or written for it.
    """
    return hashlib.blake2b(f"{owner.key}\n{digest}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def is_joined(record: Record, now: float) -> bool:
    """Whether a message that is sent again joins the task that it began; else it is a new message.

    A caller that said more in a task, or cancelled it, knows the task from the first answer, so that was not lost: the
    same message after the task's end is meant anew.
    """
    if not record.is_ended:
        return True
    has_answer = record.is_withdrawn or sum(each.role == "user" for each in record.said) > 1
    return not has_answer and now < record.updated + JOINED_SECONDS


class _Kept(msgspec.Struct, frozen=True):
    """What is kept of a key."""

    digest: str
    task: str


_decode = msgspec.json.Decoder(_Kept).decode


class Keyed(msgspec.Struct, frozen=True):
    """A key that its caller has used: for what, and since when."""

    digest: str
    task: str
    version: int
    at: float

    def holds(self, now: float) -> bool:
        """Whether it still stands for its task."""
        return now < self.at + KEPT_SECONDS


async def read_key(journal: Journal, owner: Owner, key: str) -> Keyed | None:
    """What a key was used for; it may be long ago."""
    document = await journal.read(REPEAT, owner.key, key)
    if document is None or document.body is None:
        return None
    kept = _decode(document.body)
    return Keyed(kept.digest, kept.task, document.version, document.at)


def write_key(owner: Owner, key: str, digest: str, task: str, at: float, before: Keyed | None) -> Document:
    """The document that says what a key is used for from now on."""
    version = 1 if before is None else before.version + 1
    return Document(REPEAT, owner.key, key, version, at, _encode(_Kept(digest, task)))
