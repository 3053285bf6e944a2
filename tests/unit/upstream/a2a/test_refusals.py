"""Agents that refuse, or talk nonsense: the fault says so, and the next call works."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from msgspec.structs import replace

from isthmus.model.fault_table import (
    BadReply,
    NotConnected,
    ServerError,
)
from isthmus.model.tasks import TextPart
from isthmus.upstream.a2a import remote_task
from isthmus.upstream.a2a.remote_task import DRAINING_MAX, DrainingConnections
from isthmus.wire.a2a.operations import A2aProblem, CancelTask, SendMessage
from tests.unit.upstream.a2a.scene import SECONDS, Scene, opened, texts
from tests.unit.upstream.a2a.scripted import (
    DONE,
    HELLO,
    TASK,
    WORKING,
    Kind,
    Out,
    Script,
    made,
    streaming,
)

# -- agents that mean no good ----------------------------------------------------------------------------------------


async def test_a_refusal_reaches_the_caller_with_its_code(every: Scene) -> None:
    async def refuse(_: SendMessage, out: Out) -> None:
        out.refuse(A2aProblem("invalid_params", "only text"))

    fault = (await every.answered(refuse)).fault
    assert isinstance(fault, ServerError), fault
    assert (fault.code, fault.message) == (-32602, "only text")


async def test_a_refusal_is_reported_without_secrets(every: Scene) -> None:
    async def refuse(_: SendMessage, out: Out) -> None:
        out.refuse(A2aProblem("invalid_params", "not with secret"))

    every.link.redact = lambda text: text.replace("secret", "***")
    fault = (await every.answered(refuse)).fault
    assert isinstance(fault, ServerError), fault
    assert fault.message == "not with ***"


@pytest.mark.parametrize("status", [401, 403])
async def test_a_rejected_caller_gets_an_error(every: Scene, status: int) -> None:
    async def refuse(_: SendMessage, out: Out) -> None:
        out.body(b"", status)

    fault = (await every.answered(refuse)).fault
    assert isinstance(fault, NotConnected)
    assert (fault.executed, fault.status) == ("no", status)


async def test_a_caller_that_must_log_in_learns_where(every: Scene) -> None:
    async def refuse(_: SendMessage, out: Out) -> None:
        out.body(b"", 401, www_authenticate='Bearer resource_metadata="https://login.example/meta"')

    fault = (await every.answered(refuse)).fault
    assert isinstance(fault, NotConnected)
    assert fault.login == "https://login.example/meta"


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("status", [404, 429, 504])
async def test_a_call_that_a_proxy_refuses_may_have_run(version: str, status: int) -> None:
    async with opened(Kind(version, "HTTP+JSON")) as scene:
        fault = (await scene.answered(_body(b'{"message":"Endpoint request timed out"}', status))).fault
    assert isinstance(fault, ServerError)
    assert fault.executed == "unknown"


async def test_a_null_error_is_ignored(plain: Scene) -> None:
    async def answer(_: SendMessage, out: Out) -> None:
        done = out.envelope(b'{"task":{"id":"t","status":{"state":"TASK_STATE_COMPLETED"}}}')
        out.body(done[:-1] + b',"error":null}')

    assert texts(await plain.answered(answer)) == []


async def test_an_agent_may_omit_empty_members(scene: Scene) -> None:
    async def say(_: SendMessage, out: Out) -> None:
        out.begin()
        out.send_updates(WORKING, HELLO)
        out.raw(out.encoded(made(is_more=True)).replace(b',"parts":[]', b""))
        out.send_updates(DONE)
        out.end()

    assert texts(await scene.answered(say)) == ["hello"]


# -- connections of calls that are over ------------------------------------------------------------------------------

MANY = 12
"""More than there are connections."""


async def test_streams_that_agents_do_not_end_leave_room_for_calls(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stay(_: SendMessage, out: Out) -> None:
        out.begin()
        out.send_updates(WORKING, HELLO, DONE)
        await asyncio.Event().wait()

    monkeypatch.setattr(remote_task, "LINGER_SECONDS", 600)
    for _ in range(MANY):
        assert texts(await scene.answered(stay)) == ["hello"]


def _event(data: bytes) -> Script:
    async def script(_: SendMessage, out: Out) -> None:
        out.begin()
        out.raw(b"data: %b\n\n" % data)
        await asyncio.Event().wait()

    return script


def _flood() -> Script:
    async def script(_: SendMessage, out: Out) -> None:
        out.begin()
        out.send_updates(WORKING)
        for _number in range(1000):
            out.send_updates(made(TextPart("x" * 1024), is_more=True))
            await asyncio.sleep(0)
        await asyncio.Event().wait()

    return script


def _body(body: bytes, status: int = 200) -> Script:
    async def script(_: SendMessage, out: Out) -> None:
        out.body(body, status)

    return script


BAD: dict[str, tuple[Script, str]] = {
    "no JSON": (_event(b"hello"), "usable"),
    "another id": (_event(b'{"jsonrpc":"2.0","id":99,"result":{}}'), "another request"),
    "nothing": (_event(b'{"jsonrpc":"2.0","id":1,"result":{}}'), "it is empty"),
    "too much": (_event(b'"%b"' % (b"x" * 70_000)), "an event of over 65536 bytes"),
    "endless artifacts": (_flood(), "artifacts of over 65536 bytes"),
    "silence": (streaming(), "ended before its first event"),
    "HTML": (_body(b"<html>", 502), "HTTP 502"),
    "a long body": (_body(b"x" * 70_000), "an answer of over 65536 bytes"),
    "no task": (_body(b'{"jsonrpc":"2.0","id":1,"result":{"task":{"id":7}}}'), "unexpected response"),
}


@pytest.mark.parametrize("case", BAD)
async def test_nonsense_is_the_agents_fault_and_the_next_call_works(scene: Scene, case: str) -> None:
    script, words = BAD[case]
    fault = (await scene.answered(script)).fault
    assert isinstance(fault, BadReply), fault
    assert fault.executed == "unknown"
    assert words in fault.message
    assert texts(await scene.answered(streaming(WORKING, HELLO, DONE))) == ["hello"]


async def test_an_answer_about_another_task_is_not_taken(scene: Scene) -> None:
    other = replace(DONE, task="t-2")
    fault = (await scene.answered(streaming(WORKING, other))).fault
    assert isinstance(fault, BadReply)
    assert "another task" in fault.message
    async with asyncio.timeout(SECONDS):
        await scene.agent.cancelled.wait()
    assert scene.agent.asked[-1] == CancelTask(TASK)


async def test_the_oldest_goes_where_one_too_many_lingers() -> None:
    lingering, stopped = DrainingConnections(), list[int]()
    for number in range(DRAINING_MAX + 2):
        lingering.add(partial(stopped.append, number), 600)
    assert stopped == [0, 1]


async def test_ended_connections_are_not_stopped_and_free_their_slots() -> None:
    lingering, stopped = DrainingConnections(), list[int]()
    stops = [partial(stopped.append, number) for number in range(DRAINING_MAX + 1)]
    for stop in stops:
        lingering.add(stop, 600)
        lingering.drop(stop)
        lingering.drop(stop)
    assert stopped == []


async def test_nothing_lingers_longer_than_it_may() -> None:
    lingering, stopped = DrainingConnections(), asyncio.Event()
    lingering.add(stopped.set, 0)
    async with asyncio.timeout(5):
        await stopped.wait()
