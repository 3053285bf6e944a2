"""Listing tasks: filters, how far a request reads, and slow readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec import Raw

from isthmus.app import tasks as module
from isthmus.app.hub import RunningHub
from isthmus.app.tasks import RESULT_BYTES_MAX, TaskBrowser
from isthmus.config.settings import Configuration, HubSettings
from isthmus.core.admin_ports import TaskAddress, TaskDetails, TaskEntry, TaskQuery
from isthmus.core.journal import Document, WriteResult
from isthmus.core.tasks.live_task import NewTask
from isthmus.core.tasks.record import StoredOutcome
from isthmus.model.callers import Caller, Grants
from isthmus.model.tasks import Message, TextPart

ADA = Caller("ada", "default", Grants(("*",)))
EVE = Caller("eve", "default", Grants(("*",)))
OPS = Caller("ops", "default", Grants(("*",)), is_operator=True)
ALL = TaskQuery()


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningHub]:
    hub = RunningHub(Configuration(None, HubSettings(state=str(tmp_path))), {})
    yield hub
    await hub.aclose()


async def begin(running: RunningHub, id: str, caller: Caller = ADA, *, tool: str = "a.b", size: int = 2) -> None:
    """A task that has ended with a result of this size."""
    ending = StoredOutcome(Raw(b'"' + b"x" * (size - 2) + b'"'))
    said = (Message("m", "user", (TextPart("hello"),)),)
    brief = Raw(msgspec.json.encode({"tool": tool}))
    draft = NewTask(caller, "c", "1.0", said, "completed", ending=ending, brief=brief, id=id)
    await running.tasks.begin(draft)


async def test_a_long_result_is_left_out_and_its_size_said(running: RunningHub) -> None:
    browser = TaskBrowser(running)
    await begin(running, "long", size=RESULT_BYTES_MAX + 1)
    await begin(running, "short")
    long = await browser.get(ADA, TaskAddress("long"), with_content=False)
    assert isinstance(long, TaskDetails)
    assert (long.result, long.result_bytes, long.content) == (None, RESULT_BYTES_MAX + 1, True)
    short = await browser.get(ADA, TaskAddress("short"), with_content=False)
    assert isinstance(short, TaskDetails)
    assert short.result == Raw(b'""')


async def test_a_request_reads_so_many_tasks_and_names_where_to_read_on(
    running: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_AT_ONCE", 2)
    monkeypatch.setattr(module, "READ_MAX", 4)
    browser = TaskBrowser(running)
    await begin(running, "wanted", tool="a.wanted")
    for number in range(9):
        await begin(running, f"t{number}")
    found: list[str] = []
    pages, cursor = 0, ""
    while cursor or not pages:
        page = await browser.list(OPS, TaskQuery(tool="a.wanted"), limit=5, cursor=cursor)
        found += [each.id for each in page.tasks]
        pages, cursor = pages + 1, page.next
    assert found == ["wanted"]
    assert pages == 3


async def test_a_task_that_cannot_be_decoded_costs_only_itself(running: RunningHub) -> None:
    await begin(running, "good")
    kept: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
    bad = Document("task", "default\nada", "bad", 1, 9e9, b'{"from": "the future"}', "", "completed")
    running.journal.write((bad,), kept.set_result)
    assert await kept == "kept"
    page = await TaskBrowser(running).list(ADA, ALL, limit=5, cursor="")
    assert [each.id for each in page.tasks] == ["good"]


async def test_a_slow_reader_gets_the_changes_when_it_reads_again(running: RunningHub) -> None:
    browser, received, is_slow = TaskBrowser(running), asyncio.Queue[Sequence[TaskEntry]](), True
    tried = asyncio.Event()

    def feed(entries: Sequence[TaskEntry]) -> bool:
        tried.set()
        if not is_slow:
            received.put_nowait(entries)
        return not is_slow

    unfollow = browser.follow_list(ADA, ALL, feed)
    async with asyncio.timeout(30):
        await begin(running, "mine")
        await begin(running, "not mine", EVE)
        await tried.wait()
        is_slow = False
        assert [each.id for each in await received.get()] == ["mine"]
    unfollow()
    assert running.tasks.on_changed is None
