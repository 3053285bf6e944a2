"""Logs of hubs beside the one that serves, and open records of a hub that was killed."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from isthmus.app import audit
from isthmus.app.audit import AuditLog, close_audit, open_audit, prune_idle_slots
from isthmus.app.hub import RunningHub
from isthmus.core.audit import CUT, STARTED, STOPPED, UNCLEAN, Verification
from isthmus.core.calls.hub import Hub
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.settings import HARD_SECONDS, Limits
from isthmus.core.tasks.engine import TaskEngine
from isthmus.core.tasks.record import TaskOwner, TaskRecord, document_of, owner_of
from isthmus.model.names import ServerName
from isthmus.storage import audit_sqlite
from isthmus.storage.audit_log_folders import list_slots, slot_file
from isthmus.storage.audit_signatures import read_checkpoint, read_keys
from isthmus.storage.memory import MemoryJournal
from isthmus.storage.sqlite import FILE, SqliteJournal
from isthmus.telemetry.audit_writer import AuditMode
from isthmus.telemetry.call_metrics import CallMetrics
from tests.unit.app.test_audit import configured, events, opened, records_in
from tests.unit.core.doubles import ANYONE, DONE, SERVER, HeldLink, call, ready, tool
from tests.unit.core.tasks.doubles import draft

# -- slots -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def seated(
    state: Path, audit: AuditMode = "batched", *, ends_well: bool = True
) -> AsyncIterator[tuple[MemoryJournal, AuditLog]]:
    """A hub that keeps nothing but its log."""
    journal = MemoryJournal()
    log = await open_audit(configured(state, audit), journal, "stdio")
    assert log is not None
    try:
        yield journal, log
    finally:
        if ends_well:
            await close_audit(log, journal)
        else:
            await log.audit.aclose()
            await log.close()


async def noted(state: Path, slot: int) -> list[dict[str, Any]]:
    async with audit_sqlite.open_reader(slot_file(state, slot)) as log:
        return [msgspec.json.decode(row.content) async for row in log.rows()]


async def test_hubs_that_share_a_folder_have_a_log_each_beside_that_of_the_one_that_serves(tmp_path: Path) -> None:
    async with opened(tmp_path) as served, seated(tmp_path) as (_, first), seated(tmp_path) as (_, second):
        for log, event in ((served, "served"), (first, "first"), (second, "second")):
            log.audit.note(event)
    async with seated(tmp_path) as (_, again):
        again.audit.note("again")
    assert await events(tmp_path) == [STARTED, "served", STOPPED]
    found = [[each["event"] for each in await noted(tmp_path, slot)] for slot in list_slots(tmp_path)]
    assert found == [[STARTED, "first", STOPPED, STARTED, "again", STOPPED], [STARTED, "second", STOPPED]]
    assert (await noted(tmp_path, 1))[0]["by"] == "stdio"


async def test_a_log_that_was_taken_from_its_seat_is_missed_by_the_next_hub_there(tmp_path: Path) -> None:
    async with seated(tmp_path):
        pass
    for file in slot_file(tmp_path, 1).parent.glob(f"{FILE}*"):
        file.unlink()
    async with seated(tmp_path):
        pass
    assert [each["event"] for each in await noted(tmp_path, 1)] == [CUT, STARTED, STOPPED]


async def test_calls_of_in_memory_tasks_are_in_the_audit_log(tmp_path: Path) -> None:
    async with seated(tmp_path, "strict") as (journal, log):
        hub = Hub(Limits(), log.audit.wrap(CallMetrics()))
        server_queue, link = ServerQueue(SERVER, hub.limits), HeldLink()
        server_queue.attach(link)
        hub.open_server_queue(server_queue, ready(tool()))
        engine = TaskEngine(hub, journal, time.time)
        live = await engine.begin(draft(call()))
        assert (await noted(tmp_path, 1))[-1]["event"] == "call.begun"
        link.sent[0].finish(DONE)
        await engine.wait_idle()
        assert live.record.is_terminal
        begun, ended = (await noted(tmp_path, 1))[-2:]
        assert (begun["id"], ended["id"], ended["outcome"]) == (live.record.id, live.record.id, "result")


async def test_old_records_of_a_free_slot_are_deleted_and_those_of_a_used_one_stay(
    tmp_path: Path,
) -> None:
    async with seated(tmp_path) as (_, first), seated(tmp_path) as (_, second):
        for log in (first, second):
            log.audit.note("old")
    async with seated(tmp_path):
        await prune_idle_slots(tmp_path, time.time() + 1)
        assert [each["event"] for each in await noted(tmp_path, 1)][:3] == [STARTED, "old", STOPPED]
    assert [each["event"] for each in await noted(tmp_path, 2)] == [STOPPED]
    keys = read_keys(tmp_path, 2)
    async with audit_sqlite.open_reader(slot_file(tmp_path, 2)) as left:
        verification = Verification(left.anchor, read_checkpoint(tmp_path, keys, 2), keys.is_signed)
        async for row in left.rows():
            verification.check_row(row)
    assert (verification.end(), verification.count) == (None, 1)


# -- open ends -------------------------------------------------------------------------------------------------------


async def begin(log: AuditLog, *ids: str, at: float | None = None) -> None:
    """Begin calls that never end."""
    now = time.time() if at is None else at
    for id in ids:
        log.audit.add((now, call("files.read"), SERVER, None, 0.0, False, id))
    await log.audit.aclose()


async def lost(state: Path) -> list[str]:
    return [each["id"] for each in await records_in(state) if each["event"] == "call.lost"]


async def test_calls_that_a_killed_hub_left_open_are_ended_once_by_the_next(tmp_path: Path) -> None:
    async with opened(tmp_path, "strict", ends_well=False) as log:
        log.audit.add((time.time(), call("files.read"), SERVER, DONE, 0.1, True, "ended"))
        await begin(log, "open", "other")
    for _ in range(3):
        async with opened(tmp_path, ends_well=False) as log:
            pass
    assert await lost(tmp_path) == ["open", "other"]
    found = [each for each in await records_in(tmp_path) if each["event"] in (UNCLEAN, "call.lost", STARTED)]
    assert [each["event"] for each in found][1:5] == [UNCLEAN, "call.lost", "call.lost", STARTED]
    assert found[1]["lost"] == 2
    assert found[2].items() >= {"name": "files.read", "executed": "unknown", "outcome": "lost"}.items()


async def test_after_a_clean_end_open_calls_are_not_searched_nor_beyond_the_maximum_call_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "ROWS_AT_ONCE", 2)
    async with opened(tmp_path) as log:
        await begin(log, "before a good end")
    async with opened(tmp_path, ends_well=False) as log:
        await begin(log, *(f"long ago {number}" for number in range(9)), at=time.time() - 2 * HARD_SECONDS)
        await begin(log, "open", *(f"also {number}" for number in range(5)))
    async with opened(tmp_path):
        pass
    assert {"open", *(f"also {number}" for number in range(5))} <= set(await lost(tmp_path))
    assert len(await lost(tmp_path)) < 10, "a log of millions is not read from its beginning"


async def test_a_journal_that_cannot_be_looked_into_costs_the_open_ends_and_not_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, "strict", ends_well=False) as log:
        await begin(log, "open")

    async def fail(*_: object, **__: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(SqliteJournal, "log_rows", fail)
    async with opened(tmp_path, "strict") as log:
        assert log.closed == frozenset()


async def test_a_log_with_foreign_content_can_be_continued(tmp_path: Path) -> None:
    async with opened(tmp_path, "strict", ends_well=False) as log:
        await begin(log, "changed", "open")
    connection = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    for content, number in (("a text", 2), (5, 1)):
        connection.execute("UPDATE audit SET content = ?, at = 'never' WHERE number = ?", (content, number))
    connection.execute("UPDATE audit SET content = CAST(content AS TEXT) WHERE number = 3")
    connection.close()
    async with opened(tmp_path) as log:
        assert log.closed == {"open"}


async def test_a_task_that_waits_is_not_lost_and_one_that_was_sent_is_noted_in_any_mode(tmp_path: Path) -> None:
    record = TaskRecord("waits", owner_of(ANYONE), "", "mcp", "submitted", 0.0, 0.0, phase="waiting")
    async with opened(tmp_path, "strict", ends_well=False) as log:
        written: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        log._ledger.write((document_of(msgspec.structs.replace(record, version=1)),), written.set_result)
        await begin(log, "waits", "was sent")
        assert await written == "kept"
    async with opened(tmp_path) as log:
        assert log.closed == {"was sent"}
        owner = TaskOwner("acme", "ann", "mcp")
        ids = ("was sent", "of a batched hub")
        log.tasks_lost([TaskRecord(id, owner, "", "mcp", "working", 1.0, 1.0) for id in ids])
    assert await lost(tmp_path) == ["was sent", "of a batched hub"]
    found = [each for each in await records_in(tmp_path) if each["event"] == "call.lost"][-1]
    assert (found["tenant"], found["caller"], found["executed"]) == ("acme", "ann", "unknown")


async def test_a_login_that_changed_is_one_record(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        running = RunningHub(configured(tmp_path), {}, audit=log.audit)
        log.follow(running, None)
        running.logins.on_changed(ServerName("files"), None)
        await running.aclose()
    assert (await events(tmp_path)).count("login.changed") == 1
