"""What is said twice is done once: messages that come again, and keys by which callers ask for that.

A message whose answer never came is sent again by its caller, under the same id: it gets the task of the first one for
as long as that is unfinished, or its answer was not handed over. This is remembered in memory, and after a crash of
all that it may have kept from its caller. A caller that gives its message a key of its own gets the first answer for a
day; that is kept in the journal, together with the task.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from isthmus.core.ports.journal import Document, Journal
from isthmus.core.tasks.record import Owner, Record
from isthmus.model.conversation import Message

REPEAT = "repeat"
"""The kind of document that a key is."""

KEPT_SECONDS = 24 * 3600.0
"""How long a key holds."""

REMEMBERED_MAX = 10_000
"""One owner's messages that may come again; one of them is forgotten for the next, and would be a new one then."""

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


class First:
    """The first of the messages of one id: which task it began, once that is kept."""

    __slots__ = ("begun", "digest", "is_delivered", "task")

    def __init__(self, digest: str) -> None:
        self.digest = digest
        self.task: str | None = None
        self.is_delivered = False
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self, task: str | None) -> None:
        """It began this task; None if it could not begin any."""
        self.task = task
        if not self.begun.done():
            self.begun.set_result(None)


class Untold(msgspec.Struct, frozen=True):
    """A message whose caller was perhaps not told what came of it: as much as must be known if it comes again."""

    owner: str
    message: str
    digest: str
    task: str


def untold_of(record: Record) -> Untold:
    """The message that began a task; without an id it cannot come again."""
    if not record.said or not record.said[0].id:
        return Untold(record.owner.key, "", "", record.id)
    return Untold(record.owner.key, record.said[0].id, digest_of(record.said[0]), record.id)


class _Owned:
    """One owner's messages, the oldest first."""

    __slots__ = ("all", "idle")

    def __init__(self) -> None:
        self.all: OrderedDict[str, First] = OrderedDict()
        self.idle: OrderedDict[str, None] = OrderedDict()
        """Of these, those whose tasks do nothing but wait for their caller, who was told so."""

    def add(self, id: str, first: First) -> None:
        """Remember one, in the place of one that costs nothing if it is done again, or else of the oldest."""
        self.drop(id)
        if len(self.all) >= REMEMBERED_MAX:
            self.drop(next(iter(self.idle or self.all)))
        self.all[id] = first

    def drop(self, id: str) -> None:
        """Forget one."""
        self.all.pop(id, None)
        self.idle.pop(id, None)

    def deliver(self, id: str, *, is_idle: bool) -> None:
        """Note that its caller knows how its task stands."""
        self.all[id].is_delivered = True
        self.idle.pop(id, None)
        if is_idle:
            self.idle[id] = None


class Repeats:
    """The messages that may come again."""

    def __init__(self) -> None:
        self._firsts: dict[str, _Owned] = {}
        """By their owners' keys: what one of them says makes no other's message new."""

    def find(self, owner: Owner, message: Message, digest: str) -> First | None:
        """The first one, if this is its repeat; another message under the same id is none."""
        first = self._first(owner.key, message.id)
        return first if first is not None and first.digest == digest else None

    def _first(self, owner: str, id: str) -> First | None:
        owned = self._firsts.get(owner)
        return None if owned is None else owned.all.get(id)

    def add(self, owner: Owner, message: Message, digest: str) -> First:
        """Remember a message that begins a task."""
        return self._add(owner.key, message.id, digest)

    def _add(self, owner: str, id: str, digest: str) -> First:
        first = First(digest)
        self._firsts.setdefault(owner, _Owned()).add(id, first)
        return first

    def untold(self, messages: Iterable[Untold]) -> None:
        """Remember messages whose callers were perhaps not told what came of them."""
        for each in messages:
            if each.message:
                self._add(each.owner, each.message, each.digest).begin(each.task)

    def delivered(self, record: Record) -> None:
        """An answer about this task was handed over; if it has ended, whatever comes under its id is new."""
        owner, id = record.owner.key, record.said[0].id if record.said else ""
        first = self._first(owner, id)
        if first is None or first.task != record.id:
            return
        self._firsts[owner].deliver(id, is_idle=record.phase == "idle")
        if record.is_ended:
            self._drop(owner, id)

    def forget(self, owner: Owner, message: Message, first: First) -> None:
        """This one is over: whatever comes under its id is new."""
        if self._first(owner.key, message.id) is first:
            self._drop(owner.key, message.id)

    def _drop(self, owner: str, id: str) -> None:
        owned = self._firsts[owner]
        owned.drop(id)
        if not owned.all:
            del self._firsts[owner]


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
