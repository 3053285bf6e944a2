"""The journal in a database: confirmed writes survive the end of the hub or the database."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import asyncpg
import msgspec
import pytest

from isthmus.core.journal import Document, JournalEntry, WriteResult
from isthmus.storage import postgres
from isthmus.storage.journal_base import StateInUse, StateUnusable
from isthmus.storage.postgres import ENTRIES_KEPT, READERS_MAX, STEPS, PostgresJournal
from isthmus.storage.settings import StorageSettings
from tests.databases import PASSWORD, Database, running
from tests.hubs import environment
from tests.unit.storage import writing_child

pytestmark = pytest.mark.xdist_group("postgres")

SECONDS = 60.0


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresJournal]:
    journal = await PostgresJournal.open(StorageSettings(url))
    try:
        yield journal
    finally:
        await journal.aclose()


def document(id: str, version: int = 1, body: bytes = b"{}") -> Document:
    return Document("task", "me", id, version, 1.0, body)


async def write(journal: PostgresJournal, *works: Sequence[Document]) -> list[WriteResult]:
    """Write all of these within one turn of the loop."""
    results: list[asyncio.Future[WriteResult]] = []
    for documents in works:
        results.append(asyncio.get_running_loop().create_future())
        journal.write(documents, results[-1].set_result)
    async with asyncio.timeout(SECONDS):
        return list(await asyncio.gather(*results))


async def wait_stored(journal: PostgresJournal, *documents: Document) -> None:
    """Write again until it is stored, as a refused writer does."""
    async with asyncio.timeout(SECONDS):
        while (await write(journal, documents)) != ["kept"]:  # noqa: ASYNC110 (only trying tells)
            await asyncio.sleep(0.05)


def transactions(database: Database) -> int:
    """How many transactions the server has committed that wrote something."""
    return int(database.psql("SELECT pg_current_xact_id()"))


# -- writing ---------------------------------------------------------------------------------------------------------


async def test_writes_of_one_loop_turn_are_one_transaction(database: Database) -> None:
    async with opened(database.url()) as journal:
        before = transactions(database)
        assert await write(journal, *[[document(f"t{number}")] for number in range(100)]) == ["kept"] * 100
        # Asking for the number takes one as well.
        assert transactions(database) - before == 2


async def test_of_a_hundred_writes_one_conflict_costs_only_itself(database: Database) -> None:
    async with opened(database.url()) as journal:
        works = [[document(f"t{number}")] for number in range(100)]
        works[37].append(document("t99", 5))
        results = await write(journal, *works)
        assert [number for number, verdict in enumerate(results) if verdict != "kept"] == [37]
        assert results[37] == "conflict"
        assert await journal.read("task", "me", "t37") is None


async def test_changes_of_one_document_in_one_turn_are_made_in_their_order(database: Database) -> None:
    async with opened(database.url()) as journal:
        versions = [[document("a", number, b"%d" % number)] for number in (1, 2, 3, 5, 4)]
        assert await write(journal, *versions) == ["kept", "kept", "kept", "conflict", "kept"]
        assert await journal.read("task", "me", "a") == document("a", 4, b"4")


async def test_an_unwritable_document_costs_only_itself(database: Database) -> None:
    async with opened(database.url()) as journal:
        odd = Document("task", "me", "odd", 1, 1.0, b"", state="nul \0")
        results = await write(journal, [document("a")], [odd], [document("c", 2**70)], [document("d")])
        assert results == ["kept", "refused", "refused", "kept"]
        assert await write(journal, [document("after")]) == ["kept"]


async def test_more_than_may_wait_is_refused(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "WAITING_MAX", 3)
    async with opened(database.url()) as journal:
        results = await write(journal, *[[document(f"t{number}")] for number in range(5)])
        assert results == ["kept", "kept", "kept", "refused", "refused"]


async def test_of_entries_the_newest_are_kept(database: Database) -> None:
    async with opened(database.url()) as journal:
        numbers = range(ENTRIES_KEPT + 10)
        await journal.commit([JournalEntry("log", "me", 1.0, msgspec.Raw(str(number).encode())) for number in numbers])
        last = [bytes(entry.content) for entry in await journal.latest("log", "me", 2 * ENTRIES_KEPT)]
        assert len(last) == ENTRIES_KEPT
        assert last[-1] == str(numbers[-1]).encode()


# -- opening and closing ---------------------------------------------------------------------------------------------


async def test_stored_documents_survive_reopening(database: Database) -> None:
    url = database.url()
    async with opened(url) as journal:
        await write(journal, [document("a")])
        await write(journal, [document("a", 2, b"changed")])
    async with opened(url) as journal:
        assert await journal.read("task", "me", "a") == document("a", 2, b"changed")
        assert await write(journal, [document("a", 2)]) == ["conflict"]


async def test_closing_writes_pending_documents_and_refuses_later_ones(database: Database) -> None:
    results: list[WriteResult] = []
    url = database.url()
    async with opened(url) as journal:
        journal.write([document("last")], results.append)
    assert results == ["kept"]
    assert await write(journal, [document("too late")]) == ["refused"]
    with pytest.raises(OSError, match="cannot be read"):
        await journal.read("task", "me", "last")
    async with opened(url) as journal:
        assert await journal.read("task", "me", "last") is not None


async def test_a_schema_has_one_hub_at_a_time(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "IN_USE_SECONDS", 0.0)
    url, other = database.url(), database.url()
    async with opened(url) as journal, opened(other) as neighbour:
        with pytest.raises(StateInUse, match=r'another hub is using schema "test_\d+"'):
            await PostgresJournal.open(StorageSettings(url))
        assert await write(journal, [document("a")]) == ["kept"]
        assert await neighbour.read("task", "me", "a") is None
    async with opened(url) as journal:
        assert await journal.read("task", "me", "a") is not None


async def test_tables_of_a_newer_hub_are_left_alone(database: Database) -> None:
    url = database.url(schema="newer")
    async with opened(url):
        database.psql("UPDATE newer.about SET version = 99")
    with pytest.raises(StateUnusable, match="version 99 of a newer hub; this hub supports up to 5"):
        await PostgresJournal.open(StorageSettings(url))


async def test_hubs_of_one_database_are_at_most_one_minor_version_apart(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = database.url(schema="skewed")
    monkeypatch.setattr(postgres, "RELEASE", (0, 7))
    async with opened(url):
        assert database.psql("SELECT release FROM skewed.about") == "0.7"
    # The next release adds to the tables; the one before it can still use them.
    monkeypatch.setattr(postgres, "RELEASE", (0, 8))
    with monkeypatch.context() as then:
        then.setattr(postgres, "STEPS", (*STEPS, "ALTER TABLE documents ADD COLUMN more text"))
        async with opened(url):
            assert database.psql("SELECT version FROM skewed.about") == str(len(STEPS) + 1)
    monkeypatch.setattr(postgres, "RELEASE", (0, 7))
    async with opened(url) as journal:
        assert await write(journal, [document("a")]) == ["kept"]
    monkeypatch.setattr(postgres, "RELEASE", (0, 6))
    with pytest.raises(StateUnusable, match=r"Hubs of 0\.8 have used them, and this one is 0\.6"):
        await PostgresJournal.open(StorageSettings(url))
    database.psql(f"UPDATE skewed.about SET version = {len(STEPS)}")
    with pytest.raises(StateUnusable, match=r"hubs of version 0\.8 use the tables, and this one is 0\.6"):
        await PostgresJournal.open(StorageSettings(url))
    # Two at once is a step too far only while nodes of the old one run.
    monkeypatch.setattr(postgres, "RELEASE", (0, 10))
    database.psql("INSERT INTO skewed.nodes (id, name, expires) VALUES ('x', 'old', now() + interval '1 hour')")
    with pytest.raises(StateUnusable, match=r"nodes of version 0\.8 run on this database, and this one is 0\.10"):
        await PostgresJournal.open(StorageSettings(url))
    database.psql("DELETE FROM skewed.nodes")
    async with opened(url):
        assert database.psql("SELECT release FROM skewed.about") == "0.10"


async def test_tables_of_an_older_hub_are_brought_up_to_date(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = database.url(schema="older")
    with monkeypatch.context() as then:
        then.setattr(postgres, "STEPS", STEPS[:1])
        async with opened(url) as journal:
            assert await write(journal, [document("a")]) == ["kept"]
    async with opened(url) as journal:
        assert await journal.read("task", "me", "a") == document("a")
        assert await write(journal, [document("a", 2)]) == ["kept"]
    indexes = database.psql("SELECT indexname FROM pg_indexes WHERE schemaname = 'older'").split()
    assert "documents_listed" in indexes
    assert "documents_by_time" not in indexes


async def test_a_user_that_may_not_make_a_schema_uses_an_existing_one(database: Database) -> None:
    database.psql("CREATE ROLE plain LOGIN; CREATE SCHEMA given AUTHORIZATION plain")
    async with opened(database.url(user="plain", schema="given")) as journal:
        assert await write(journal, [document("a")]) == ["kept"]
    with pytest.raises(StateUnusable, match="permission denied for database"):
        await PostgresJournal.open(StorageSettings(database.url(user="plain", schema="other")))


async def test_a_password_is_used_and_never_printed(database: Database) -> None:
    database.psql("CREATE DATABASE guarded")
    database.psql(f"CREATE ROLE someone LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
    url = database.url(user=f"someone:{PASSWORD.replace(' ', '%20')}").replace("/postgres?", "/guarded?")
    async with opened(url) as journal:
        assert await write(journal, [document("a")]) == ["kept"]
    with pytest.raises(StateUnusable) as refused:
        await PostgresJournal.open(StorageSettings(url.replace("l0ng", "sh0rt")))
    assert "password authentication failed" in str(refused.value)
    assert "someone:***@/guarded?host=" in str(refused.value)
    assert "w1nding" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://hub@/nowhere?host={folder}", "database .nowhere. does not exist"),
        ("postgresql://hub@/postgres?host=/nowhere", "No such file"),
        ("postgresql://hub@/postgres?host={folder}&sslmode=perhaps", "sslmode"),
    ],
)
async def test_an_unusable_database_is_reported_with_the_reason(
    database: Database, monkeypatch: pytest.MonkeyPatch, url: str, reason: str
) -> None:
    monkeypatch.setattr(postgres, "OPEN_SECONDS", 0.0)
    folder = database.url().partition("host=")[2].partition("&")[0]
    with pytest.raises(StateUnusable, match=reason):
        await PostgresJournal.open(StorageSettings(url.format(folder=folder)))


async def test_synchronous_commit_is_on_even_if_the_roles_default_is_off(database: Database) -> None:
    database.psql("CREATE ROLE hasty LOGIN SUPERUSER; ALTER ROLE hasty SET synchronous_commit = off")
    async with opened(database.url(user="hasty")) as journal:
        assert journal._connection is not None
        assert await journal._connection.fetchval("SHOW synchronous_commit") == "on"


# -- what breaks -----------------------------------------------------------------------------------------------------


async def test_a_broken_connection_is_made_again_before_anybody_notices(database: Database) -> None:
    async with opened(database.url()) as journal:
        assert await write(journal, [document("before")]) == ["kept"]
        database.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'isthmus'")
        await wait_stored(journal, document("after"))
        assert await journal.read("task", "me", "before") is not None


async def test_when_the_connection_breaks_in_the_commit_the_result_is_unknown(database: Database) -> None:
    """A trigger that is put off to the commit ends the connection just then."""
    url = database.url(schema="broken")
    async with opened(url) as journal:
        database.psql(
            "CREATE FUNCTION broken.cut() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(9); RETURN NULL; END $$;"
            "CREATE CONSTRAINT TRIGGER cut AFTER INSERT ON broken.documents DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW WHEN (NEW.kind = 'fatal') EXECUTE FUNCTION broken.cut()"
        )
        fatal = Document("fatal", "me", "a", 1, 1.0, b"")
        assert await write(journal, [document("with it")], [fatal]) == ["unknown", "unknown"]
        await wait_stored(journal, document("after"))
        assert await journal.read("task", "me", "with it") is None


async def test_a_database_that_does_not_answer_is_written_again_when_it_does(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "COMMAND_SECONDS", 1.0)
    async with opened(database.url(schema="hanging")) as journal, opened(database.url()) as other:
        assert other._connection is not None
        await other._connection.execute("BEGIN; LOCK TABLE hanging.documents")
        assert await write(journal, [document("a")]) == ["refused"]
        await other._connection.execute("ROLLBACK")
        await wait_stored(journal, document("a"))


async def test_a_connection_that_does_not_answer_is_given_up_at_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that waits on it shares one wait, however many they are."""
    monkeypatch.setattr(postgres, "COMMAND_SECONDS", 1.0)
    async with opened(database.url(schema="given_up")) as journal, opened(database.url()) as other:
        before = journal._connection
        assert other._connection is not None
        await other._connection.execute("BEGIN; LOCK TABLE given_up.documents")
        assert await write(journal, *[[document(f"t{number}")] for number in range(8)]) == ["refused"] * 8
        assert journal._connection is not before
        await other._connection.execute("ROLLBACK")
        await wait_stored(journal, document("t0"))


async def test_reads_end_though_the_database_never_answers_however_many_there_are(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "COMMAND_SECONDS", 0.5)
    monkeypatch.setattr(postgres, "PATIENCE_SECONDS", 2 * SECONDS)
    async with opened(database.url(schema="silent")) as journal, opened(database.url()) as other:
        assert other._connection is not None
        await other._connection.execute("BEGIN; LOCK TABLE silent.documents")
        async with asyncio.timeout(SECONDS):
            reads = [journal.read("task", "me", "a") for _ in range(4 * READERS_MAX)]
            results = await asyncio.gather(*reads, return_exceptions=True)
        assert {str(each) for each in results} == {"the journal cannot be read: TimeoutError"}
        await other._connection.execute("ROLLBACK")


async def test_a_waiter_for_a_write_that_outlasts_the_journal_gets_unknown(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[WriteResult] = []
    async with opened(database.url()) as other:
        async with opened(database.url(schema="slow")) as journal:
            assert other._connection is not None
            await other._connection.execute("BEGIN; LOCK TABLE slow.documents")
            journal.write([document("a")], results.append)
            journal.write([document("b")], results.append)
            journal.write([document("a", 2)], results.append)
            for name in ("PATIENCE_SECONDS", "COMMAND_SECONDS", "CLOSE_SECONDS"):
                monkeypatch.setattr(postgres, name, 0.1)
        assert results == ["unknown", "unknown", "refused"]
        await other._connection.execute("ROLLBACK")


async def test_a_server_that_only_reads_is_left(database: Database) -> None:
    async with opened(database.url()) as journal:
        assert journal._connection is not None
        await journal._connection.execute("SET default_transaction_read_only = on")
        assert await write(journal, [document("a")]) == ["refused"]
        await wait_stored(journal, document("a"))


async def test_the_journal_retries_connecting_after_any_error(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = PostgresJournal._connect
    async with opened(database.url()) as journal:
        failing = [RuntimeError("nobody thought of this"), asyncpg.InternalClientError("nor of this")]

        async def connect_at_last(journal: PostgresJournal) -> None:
            if failing:
                raise failing.pop()
            await connect(journal)

        monkeypatch.setattr(PostgresJournal, "_connect", connect_at_last)
        assert journal._connection is not None
        journal._connection.terminate()
        await wait_stored(journal, document("a"))


async def test_a_server_that_keeps_silent_does_not_keep_it_from_the_next(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "CONNECT_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = database.url().replace("host=", "host=127.0.0.1,") + f"&port={silent.getsockname()[1]},5432"
        async with opened(url) as journal:
            assert await write(journal, [document("a")]) == ["kept"]
            assert await journal.read("task", "me", "a") == document("a")


async def test_a_hub_whose_lock_another_one_took_writes_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "PATIENCE_SECONDS", 0.2)
    url = database.url()
    connect = PostgresJournal._connect
    async with opened(url) as first:
        locked_out = asyncio.Event()

        async def connect_later(journal: PostgresJournal) -> None:
            if journal is first:
                await locked_out.wait()
            await connect(journal)

        monkeypatch.setattr(PostgresJournal, "_connect", connect_later)
        assert first._connection is not None
        first._connection.terminate()
        async with opened(url) as second:
            locked_out.set()
            assert await write(second, [document("a")]) == ["kept"]
            assert await write(first, [document("b")]) == ["refused"]
        await wait_stored(first, document("b"))


@pytest.fixture
def fragile() -> Iterator[Database]:
    """A server of this test alone, to be killed."""
    with running() as made:
        yield made


async def test_a_standby_is_not_taken_for_the_database_until_it_is_promoted(
    fragile: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PATIENCE_SECONDS", "RETRY_MAX_SECONDS"):
        monkeypatch.setattr(postgres, name, 0.2)
    async with opened(fragile.url()) as journal:
        assert await write(journal, [document("before")]) == ["kept"]
        await asyncio.to_thread(fragile.demote)
        assert await write(journal, [document("meanwhile")]) == ["refused"]
        assert journal._connection is None
        with pytest.raises(OSError, match="the journal cannot be read"):
            await journal.read("task", "me", "before")
        fragile.psql("SELECT pg_promote()")
        await wait_stored(journal, document("after"))
        assert await journal.read("task", "me", "before") == document("before")


async def test_stored_documents_survive_a_killed_database(fragile: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen writers continue through it; refused and unconfirmed writes are retried."""
    results: dict[str, WriteResult] = {}

    async def write_on(journal: PostgresJournal, writer: int, until: asyncio.Event) -> None:
        number = 0
        while not until.is_set():
            number += 1
            id = f"{writer}-{number}"
            results[id] = (await write(journal, [document(id)]))[0]

    async with opened(fragile.url()) as journal:
        until = asyncio.Event()
        writers = [asyncio.ensure_future(write_on(journal, writer, until)) for writer in range(16)]
        for _ in range(2):
            await grown(results, 500)
            await asyncio.to_thread(fragile.stop)
            await asyncio.to_thread(fragile.start)
        await grown(results, 500)
        until.set()
        await asyncio.gather(*writers)
        kept = {id for id, verdict in results.items() if verdict == "kept"}
        found = {id for id in kept if await journal.read("task", "me", id) is not None}
        assert found == kept
        refused = {id for id, verdict in results.items() if verdict == "refused"}
        assert not [id for id in refused if await journal.read("task", "me", id) is not None]


async def grown(results: dict[str, WriteResult], more: int) -> None:
    """Wait until more was kept."""
    enough = sum(verdict == "kept" for verdict in results.values()) + more
    async with asyncio.timeout(SECONDS):
        while sum(verdict == "kept" for verdict in results.values()) < enough:  # noqa: ASYNC110 (many write it)
            await asyncio.sleep(0.01)


async def test_reads_wait_for_a_database_that_comes_back_and_give_up_on_one_that_does_not(
    fragile: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(fragile.url()) as journal:
        assert await write(journal, [document("a")]) == ["kept"]
        fragile.stop()
        reading = asyncio.ensure_future(journal.read("task", "me", "a"))
        await asyncio.to_thread(fragile.start)
        assert await reading == document("a")
        fragile.stop(signal.SIGINT)
        monkeypatch.setattr(postgres, "PATIENCE_SECONDS", 0.0)
        with pytest.raises(OSError, match="the journal cannot be read"):
            await journal.read("task", "me", "a")
        with pytest.raises(OSError, match="the journal could not be written: refused"):
            await journal.prune("task", [""], before=2.0, limit=5)


@pytest.mark.parametrize("lines", [1, 700])
async def test_a_killed_writer_leaves_every_confirmed_write(database: Database, lines: int) -> None:
    url = database.url()
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        str(writing_child.__file__),
        url,
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
    async with opened(url) as journal:
        for number in (int(number) for number, _ in received):
            kept = await journal.read("task", "me", f"t{number}")
            assert kept is not None
            assert len(kept.body or b"") == number % 5000
