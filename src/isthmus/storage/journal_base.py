"""What the journals share: opening errors, pages of documents, and the results of writes.

`SqliteJournal`, `PostgresJournal` and, for pages, `MemoryJournal` use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from isthmus.core.journal import Document, OnWritten, WriteResult

log = structlog.get_logger(__name__)


class StateInUse(Exception):
    """Another hub uses the same state folder or database."""


class StateUnusable(Exception):
    """The state folder or database cannot be reached or used."""


# -- results of writes -------------------------------------------------------------------------------------------------

PROBE_SECONDS = 1.0
"""Interval of test writes after a write has failed."""

PROBE_BYTES = 16 * 1024
"""The size of a test write, which the same transaction deletes: a disk with less space is full."""


class WriteProbe:
    """Finds out whether a journal can be written. A failed write may be invalid itself, so a test write follows it.

    On the event loop only. `write` makes a test write and reports its result.
    """

    def __init__(self, write: Callable[[OnWritten], None]) -> None:
        self.is_failing = False
        self._write = write
        self._is_probing = False

    def probe(self) -> None:
        """Make a test write, after a write has failed."""
        if not self._is_probing:
            self._is_probing = True
            self._write(self._on_written)

    def _on_written(self, result: WriteResult) -> None:
        self._is_probing = False
        was_failing, self.is_failing = self.is_failing, result in ("refused", "unknown")
        if self.is_failing:
            self._is_probing = True
            asyncio.get_running_loop().call_later(PROBE_SECONDS, self._write, self._on_written)
        elif was_failing:
            log.info("the journal can be written again")


def set_result_once(written: asyncio.Future[WriteResult], result: WriteResult) -> None:
    """Set the result, unless the caller has stopped waiting."""
    if not written.done():
        written.set_result(result)


def notify_all(results: Iterable[tuple[OnWritten, WriteResult]]) -> None:
    """Call each callback with its result, in order."""
    for done, result in results:
        try:
            done(result)
        except Exception:  # one callback's failure must not stop the others
            log.exception("a callback of the journal failed")


# -- pages -------------------------------------------------------------------------------------------------------------

PAGE_BYTES = 4 * 1024 * 1024
"""A page ends with the document that exceeds this; documents have any length."""


def fitting_count(lengths: Iterable[int]) -> int:
    """How many documents of these lengths fit on one page; at least one."""
    count = total = 0
    for length in lengths:
        if total >= PAGE_BYTES:
            break
        count += 1
        total += length
    return count


def page_token(last: Document) -> str:
    """The token of the page that follows this document."""
    return f"{last.at!r}:{last.id}"


def parse_page_token(token: str) -> tuple[float, str]:
    """The time and id of the document before the page; raises `ValueError` for an invalid token."""
    at, _, id = token.partition(":")
    return float(at), id
