"""Stored dial-in servers: written, read by the next hub, bounded, and never in the way of calls."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from isthmus.core.audit import Fact
from isthmus.core.background import BackgroundTasks
from isthmus.core.journal import Document, Journal, OnWritten, WriteResult
from isthmus.model.names import ServerName
from isthmus.storage.memory import MemoryJournal
from isthmus.storage.postgres import PostgresJournal
from isthmus.storage.settings import StorageSettings
from isthmus.storage.sqlite import SqliteJournal
from isthmus.upstream.dialin import registry_store as module
from isthmus.upstream.dialin.registry_store import KIND, RegistryStore, ServerRecord
from isthmus.upstream.listing import Listing
from tests.databases import Database, running
from tests.unit.core.doubles import prompt, resource, template, tool

NOW = 1_000_000.0
PHONE = ServerName("home_phone")
LISTING = Listing(
    (
        tool("ring", PHONE, inputSchema={"type": "object", "properties": {"prompts": {"type": "string"}}}),
        tool("läuten", PHONE),
    ),
    (prompt("ask", PHONE),),
    (resource("phone://1", PHONE, title="one"),),
    (template("phone://{number}", PHONE),),
)


def record(server_id: str = "phone", agent: str = "home", **changes: object) -> ServerRecord:
    made = ServerRecord(agent, server_id, PHONE, LISTING, frozenset({"tools", "prompts"}), NOW - 90, NOW - 10)
    return msgspec.structs.replace(made, **changes)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.01)


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    with running() as made:
        yield made


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.xdist_group("postgres"))])
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Journal]:
    if request.param == "memory":
        yield MemoryJournal()
        return
    if request.param == "sqlite":
        made: SqliteJournal | PostgresJournal = SqliteJournal(tmp_path)
    else:
        made = await PostgresJournal.open(StorageSettings(request.getfixturevalue("database").url()))
    yield made
    await made.aclose()


@asynccontextmanager
async def hub(journal: Journal) -> AsyncIterator[RegistryStore]:
    """One life of a hub, as far as it remembers: at its end everything is written."""
    background = BackgroundTasks()
    made = RegistryStore(journal, background, lambda: NOW)
    yield made
    await made.aclose()
    assert len(background) == 0
    await background.aclose()


async def remembered(journal: Journal) -> list[ServerRecord]:
    """What the next hub reads."""
    async with hub(journal) as later:
        return await later.load()


class Counting(MemoryJournal):
    """A journal that counts what is written under each id, and may give another verdict."""

    def __init__(self, verdicts: tuple[WriteResult, ...] = ()) -> None:
        super().__init__()
        self.writes: Counter[str] = Counter()
        self.has_kept = asyncio.Event()
        self._verdicts = [*verdicts]

    def write(self, documents: Sequence[Document], done: OnWritten, facts: Sequence[Fact] = ()) -> None:
        self.writes.update(document.id for document in documents)
        if self._verdicts:
            asyncio.get_running_loop().call_soon(done, self._verdicts.pop(0))
        else:
            super().write(documents, done)
            self.has_kept.set()


async def put(journal: Journal, document: Document) -> None:
    results: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
    journal.write((document,), results.set_result)
    assert await results == "kept"


async def test_the_next_hub_knows_every_server_and_its_list(journal: Journal) -> None:
    gone = record(seen=NOW - 7, is_named=True, title="Phone 1.0")
    here = record("lamp", "acme/家", came=NOW - 50, is_here=True)
    async with hub(journal) as first:
        first.store(here)
        first.store(gone)
    later = await remembered(journal)
    assert later == [gone, msgspec.structs.replace(here, seen=NOW)]
    assert [tool.digest for tool in later[0].listing.tools] == [tool.digest for tool in LISTING.tools]
    async with hub(journal) as second:
        await second.load()
        second.store(record("lamp", "acme/家", came=NOW - 50))
        second.forget("home", "phone")
    assert await remembered(journal) == [record("lamp", "acme/家", came=NOW - 50)]


async def test_a_server_that_comes_and_goes_is_written_once_a_round() -> None:
    journal = Counting()
    async with hub(journal) as keeping:
        for number in range(100):
            keeping.store(record(is_here=number % 2 == 0))
    assert journal.writes["phone"] == 1
    assert [each.is_here for each in await remembered(journal)] == [False]


async def test_unchanged_records_are_not_written_again() -> None:
    journal = Counting()
    for _ in range(2):
        async with hub(journal) as keeping:
            await keeping.load()
            keeping.store(record())
    assert journal.writes["phone"] == 1


async def test_a_server_that_was_not_written_need_not_be_forgotten() -> None:
    journal = Counting()
    async with hub(journal) as keeping:
        keeping.store(record())
        keeping.forget("home", "phone")
    assert not journal.writes
    assert await remembered(journal) == []


async def test_a_list_that_is_too_long_is_not_kept_and_neither_is_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    journal = MemoryJournal()
    async with hub(journal) as keeping:
        keeping.store(record())
        keeping.store(record("lamp"))
    monkeypatch.setattr(module, "RECORD_BYTES_MAX", 1000)
    long = Listing(tuple(tool(f"t{number}", PHONE) for number in range(100)))
    async with hub(journal) as keeping:
        await keeping.load()
        keeping.store(record(listing=long))
    assert [each.server_id for each in await remembered(journal)] == ["lamp"]


async def test_all_of_them_together_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = MemoryJournal()
    monkeypatch.setattr(module, "RECORDS_BYTES_MAX", 3000)
    async with hub(journal) as keeping:
        for number in range(20):
            keeping.store(record(f"phone {number}"))
    written = len(await journal.all_in(KIND, ("here", "away"), limit=20))
    kept = await remembered(journal)
    assert 0 < len(kept) == written < 10
    async with hub(journal) as keeping:
        await keeping.load()
        for each in kept:
            keeping.forget(each.agent, each.server_id)
    async with hub(journal) as keeping:
        keeping.store(record("another"))
    assert [each.server_id for each in await remembered(journal)] == ["another"]


async def test_one_agents_servers_leave_room_for_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = MemoryJournal()
    monkeypatch.setattr(module, "AGENT_BYTES_MAX", 1500)
    async with hub(journal) as keeping:
        for number in range(20):
            keeping.store(record(f"phone {number}"))
        keeping.store(record("lamp", "cellar"))
    kept = await remembered(journal)
    assert 1 < len(kept) < 10
    assert ("cellar", "lamp") in [each.key for each in kept]
    async with hub(journal) as keeping:
        await keeping.load()
        keeping.forget("home", "phone 0")
    async with hub(journal) as keeping:
        await keeping.load()
        keeping.store(record("another"))
    assert len(await remembered(journal)) == len(kept)


async def test_as_many_tools_as_an_agent_may_have_are_remembered() -> None:
    journal = MemoryJournal()
    long = Listing(tuple(tool(f"t{number}", PHONE, description="x" * 3000) for number in range(500)))
    async with hub(journal) as keeping:
        keeping.store(record(listing=long))
    (found,) = await remembered(journal)
    assert len(found.listing.tools) == 500


async def test_of_too_many_the_oldest_are_dropped_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = MemoryJournal()
    async with hub(journal) as keeping:
        for number in range(5):
            keeping.store(record(f"phone {number}", seen=NOW - number))
    monkeypatch.setattr(module, "RECORDS_MAX", 2)
    assert {each.server_id for each in await remembered(journal)} == {"phone 0", "phone 1"}
    assert len(await journal.all_in(KIND, ("here", "away"), limit=10)) == 2


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"name":"a","came":0,"tools":' + b"[" * 100_000,
        b"nonsense",
        b"[]",
        b'{"name":"has.dot","came":1.0,"tools":[],"prompts":[],"resources":[],"resourceTemplates":[]}',
        b'{"name":"home_phone","came":1.0}',
        b'{"name":"home_phone","came":1.0,"tools":5,"prompts":[],"resources":[],"resourceTemplates":[]}',
    ],
)
async def test_a_damaged_document_costs_a_warning_and_can_be_written_anew(body: bytes) -> None:
    journal = MemoryJournal()
    await put(journal, Document(KIND, "home", "phone", 1, NOW, body, state="away"))
    await put(journal, Document(KIND, "home", "lamp", 1, NOW, b"{", state="away"))
    async with hub(journal) as keeping:
        keeping.store(record("tv"))
    with capture_logs() as lines:
        async with hub(journal) as keeping:
            assert [each.server_id for each in await keeping.load()] == ["tv"]
            keeping.store(record())
    assert [line["id"] for line in lines if "damaged" in line["event"]].count("phone") == 1
    assert {each.server_id for each in await remembered(journal)} == {"phone", "tv"}


@pytest.mark.parametrize("verdict", ["conflict", "unknown"])
async def test_unconfirmed_writes_are_repeated_once(verdict: WriteResult) -> None:
    journal = Counting((verdict,))
    background = BackgroundTasks()
    keeping = RegistryStore(journal, background, lambda: NOW)
    keeping.store(record())
    await asyncio.wait_for(journal.has_kept.wait(), 5)
    await keeping.aclose()
    await background.aclose()
    assert journal.writes["phone"] == 2
    assert await remembered(journal) == [record()]


async def test_another_hub_may_have_written_meanwhile() -> None:
    journal = Counting()
    async with hub(journal) as one:
        one.store(record(title="one"))
        await asyncio.wait_for(journal.has_kept.wait(), 5)
        async with hub(journal) as other:
            await other.load()
            other.store(record(title="other"))
        journal.has_kept.clear()
        one.store(record(title="one again"))
        await asyncio.wait_for(journal.has_kept.wait(), 5)  # of no use: the other one was first
        journal.has_kept.clear()
        await asyncio.wait_for(journal.has_kept.wait(), 5)
    assert [each.title for each in await remembered(journal)] == ["one again"]


async def test_a_journal_that_refuses_costs_a_line_in_the_log() -> None:
    journal = Counting(("refused",) * 3)
    with capture_logs() as lines:
        async with hub(journal) as keeping:
            for name in ("a", "b", "c"):
                keeping.store(record(name))
    assert [(line["event"], line["servers"]) for line in lines] == [("dial-in servers could not be stored", 3)]
    assert set(journal.writes.values()) == {1}


class Broken(MemoryJournal):
    """A journal that cannot be read."""

    async def all_in(self, *_: object, **__: object) -> list[Document]:
        raise OSError("the disk is gone")

    async def read(self, *_: object) -> Document | None:
        raise OSError("the disk is gone")

    def write(self, documents: object, done: OnWritten, facts: object = ()) -> None:
        asyncio.get_running_loop().call_soon(done, "unknown")


async def test_a_journal_that_cannot_be_read_costs_a_line_in_the_log() -> None:
    with capture_logs() as lines:
        async with hub(Broken()) as keeping:
            assert await keeping.load() == []
            keeping.store(record())
    assert [line.get("error") for line in lines] == ["the disk is gone", None, "the disk is gone"]


async def test_a_journal_that_never_answers_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(MemoryJournal):
        def write(self, documents: object, done: OnWritten, facts: object = ()) -> None:
            """It never notifies again."""

    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.01)
    background = BackgroundTasks()
    keeping = RegistryStore(Silent(), background, lambda: NOW)
    keeping.store(record())
    async with asyncio.timeout(5):
        await keeping.aclose()
        await background.aclose()
