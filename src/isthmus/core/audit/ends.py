"""Calls that began in the log and have not ended in it: on their way, or lost with the hub that made them.

Only what is written before it is sent can be seen to be missing its end: calls and tasks of `strict`. The next hub
closes what is left open (`app.audit_ends`), and `isthmus audit verify` counts.
"""

from __future__ import annotations

import msgspec

from isthmus.core.audit.chain import Row
from isthmus.core.audit.facts import CallRecord, Written

BEGUN = "call.begun"
ENDED = "call"
CALL_LOST = "call.lost"
"""A call that began, and of which nobody can say how it ended: its hub did not come to its end."""

LOST_OUTCOME = "lost"


class _Known(msgspec.Struct):
    event: str = ""
    id: str = ""


_DECODER = msgspec.json.Decoder(_Known)
_RECORD = msgspec.json.Decoder(CallRecord)
_MARK = b'"event":"call'
"""What all records of calls have in them, and hardly any other: most are passed over at the cost of a look."""


class Ends:
    """Looks at records in their order, and knows which calls are open."""

    def __init__(self) -> None:
        self.open: dict[str, Row] = {}
        """By what the records of a call are known by: the one that says that it begins."""
        self.lost = 0
        """Calls of which the log says that nobody knows how they ended."""

    def take(self, row: Row) -> None:
        """Look at the next record."""
        if _MARK not in row.content:
            return
        try:
            known = _DECODER.decode(row.content)
        except msgspec.MsgspecError:
            return  # whoever follows the chain says what is wrong with it
        if known.event == BEGUN:
            self.open[known.id] = row
        elif known.event in (ENDED, CALL_LOST):
            self.open.pop(known.id, None)
            self.lost += known.event == CALL_LOST


def closing(begun: Row, at: float) -> Written | None:
    """The record that ends a call which was lost; None if it cannot be read which one that was."""
    try:
        record = _RECORD.decode(begun.content)
    except msgspec.MsgspecError:
        return None
    lost = msgspec.structs.replace(record, at=at, event=CALL_LOST, outcome=LOST_OUTCOME, executed="unknown")
    return Written(at, msgspec.json.encode(lost))
