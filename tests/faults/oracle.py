"""The honesty oracle: compares the outcomes that callers got with the server's ledger of what ran.

Plain values in, a list of violations out; empty means that nothing was lost, doubled or invented. Fault tests
build a history while they call, and hand it over with the ledger at the end.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

ReportedOutcome = Literal["ok", "no", "yes", "unknown"]
"""What the caller heard: a result, or a fault that says whether the tool ran."""

HANG_SECONDS = 10.0
"""How long after its deadline a call may still be answered before it counts as hung; the machine may be busy."""


class Wrong(StrEnum):
    """The ways to be dishonest."""

    DUPLICATE = "one call ran more than once"
    LIED_NOT_SENT = "reported as not executed, and it ran"
    LIED_RAN = "reported as executed, and it never ran"
    PHANTOM_OK = "answered with a result, and it never ran"
    FOREIGN = "answered with the result of another call"
    HANG = "not answered by its deadline"
    ORPHAN = "ran without anybody having called"


@dataclass(frozen=True, slots=True)
class Record:
    """One call as its caller saw it; times are of one monotonic clock, `ended` is None if it never was."""

    nonce: str
    reported: ReportedOutcome | None
    answer: str | None = None
    """The nonce that came back with a result."""
    started: float = 0.0
    ended: float | None = 0.0
    deadline: float = 30.0
    """Seconds that the call had."""
    is_idempotent: bool = False
    """Whether running it twice is allowed."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that was not honest."""

    wrong: Wrong
    nonce: str

    def __str__(self) -> str:
        return f"{self.wrong.name} {self.nonce}: {self.wrong}"


def judge(history: Iterable[Record], ran: Mapping[str, int]) -> list[Violation]:
    """Every violation, in the order of the history; `ran` says how often the server ran each nonce."""
    found: list[Violation] = []
    known: set[str] = set()
    for record in history:
        known.add(record.nonce)
        found += (Violation(wrong, record.nonce) for wrong in _wrongs(record, ran.get(record.nonce, 0)))
    return found + [Violation(Wrong.ORPHAN, nonce) for nonce in ran if nonce not in known]


def read_ledger(path: Path) -> Counter[str]:
    """How often each nonce ran, by a raw server's ledger; lines that are about other things do not count."""
    lines = path.read_text().splitlines() if path.exists() else []
    facts = [json.loads(line) for line in lines]
    return Counter(str(fact["nonce"]) for fact in facts if "nonce" in fact)


def _wrongs(record: Record, ran: int) -> Iterable[Wrong]:
    if ran > 1 and not record.is_idempotent:
        yield Wrong.DUPLICATE
    if _hung(record):
        yield Wrong.HANG
    match record.reported:
        case "ok" if ran == 0:
            yield Wrong.PHANTOM_OK
        case "no" if ran:
            yield Wrong.LIED_NOT_SENT
        case "yes" if ran == 0:
            yield Wrong.LIED_RAN
        case _:
            pass  # `unknown` is honest whatever ran, and a call without an outcome has hung
    if record.reported == "ok" and record.answer != record.nonce:
        yield Wrong.FOREIGN


def _hung(record: Record) -> bool:
    if record.reported is None or record.ended is None:
        return True
    return record.ended - record.started > record.deadline + HANG_SECONDS
