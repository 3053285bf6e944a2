"""Where what must last is written. `storage` implements it.

Two kinds of thing are kept: entries, which are only ever added (lines of a conversation), and documents, which have an
id and change (tasks, where their updates are sent, what is still to be sent). A document says by its version which one
it takes the place of, so that of two who change the same one only the first succeeds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from isthmus.core.audit.facts import Fact


class Entry(msgspec.Struct, frozen=True):
    """One fact to keep: what kind it is, whose it is, when it became so, and its content as JSON."""

    kind: str
    owner: str
    at: float
    content: msgspec.Raw


class Document(msgspec.Struct, frozen=True):
    """Something that is kept under an id and changes.

    `version` is one more than that of the document it takes the place of; the first is 1. `group` and `state` are what
    lists can be narrowed by, and `at` is what they are ordered by. Without a `body` there is nothing any more.
    """

    kind: str
    owner: str
    id: str
    version: int
    at: float
    body: bytes | None
    group: str = ""
    state: str = ""


DOCUMENT_BYTES = 512
"""What a document takes besides its body: its key, in the table and in the indexes."""


def size_of(document: Document) -> int:
    """What a document takes."""
    return DOCUMENT_BYTES + len(document.body or b"")


Verdict: TypeAlias = Literal["kept", "conflict", "refused", "unknown"]
"""What became of a write: it will survive; another one came before it; it could not be written; or nobody knows,
because writing failed at the very end."""

OnVerdict: TypeAlias = Callable[[Verdict], None]


class Trimmed(msgspec.Struct, frozen=True):
    """What was taken away to make room: the ids of the documents, and how much they took."""

    ids: tuple[str, ...]
    bytes: int


class Page(msgspec.Struct, frozen=True):
    """Some documents, the newest first, and what to ask for the next ones with."""

    documents: tuple[Document, ...]
    total: int
    next: str = ""


class Journal(Protocol):
    """Keeps entries and documents in the order in which they were written.

    What waits raises `OSError` if it could not be done.
    """

    def write(self, documents: Sequence[Document], done: OnVerdict, facts: Sequence[Fact] = ()) -> None:
        """Keep all of these or none; `done` is called once, later, from the event loop.

        `facts` go into the audit log with them, where there is one (`core.ports.ledger`).
        """

    async def read(self, kind: str, owner: str, id: str) -> Document | None:
        """What is kept under an id."""

    async def page(
        self,
        kind: str,
        owner: str,
        *,
        group: str = "",
        states: Collection[str] = (),
        after: float = 0.0,
        limit: int,
        token: str = "",
    ) -> Page:
        """One owner's documents, the newest first; raises `ValueError` for a token that no page gave.

        There are at most `limit`, and fewer where they are large.
        """

    async def all_in(
        self, kind: str, states: Collection[str], *, limit: int, after: Document | None = None
    ) -> list[Document]:
        """Some of every owner's documents in one of these states, the oldest first; `after` is the last one seen.

        There are at most `limit`, and fewer where they are large; none if none is left.
        """

    async def prune(self, kind: str, states: Collection[str], *, before: float, limit: int) -> int:
        """Take away some of those in one of these states that are older; return how many these were."""

    async def weigh(self, kinds: Collection[str], owner: str) -> Mapping[tuple[str, str], int]:
        """How many bytes one owner's documents of these kinds take, by their kinds and states.

        All is in it that was given to `write` before. Each counts as its body and `DOCUMENT_BYTES`.
        """

    async def trim(self, kind: str, owner: str, states: Collection[str], *, bytes: int, limit: int) -> Trimmed:
        """Take away the oldest of one owner's in one of these states, until they took so much, and at most `limit`."""

    async def commit(self, entries: Sequence[Entry]) -> None:
        """Return once the entries will survive whatever this journal promises to survive."""

    async def latest(self, kind: str, owner: str, limit: int) -> list[Entry]:
        """The newest `limit` entries of one kind and owner, oldest first."""


@runtime_checkable
class Probed(Protocol):
    """A journal that knows whether it can be written at all."""

    @property
    def is_failing(self) -> bool:
        """Whether the store refuses what is written to it."""


class OpenJournal(Journal, Protocol):
    """A journal that whoever opened it closes."""

    async def aclose(self) -> None:
        """Write what is waiting, and let go."""
