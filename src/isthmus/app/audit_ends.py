"""What a hub that was killed left open in the audit log: calls that began, and whose ends nobody wrote.

The hub that comes next ends them, as lost, once. `app.audit` asks when it opens a log.
"""

from __future__ import annotations

import time
from contextlib import suppress

import msgspec

from isthmus.core.audit.chain import Row, Standing
from isthmus.core.audit.ends import Ends, closing
from isthmus.core.audit.facts import Written
from isthmus.core.ports.journal import Document, Journal
from isthmus.core.ports.ledger import Ledger, ReadableLedger
from isthmus.core.tasks.engine import UNFINISHED
from isthmus.core.tasks.record import TASK, record_of

SLACK_SECONDS = 60.0
"""How much longer than it may a call is believed to have taken to end, and to be written."""

ROWS_AT_ONCE = 1_000
TASKS_AT_ONCE = 100


async def loose_ends(
    ledger: Ledger, journal: Journal, server_status: Standing, call_seconds: float
) -> dict[str, Written]:
    """What began within the time that a call may take before the log's last record, and has not ended.

    Returned are the records that close these calls, by what each is known by. A task that waits is no open end, though
    it may have begun: it was put back, and goes on. Raises `OSError`.
    """
    if not isinstance(ledger, ReadableLedger):
        return {}
    ends = Ends()
    after = await _begin_of(ledger, server_status, call_seconds + SLACK_SECONDS)
    while rows := await ledger.log_rows(after=after, limit=ROWS_AT_ONCE):
        for row in rows:
            ends.take(row)
        after = rows[-1].number
    waiting = await _waiting(journal) if ends.open else set()
    now = time.time()
    made = {id: closing(row, now) for id, row in ends.open.items() if id not in waiting}
    return {id: record for id, record in made.items() if record is not None}


async def _begin_of(ledger: ReadableLedger, server_status: Standing, seconds: float) -> int:
    """The number before the first record of so many seconds: looked for by halves, as a log may have millions."""
    low = 0 if server_status.anchor is None else server_status.anchor.point.number
    high = server_status.head.number
    last = await _after(ledger, high - 1)
    while last is not None and high - low > ROWS_AT_ONCE:
        middle = (low + high) // 2
        row = await _after(ledger, middle)
        if row is not None and row.at < last.at - seconds:
            low = middle
        else:
            high = middle
    return low


async def _after(ledger: ReadableLedger, number: int) -> Row | None:
    rows = await ledger.log_rows(after=number, limit=1)
    return rows[0] if rows else None


async def _waiting(journal: Journal) -> set[str]:
    """The ids of tasks that the hub before left waiting, and that are gone on with."""
    ids: set[str] = set()
    last: Document | None = None
    while found := await journal.all_in(TASK, UNFINISHED, limit=TASKS_AT_ONCE, after=last):
        last = found[-1]
        for document in found:
            with suppress(msgspec.MsgspecError):
                if record_of(document).phase == "waiting":
                    ids.add(document.id)
    return ids
