"""Telling those who wait what became of their writes. Used by the journals that outlast the process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from isthmus.core.ports.journal import OnVerdict, Verdict

log = structlog.get_logger(__name__)


def settle(kept: asyncio.Future[Verdict], verdict: Verdict) -> None:
    """Tell one who may have stopped waiting."""
    if not kept.done():
        kept.set_result(verdict)


def tell_all(told: Iterable[tuple[OnVerdict, Verdict]]) -> None:
    """Tell each its verdict, in order."""
    for done, verdict in told:
        try:
            done(verdict)
        except Exception:  # one listener's defect must not keep the others from their verdicts
            log.exception("a listener of the journal failed")
