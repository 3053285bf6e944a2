"""Telling those who wait what became of their writes, and finding out whether the store takes any.

Used by the journals that outlast the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from isthmus.core.ports import Document, OnWritten, WriteResult

log = structlog.get_logger(__name__)

PROBE_SECONDS = 1.0
"""How often it is tried whether a store that refused a write takes one again."""

PROBE_BYTES = 16 * 1024
"""The length of what is written then, and taken away with the same transaction: a disk with less is full."""


class WriteProbe:
    """Whether a journal can be written. A write that fails may be odd by itself, so that one of our own is tried then.

    On the event loop only. `write` has to write something and to tell what became of it.
    """

    def __init__(self, write: Callable[[OnWritten], None]) -> None:
        self.is_failing = False
        self._write = write
        self._is_trying = False

    def suspect(self) -> None:
        """A write failed: try another one."""
        if not self._is_trying:
            self._is_trying = True
            self._write(self._hear)

    def _hear(self, verdict: WriteResult) -> None:
        self._is_trying = False
        was_failing, self.is_failing = self.is_failing, verdict in ("refused", "unknown")
        if self.is_failing:
            self._is_trying = True
            asyncio.get_running_loop().call_later(PROBE_SECONDS, self._try_again)
        elif was_failing:
            log.info("the journal is written again")

    def _try_again(self) -> None:
        self._write(self._hear)


def set_result_once(kept: asyncio.Future[WriteResult], verdict: WriteResult) -> None:
    """Tell one who may have stopped waiting."""
    if not kept.done():
        kept.set_result(verdict)


def notify_all(told: Iterable[tuple[OnWritten, WriteResult]]) -> None:
    """Tell each its verdict, in order."""
    for done, verdict in told:
        try:
            done(verdict)
        except Exception:  # one listener's defect must not keep the others from their verdicts
            log.exception("a listener of the journal failed")


PAGE_BYTES = 4 * 1024 * 1024
"""The documents on a page take less than this without the last of them, which may be as large as one can be."""


def fitting_count(lengths: Iterable[int]) -> int:
    """How many documents of these lengths go on one page; the first always does."""
    count = taken = 0
    for length in lengths:
        if taken >= PAGE_BYTES:
            break
        count += 1
        taken += length
    return count


def page_token(last: Document) -> str:
    """The token of the page after this document."""
    return f"{last.at!r}:{last.id}"


def parse_page_token(token: str) -> tuple[float, str]:
    """The time and id of the document before the page; raises `ValueError` for what no page gave."""
    at, _, id = token.partition(":")
    return float(at), id


class StateInUse(Exception):
    """Another hub keeps its tasks in the same place."""


class StateUnusable(Exception):
    """The place where tasks are to be kept cannot be reached, or cannot be used by this hub."""
