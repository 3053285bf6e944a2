"""Long messages are read in a process of their own, which may die, hang or be missing without harm."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from functools import partial

import msgspec
import pytest
import pytest_asyncio

from isthmus.app import parser_process
from isthmus.app.parser_process import LongReader
from isthmus.core.background import BackgroundTasks
from isthmus.core.event_loop import Job
from isthmus.model.json_members import known_members
from isthmus.wire import jsonrpc
from tests.faults.watching import eventually

pytestmark = [pytest.mark.asyncio, pytest.mark.skipif(sys.platform == "win32", reason="needs signals")]

SECONDS = 30.0


def request(text: str, id: int = 1) -> bytes:
    """A long request."""
    params = {"name": "echo", "arguments": {"text": text, "more": "x" * 400_000}}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})


class Jobs:
    """Jobs of a reader, and how each ended."""

    def __init__(self, reader: LongReader) -> None:
        self.reader = reader
        self.ended: list[tuple[str, object]] = []
        self._changed = asyncio.Event()

    def offer(self, name: str, body: bytes | None = None, whose: str = "ann") -> bool:
        def end(kind: str, value: object = None) -> None:
            self.ended.append((f"{name} {kind}", value))
            self._changed.set()

        work = partial(jsonrpc.decode, request(name) if body is None else body)
        return self.reader.offer(Job(work, whose, partial(end, "read"), partial(end, "failed"), partial(end, "here")))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.ended]

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(SECONDS):
            while len(self.ended) < count:
                self._changed.clear()
                await self._changed.wait()


async def until_ready(reader: LongReader) -> int:
    """Have it start, and return its process."""

    def is_ready() -> bool:
        return reader.pid is not None or reader.offer(Job(is_ready, "nobody", print, print, lambda: None))

    await eventually(is_ready, "the reader is ready")
    assert reader.pid is not None
    return reader.pid


@pytest_asyncio.fixture
async def background() -> AsyncIterator[BackgroundTasks]:
    tasks = BackgroundTasks()
    yield tasks
    await tasks.aclose()


@pytest_asyncio.fixture
async def jobs(background: BackgroundTasks) -> Jobs:
    jobs = Jobs(LongReader(background, dict(os.environ)))
    await until_ready(jobs.reader)
    await asyncio.sleep(0)
    return jobs


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


TEXT = "é" * 300_000
BODIES = {
    "a request": request(TEXT),
    "a notification": b'{"jsonrpc":"2.0","method":"m","params":{"a":"%b"}}' % (b"x" * 300_000),
    "line breaks": request(TEXT).replace(b'"arguments":', b'"arguments":\n'),
    "not JSON": request(TEXT)[:-1],
    "not UTF-8": request(TEXT).replace("é".encode(), b"\xff", 1),
    "a member twice": request(TEXT)[:-1] + b',"id":2}',
    "too deep": b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":%b}}' % (b"[" * 150_000 + b"]" * 150_000),
    "too dense": b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":[%b1]}}' % (b"1," * 200_000),
    "a batch": b"[%b]" % request(TEXT),
    "a result": b'{"jsonrpc":"2.0","id":1,"result":{"content":[],"text":"%b"}}' % (b"x" * 300_000),
    "an error": b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"%b"}}' % (b"x" * 300_000),
}


@pytest.mark.parametrize("kind", BODIES)
async def test_a_message_is_read_as_the_hub_reads_it(jobs: Jobs, kind: str) -> None:
    body = BODIES[kind]
    assert jobs.offer("it", body)
    await jobs.wait_for(1)
    ((name, found),) = jobs.ended
    assert name == "it read"
    expected = jsonrpc.decode(body)
    assert type(found) is type(expected)
    assert msgspec.to_builtins(found, enc_hook=bytes) == msgspec.to_builtins(expected, enc_hook=bytes)


async def test_long_arguments_know_their_members(jobs: Jobs) -> None:
    jobs.offer("it")
    await jobs.wait_for(1)
    found = jobs.ended[0][1]
    assert isinstance(found, jsonrpc.Request)
    members = known_members(found.params["arguments"])
    assert members is not None
    assert bytes(members["text"]) == b'"it"'


async def test_the_hub_reads_until_the_process_is_ready(background: BackgroundTasks) -> None:
    jobs = Jobs(LongReader(background, dict(os.environ)))
    assert not jobs.offer("first")
    await until_ready(jobs.reader)
    assert jobs.offer("second")


async def test_a_message_of_a_process_that_dies_is_read_by_the_next(jobs: Jobs) -> None:
    first = jobs.reader.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    jobs.offer("one")
    jobs.offer("two")
    os.kill(first, signal.SIGKILL)
    await jobs.wait_for(2)
    assert jobs.names == ["one read", "two read"]
    assert jobs.reader.pid not in (None, first)


async def test_a_message_with_which_two_processes_die_is_refused(jobs: Jobs) -> None:
    jobs_pid = jobs.reader.pid
    assert jobs_pid is not None
    os.kill(jobs_pid, signal.SIGSTOP)
    jobs.offer("one")
    jobs.offer("two", whose="ben")
    killed = {jobs_pid}
    os.kill(jobs_pid, signal.SIGKILL)
    while len(killed) < 2:
        await asyncio.sleep(0)
        if (pid := jobs.reader.pid) is not None and pid not in killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
    await jobs.wait_for(2)
    assert jobs.ended[0] == ("one failed", "the process that read it ended")
    assert jobs.names[1] == "two read"


async def test_a_process_that_hangs_is_replaced(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser_process, "READ_SECONDS", 0.5)
    first = jobs.reader.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    jobs.offer("one")
    await jobs.wait_for(1)
    assert jobs.ended == [("one failed", "it took over 0.5 seconds to read")]
    monkeypatch.undo()
    assert await until_ready(jobs.reader) != first
    assert jobs.offer("two")
    await jobs.wait_for(2)
    assert jobs.names[1] == "two read"


async def test_callers_take_turns(jobs: Jobs) -> None:
    pid = jobs.reader.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    for number in range(4):
        jobs.offer(f"ann{number}")
    jobs.offer("ben", whose="ben")
    jobs.offer("cleo", whose="cleo")
    os.kill(pid, signal.SIGCONT)
    await jobs.wait_for(6)
    assert jobs.names == [f"{name} read" for name in ("ann0", "ann1", "ben", "cleo", "ann2", "ann3")]


async def test_the_queue_is_bounded(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser_process, "QUEUE_MAX", 2)
    pid = jobs.reader.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    assert [jobs.offer(str(number)) for number in range(4)] == [True, True, True, False]
    os.kill(pid, signal.SIGCONT)
    await jobs.wait_for(3)


async def test_without_a_process_the_hub_reads(background: BackgroundTasks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    jobs = Jobs(LongReader(background, dict(os.environ)))
    assert not jobs.offer("one")
    await eventually(lambda: not len(background), "nothing runs")
    assert not jobs.offer("two")
    assert len(background) == 0, "it does not try again at once"


async def test_work_that_cannot_be_sent_is_left_to_the_hub(jobs: Jobs) -> None:
    assert not jobs.reader.offer(Job(lambda: None, "ann", print, print, print))


async def test_an_idle_process_ends_and_the_next_message_starts_another(
    background: BackgroundTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parser_process, "IDLE_SECONDS", 0.2)
    jobs = Jobs(LongReader(background, dict(os.environ)))
    first = await until_ready(jobs.reader)
    await eventually(lambda: not is_alive(first), "the process has ended")
    assert not jobs.offer("one")
    assert await until_ready(jobs.reader) != first


async def test_closing_ends_the_process_and_loses_nothing(background: BackgroundTasks, jobs: Jobs) -> None:
    pid = jobs.reader.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    jobs.offer("one")
    jobs.offer("two", whose="ben")
    await background.aclose()
    assert not is_alive(pid)
    assert jobs.names == ["one here", "two here"]
