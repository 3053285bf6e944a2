"""The oracle must catch every kind of lie, and no honest history."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.caller import Caller, pay
from tests.faults.oracle import Record, Violation, Wrong, judge, read_ledger


@pytest.mark.parametrize(
    ("record", "ran"),
    [
        (Record("a", "ok", answer="a"), 1),
        (Record("a", "no"), 0),
        (Record("a", "yes"), 1),
        (Record("a", "unknown"), 0),
        (Record("a", "unknown"), 1),
        (Record("a", "ok", answer="a", is_idempotent=True), 2),
        (Record("a", "unknown", started=1.0, ended=31.4, deadline=30.0), 1),
    ],
)
def test_an_honest_call_is_no_violation(record: Record, ran: int) -> None:
    assert judge([record], {"a": ran} if ran else {}) == []


@pytest.mark.parametrize(
    ("record", "ran", "wrong"),
    [
        (Record("a", "ok", answer="a"), 2, Wrong.DUPLICATE),
        (Record("a", "unknown"), 2, Wrong.DUPLICATE),
        (Record("a", "no"), 1, Wrong.LIED_NOT_SENT),
        (Record("a", "yes"), 0, Wrong.LIED_RAN),
        (Record("a", "ok", answer="a"), 0, Wrong.PHANTOM_OK),
        (Record("a", "ok", answer="b"), 1, Wrong.FOREIGN),
        (Record("a", "ok", answer=None), 1, Wrong.FOREIGN),
        (Record("a", None, ended=None), 0, Wrong.HANG),
        (Record("a", "unknown", started=1.0, ended=41.1, deadline=30.0), 1, Wrong.HANG),
    ],
)
def test_each_lie_is_caught_by_its_name(record: Record, ran: int, wrong: Wrong) -> None:
    assert judge([record], {"a": ran} if ran else {}) == [Violation(wrong, "a")]


def test_one_call_can_be_wrong_in_several_ways() -> None:
    found = judge([Record("a", "no", ended=41.0)], {"a": 2})

    assert {violation.wrong for violation in found} == {Wrong.DUPLICATE, Wrong.HANG, Wrong.LIED_NOT_SENT}


def test_a_run_without_a_call_is_an_orphan() -> None:
    assert judge([], {"ghost": 1}) == [Violation(Wrong.ORPHAN, "ghost")]


def test_a_ledger_counts_executions_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_text('{"nonce": "a", "pid": 1}\n{"cancelled": "a", "pid": 1}\n{"nonce": "a", "pid": 2}\n{"child": 3}\n')

    assert read_ledger(path) == {"a": 2}
    assert read_ledger(tmp_path / "none") == {}


def test_a_violation_reads_as_a_sentence() -> None:
    assert str(Violation(Wrong.LIED_NOT_SENT, "n7")) == "LIED_NOT_SENT n7: reported as not executed, and it ran"


# -- a hub that lies, called over its socket -------------------------------------------------------------------------

CALLS = 60
MUTANTS: dict[str, Wrong | None] = {
    "none": None,
    "duplicate": Wrong.DUPLICATE,
    "denies": Wrong.LIED_NOT_SENT,
    "claims": Wrong.LIED_RAN,
    "phantom": Wrong.PHANTOM_OK,
    "foreign": Wrong.FOREIGN,
    "hang": Wrong.HANG,
    "orphan": Wrong.ORPHAN,
}
"""What a hub does wrong with one call of sixty, and what the oracle must say of it."""


class LyingHub:
    """Serves calls as a hub with a server behind it would, and is honest about all but one of them."""

    def __init__(self, mutant: str, victim: str, ledger: Path) -> None:
        self._mutant = mutant
        self._victim = victim
        self._ledger = ledger

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                nonce = json.loads(await reader.readexactly(length))["params"]["arguments"]["nonce"]
                answer = self.perform(nonce, self._mutant if nonce == self._victim else "none")
                if answer is not None:
                    body = json.dumps({"jsonrpc": "2.0", "id": 1, **answer}).encode()
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    def perform(self, nonce: str, mutant: str) -> dict[str, object] | None:
        ran = {"duplicate": [nonce] * 2, "claims": [], "phantom": [], "hang": [], "orphan": [nonce, "ghost"]}
        with self._ledger.open("a") as ledger:
            ledger.writelines(json.dumps({"nonce": each}) + "\n" for each in ran.get(mutant, [nonce]))
        match mutant:
            case "hang":
                return None
            case "denies" | "claims":
                executed = "no" if mutant == "denies" else "yes"
                return {"error": {"code": -32012, "message": "", "data": {"executed": executed, "reason": "lost"}}}
            case _:
                text = "another's" if mutant == "foreign" else nonce
                return {"result": {"content": [{"type": "text", "text": text}]}}


@pytest.mark.parametrize("mutant", MUTANTS)
async def test_a_hub_that_is_dishonest_about_one_call_of_many_is_found_out(tmp_path: Path, mutant: str) -> None:
    """From the caller's socket to the verdict, as fault tests use it: a checker that sees nothing proves nothing."""
    victim = f"n{random.Random(mutant).randrange(CALLS)}"
    path = tmp_path / "ledger"
    hub = LyingHub(mutant, victim, path)
    listener = await asyncio.start_server(hub.serve, "127.0.0.1", 0)
    async with Caller(listener.sockets[0].getsockname()[1], answer_seconds=1.0) as caller:
        history = await asyncio.gather(*(pay(caller, "s.pay", f"n{at}", deadline=0.5) for at in range(CALLS)))
    listener.close()
    wrong = MUTANTS[mutant]
    blamed = "ghost" if mutant == "orphan" else victim
    assert judge(history, read_ledger(path)) == ([] if wrong is None else [Violation(wrong, blamed)])


def test_there_is_a_mutant_for_each_way_to_be_dishonest() -> None:
    assert {wrong for wrong in MUTANTS.values() if wrong is not None} == set(Wrong)
