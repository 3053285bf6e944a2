"""The journal: what must last, and what stores it. `storage` implements these protocols.

Tasks, approvals, budgets, logins, definitions and the state that nodes share are documents. An audit log is part of a
journal, so that a change and its record are written together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import msgspec

from isthmus.core.audit import AuditRow, Fact, LogState, Point, Seal, SealKind
from isthmus.core.histograms import WriteMetrics
from isthmus.model.fault_table import Fault

if TYPE_CHECKING:  # these classes use the protocols below
    pass


class JournalEntry(msgspec.Struct, frozen=True):
    """Something that is only ever appended, such as a line of a conversation: kind, owner, time and content as JSON."""

    kind: str
    owner: str
    at: float
    content: msgspec.Raw


class Document(msgspec.Struct, frozen=True):
    """Something that is stored under an id and changes, such as a task.

    `version` is one more than that of the document it replaces; the first is 1. So of two writers that change the same
    document only the first succeeds. Lists can be filtered by `group` and `state` and are ordered by `at`. A document
    without a `body` is a tombstone: it deletes.

    `holder` says which node of a cluster works on it, as far as it was read from a `SharedJournal`: `HERE`, the number
    of another node, or empty if none does. What is written ignores it.
    """

    kind: str
    owner: str
    id: str
    version: int
    at: float
    body: bytes | None
    group: str = ""
    state: str = ""
    holder: str = ""

    @property
    def is_elsewhere(self) -> bool:
        """Whether another node works on it."""
        return self.holder not in ("", HERE)


HERE = "here"
"""The `Document.holder` of what this node works on."""

DOCUMENT_BYTES = 512
"""What a document takes besides its body: its key, in the table and in the indexes."""


def size_of(document: Document) -> int:
    """The bytes that a document counts as."""
    return DOCUMENT_BYTES + len(document.body or b"")


DocumentPlace: TypeAlias = tuple[float, str, str]
"""Where a document is in a list of all owners: its time, its owner and its id."""


def place_of(document: Document) -> DocumentPlace:
    """The place of a document."""
    return document.at, document.owner, document.id


WriteResult: TypeAlias = Literal["kept", "conflict", "refused", "unknown"]
"""`kept`: it is durable. `conflict`: the stored version is another one. `refused`: it was not written. `unknown`:
writing failed at the very end, so it may have been written."""

OnWritten: TypeAlias = Callable[[WriteResult], None]


class TrimResult(msgspec.Struct, frozen=True):
    """The ids of documents that were deleted to make room, and their bytes."""

    ids: tuple[str, ...]
    bytes: int


class Page(msgspec.Struct, frozen=True):
    """Some documents, the newest first, and the token of the next page."""

    documents: tuple[Document, ...]
    total: int
    next: str = ""


class Journal(Protocol):
    """Durable storage of entries and documents, in the order in which they were written.

    Every `async` method raises `OSError` on failure.
    """

    def write(self, documents: Sequence[Document], done: OnWritten, facts: Sequence[Fact] = ()) -> None:
        """Write all of these or none; `done` is called once, later, from the event loop.

        `facts` are written to the audit log in the same transaction, where there is one (`AuditJournal`).
        """

    async def read(self, kind: str, owner: str, id: str) -> Document | None:
        """The document with this id."""

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
        """One owner's documents, the newest first: at most `limit`, fewer if they are large.

        Raises:
            ValueError: no page has this token.
        """

    async def all_in(
        self, kind: str, states: Collection[str], *, limit: int, after: Document | None = None
    ) -> list[Document]:
        """Documents of all owners in one of these states, the oldest first; `after` is the last one seen.

        In a `SharedJournal`, not those that other nodes hold.
        At most `limit`, fewer if they are large; an empty list only at the end.
        """

    async def newest(
        self,
        kind: str,
        states: Collection[str],
        *,
        owners: Collection[str] = (),
        limit: int,
        before: DocumentPlace | None = None,
    ) -> list[Document]:
        """Documents in one of these states, the newest first; of all owners if none are named.

        `before` is the place of the last one seen. At most `limit`, fewer if they are large; an empty list only at the
        end.
        """

    async def named(self, kind: str, id: str, *, limit: int) -> list[Document]:
        """At most `limit` documents with this id, of all owners."""

    async def prune(self, kind: str, states: Collection[str], *, before: float, limit: int) -> int:
        """Delete at most `limit` documents in one of these states that are older than `before`; return the count."""

    async def weigh(self, kinds: Collection[str], owner: str) -> Mapping[tuple[str, str], int]:
        """The bytes of one owner's documents by kind and state, each counted as its body plus `DOCUMENT_BYTES`.

        Includes everything that was passed to `write` before.
        """

    async def trim(self, kind: str, owner: str, states: Collection[str], *, bytes: int, limit: int) -> TrimResult:
        """Delete one owner's oldest documents in one of these states: at least `bytes`, at most `limit` documents."""

    async def commit(self, entries: Sequence[JournalEntry]) -> None:
        """Return once the entries are as durable as this journal makes anything."""

    async def latest(self, kind: str, owner: str, limit: int) -> list[JournalEntry]:
        """The newest `limit` entries of one kind and owner, oldest first."""


@runtime_checkable
class HealthReportingJournal(Protocol):
    """A journal that knows whether writing works."""

    @property
    def is_failing(self) -> bool:
        """Whether the store currently refuses writes."""


@runtime_checkable
class MeasuredJournal(Protocol):
    """A journal that counts its writes."""

    write_metrics: WriteMetrics


@runtime_checkable
class SharedJournal(Journal, Protocol):
    """A journal that several nodes use at once, each under a lease.

    Of some documents one node is the holder, from the write that makes them unfinished until the one that ends them:
    only it can change them, and `all_in` has no others. When its lease has ended, one other node inherits them.
    """

    inherited: asyncio.Event
    """Set while there are documents to `inherit`."""
    on_lost: Callable[[], None]
    """Called when another node has inherited what this one held."""
    on_joined: Callable[[int], None]
    """Called with the number of each new lease of this node, which is the `holder` that others see."""

    @property
    def number(self) -> int | None:
        """The number of the lease; None before the first one."""

    @property
    def is_held(self) -> bool:
        """Whether the lease is held now, by this node's own clock."""

    @property
    def nodes(self) -> int:
        """How many nodes had a lease when this one last renewed its own; at least 1, which is this node."""

    async def inherit(self) -> list[Document]:
        """Become the holder of some documents of nodes that are gone; an empty list at the end. Raises `OSError`."""


@runtime_checkable
class ClockedJournal(Protocol):
    """A journal with a clock that all its nodes share, however wrong their own clocks are."""

    def now(self) -> float:
        """Seconds since 1970."""


class StateDocument(NamedTuple):
    """A document that all nodes share: its version, 0 if it is new, and its content; None deletes it."""

    version: int
    body: bytes | None


class SharedState(Protocol):
    """Small documents that all nodes of a cluster agree on: keys, logins, lists of the relay, tool definitions.

    Those of the kinds that are followed are in memory, which has each change within a second. Every method may be
    called from any thread; those that wait for the database raise `OSError`.
    """

    where: str
    """Where they are stored, for people; without secrets."""

    @property
    def is_current(self) -> bool:
        """Whether the database was read in the last seconds."""

    def revision(self, kind: str) -> int:
        """A number that changes whenever a document of this kind does; 0 if there never was one."""

    def all(self, kind: str) -> Mapping[str, StateDocument]:
        """The documents of a kind, by id."""

    def follow(self, kind: str) -> None:
        """Have this kind in memory from now on; keys, logins and lists of the relay are there from the start."""

    def read_now(self) -> None:
        """Wait until memory has what the database has now."""

    def write(self, kind: str, changes: Mapping[str, StateDocument]) -> bool:
        """Write all changes or none; False if the stored version of one is not that of its change.

        Memory has the result afterwards, also that of another writer.
        """

    def lock(self, name: str) -> AbstractAsyncContextManager[None]:
        """Keep other nodes out of a block with the same name; without a lock if the database is away for long."""


class ClosableJournal(Journal, Protocol):
    """A journal that its opener closes."""

    async def aclose(self) -> None:
        """Write what is queued, then close."""


class PeerTasks(Protocol):
    """Reaches the nodes that hold tasks. Without it, what only they can do is refused as `TaskElsewhere`."""

    async def cancel(self, node: str, owner: str, id: str, why: str) -> Fault | None:
        """Cancel a task that a node holds (`Document.holder`), and wait until that is stored."""


# -- audit logs --------------------------------------------------------------------------------------------------------


class AuditNotary(Protocol):
    """Encodes facts as records and signs the log. Called by the journal's writer, not on the path of a call."""

    def record(self, fact: Fact) -> tuple[float, bytes]:
        """The time of a fact, and its record."""

    def seal(self, kind: SealKind, point: Point) -> Seal:
        """Sign a point of the chain."""

    def checkpoint(self, point: Point) -> None:
        """The log is durable up to this point: store that outside of the log."""


@runtime_checkable
class AuditJournal(Protocol):
    """A journal that also stores an audit log."""

    def write(self, documents: Sequence[Document], done: OnWritten, facts: Sequence[Fact] = ()) -> None:
        """Write all of these or none, the facts as the next records of the log; see `Journal.write`."""

    async def open_log(self, notary: AuditNotary) -> LogState:
        """Open the log for writing and return its state. Raises `OSError`."""

    async def prune_log(self, *, before: float, limit: int) -> int:
        """Delete some of the oldest records and store an anchor in their place; return how many were deleted."""


@runtime_checkable
class ChainedAuditJournal(AuditJournal, Protocol):
    """An audit journal in which each node of a cluster has a log of its own."""

    async def choose_chain(self, key: str, place: int) -> int:
        """Choose the log to open: that of this public key and this place below its state folder. Raises `OSError`."""


@runtime_checkable
class ReadableAuditJournal(AuditJournal, Protocol):
    """An audit journal whose log the writing hub can read. Without it, calls that a crash left open stay open."""

    async def log_rows(self, *, after: int, limit: int) -> Sequence[AuditRow]:
        """The records after this number, the oldest first. Raises `OSError`."""
