"""Documents in every journal: their content and order, and only the first of two conflicting writes counts."""

from __future__ import annotations

import asyncio
import runpy
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isthmus.core.journal import (
    DOCUMENT_BYTES,
    ClosableJournal,
    Document,
    Journal,
    JournalEntry,
    TrimResult,
    WriteResult,
    place_of,
)
from isthmus.storage import journal_base
from isthmus.storage.memory import MemoryJournal
from isthmus.storage.postgres import PostgresJournal
from isthmus.storage.postgres_cluster import SharedPostgresJournal
from isthmus.storage.settings import LeaseSettings, StorageSettings
from isthmus.storage.sqlite import SqliteJournal
from tests.databases import Database
from tests.hubs import CHECKOUT

IN_POSTGRES = pytest.param("postgres", marks=pytest.mark.xdist_group("postgres"))
IN_CLUSTER = pytest.param("cluster", marks=pytest.mark.xdist_group("postgres"))


@pytest.fixture(params=["memory", "lines", "sqlite", IN_POSTGRES, IN_CLUSTER])
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Journal]:
    if request.param == "memory":
        yield MemoryJournal()
        return
    made: ClosableJournal
    if request.param == "lines":
        example = runpy.run_path(str(CHECKOUT / "examples" / "extensions" / "isthmus_examples" / "lines.py"))
        made = await example["opener"]({})(f"lines:{tmp_path / 'journal.jsonl'}")
    elif request.param == "sqlite":
        made = SqliteJournal(tmp_path)
    elif request.param == "cluster":
        database: Database = request.getfixturevalue("database")
        settings = StorageSettings(database.url())
        made = await SharedPostgresJournal.open_shared(settings, LeaseSettings("a"), {})
    else:
        database = request.getfixturevalue("database")
        made = await PostgresJournal.open(StorageSettings(database.url()))
    yield made
    await made.aclose()


def document(id: str, version: int = 1, *, at: float = 1.0, owner: str = "me", **more: str) -> Document:
    body = more.pop("body", f"{id} {version}")
    return Document("task", owner, id, version, at, body.encode(), **more)


async def write(journal: Journal, *documents: Document) -> WriteResult:
    results: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
    journal.write(documents, results.set_result)
    async with asyncio.timeout(30):
        return await results


async def ids(journal: Journal, token: str = "", limit: int = 10, **narrowed: object) -> list[str]:
    page = await journal.page("task", "me", limit=limit, token=token, **narrowed)  # type: ignore[arg-type]
    return [each.id for each in page.documents]


async def test_documents_are_read_by_their_owner_only(journal: Journal) -> None:
    assert await write(journal, document("a", group="talk", state="working")) == "kept"
    assert await journal.read("task", "me", "a") == document("a", group="talk", state="working")
    assert await journal.read("task", "you", "a") is None
    assert await journal.read("push", "me", "a") is None
    assert await ids(journal) == ["a"]


async def test_of_two_changes_to_one_document_only_the_first_counts(journal: Journal) -> None:
    assert await write(journal, document("a")) == "kept"
    assert await write(journal, document("a", 2, body="first")) == "kept"
    assert await write(journal, document("a", 2, body="second")) == "conflict"
    assert await write(journal, document("a", 1, body="anew")) == "conflict"
    assert await write(journal, document("b", 2)) == "conflict"
    kept = await journal.read("task", "me", "a")
    assert kept is not None
    assert kept.body == b"first"
    assert await journal.read("task", "me", "b") is None


async def test_a_group_of_documents_is_stored_atomically(journal: Journal) -> None:
    assert await write(journal, document("a")) == "kept"
    assert await write(journal, document("b"), document("a", 5)) == "conflict"
    assert await ids(journal) == ["a"]
    assert await write(journal, document("b"), document("a", 2)) == "kept"
    assert sorted(await ids(journal)) == ["a", "b"]


async def test_a_document_without_a_body_is_gone_and_may_come_again(journal: Journal) -> None:
    assert await write(journal, document("a")) == "kept"
    assert await write(journal, Document("task", "me", "a", 2, 2.0, None)) == "kept"
    assert await journal.read("task", "me", "a") is None
    assert await write(journal, Document("task", "me", "a", 2, 2.0, None)) == "conflict"
    assert await write(journal, document("a")) == "kept"
    assert await write(journal, Document("task", "me", "never", 1, 2.0, None)) == "conflict"


async def test_a_list_has_the_newest_first_in_pages_that_neither_skip_nor_repeat(journal: Journal) -> None:
    for number in range(7):
        await write(journal, document(f"t{number}", at=1.0 + number // 2))
    seen: list[str] = []
    token = ""
    for _ in range(4):
        page = await journal.page("task", "me", limit=2, token=token)
        seen += [each.id for each in page.documents]
        token = page.next
        assert page.total == 7
    assert seen == ["t6", "t5", "t4", "t3", "t2", "t1", "t0"]
    assert token == ""


async def test_a_list_is_narrowed_by_group_state_and_time(journal: Journal) -> None:
    await write(journal, document("a", at=1.0, group="g", state="working"))
    await write(journal, document("b", at=2.0, group="g", state="failed"))
    await write(journal, document("c", at=3.0, group="h", state="working"))
    assert await ids(journal, group="g") == ["b", "a"]
    assert await ids(journal, states=["working"]) == ["c", "a"]
    assert await ids(journal, after=1.0) == ["c", "b"]
    assert await ids(journal, group="g", states=["working", "failed"], after=1.5) == ["b"]
    assert [each.id for each in await journal.all_in("task", ["working"], limit=9)] == ["a", "c"]


async def test_all_owners_newest_documents_come_in_pages_that_neither_skip_nor_repeat(journal: Journal) -> None:
    for number in range(9):
        owner, state = ("me", "you", "they")[number % 3], ("working", "failed")[number % 2]
        await write(journal, document(f"t{number}", at=1.0 + number // 2, owner=owner, state=state))
    seen: list[Document] = []
    while found := await journal.newest(
        "task", ["working", "failed"], limit=2, before=place_of(seen[-1]) if seen else None
    ):
        seen += found
    assert len(seen) == len({each.id for each in seen}) == 9
    assert seen == sorted(seen, key=place_of, reverse=True)
    failed = await journal.newest("task", ["failed"], limit=9)
    assert [each.id for each in failed] == ["t7", "t5", "t3", "t1"]
    two = await journal.newest("task", ["working", "failed"], owners=["me", "you"], limit=9)
    assert [each.id for each in two] == [each.id for each in seen if each.owner != "they"]
    rest = await journal.newest("task", ["working", "failed"], owners=["me", "you"], limit=9, before=place_of(two[2]))
    assert rest == two[3:]
    assert await journal.newest("push", ["working", "failed"], limit=9) == []


async def test_documents_of_one_id_are_found_for_every_owner(journal: Journal) -> None:
    for owner in ("me", "you"):
        await write(journal, document("a", owner=owner), document(f"b-{owner}", owner=owner))
    assert {each.owner for each in await journal.named("task", "a", limit=9)} == {"me", "you"}
    assert len(await journal.named("task", "a", limit=1)) == 1
    assert await journal.named("task", "c", limit=9) == []
    assert await journal.named("push", "a", limit=9) == []


async def test_a_page_ends_where_it_would_grow_too_large(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_base, "PAGE_BYTES", 10)
    for number, size in enumerate((4, 6, 1, 30, 9, 1, 0)):
        await write(journal, document(f"t{number}", at=1.0 + number, state="working", body="x" * size))
    shown: list[list[str]] = []
    token = ""
    while not shown or token:
        page = await journal.page("task", "me", limit=5, token=token)
        shown.append([each.id for each in page.documents])
        token = page.next
        assert page.total == 7
    assert shown == [["t6", "t5", "t4"], ["t3"], ["t2", "t1", "t0"]]

    batches: list[list[str]] = []
    last: Document | None = None
    while found := await journal.all_in("task", ["working"], limit=5, after=last):
        batches.append([each.id for each in found])
        last = found[-1]
    assert batches == [["t0", "t1"], ["t2", "t3"], ["t4", "t5"], ["t6"]]


@pytest.mark.parametrize("token", ["x", "nine:a", ":"])
async def test_a_token_that_no_page_gave_is_refused(journal: Journal, token: str) -> None:
    with pytest.raises(ValueError, match="could not convert"):
        await journal.page("task", "me", limit=1, token=token)


async def test_all_in_a_state_come_in_batches_that_neither_skip_nor_repeat(journal: Journal) -> None:
    for owner in ("me", "you"):
        for number in range(3):
            await write(journal, document(f"t{number}", at=1.0 + number // 2, owner=owner, state="working"))
    seen: list[tuple[str, str]] = []
    last: Document | None = None
    while found := await journal.all_in("task", ["working"], limit=2, after=last):
        seen += [(each.owner, each.id) for each in found]
        last = found[-1]
    assert seen == [("me", "t0"), ("me", "t1"), ("you", "t0"), ("you", "t1"), ("me", "t2"), ("you", "t2")]


async def test_pruning_deletes_old_documents_oldest_first_and_nothing_else(journal: Journal) -> None:
    for number in range(4):
        await write(journal, document(f"old{number}", at=float(number), state="failed"))
    await write(journal, document("new", at=9.0, state="failed"))
    await write(journal, document("busy", at=1.0, state="working"))
    await write(journal, Document("push", "me", "other", 1, 1.0, b"{}", state="failed"))

    assert await journal.prune("task", ["failed", "canceled"], before=9.0, limit=3) == 3
    assert sorted(await ids(journal)) == ["busy", "new", "old3"]
    assert await journal.prune("task", ["failed", "canceled"], before=9.0, limit=3) == 1
    assert await journal.prune("task", ["failed", "canceled"], before=9.0, limit=3) == 0
    assert sorted(await ids(journal)) == ["busy", "new"]
    assert await journal.read("push", "me", "other") is not None


async def test_an_owners_documents_are_weighed_by_state_and_trimmed_oldest_first(journal: Journal) -> None:
    for number in range(4):
        await write(journal, document(f"old{number}", at=float(number), state="failed", body="x" * 100))
    await write(journal, document("busy", at=0.5, state="working", body="x" * 10))
    await write(journal, document("theirs", at=0.0, state="failed", owner="you"))
    await write(journal, Document("push", "me", "other", 1, 0.0, b"{}", state="failed"))
    each = DOCUMENT_BYTES + 100
    of_tasks = {("task", "failed"): 4 * each, ("task", "working"): DOCUMENT_BYTES + 10}
    assert await journal.weigh(["task"], "me") == of_tasks
    assert await journal.weigh(["push", "task"], "me") == {**of_tasks, ("push", "failed"): DOCUMENT_BYTES + 2}
    assert await journal.weigh(["task"], "nobody") == {}

    assert await journal.trim("task", "me", ["failed", "canceled"], bytes=each + 1, limit=1) == TrimResult(
        ("old0",), each
    )
    taken = await journal.trim("task", "me", ["failed", "canceled"], bytes=each + 1, limit=9)
    assert (set(taken.ids), taken.bytes) == ({"old1", "old2"}, 2 * each)
    assert await journal.trim("task", "me", ["canceled"], bytes=1, limit=9) == TrimResult((), 0)
    assert sorted(await ids(journal)) == ["busy", "old3"]
    assert await journal.read("task", "you", "theirs") is not None
    assert await journal.read("push", "me", "other") is not None


async def test_weighing_includes_pending_writes(journal: Journal) -> None:
    for number in range(20):
        journal.write([document(str(number), state="failed", body="")], lambda _: None)
    assert await journal.weigh(["task"], "me") == {("task", "failed"): 20 * DOCUMENT_BYTES}


@pytest.mark.parametrize("odd", ["nul \0 in it", "ünïcödé 🙂", "", "line\nbreak", "x" * 2000])
async def test_odd_names_are_stored_and_found(journal: Journal, odd: str) -> None:
    made = document(odd, owner=f"me\n{odd}", group=odd, state="working")
    assert await write(journal, made) == "kept"
    assert await journal.read("task", f"me\n{odd}", odd) == made
    page = await journal.page("task", f"me\n{odd}", group=odd, limit=5)
    assert page.documents == (made,)
    assert await journal.all_in("task", ["working"], limit=5) == [made]


async def test_ids_are_in_the_order_of_their_characters(journal: Journal) -> None:
    odd = ["a", "B", "ä", "Z", "a-", "_", "é", "🙂", "ﬀ"]
    for id in odd:
        await write(journal, document(id))
    assert await ids(journal) == sorted(odd, reverse=True)


async def test_entries_come_back_oldest_first_and_owners_are_apart(journal: Journal) -> None:
    await journal.commit([entry(1), entry(2), entry(7, owner="you")])
    await journal.commit([entry(3), entry(8, kind="audit")])
    assert await journal.latest("chat", "me", 2) == [entry(2), entry(3)]
    assert await journal.latest("chat", "you", 2) == [entry(7, owner="you")]
    assert await journal.latest("chat", "nobody", 2) == []


def entry(content: int, owner: str = "me", kind: str = "chat") -> JournalEntry:
    return JournalEntry(kind, owner, float(content), msgspec.Raw(str(content).encode()))


@given(
    works=st.lists(
        st.lists(
            st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.booleans()),
            min_size=1,
            max_size=2,
            unique_by=lambda made: made[0],
        ),
        max_size=12,
    )
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_every_journal_says_the_same_to_the_same_writes(
    journal: Journal, works: list[list[tuple[str, int, bool]]]
) -> None:
    """All writes of an example come within one turn of the loop, so that they share a transaction."""
    owner = secrets.token_hex(8)  # the journal is that of the examples before
    model = MemoryJournal()
    received = [await write_all(each, owner, works) for each in (journal, model)]
    assert received[0] == received[1]
    journal_base = [await each.page("task", owner, limit=9) for each in (journal, model)]
    assert journal_base[0] == journal_base[1]


async def write_all(journal: Journal, owner: str, works: list[list[tuple[str, int, bool]]]) -> list[WriteResult]:
    received = []
    for number, work in enumerate(works):
        received.append(asyncio.get_running_loop().create_future())
        documents = [
            Document("task", owner, id, version, 1.0, None if is_gone else b"%d" % number)
            for id, version, is_gone in work
        ]
        journal.write(documents, received[-1].set_result)
    async with asyncio.timeout(30):
        return list(await asyncio.gather(*received))
