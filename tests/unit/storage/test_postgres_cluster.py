"""Several journals in one schema: leases for writing, and takeovers."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import asyncpg
import pytest
from structlog.testing import capture_logs

from isthmus.core.journal import HERE, Document, SharedJournal, WriteResult
from isthmus.storage import postgres, postgres_state
from isthmus.storage.journal_base import StateInUse, StateUnusable
from isthmus.storage.postgres import PostgresJournal
from isthmus.storage.postgres_cluster import SharedPostgresJournal
from isthmus.storage.postgres_state import PostgresState
from isthmus.storage.settings import LeaseSettings, StorageSettings
from tests.cluster.servers import BUSY
from tests.databases import Database
from tests.faults.watching import eventually

pytestmark = pytest.mark.xdist_group("postgres")

SECONDS = 60.0
LEASE = 4.0
"""Long enough for a busy machine: all nodes of a test share one event loop."""
HELD = {"task": ("open",)}


@asynccontextmanager
async def joined(url: str, *names: str, lease: float = LEASE) -> AsyncIterator[list[SharedPostgresJournal]]:
    """Journals of nodes with these names."""
    async with AsyncExitStack() as stack, asyncio.timeout(SECONDS):
        journals = []
        for name in names:
            settings = LeaseSettings(name, lease)
            journals.append(await SharedPostgresJournal.open_shared(StorageSettings(url), settings, HELD))
            stack.push_async_callback(journals[-1].aclose)
            assert await inherit(journals[-1]) == []
        yield journals


def document(id: str, version: int = 1, state: str = "open", *, kind: str = "task", at: float = 1.0) -> Document:
    return Document(kind, "me", id, version, at, f"{id} {version}".encode(), state=state)


async def write(journal: SharedPostgresJournal, *documents: Document) -> WriteResult:
    results: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
    journal.write(documents, results.set_result)
    return await results


async def holder(journal: SharedPostgresJournal, id: str) -> str:
    found = await journal.read("task", "me", id)
    assert found is not None
    return found.holder


async def inherit(journal: SharedPostgresJournal) -> list[str]:
    """Take over all that there is to take over now; return the ids."""
    ids: list[str] = []
    while found := await journal.inherit():
        ids += [each.id for each in found]
    return ids


async def expire(database: Database, url: str, *journals: SharedPostgresJournal) -> None:
    """End the leases of these nodes, as if they had not renewed them."""
    schema = StorageSettings(url).schema
    numbers = ",".join(str(journal.lease.number) for journal in journals)
    past = "clock_timestamp() - interval '1 s'"
    # On a thread: it may have to wait for a transaction of a node that runs on this loop.
    await asyncio.to_thread(
        database.psql, f"UPDATE {schema}.nodes SET expires = {past} WHERE number IN ({numbers}) AND heir IS NULL"
    )


def freeze(journal: SharedPostgresJournal) -> None:
    """Stop a node's renewals, and let it believe that its lease is fresh."""
    journal.lease.check_soon = lambda: None  # type: ignore[method-assign]
    journal.lease._until = float("inf")
    for task in asyncio.all_tasks():
        frame = getattr(task.get_coro(), "cr_frame", None)
        if frame is not None and frame.f_locals.get("self") is journal.lease:
            task.cancel()


async def taken(heir: SharedPostgresJournal, number: int | None) -> None:
    """Wait until a node is the heir of another one."""
    text = "SELECT heir FROM nodes WHERE number = $1"

    async def is_taken() -> bool:
        heir.lease.check_soon()
        rows = await heir._read(text, number)
        return not rows or rows[0][0] == heir.lease.number

    await eventually(is_taken, "it is taken over")


# -- holding -----------------------------------------------------------------------------------------------------------


async def test_only_the_node_that_holds_a_document_changes_it(database: Database) -> None:
    async with joined(database.url(), "a", "b") as (a, b):
        assert isinstance(a, SharedJournal)
        assert await write(a, document("t")) == "kept"
        assert (await holder(a, "t"), await holder(b, "t")) == (HERE, str(a.lease.number))
        assert await write(b, document("t", 2)) == "conflict"
        assert await write(b, Document("task", "me", "t", 2, 1.0, None)) == "conflict"
        assert await write(a, document("t", 2, "done")) == "kept"
        # No node holds the lease, and versions decide.
        assert (await holder(a, "t"), await holder(b, "t")) == ("", "")
        assert await write(b, document("t", 3, "done")) == "kept"
        assert await write(a, document("t", 3, "done")) == "conflict"
        assert await write(a, document("t", 4)) == "kept"
        assert (await holder(a, "t"), await holder(b, "t")) == (HERE, str(a.lease.number))


async def test_of_two_nodes_that_write_the_same_new_document_one_succeeds(database: Database) -> None:
    async with joined(database.url(), "a", "b") as (a, b):
        for number in range(50):
            results = await asyncio.gather(*(write(each, document(f"t{number}")) for each in (a, b)))
            assert sorted(results) == ["conflict", "kept"]


async def test_batches_of_the_same_documents_in_another_order_do_not_stop_each_other(database: Database) -> None:
    async with joined(database.url(), "a", "b") as nodes:
        for version in range(1, 30):
            works = [document(f"t{number}", version, "free") for number in range(40)]
            results = await asyncio.gather(
                *(write(nodes[0], *works), write(nodes[1], *reversed(works))),
            )
            assert sorted(results) == ["conflict", "kept"], version


async def test_documents_of_other_nodes_are_neither_scanned_nor_deleted(database: Database) -> None:
    async with joined(database.url(), "a", "b") as (a, b):
        await write(a, document("a1"), document("a2", state="done"))
        await write(b, document("b1"), document("b2", state="done"))
        for node, own in ((a, "a1"), (b, "b1")):
            assert [each.id for each in await node.all_in("task", ("open",), limit=9)] == [own]
        assert [each.id for each in await a.newest("task", ("open",), limit=9)] == ["b1", "a1"]
        assert (await a.page("task", "me", limit=9)).total == 4
        assert await a.prune("task", ("open",), before=9.0, limit=9) == 1
        assert await b.read("task", "me", "b1") is not None
        assert (await a.trim("task", "me", ("open", "done"), bytes=10_000, limit=9)).ids == ("a2", "b2")
        assert [each.id for each in (await b.page("task", "me", limit=9)).documents] == ["b1"]


# -- fencing -----------------------------------------------------------------------------------------------------------


async def test_a_node_that_was_taken_over_writes_nothing(database: Database) -> None:
    url = database.url()
    async with joined(url, "a", "b") as (a, b):
        await write(a, document("t"))
        number = a.lease.number
        freeze(a)
        await expire(database, url, a)
        await taken(b, number)
        # Nothing was moved yet: the document still has the number of the node.
        assert await holder(b, "t") == str(number)
        assert await write(a, document("t", 2)) == "refused"
        assert await write(a, document("new")) == "refused"
        with pytest.raises(OSError, match="could not be written"):
            await a.prune("task", ("open",), before=9.0, limit=9)
        assert await inherit(b) == ["t"]
        assert await holder(b, "t") == HERE
        assert await b.read("task", "me", "new") is None
        assert await write(b, document("t", 2)) == "kept"


async def test_a_node_that_was_taken_over_says_so_and_joins_again_under_a_larger_number(database: Database) -> None:
    url = database.url()
    async with joined(url, "a", "b") as (a, b):
        await write(a, document("t"))
        lost = asyncio.Event()
        a.on_lost = lost.set
        number = a.lease.number
        assert number is not None
        numbers = f"SELECT heir FROM {StorageSettings(url).schema}.nodes WHERE number = {number}"
        # Its own renewal may come first, and then nobody takes it over.
        while await asyncio.to_thread(database.psql, numbers) == "":
            await expire(database, url, a)
            b.lease.check_soon()
            await asyncio.sleep(0.01)
        a.lease.check_soon()
        await lost.wait()
        await a.lease.held.wait()
        assert a.lease.number is not None
        assert a.lease.number > number
        assert await write(a, document("t", 2)) == "conflict"
        assert await write(a, document("u")) == "kept"
        assert await inherit(b) == ["t"]


async def test_a_node_is_not_taken_over_in_the_middle_of_a_transaction(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = database.url()
    begun, may_go_on = asyncio.Event(), asyncio.Event()

    async def slow(connection: object) -> bool:
        begun.set()
        await may_go_on.wait()
        return True

    async with joined(url, "a", "b") as (a, b):
        number = a.lease.number
        writing = asyncio.ensure_future(a._perform(slow))
        await begun.wait()
        freeze(a)
        await expire(database, url, a)
        settings = StorageSettings(url)
        connection = await asyncpg.connect(settings.server_urls[0], server_settings={"search_path": settings.schema})
        assert await b.lease._take_over(connection, [number or 0]) is False
        await connection.close()
        may_go_on.set()
        await writing
        await taken(b, number)
        with pytest.raises(OSError, match="could not be written"):
            await a._perform(slow)


async def test_the_database_ends_the_transaction_of_a_node_that_stands_still(database: Database) -> None:
    url = database.url()
    begun, never = asyncio.Event(), asyncio.Event()

    async def stands_still(connection: object) -> bool:
        begun.set()
        await never.wait()
        return True

    async with joined(url, "a", "b", lease=1.0) as (a, b):
        number = a.lease.number
        writing = asyncio.ensure_future(a._perform(stands_still))
        await begun.wait()
        freeze(a)
        await expire(database, url, a)
        await taken(b, number)
        never.set()
        with pytest.raises(OSError, match="could not be written"):
            await writing


async def test_a_node_without_a_lease_refuses_to_write_before_others_may_take_it_over(database: Database) -> None:
    async with joined(database.url(), "a") as (a,):
        a.lease._until = float("-inf")
        a.lease.held.clear()
        assert a.is_failing
        a.lease.lost_at = -1e9  # no waiter is left
        assert await write(a, document("t")) == "refused"
        a.lease.check_soon()
        await eventually(lambda: not a.is_failing, "it has a lease, and can write")
        assert await write(a, document("t")) == "kept"


# -- taking over -------------------------------------------------------------------------------------------------------


async def test_one_node_takes_over_including_leftovers_of_a_dead_heir(database: Database) -> None:
    url = database.url()
    async with joined(url, "a", "b", "c", lease=6.0) as (a, b, c):
        await write(a, *[document(f"a{number}", at=number) for number in range(5)])
        await write(b, document("b0", at=9.0))
        freeze(a)
        await expire(database, url, a)
        while not b.inherited.is_set() and not c.inherited.is_set():
            b.lease.check_soon()
            c.lease.check_soon()
            await asyncio.sleep(0.01)
        assert b.inherited.is_set() != c.inherited.is_set()
        heir, other = (b, c) if b.inherited.is_set() else (c, b)
        if heir is c:
            await write(other, document("c0"))
        freeze(heir)
        await expire(database, url, heir)
        await taken(other, heir.lease.number)
        expected = {f"a{number}" for number in range(5)} | ({"b0"} if heir is b else set())
        assert set(await inherit(other)) == expected
        schema = StorageSettings(url).schema
        assert database.psql(f"SELECT number FROM {schema}.nodes") == str(other.lease.number)


async def test_documents_are_taken_over_in_batches_that_fit_in_a_page(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isthmus.storage.journal_base.PAGE_BYTES", 100)
    url = database.url()
    async with joined(url, "a") as (a,):
        works = [Document("task", "me", f"t{number}", 1, number, bytes(40), state="open") for number in range(300)]
        for start in range(0, 300, 100):
            assert await write(a, *works[start : start + 100]) == "kept"
    async with AsyncExitStack() as stack:
        settings = LeaseSettings("b", LEASE)
        b = await SharedPostgresJournal.open_shared(StorageSettings(url), settings, HELD)
        stack.push_async_callback(b.aclose)
        moved: list[Sequence[Document]] = []
        while found := await b.inherit():
            moved.append(found)
        assert {len(found) for found in moved} == {3}
        assert sorted((each.id for found in moved for each in found), key=lambda id: int(id[1:])) == [
            each.id for each in works
        ]


async def test_a_node_that_leaves_is_taken_over_at_once(database: Database) -> None:
    url = database.url()
    async with joined(url, "b", lease=60.0) as (b,):
        settings = LeaseSettings("a", 60.0)
        a = await SharedPostgresJournal.open_shared(StorageSettings(url), settings, HELD)
        await write(a, document("t"))
        await a.aclose()
        async with asyncio.timeout(5.0):
            await b.inherited.wait()
        assert await inherit(b) == ["t"]


async def test_after_the_database_was_away_living_nodes_are_not_taken_over(database: Database) -> None:
    url = database.url()
    async with joined(url, "a", "b", lease=6.0) as (a, b):
        before = [each.lease.number for each in (a, b)]
        # As after a pause of the database: all leases have ended, and `b` is the first to renew its own.
        await expire(database, url, a, b)
        b.lease._until = float("-inf")
        b.lease.check_soon()
        await eventually(lambda: b.lease.is_held, "b renews")
        a.lease.check_soon()
        await eventually(lambda: a.lease.is_held, "a renews")
        assert [each.lease.number for each in (a, b)] == before
        assert not b.inherited.is_set()


# -- one hub alone -----------------------------------------------------------------------------------------------------


async def test_the_first_node_takes_over_documents_of_a_single_hub(database: Database) -> None:
    url = database.url()
    alone = await PostgresJournal.open(StorageSettings(url))
    results: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
    alone.write([document("t"), document("u", state="done"), document("v", kind="other")], results.set_result)
    assert await results == "kept"
    with pytest.raises(StateInUse, match="a hub that is not part of a cluster"):
        await SharedPostgresJournal.open_shared(StorageSettings(url), LeaseSettings("a"), HELD)
    await alone.aclose()
    settings = LeaseSettings("a", LEASE)
    a = await SharedPostgresJournal.open_shared(StorageSettings(url), settings, HELD)
    try:
        assert await inherit(a) == ["t"]
        assert await holder(a, "t") == HERE
        with pytest.raises(StateInUse, match="another hub is using schema"):
            await PostgresJournal.open(StorageSettings(url))
        await write(a, document("t", 2))
    finally:
        await a.aclose()
    # And back: it sees and changes everything.
    alone = await PostgresJournal.open(StorageSettings(url))
    assert [each.id for each in await alone.all_in("task", ("open",), limit=9)] == ["t"]
    results = asyncio.get_running_loop().create_future()
    alone.write([document("t", 3)], results.set_result)
    assert await results == "kept"
    await alone.aclose()


async def test_the_tables_of_an_earlier_version_are_migrated_by_nodes_that_start_at_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = database.url()
    with monkeypatch.context() as earlier:
        earlier.setattr(postgres, "STEPS", postgres.STEPS[:3])
        before = await PostgresJournal.open(StorageSettings(url))
        results: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
        connection = before._connection
        assert connection is not None
        rows = [("task", b"me", f"t{number}".encode(), 1, 1.0, b"", "open", b"{}") for number in range(250)]
        await connection.execute(postgres.NEW, *zip(*rows, strict=True))
        await before.aclose()
        results.cancel()
    opened = await asyncio.gather(
        *(SharedPostgresJournal.open_shared(StorageSettings(url), LeaseSettings(name, LEASE), HELD) for name in "abc")
    )
    try:
        moved = [await inherit(each) for each in opened]
        assert sorted(id for ids in moved for id in ids) == sorted(f"t{number}" for number in range(250))
    finally:
        for each in opened:
            await each.aclose()


async def test_each_node_knows_how_many_there_are(database: Database) -> None:
    url = database.url()
    async with joined(url, "a", "b") as (a, b):
        assert b.nodes == 2
        await eventually(lambda: a.nodes == 2, "the first one has renewed its lease", SECONDS)
        async with joined(url, "c") as (c,):
            assert c.nodes == 3
        await eventually(lambda: a.nodes == b.nodes == 2, "the others know that one has left", SECONDS)


@pytest.mark.parametrize("kind", ["journal", "state"])
async def test_a_node_that_starts_waits_while_another_one_migrates_the_tables(
    database: Database, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(postgres, "OPEN_SECONDS", 0.0)
    for module in (postgres, postgres_state):
        monkeypatch.setattr(module, "COMMAND_SECONDS", 0.5)
    monkeypatch.setattr(postgres, "MIGRATION_LOCK_SECONDS", 0.1)
    settings = StorageSettings(database.url())
    migrating = await asyncpg.connect(settings.server_urls[0])

    async def open_it() -> None:
        if kind == "state":
            (await asyncio.to_thread(PostgresState, settings, "keys")).close()
        else:
            await (await SharedPostgresJournal.open_shared(settings, LeaseSettings("a", LEASE), HELD)).aclose()

    await migrating.execute("SELECT pg_advisory_lock($1)", postgres.lock_key(settings.schema) ^ 1)
    with capture_logs() as logs:
        opening = asyncio.ensure_future(open_it())
        await asyncio.wait({opening}, timeout=1.5)  # three times what a command may take
        assert not opening.done()
        await migrating.close()
        await asyncio.wait_for(opening, SECONDS)
    assert sum("another node migrates the tables" in each["event"] for each in logs) == 1


async def test_a_node_does_not_wait_for_ever_for_another_one_that_migrates(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "OPEN_SECONDS", 0.0)
    monkeypatch.setattr(postgres, "MIGRATION_LOCK_SECONDS", 0.1)
    monkeypatch.setattr(postgres, "MIGRATION_SECONDS", 0.3)
    settings = StorageSettings(database.url())
    migrating = await asyncpg.connect(settings.server_urls[0])
    await migrating.execute("SELECT pg_advisory_lock($1)", postgres.lock_key(settings.schema) ^ 1)
    with pytest.raises(StateUnusable, match="another node has been migrating"):
        await SharedPostgresJournal.open_shared(settings, LeaseSettings("a", LEASE), HELD)
    await migrating.close()


# -- cost --------------------------------------------------------------------------------------------------------------


async def test_the_fence_takes_no_round_trip_of_its_own(database: Database) -> None:
    sent: list[str] = []
    url = database.url()
    async with joined(url, "a") as (a,):
        connection = a._connection
        assert isinstance(connection, asyncpg.Connection)
        assert await write(a, document("t")) == "kept"
        with connection.query_logger(lambda record: sent.append(record.query)):
            assert await write(a, document("u")) == "kept"
        assert len(sent) == 3
        assert sent[0].startswith("BEGIN; SELECT FROM nodes")
        assert sent[2] == "COMMIT"


async def test_a_database_that_gives_no_sign_of_life_ends_all_waits_within_a_second(database: Database) -> None:
    clock = asyncio.get_running_loop().time
    async with joined(database.url(), "a") as (journal,):
        assert await write(journal, document("1")) == "kept"
        database.signal_all(signal.SIGSTOP)
        try:
            for number in range(2, 4):  # the second time it is known
                began = clock()
                writing = asyncio.ensure_future(write(journal, document(f"{number}")))
                with pytest.raises(OSError, match="the journal cannot be read"):
                    await journal.read("task", "me", "1")
                assert await writing == "refused"
                assert clock() - began < 1.0 * BUSY
                assert journal.is_failing
        finally:
            database.signal_all(signal.SIGCONT)
        await eventually(lambda: not journal.is_failing, "it is well again", 5.0 * BUSY)
        assert await write(journal, document("4")) == "kept"
        assert [await journal.read("task", "me", id) is None for id in "1234"] == [False, True, True, False]


async def test_a_database_that_is_slow_is_waited_for(database: Database) -> None:
    async with joined(url := database.url(), "a") as (journal,):
        assert await write(journal, document("1")) == "kept"
        schema = StorageSettings(url).schema
        locking = f"BEGIN; LOCK TABLE {schema}.documents; SELECT pg_sleep(1.5); COMMIT"
        held = asyncio.ensure_future(asyncio.to_thread(database.psql, locking))
        locks = f"SELECT count(*) FROM pg_locks WHERE relation = '{schema}.documents'::regclass AND granted"

        async def is_locked() -> bool:
            return await asyncio.to_thread(database.psql, f"{locks} AND mode = 'AccessExclusiveLock'") == "1"

        await eventually(is_locked, "the table is locked")
        assert await write(journal, document("2")) == "kept"
        assert held.done() or not journal.is_failing
        await held
