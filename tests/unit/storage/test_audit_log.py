"""The audit log in both journals: chained in the order of the commits, whatever else was written or failed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from isthmus.core.audit import (
    START,
    AuditEvent,
    AuditRow,
    Fact,
    Point,
    RecordBatch,
    RecordEncoder,
    Seal,
    SealKind,
    Verification,
    follow,
    signed_text,
)
from isthmus.core.journal import Document, WriteResult
from isthmus.storage import audit_postgres, audit_sqlite
from isthmus.storage.postgres import PostgresJournal
from isthmus.storage.settings import StorageSettings
from isthmus.storage.sqlite import FILE, SqliteJournal

if TYPE_CHECKING:
    from isthmus.app.audit_reader import ReadableLog
    from tests.databases import Database


class Sealing:
    """A notary whose signatures are the text itself, and which remembers its checkpoints."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self._scribe = RecordEncoder(b"key")

    def record(self, fact: Fact) -> tuple[float, bytes]:
        return self._scribe.record(fact)

    def seal(self, kind: SealKind, point: Point) -> Seal:
        return Seal(point, 1.0, signed_text(kind, point, 1.0))

    def checkpoint(self, point: Point) -> None:
        self.points.append(point)


class Place:
    """A journal that can be opened again, and its log read beside it."""

    def __init__(
        self,
        make: Callable[[], Awaitable[SqliteJournal | PostgresJournal]],
        read: Callable[[], AbstractAsyncContextManager[ReadableLog]],
    ) -> None:
        self._make = make
        self.read = read

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[SqliteJournal | PostgresJournal]:
        journal = await self._make()
        try:
            yield journal
        finally:
            await journal.aclose()

    async def rows(self) -> list[AuditRow]:
        async with self.read() as log:
            return [row async for row in log.rows()]


@pytest.fixture(params=["file", "database"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "file":

        async def make() -> SqliteJournal:
            return SqliteJournal(tmp_path)

        return Place(make, lambda: audit_sqlite.open_reader(tmp_path / FILE))
    database: Database = request.getfixturevalue("database")
    settings = StorageSettings(database.url())
    return Place(lambda: PostgresJournal.open(settings), lambda: audit_postgres.open_reader(settings))


def fact(number: float, **about: Any) -> AuditEvent:
    return AuditEvent(number, "test", about)


def document(id: str, version: int = 1) -> Document:
    return Document("task", "me", id, version, 1.0, b"{}")


async def write(
    journal: SqliteJournal | PostgresJournal, *works: tuple[Sequence[Document], Sequence[Fact]]
) -> list[WriteResult]:
    results: list[asyncio.Future[WriteResult]] = []
    for documents, facts in works:
        done: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
        journal.write(documents, done.set_result, facts)
        results.append(done)
    async with asyncio.timeout(10):
        return [await done for done in results]


def is_whole(rows: Sequence[AuditRow], last: Point, anchor: Seal | None = None) -> bool:
    verification = Verification(anchor, None, lambda text, signature: text == signature)
    return all(verification.check_row(row) is None for row in rows) and verification.head == last


async def test_records_are_chained_and_the_last_is_noted_outside(place: Place) -> None:
    notary = Sealing()
    async with place.opened() as journal:
        assert (await journal.open_log(notary)).head == START
        assert await write(journal, ([], [fact(1), fact(2)]), ([document("a")], [fact(3)])) == ["kept", "kept"]
        rows = await place.rows()
        assert [row.at for row in rows] == [1.0, 2.0, 3.0]
        assert is_whole(rows, notary.points[-1])
        assert await journal.read("task", "me", "a") is not None


@pytest.mark.parametrize("counts", [(1, 4, 5, 16, 17, 64, 65), (256, 257, 1_024), (1_025, 3_000)])
async def test_however_many_are_written_together(place: Place, counts: tuple[int, ...]) -> None:
    notary = Sealing()
    async with place.opened() as journal:
        await journal.open_log(notary)
        for count in counts:
            assert await write(journal, ([], [fact(number) for number in range(count)])) == ["kept"]
        rows = await place.rows()
        assert [row.at for row in rows] == [number for count in counts for number in range(count)]
        assert is_whole(rows, notary.points[-1])
        assert len(notary.points) == len(counts)


async def test_a_batch_is_written_with_its_own_digests_or_with_those_that_its_place_demands(place: Place) -> None:
    notary = Sealing()
    batch, late = RecordBatch(), RecordBatch(Point(77, b"elsewhere"))
    times = [0.0, 0.1, 12.345679, 1_795_033_927.612600, 4_102_444_799.999999]
    for at in times:
        for made in (batch, late):
            made.add(*notary.record(fact(at, text="ä" * int(at % 7))))
    digests = list(batch.digests)
    async with place.opened() as journal:
        await journal.open_log(notary)
        assert await write(journal, ([], batch), ([document("a")], [fact(5)])) == ["kept", "kept"]
        assert await write(journal, ([], late)) == ["kept"]
        rows = await place.rows()
        assert [row.at for row in rows] == [*times, 5.0, *times]
        assert [row.digest for row in rows[:5]] == digests
        assert is_whole(rows, notary.points[-1])
        assert late.head == notary.points[-1], "what comes next can follow it"


class Choosy(Sealing):
    """A notary that cannot write down everything."""

    def record(self, fact: Fact) -> tuple[float, bytes]:
        at, content = super().record(fact)
        if at < 0:
            raise ValueError("this is not to be written")
        return at, content


async def test_a_record_that_cannot_be_made_costs_only_those_it_is_written_with(place: Place) -> None:
    notary = Choosy()
    async with place.opened() as journal:
        await journal.open_log(notary)
        assert await write(journal, ([], [fact(1)]), ([], [fact(-1)]), ([], [fact(2)])) == ["kept", "refused", "kept"]
        rows = await place.rows()
        assert [row.at for row in rows] == [1.0, 2.0]
        assert is_whole(rows, notary.points[-1])


async def test_a_hub_that_comes_later_goes_on_where_the_log_ends(place: Place) -> None:
    first, second = Sealing(), Sealing()
    async with place.opened() as journal:
        await journal.open_log(first)
        await write(journal, ([], [fact(1)]))
    async with place.opened() as journal:
        server_status = await journal.open_log(second)
        assert server_status.head == first.points[-1]
        assert server_status.last is not None
        await write(journal, ([], [fact(2)]))
        assert is_whole(await place.rows(), second.points[-1])


async def test_the_hub_that_writes_it_can_look_at_it(place: Place) -> None:
    async with place.opened() as journal:
        await journal.open_log(Sealing())
        await write(journal, ([], [fact(number) for number in range(5)]))
        assert await journal.log_rows(after=1, limit=2) == (await place.rows())[1:3]
        assert await journal.log_rows(after=5, limit=2) == []


async def test_a_conflicting_write_leaves_no_record_and_no_gap(place: Place) -> None:
    notary = Sealing()
    async with place.opened() as journal:
        await journal.open_log(notary)
        results = await write(
            journal,
            ([document("a")], [fact(1)]),
            ([document("a")], [fact(2)]),
            ([document("b")], [fact(3)]),
            ([], [fact(4)]),
        )
        assert results == ["kept", "conflict", "kept", "kept"]
        rows = await place.rows()
        assert [row.at for row in rows] == [1.0, 3.0, 4.0]
        assert is_whole(rows, notary.points[-1])


async def test_an_unwritable_document_leaves_no_record(place: Place) -> None:
    notary = Sealing()
    async with place.opened() as journal:
        await journal.open_log(notary)
        results = await write(journal, ([document("a", 2**70)], [fact(1)]), ([document("b")], [fact(2)]))
        assert results == ["refused", "kept"]
        rows = await place.rows()
        assert [row.at for row in rows] == [2.0]
        assert is_whole(rows, notary.points[-1])


async def test_old_records_go_and_an_anchor_stays_in_their_place(place: Place) -> None:
    notary = Sealing()
    async with place.opened() as journal:
        await journal.open_log(notary)
        await write(journal, ([], [fact(number) for number in range(1, 8)]))
        assert await journal.prune_log(before=5.0, limit=3) == 3
        assert await journal.prune_log(before=5.0, limit=3) == 1
        assert await journal.prune_log(before=5.0, limit=3) == 0
        async with place.read() as log:
            rows, anchor = [row async for row in log.rows()], log.anchor
        assert [row.number for row in rows] == [5, 6, 7]
        assert is_whole(rows, notary.points[-1], anchor)
        assert await journal.prune_log(before=100.0, limit=100) == 2, "the last one stays: the next follows it"
        await write(journal, ([], [fact(8)]))
        async with place.read() as log:
            rows, anchor = [row async for row in log.rows()], log.anchor
        assert is_whole(rows, notary.points[-1], anchor)


async def test_the_log_is_read_by_time_and_from_its_end(place: Place) -> None:
    async with place.opened() as journal:
        await journal.open_log(Sealing())
        await write(journal, ([], [fact(number) for number in range(1, 6)]))
        async with place.read() as log:
            assert [row.at async for row in log.rows(since=2.0, until=4.0)] == [2.0, 3.0]
            assert [row.at async for row in log.rows(after=3)] == [4.0, 5.0]
            assert [row.at for row in await log.newest(2)] == [4.0, 5.0]


async def test_a_database_that_was_away_is_looked_at_before_more_is_written(database: Database) -> None:
    settings = StorageSettings(database.url())
    notary = Sealing()
    journal = await PostgresJournal.open(settings)
    try:
        await journal.open_log(notary)
        await write(journal, ([], [fact(1)]))
        # Another hub, in the moment in which this one has no connection.
        content = b'{"at":2.0,"event":"other"}'
        other = follow(notary.points[-1], content)
        schema = settings.schema
        database.psql(
            f"INSERT INTO {schema}.audit VALUES ({other.number}, 2.0, '\\x{content.hex()}', '\\x{other.digest.hex()}');"
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'isthmus'"
        )
        assert "kept" in await write(journal, ([], [fact(3)])) + await write(journal, ([], [fact(4)]))
        async with audit_postgres.open_reader(settings) as log:
            rows = [row async for row in log.rows()]
        assert is_whole(rows, notary.points[-1])
    finally:
        await journal.aclose()


async def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no journal"):
        async with audit_sqlite.open_reader(tmp_path / FILE):
            pass
    assert not os.listdir(tmp_path)


async def test_a_file_without_a_log_says_so(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"")
    with pytest.raises(OSError, match="no such table"):
        async with audit_sqlite.open_reader(tmp_path / FILE):
            pass
