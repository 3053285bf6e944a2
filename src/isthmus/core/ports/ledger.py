"""Where the audit log is kept: in the journal's own store, by its one writer. `storage` implements it.

`app.audit` opens it; facts reach it through `telemetry.audit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from isthmus.core.audit.chain import Kind, Point, Row, Seal, Standing
from isthmus.core.audit.facts import Fact
from isthmus.core.ports.journal import Document, OnVerdict


class Notary(Protocol):
    """Makes records of facts and vouches for the log. Called where the journal writes, not on the path of a call."""

    def record(self, fact: Fact) -> tuple[float, bytes]:
        """The time of a fact, and its record."""

    def seal(self, kind: Kind, point: Point) -> Seal:
        """Sign a point."""

    def checkpoint(self, point: Point) -> None:
        """The log is kept up to this point: note that outside of it."""


@runtime_checkable
class Ledger(Protocol):
    """A journal that keeps an audit log as well."""

    def write(self, documents: Sequence[Document], done: OnVerdict, facts: Sequence[Fact] = ()) -> None:
        """Keep all of these or none, the facts as the log's next records; see `Journal.write`."""

    async def open_log(self, notary: Notary) -> Standing:
        """How the log stands; from now on facts can be written. Raises `OSError`."""

    async def prune_log(self, *, before: float, limit: int) -> int:
        """Take away some of the oldest records, and leave an anchor in their place; return how many these were."""


@runtime_checkable
class ReadableLedger(Ledger, Protocol):
    """One whose log can be looked at by the hub that writes it. Without that, what a crash left open stays so."""

    async def log_rows(self, *, after: int, limit: int) -> Sequence[Row]:
        """The records that follow a number, the oldest first. Raises `OSError`."""
