"""Scripts: how their calls start, the stored state of durable ones, and recovery by the next hub."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from isthmus.app.code import check_code
from isthmus.app.hub import LOCAL, RunningHub
from isthmus.code.sandbox_in_child import ScriptEnd, ScriptSource, ScriptStop, worker_cores
from isthmus.code.sandbox_in_hub import Sandbox
from isthmus.code.script_record import CALLS, SCRIPT, SCRIPT_KINDS, STATE
from isthmus.code.scripts import RunningScript, ScriptRequest, Scripts
from isthmus.code.settings import CodeSettings
from isthmus.config.findings import ConfigError
from isthmus.config.settings import Configuration, HubSettings
from isthmus.core.audit import Fact
from isthmus.core.background import BackgroundTasks
from isthmus.core.journal import Document, WriteResult
from isthmus.core.ports import HoldableExchange, Sealer
from isthmus.core.tasks.live_task import LiveTask, NewTask
from isthmus.core.tasks.record import TaskOwner
from isthmus.credentials.sealing import ProcessSealer
from isthmus.model.calls import EVERYTHING, Call, Question, Result
from isthmus.model.fault_table import ApprovalDenied, Cancelled
from isthmus.model.tasks import Message
from isthmus.storage.memory import MemoryJournal
from isthmus.transport.process_tree import descendants
from tests.faults.watching import eventually
from tests.unit.core.doubles import ANYONE, DONE, Listener, Stage

OWNER = TaskOwner(LOCAL.tenant, LOCAL.name)
SLEEPING = "await builtin_echo(text='a')\nimport asyncio\nawait asyncio.sleep(4)\nawait builtin_echo(text='b')"


class Host:
    """See `ScriptHost`."""

    def __init__(self) -> None:
        self.stop: asyncio.Future[ScriptStop] = asyncio.get_running_loop().create_future()
        self.end: asyncio.Future[ScriptEnd] = asyncio.get_running_loop().create_future()

    def stopped(self, at: ScriptStop) -> None:
        self.stop.set_result(at)

    def ended(self, end: ScriptEnd) -> None:
        self.end.set_result(end)


@asynccontextmanager
async def sandboxed() -> AsyncIterator[Sandbox]:
    background = BackgroundTasks("test")
    try:
        yield Sandbox(background, {})
    finally:
        await background.aclose()


@asynccontextmanager
async def hub(folder: Path, journal: MemoryJournal) -> AsyncIterator[RunningHub]:
    running = RunningHub(Configuration(None, HubSettings(state=str(folder))), {}, journal)
    running.tasks.offline_queue.find_caller = lambda _: LOCAL
    await running.tasks.recover()
    running.tasks.resume()
    try:
        yield running
    finally:
        running.refuse_new_calls()
        await running.aclose()


async def begin(running: RunningHub, code: str) -> LiveTask:
    work = running.scripts.task(Call(LOCAL, EVERYTHING, "run_code", msgspec.Raw(b"{}"), lasts=True), code, None)
    return await running.tasks.begin(NewTask(LOCAL, "context", "1.0", (Message("m", "user", ()),), call=work, id="one"))


async def stored(journal: MemoryJournal, kind: str) -> Document | None:
    return await journal.read(kind, OWNER.key, "one")


async def sleeping(journal: MemoryJournal) -> bool:
    """Whether the script has made its first call, and sleeps."""
    return any(not call["tool"] for call in (await stored_progress(journal)).get("calls", ()))


async def ended(running: RunningHub) -> str:
    """How the task has ended, as text."""
    found: list[LiveTask] = []

    async def is_terminal() -> bool:
        live = await running.tasks.find(OWNER, "one")
        if live is None or not live.record.is_terminal:
            return False
        found.append(live)
        return True

    await eventually(is_terminal, "the task ends", within=60)
    ending = found[0].record.ending
    assert ending is not None
    return bytes(ending.result).decode() or ending.message


async def test_nothing_is_stored_of_a_script_that_has_ended(tmp_path: Path) -> None:
    journal = MemoryJournal()
    async with hub(tmp_path, journal) as running:
        live = await begin(running, "await builtin_echo(text='a')")
        assert live.record.resumes
        assert '"result":' in await ended(running)

        async def is_deleted() -> bool:
            return [await stored(journal, kind) for kind in SCRIPT_KINDS] == [None] * len(SCRIPT_KINDS)

        await eventually(is_deleted, "nothing is stored", within=60)


async def test_the_next_hub_continues_a_script_with_its_own_caller(tmp_path: Path) -> None:
    journal = MemoryJournal()
    async with hub(tmp_path, journal) as running:
        await begin(running, SLEEPING)
        await eventually(lambda: sleeping(journal), "the script sleeps", within=60)
    state = await stored(journal, STATE)
    assert state is not None
    assert b"builtin" not in (state.body or b""), "it is sealed"
    async with hub(tmp_path, journal) as running:
        text = await ended(running)
    assert '"calls":2' in text


@pytest.mark.parametrize("kind", ["changed", "missing", "another version", "another hub"])
async def test_a_state_that_cannot_be_used_ends_the_script_with_a_clear_error(tmp_path: Path, kind: str) -> None:
    journal = MemoryJournal()
    async with hub(tmp_path, journal) as running:
        await begin(running, SLEEPING)
        await eventually(lambda: sleeping(journal), "the script sleeps", within=60)
    document = await stored(journal, {"another version": CALLS, "another hub": SCRIPT}.get(kind, STATE))
    assert document is not None
    body = document.body or b""
    match kind:
        case "changed":
            changed: bytes | None = body[:-8] + b"AAAAAAA="
        case "another hub":  # it kept the calls and the script in one document
            changed = msgspec.json.encode({**msgspec.json.decode(body), "count": 1, "calls": [], "state_version": 1})
        case "missing":
            changed = None
        case _:
            changed = msgspec.json.encode({**msgspec.json.decode(body), "library": "0.0.1"})
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    later = msgspec.structs.replace(document, version=document.version + 1, body=changed)
    journal.write([later], done.set_result)
    assert await done == "kept"
    async with hub(tmp_path, journal) as running:
        text = await ended(running)
    said = {"another version": "0.0.1", "another hub": "another version of Isthmus"}
    assert "The script cannot continue" in text
    assert said.get(kind, "missing or was changed") in text


async def test_the_outcome_of_a_call_is_stored_while_the_script_computes(tmp_path: Path) -> None:
    journal = MemoryJournal()
    async with hub(tmp_path, journal) as running:
        live = await begin(running, "await builtin_echo(text='a')\nwhile True:\n    pass")

        async def is_stored() -> bool:
            calls = (await stored_progress(journal)).get("calls", ())
            return ["answer" in each for each in calls] == [True]

        await eventually(is_stored, "the outcome is stored", within=60)
        running.tasks.cancel(live, "the test has seen it")


async def test_a_script_whose_caller_is_gone_ends(tmp_path: Path) -> None:
    journal = MemoryJournal()
    async with hub(tmp_path, journal) as running:
        await begin(running, SLEEPING)
        await eventually(lambda: sleeping(journal), "the script sleeps", within=60)
    running = RunningHub(Configuration(None, HubSettings(state=str(tmp_path))), {}, journal)
    running.tasks.offline_queue.find_caller = lambda _: None
    await running.tasks.recover()
    running.tasks.resume()
    assert "The hub stopped while the call was running" in await ended(running)
    await running.aclose()


async def test_a_cancelled_task_ends_its_script(tmp_path: Path) -> None:
    journal = MemoryJournal()
    async with hub(tmp_path, journal) as running:
        live = await begin(running, SLEEPING)
        await eventually(lambda: sleeping(journal), "the script sleeps", within=60)
        assert running.tasks.cancel(live, "the test cancels it")
        assert "the test cancels it" in await ended(running)


@asynccontextmanager
async def scripts_of(
    stage: Stage, journal: MemoryJournal, sealer: Sealer | None = None, **limits: int
) -> AsyncIterator[Scripts]:
    background = BackgroundTasks("test")
    sealer = sealer or ProcessSealer()
    scripts = Scripts(stage.hub, background, CodeSettings(**limits), time.time, journal, lambda: sealer)
    try:
        yield scripts
    finally:
        scripts.close()
        await background.aclose()


def request(count: int) -> ScriptRequest:
    """A script that makes so many calls at once."""
    code = f"import asyncio\nawait asyncio.gather(*[files_read() for _ in range({count})])"
    return ScriptRequest(ANYONE, EVERYTHING, code, id="one")


async def test_a_script_starts_one_call_in_each_turn_of_the_loop_and_has_few_running() -> None:
    stage, loop, turn, turns = Stage(), asyncio.get_running_loop(), 0, list[int]()
    stage.link.at_once = lambda _: turns.append(turn)

    def count() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(count)

    count()
    async with scripts_of(stage, MemoryJournal(), calls_at_once=4) as scripts:
        listener = Listener()
        scripts.start(request(10), listener)
        for ended in range(10):
            expected = min(10, ended + 4)
            await eventually(partial(lambda count: len(turns) == count, expected), "calls are sent", within=60)
            await asyncio.sleep(0)
            assert len(turns) == expected, "others wait"
            stage.link.sent[ended].finish(DONE)
        await listener.ended.wait()
    assert len(set(turns)) == 10
    (outcome,) = listener.ends
    assert isinstance(outcome, Result)
    assert b'"calls":10' in bytes(outcome.payload)


async def test_calls_that_wait_for_their_turn_when_a_script_is_handed_over_are_stored_as_not_sent() -> None:
    stage, journal = Stage(), MemoryJournal()
    async with scripts_of(stage, journal) as scripts:
        stage.link.at_once = lambda _: scripts.hand_over_durable()
        await store_first(scripts, journal, request(3))
        script = scripts.start_script(RunningScript(scripts, request(3), Listener(), OWNER.key))
        await eventually(script.is_done, "the script is handed over", within=60)
        await asyncio.sleep(0)
        record = await stored_progress(journal)
    assert [call.get("is_sent", False) for call in record["calls"]] == [True, False, False]
    assert (record["count"], len(stage.link.sent)) == (1, 1)


async def test_a_call_of_a_script_that_is_handed_over_is_stored_as_not_sent_if_it_ends_unsent() -> None:
    stage, journal = Stage(), MemoryJournal()
    async with scripts_of(stage, journal) as scripts:
        await store_first(scripts, journal, request(2))
        scripts.start_script(RunningScript(scripts, request(2), Listener(), OWNER.key))
        await eventually(lambda: len(stage.link.sent) == 2, "the calls are sent", within=60)
        scripts.hand_over_durable()
        waiting = asyncio.ensure_future(scripts.wait_handed_over())
        ended, unsent = stage.link.sent
        unsent.finish(Cancelled("the hub is shutting down", executed="no"))
        await asyncio.sleep(0)
        assert not waiting.done(), "the other call runs"
        ended.finish(DONE)
        await waiting
        record = await stored_progress(journal)
    assert [call.get("is_sent", False) for call in record["calls"]] == [True, False]
    assert ["answer" in call or "failure" in call for call in record["calls"]] == [True, False]
    assert record["count"] == 1


async def test_what_a_person_denied_is_not_sent_again_after_a_script_was_handed_over() -> None:
    stage, journal = Stage(), MemoryJournal()
    async with scripts_of(stage, journal) as scripts:
        await store_first(scripts, journal, request(1))
        scripts.start_script(RunningScript(scripts, request(1), Listener(), OWNER.key))
        await eventually(lambda: len(stage.link.sent) == 1, "the call is made", within=60)
        scripts.hand_over_durable()
        stage.link.sent[0].finish(ApprovalDenied("files.read", "ap_1", "too much"))
        await scripts.wait_handed_over()
        (call,) = (await stored_progress(journal))["calls"]
    assert (call["is_sent"], "too much" in call["failure"]) == (True, True)


class HeldJournal(MemoryJournal):
    """Writes of scripts wait until they are released."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Callable[[], None]] | None = None

    def write(
        self, documents: Sequence[Document], done: Callable[[WriteResult], None], facts: Sequence[Fact] = ()
    ) -> None:
        if self.held is None:
            super().write(documents, done, facts)
        else:
            self.held.append(partial(super().write, documents, done, facts))

    def release(self) -> None:
        held, self.held = self.held or [], None
        for write in held:
            write()


async def test_a_call_that_is_being_stored_as_sent_when_a_script_is_handed_over_is_stored_as_not_sent() -> None:
    stage, journal = Stage(), HeldJournal()
    async with scripts_of(stage, journal) as scripts:
        await store_first(scripts, journal, request(1))
        journal.held = []
        scripts.start_script(RunningScript(scripts, request(1), Listener(), OWNER.key))
        await eventually(lambda: bool(journal.held), "the call is being stored", within=60)
        scripts.hand_over_durable()
        waiting = asyncio.ensure_future(scripts.wait_handed_over())
        await asyncio.sleep(0)
        assert not waiting.done(), "the journal says that it is sent"
        journal.release()
        await waiting
        (call,) = (await stored_progress(journal))["calls"]
    assert not call.get("is_sent", False)
    assert stage.link.sent == []


class SlowSealer(ProcessSealer):
    """Its second large state takes until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = 0
        self.ended: list[int] = []
        self.release = threading.Event()

    def seal_bytes(self, content: bytes, bound_to: bytes) -> bytes:
        self.begun += 1
        number = self.begun
        if number == 2:
            self.release.wait(60)
        sealed = super().seal_bytes(content, bound_to)
        self.ended.append(number)
        return sealed


async def test_large_states_are_stored_in_their_order_however_long_each_is_encrypted() -> None:
    stage, journal, sealer = Stage(), MemoryJournal(), SlowSealer()
    code = """
import asyncio
large = 'x' * 100_000
async def two():
    await files_read()
    await files_read()
await asyncio.gather(files_read(), two())
"""
    asked = ScriptRequest(ANYONE, EVERYTHING, code, id="one")
    async with scripts_of(stage, journal, sealer) as scripts:
        await store_first(scripts, journal, asked)
        listener = Listener()
        scripts.start_script(RunningScript(scripts, asked, listener, OWNER.key))
        await eventually(lambda: len(stage.link.sent) == 2, "two calls are sent", within=60)
        first, second = stage.link.sent
        second.finish(DONE)
        await eventually(lambda: sealer.begun == 2, "the next state is encrypted", within=60)
        first.finish(DONE)
        await eventually(lambda: sealer.ended == [1, 3], "the third state is encrypted first", within=60)
        sealer.release.set()
        await eventually(lambda: len(stage.link.sent) == 3 or bool(listener.ends), "it goes on", within=60)
        assert not listener.ends
        stage.link.sent[2].finish(DONE)
        await listener.ended.wait()
    (outcome,) = listener.ends
    assert isinstance(outcome, Result)


async def store_first(scripts: Scripts, journal: MemoryJournal, asked: ScriptRequest) -> None:
    kept: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    journal.write([scripts.first_document(asked, OWNER.key)], kept.set_result)
    await kept


async def stored_progress(journal: MemoryJournal) -> Any:
    document = await stored(journal, CALLS)
    return msgspec.json.decode(document.body or b"{}") if document is not None else {}


@pytest.mark.parametrize("how", ["question", "member of a fleet"])
async def test_a_sent_call_that_waits_for_a_person_is_stored_as_sent_with_the_time_that_is_left(how: str) -> None:
    stage, journal = Stage(), MemoryJournal()
    async with scripts_of(stage, journal) as scripts:
        await store_first(scripts, journal, request(1))
        scripts.start_script(RunningScript(scripts, request(1), Listener(), OWNER.key))
        await eventually(lambda: len(stage.link.sent) == 1, "the call is sent", within=60)
        (inflight,) = stage.link.sent
        question = Question("elicitation/create", msgspec.Raw(b"{}"))
        if how == "question":
            inflight.ask(question, lambda _: None)
        else:
            assert isinstance(inflight.exchange, HoldableExchange)
            inflight.exchange.held(question)

        async def is_stored() -> bool:
            return bool((await stored_progress(journal)).get("seconds_left"))

        await eventually(is_stored, "the next hub knows it", within=60)
        (call,) = (await stored_progress(journal))["calls"]
    assert (call["is_sent"], call.get("is_held", False)) == (True, False)


@pytest.mark.parametrize(("cores", "found"), [({0, 1, 2}, [1, 2]), ({3}, [3]), ({5, 2}, [5])])
def test_workers_leave_one_core_to_the_hub_if_there_are_several(cores: set[int], found: list[int]) -> None:
    assert worker_cores(cores) == found


async def test_the_first_scripts_of_a_hub_may_start_at_once() -> None:
    async with sandboxed() as sandbox, asyncio.timeout(60):
        hosts = [Host() for _ in range(6)]
        await asyncio.gather(*[sandbox.start(ScriptSource("1", (), CodeSettings()), host) for host in hosts])
        assert [(await host.end).kind for host in hosts] == ["returned"] * 6


async def test_a_dead_process_of_the_sandbox_ends_its_scripts_and_the_next_one_starts_another() -> None:
    async with sandboxed() as sandbox, asyncio.timeout(60):
        waiting, late = Host(), Host()
        source = ScriptSource("import asyncio\nawait asyncio.sleep(5)", (), CodeSettings())
        await sandbox.start(source, waiting)
        assert [call.tool for call in (await waiting.stop).calls] == [""]
        assert sandbox.pid is not None
        workers = descendants(sandbox.pid)
        os.kill(sandbox.pid, signal.SIGKILL)
        end = await waiting.end
        assert (end.kind, "killed by signal 9" in end.message) == ("crashed", True)
        await eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "its workers end")
        await sandbox.start(ScriptSource("1 + 1", (), CodeSettings()), late)
        assert (await late.end).result == "2"


async def test_arguments_that_start_at_once_are_bounded_together() -> None:
    one = "async def one() -> None:\n    await _call('t', 'x' * 900_000)  # type: ignore\n"
    code = f"import asyncio\n{one}await asyncio.gather(*[one() for _ in range(12)])"
    async with sandboxed() as sandbox, asyncio.timeout(60):
        host = Host()
        await sandbox.start(ScriptSource(code, (), CodeSettings(memory_bytes=8_000_000)), host)
        assert "longer than [code] memory_bytes (executed: no)" in (await host.end).message


def test_exposing_code_without_the_library_names_the_extra_to_install() -> None:
    configuration = Configuration(None, HubSettings(expose="code"))
    with pytest.raises(ConfigError, match=r"isthmus\[code\]"):
        check_code(configuration, lambda: False)
    check_code(configuration, lambda: True)
    check_code(Configuration(None, HubSettings()), lambda: False)


@pytest.mark.parametrize("name", CodeSettings.__slots__)
def test_a_limit_must_be_positive(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be positive, not 0"):
        CodeSettings(**{name: 0})
