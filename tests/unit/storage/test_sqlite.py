"""The journal in a file: confirmed writes survive every crash, and one bad write costs only itself."""

from __future__ import annotations

import asyncio
import resource
import signal
import sqlite3
import stat
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import msgspec
import pytest

from isthmus.core.journal import Document, JournalEntry, WriteResult
from isthmus.storage import sqlite
from isthmus.storage.journal_base import StateInUse
from isthmus.storage.sqlite import ENTRIES_KEPT, FILE, LOCK, TURNS_MAX, SqliteJournal, WriteBatcher
from tests.hubs import environment
from tests.unit.storage import writing_child

SECONDS = 60.0


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[SqliteJournal]:
    journal = SqliteJournal(folder)
    try:
        yield journal
    finally:
        await journal.aclose()


def document(id: str, version: int = 1, body: bytes = b"{}") -> Document:
    return Document("task", "me", id, version, 1.0, body)


async def write(journal: SqliteJournal, *works: Sequence[Document]) -> list[WriteResult]:
    """Write all of these within one turn of the loop."""
    results: list[asyncio.Future[WriteResult]] = []
    for documents in works:
        results.append(asyncio.get_running_loop().create_future())
        journal.write(documents, results[-1].set_result)
    async with asyncio.timeout(SECONDS):
        return list(await asyncio.gather(*results))


async def test_writes_of_one_loop_turn_are_one_transaction(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        statements: list[str] = []
        journal._write_connection.set_trace_callback(statements.append)
        assert await write(journal, *[[document(f"t{number}")] for number in range(100)]) == ["kept"] * 100
        assert statements.count("COMMIT") == 1


async def test_writes_of_consecutive_turns_share_a_transaction_for_a_while(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        statements: list[str] = []
        journal._write_connection.set_trace_callback(statements.append)
        results: list[WriteResult] = []
        for number in range(TURNS_MAX):
            journal.write([document(f"t{number}")], results.append)
            await asyncio.sleep(0)
        assert await write(journal, [document("last")]) == ["kept"]
        assert results == ["kept"] * TURNS_MAX
        assert statements.count("COMMIT") <= 2


async def test_a_conflict_costs_only_the_write_that_has_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        results = await write(journal, [document("a")], [document("b"), document("a")], [document("c")])
        assert results == ["kept", "conflict", "kept"]
        assert await journal.read("task", "me", "b") is None


async def test_an_unwritable_document_costs_only_itself(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        results = await write(
            journal, [document("a")], [document("half \ud800")], [document("c", 2**70)], [document("d")]
        )
        assert results == ["kept", "refused", "refused", "kept"]
        assert await write(journal, [document("after")]) == ["kept"]
        with pytest.raises(OSError, match="the journal cannot be read"):
            await journal.read("task", "me", "half \ud800")


async def test_a_full_disk_refuses_large_documents_and_accepts_small_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_small(path: Path) -> sqlite3.Connection:
        connection = open_any(path)
        connection.execute("PRAGMA max_page_count = 20")
        return connection

    open_any = sqlite._open
    monkeypatch.setattr(sqlite, "_open", open_small)
    async with opened(tmp_path) as journal:
        results = await write(
            journal, [document("small")], [document("large", 1, b"x" * 1_000_000)], [document("also")]
        )
        assert results == ["kept", "refused", "kept"]
        assert await journal.read("task", "me", "large") is None
        assert await journal.read("task", "me", "also") == document("also")


@contextmanager
def files_no_longer_than(size_bytes: int) -> Iterator[None]:
    """Have the system refuse to let files of this process grow beyond a size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_after_a_failed_commit_the_result_is_unknown_and_the_next_write_is_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        assert await write(journal, [document("before")]) == ["kept"]
        size_bytes = (tmp_path / f"{FILE}-wal").stat().st_size
        with files_no_longer_than(size_bytes + 10_000):
            results = await write(journal, [document("lost", 1, b"x" * 500_000)], [document("with it")])
        assert results == ["unknown", "unknown"]
        assert await write(journal, [document("after")]) == ["kept"]
        assert await journal.read("task", "me", "before") == document("before")
        assert await journal.read("task", "me", "after") == document("after")


async def test_stored_documents_survive_reopening(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        await write(journal, [document("a")])
        await write(journal, [document("a", 2, b"changed")])
        await journal.commit([JournalEntry("log", "me", 1.0, msgspec.Raw(b'{"a":1}'))])
    async with opened(tmp_path) as journal:
        assert await journal.read("task", "me", "a") == document("a", 2, b"changed")
        assert [bytes(entry.content) for entry in await journal.latest("log", "me", 5)] == [b'{"a":1}']
        assert await write(journal, [document("a", 2)]) == ["conflict"]


async def test_closing_writes_pending_documents_and_refuses_later_ones(tmp_path: Path) -> None:
    results: list[WriteResult] = []
    async with opened(tmp_path) as journal:
        journal.write([document("last")], results.append)
    await asyncio.sleep(0)
    assert results == ["kept"]
    assert await write(journal, [document("too late")]) == ["refused"]
    with pytest.raises(OSError, match="the journal cannot be read"):
        await journal.read("task", "me", "last")
    async with opened(tmp_path) as journal:
        assert await journal.read("task", "me", "last") is not None


async def test_closing_writes_documents_that_wait_for_a_batch(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path)
    journal._batcher._patience_seconds = 3600.0
    await write(journal, *[[document(f"t{number}")] for number in range(8)])
    results: list[WriteResult] = []
    journal.write([document("last")], results.append)
    for _ in range(TURNS_MAX + 2):
        await asyncio.sleep(0)
    assert journal._batcher._timer is not None
    async with asyncio.timeout(SECONDS):
        await journal.aclose()
    async with opened(tmp_path) as again:
        assert await again.read("task", "me", "last") == document("last")
    assert results == ["kept"]


async def test_of_entries_the_newest_are_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        numbers = range(ENTRIES_KEPT + 10)
        await journal.commit([JournalEntry("log", "me", 1.0, msgspec.Raw(str(number).encode())) for number in numbers])
        last = [bytes(entry.content) for entry in await journal.latest("log", "me", 2 * ENTRIES_KEPT)]
        assert len(last) == ENTRIES_KEPT
        assert last[-1] == str(numbers[-1]).encode()


async def test_a_folder_has_one_hub_at_a_time(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as journal:
        with pytest.raises(StateInUse, match="another hub is using"):
            SqliteJournal(tmp_path / "state")
        assert await write(journal, [document("a")]) == ["kept"]
    async with opened(tmp_path / "state") as journal:
        assert await journal.read("task", "me", "a") is not None


async def test_a_list_reads_only_its_own_documents(tmp_path: Path) -> None:
    """Which of an owner's documents are of a group or in a state, the index alone says, also in a file of long ago."""
    with closing(sqlite3.connect(tmp_path / FILE)) as made:
        made.executescript(sqlite.SCHEMA.replace("documents_listed", "documents_by_time"))
    async with opened(tmp_path) as journal:
        statements: list[str] = []
        journal._read_connection.set_trace_callback(statements.append)
        await journal.page("task", "me", group="talk", states=["working"], limit=5)
        journal._read_connection.set_trace_callback(None)
        count = next(each for each in statements if "count" in each)
        assert "USING COVERING INDEX documents_listed" in str(
            journal._read_connection.execute(f"EXPLAIN QUERY PLAN {count}").fetchall()
        )
        indexes = {
            name for (name,) in journal._read_connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'")
        }
        assert "documents_by_time" not in indexes


async def test_weighing_and_trimming_one_owner_reads_no_other_owners(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        statements: list[str] = []
        journal._write_connection.set_trace_callback(statements.append)
        await journal.weigh(["task"], "me")
        await journal.trim("task", "me", ["failed", "completed"], bytes=1, limit=9)
        journal._write_connection.set_trace_callback(None)
        asked = [each for each in statements if "SELECT" in each]
        plans = [str(journal._read_connection.execute(f"EXPLAIN QUERY PLAN {each}").fetchall()) for each in asked]
        assert len(plans) == 2
        assert all("USING INDEX documents_listed (kind=? AND owner=?)" in plan for plan in plans), plans


async def test_only_its_owner_can_read_the_files(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        await write(journal, [document("a")])
        modes = {
            name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in (FILE, f"{FILE}-wal", f"{FILE}-shm", LOCK)
        }
        assert set(modes.values()) == {0o600}, modes


async def test_a_file_that_is_no_journal_is_refused_and_the_folder_left_free(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database at all" * 100)
    for _ in range(2):
        with pytest.raises(sqlite3.DatabaseError):
            SqliteJournal(tmp_path)


@pytest.mark.parametrize("lines", [1, 100, 700])
async def test_a_killed_writer_leaves_every_confirmed_write(tmp_path: Path, lines: int) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        str(writing_child.__file__),
        str(tmp_path),
        stdout=asyncio.subprocess.PIPE,
        env=environment(),
    )
    assert child.stdout is not None
    async with asyncio.timeout(SECONDS):
        said = [await child.stdout.readline() for _ in range(lines)]
        child.send_signal(signal.SIGKILL)
        said += (await child.stdout.read()).splitlines(keepends=True)
        await child.wait()
    received = [line.split() for line in said if line.endswith(b"\n")]
    assert {verdict for _, verdict in received} == {b"kept"}
    async with opened(tmp_path) as journal:
        for number in (int(number) for number, _ in received):
            kept = await journal.read("task", "me", f"t{number}")
            assert kept is not None
            assert len(kept.body or b"") == number % 5000


# -- batching writes ---------------------------------------------------------------------------------------------------

NEVER = 3600.0
MANY = 100


class Batches:
    """What was handed over."""

    def __init__(self, *, patience_seconds: float = NEVER, at_most: int = MANY) -> None:
        self.taken: list[list[int]] = []
        self._has_come = asyncio.Event()
        self.gathering: WriteBatcher[int] = WriteBatcher(self._take, at_most, patience_seconds)

    def _take(self, batch: list[int]) -> None:
        self.taken.append(batch)
        self._has_come.set()

    def add(self, *numbers: int) -> None:
        for number in numbers:
            self.gathering.add(number)

    async def next(self) -> list[int]:
        async with asyncio.timeout(5):
            await self._has_come.wait()
        self._has_come.clear()
        return self.taken[-1]


async def some_turns() -> None:
    for _ in range(TURNS_MAX + 2):
        await asyncio.sleep(0)


async def test_items_of_one_turn_form_a_batch_in_order() -> None:
    batches = Batches()
    batches.add(1, 2, 3)
    assert batches.taken == []
    assert await batches.next() == [1, 2, 3]


async def test_a_single_write_does_not_wait() -> None:
    batches = Batches()
    for number in range(3):
        batches.add(number)
        assert await batches.next() == [number]


async def test_turns_that_bring_more_are_waited_for_but_not_for_ever() -> None:
    batches = Batches()
    for number in range(TURNS_MAX + 3):
        batches.add(number)
        await asyncio.sleep(0)
    assert batches.taken[0] == list(range(TURNS_MAX + 1))


async def test_after_many_the_first_wait_until_most_of_as_many_have_come() -> None:
    batches = Batches()
    batches.add(*range(8))
    await batches.next()
    batches.add(1)
    await some_turns()
    batches.add(2, 3, 4, 5)
    await some_turns()
    assert len(batches.taken) == 1
    batches.add(6)
    assert batches.taken[1:] == [[1, 2, 3, 4, 5, 6]]


async def test_after_many_one_that_comes_alone_waits_only_once() -> None:
    batches = Batches(patience_seconds=0.001)
    batches.add(*range(8))
    await batches.next()
    batches.add(1)
    await some_turns()
    assert await batches.next() == [1]
    batches.gathering._patience_seconds = NEVER
    batches.add(2)
    assert await batches.next() == [2]


async def test_a_full_batch_does_not_wait() -> None:
    batches = Batches(at_most=4)
    batches.add(*range(100))
    await batches.next()
    batches.add(*range(4))
    assert await batches.next() == [0, 1, 2, 3]


async def test_waiting_items_are_handed_over_on_flush_only() -> None:
    batches = Batches()
    batches.add(*range(8))
    await batches.next()
    batches.add(1)
    await some_turns()
    timer = batches.gathering._timer
    batches.gathering.flush()
    batches.gathering.flush()
    assert batches.taken[1:] == [[1]]
    assert timer is not None
    assert timer.cancelled()
