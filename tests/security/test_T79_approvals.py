"""T79: an approved call is not the call that runs, or runs more often than it was approved.

What a person allows is bound to caller, set, tool, definition and arguments: equal arguments in any spelling and by any
frontend share one digest exactly if the server would see equal JSON. A decision serves once, for its caller, until it
expires or the definition changes. Requests outlast a killed hub, and one caller cannot fill the store.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import grpc
import httpx2
import msgspec
from google.protobuf import json_format
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from isthmus.library import ToolRequest, ToolService
from tests.choices import IS_FULL
from tests.faults.test_tasks_crash import killed
from tests.frontends.test_a2a_grpc import address as grpc_address
from tests.frontends.test_a2a_grpc import call as grpc_call
from tests.hubs import META, MODERN, PATIENT, TRUSTED, HubProcess, Raw, serving, stdio, write_config
from tests.property.echo_server import command
from tests.property.respelled import Json, documents, is_equal, respelled
from tests.relay.peers import Device, device
from tests.relay.tokens import KEY
from tests.security.fickle import Fickle, announced, definitions, until
from tests.security.fickle_server import tool

EXAMPLES = 12 if IS_FULL else 6
PENDING = 1_000
CALLERS_OF_PENDING = 10
HELD_SECONDS = 0.4
"""The timeout of the server whose calls are held in the property: so long each refused call takes."""

KEYS = {name: f"key-of-{name}-0123456789" for name in ("agent", "other", "finder", "coder", "boss")}
CALLERS: dict[str, Any] = {
    **{name: {"key": KEYS[name], "allow": ["*"]} for name in ("agent", "other")},
    "finder": {"key": KEYS["finder"], "allow": ["*"], "expose": "search"},
    "coder": {"key": KEYS["coder"], "allow": ["*"], "expose": "code"},
    "boss": {"key": KEYS["boss"], "allow": [], "operator": True},
}
RULES: dict[str, Any] = {"all": {"tools": ["bank.*"]}}
NAME = "bank.echo"
DEVICES = "garden"
"""The agent of the relay whose device calls."""
PLAIN = {"content-type": "application/json", "accept": "application/json"}
COMPLETED, AUTH_REQUIRED = 3, 8
"""States of tasks, as gRPC numbers them."""
JSON_TYPE = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


def http_of(port: int, who: str) -> httpx2.AsyncClient:
    headers = {"authorization": f"Bearer {KEYS.get(who, who)}"}
    return httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60, verify=TRUSTED)


# -- every frontend ----------------------------------------------------------------------------------------------------

Ran: TypeAlias = str | None
"""The text of the arguments that the server saw; None if the call waits for approval."""


class Entry(NamedTuple):
    """One way to call the tool."""

    caller: str
    """Whom a decision is about; of each caller one entry asks for it."""
    call: Callable[[str], Awaitable[Ran]]
    sent: Callable[[str], str] = str
    """What it makes of a text before the hub sees it."""


def as_values(text: str) -> str:
    """A Python program has values, and no spellings."""
    return json.dumps(json.loads(text))


def as_doubles(text: str) -> str:
    """All numbers of protobuf's `Struct` are doubles, so that long ones lose digits."""
    return json.dumps(json.loads(text, parse_int=float))


_ids = itertools.count()


class _Result(msgspec.Struct):
    structuredContent: msgspec.Raw  # noqa: N815 - as it is spelt on the wire


class _ErrorData(msgspec.Struct):
    reason: str


class _Error(msgspec.Struct):
    data: _ErrorData


class _Answer(msgspec.Struct):
    result: _Result | None = None
    error: _Error | None = None


def ran(answer: _Answer) -> Ran:
    if answer.result is not None:
        return bytes(answer.result.structuredContent).decode()
    assert answer.error is not None
    assert answer.error.data.reason == "approval_pending", answer
    return None


async def mcp_modern(http: httpx2.AsyncClient, text: str, name: str = NAME) -> Ran:
    params = f'{{"name":"{name}","arguments":{text},"_meta":{json.dumps(META)}}}'
    headers = {**JSON_TYPE, "mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": name}
    body = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}'
    answer = await http.post("/mcp", content=body.encode(), headers=headers)
    return ran(msgspec.json.decode(last_message(answer), type=_Answer))


async def by_call_tool(http: httpx2.AsyncClient, text: str) -> Ran:
    return await mcp_modern(http, f'{{"arguments":{text},"name":"{NAME}"}}', "call_tool")


async def mcp_legacy(http: httpx2.AsyncClient, text: str) -> Ran:
    body = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{NAME}","arguments":{text}}}}}'
    answer = await http.post("/mcp", content=body.encode(), headers=JSON_TYPE)
    return ran(msgspec.json.decode(last_message(answer), type=_Answer))


def last_message(answer: httpx2.Response) -> bytes:
    if answer.headers["content-type"].startswith("text/event-stream"):
        return [line[5:] for line in answer.content.split(b"\n") if line.startswith(b"data:") and line[5:].strip()][-1]
    return answer.content


async def rest(http: httpx2.AsyncClient, text: str) -> Ran:
    answer = await http.post(f"/v1/tools/{NAME}", content=text.encode(), headers=PLAIN)
    if answer.status_code == 200:
        return bytes(msgspec.json.decode(answer.content, type=_Result).structuredContent).decode()
    assert answer.json()["reason"] == "approval_pending", answer.text
    return None


class _Part(msgspec.Struct):
    data: msgspec.Raw = msgspec.Raw(b"null")


class _Artifact(msgspec.Struct):
    parts: list[_Part]


class _Status(msgspec.Struct):
    state: str


class _Task(msgspec.Struct):
    status: _Status
    artifacts: list[_Artifact] = []

    id: str = ""


class _Sent(msgspec.Struct):
    task: _Task


class _A2aAnswer(msgspec.Struct):
    result: _Sent


async def send(http: httpx2.AsyncClient, data: str) -> tuple[Ran, str]:
    """Send a message of A2A: what its task returned, and the task."""
    message = f'{{"messageId":"m-{next(_ids)}","role":"ROLE_USER","parts":[{{"data":{data}}}]}}'
    body = f'{{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{{"message":{message}}}}}'
    answer = await http.post("/a2a", content=body.encode(), headers={**JSON_TYPE, "a2a-version": "1.0"})
    task = msgspec.json.decode(answer.content, type=_A2aAnswer).result.task
    if task.status.state == "TASK_STATE_COMPLETED":
        return next(
            bytes(part.data).decode() for part in task.artifacts[0].parts if bytes(part.data) != b"null"
        ), task.id
    assert task.status.state == "TASK_STATE_AUTH_REQUIRED", answer.text
    return None, task.id


async def a2a(http: httpx2.AsyncClient, text: str) -> Ran:
    return (await send(http, f'{{"tool":"{NAME}","arguments":{text}}}'))[0]


async def by_script(http: httpx2.AsyncClient, text: str) -> Ran:
    # As text: what a script returns has integers of 64 bits at most.
    code = f"import json\njson.dumps(await bank_echo(**json.loads({text!a})))"
    returned, task = await send(http, json.dumps({"code": code}))
    if returned is not None:
        return str(json.loads(returned)["result"])
    # A script that waits has a process, and a caller has only so many.
    body = {"jsonrpc": "2.0", "id": 1, "method": "CancelTask", "params": {"id": task}}
    assert "result" in (await http.post("/a2a", json=body, headers={"a2a-version": "1.0"})).json()
    return None


async def by_grpc(channel: Any, text: str) -> Ran:
    parts = [{"data": {"tool": NAME, "arguments": json.loads(text)}}]
    message = {"messageId": f"m-{next(_ids)}", "role": "ROLE_USER", "parts": parts}
    task = (await grpc_call(channel, "SendMessage", {"message": message}, KEYS["agent"])).task
    if task.status.state == COMPLETED:
        return json.dumps(json_format.MessageToDict(task.artifacts[0].parts[0].data))
    assert task.status.state == AUTH_REQUIRED, task
    return None


async def by_device(device: Device, text: str) -> Ran:
    answer = await device_answer(device, text)
    return ran(msgspec.json.decode(answer, type=_Answer))


async def device_answer(device: Device, text: str) -> str | bytes:
    id = 1000 + next(_ids)
    params = f'{{"name":"echo","arguments":{text}}}'
    await device.say(f'{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}')
    await device.answer(id)
    return next(frame for frame in reversed(device.frames) if json.loads(frame).get("id") == id)


async def by_library(service: ToolService, text: str) -> Ran:
    result = await service.execute_tool(ToolRequest(NAME, parameters=json.loads(text)))
    if result.error is None:
        return json.dumps(result.data)
    assert result.error.reason == "approval_pending", result.error
    return None


class Everywhere(NamedTuple):
    """A hub whose calls are held, and all ways to make them."""

    entries: Mapping[str, Entry]
    ask: Mapping[str, Callable[[str], Awaitable[Any]]]
    """Makes a call that will wait, for each caller: the problem."""
    boss: httpx2.AsyncClient


@asynccontextmanager
async def everywhere(folder: Path) -> AsyncIterator[Everywhere]:
    servers = {"bank": stdio(command(), timeout=HELD_SECONDS)}
    tables: dict[str, Any] = {
        "relay": {"key": KEY, "agents": {DEVICES: {"allow": ["bank.*"]}}},
        "a2a": {"grpc_port": 0},
    }
    async with (
        serving(folder, servers, callers=CALLERS, approvals=RULES, limits=PATIENT, **tables) as hub,
        opened(hub, "agent") as agent,
        opened(hub, "finder") as finder,
        opened(hub, "coder") as coder,
        opened(hub, "boss") as boss,
        grpc.aio.insecure_channel(await grpc_address(hub)) as channel,
        device(hub.port, DEVICES) as thing,
    ):
        await thing.ready()
        service = ToolService()
        await service.initialize(hub=hub.url, key=KEYS["agent"])
        async with service:
            entries = {
                "modern": Entry("agent", partial(mcp_modern, agent)),
                "legacy": Entry("agent", partial(mcp_legacy, agent)),
                "call_tool": Entry("finder", partial(by_call_tool, finder)),
                "rest": Entry("agent", partial(rest, agent)),
                "a2a": Entry("agent", partial(a2a, agent)),
                "grpc": Entry("agent", partial(by_grpc, channel), as_doubles),
                "library": Entry("agent", partial(by_library, service), as_values),
                "script": Entry("coder", partial(by_script, coder), as_values),
                "relay": Entry("device", partial(by_device, thing)),
            }

            async def ask_by_device(text: str) -> Any:
                return json.loads(await device_answer(thing, text))["error"]["data"]

            clients = {"agent": agent, "finder": finder, "coder": coder}
            asking = {name: partial(ask_by_rest, http) for name, http in clients.items()}
            yield Everywhere(entries, {**asking, "device": ask_by_device}, boss)


async def ask_by_rest(http: httpx2.AsyncClient, text: str) -> Any:
    return (await http.post(f"/v1/tools/{NAME}?timeout=0.05", content=text.encode(), headers=PLAIN)).json()


def test_what_was_allowed_serves_equal_arguments_by_every_frontend_and_no_others(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        entries, ask, boss = runner.run(stack.enter_async_context(everywhere(tmp_path)))
        numbers = itertools.count()

        async def compare(allowed: str, others: Mapping[str, str]) -> None:
            for problem in await asyncio.gather(*(asks(allowed) for asks in ask.values())):
                await allow(boss, problem, **{"for": "hour"})
            results = await asyncio.gather(*(entries[name].call(text) for name, text in others.items()))
            for (name, text), seen in zip(others.items(), results, strict=True):
                assert (seen is not None) is is_equal(allowed, entries[name].sent(text)), (name, allowed, text)
                assert seen is None or is_equal(allowed, seen), (name, allowed, seen)

        @settings(
            max_examples=EXAMPLES, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
        )
        @given(st.data(), documents(), documents())
        def check(data: st.DataObject, value: Json, other: Json) -> None:
            # Of each example its own: what was allowed before must not serve.
            number = next(numbers)
            value, other = {**value, "number": number}, {**other, "number": number}
            same = {name: data.draw(respelled(value)) for name in entries}
            runner.run(compare(data.draw(respelled(value)), same))
            changed = {name: data.draw(respelled(other)) for name in entries}
            if not is_equal(data.draw(respelled(value)), changed["rest"]):
                value = {**value, "again": 1}
                runner.run(compare(data.draw(respelled(value)), changed))

        try:
            check()
        finally:
            runner.run(stack.aclose())


@asynccontextmanager
async def opened(hub: HubProcess, who: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with http_of(hub.port, who) as http:
        yield http


# -- replayed, expired, stolen, changed --------------------------------------------------------------------------------


async def ask(http: httpx2.AsyncClient, arguments: Any, name: str = NAME, seconds: float = 0.1) -> Any:
    return (await http.post(f"/v1/tools/{name}?timeout={seconds}", json=arguments)).json()


async def allow(boss: httpx2.AsyncClient, problem: Any, **how: Any) -> None:
    """Allow a call. Its caller may have given up before the request was stored: until then nobody can decide."""
    assert problem["reason"] == "approval_pending", problem

    async def is_allowed() -> bool:
        answer = await boss.post(f"/v1/approvals/allow/{problem['approval']}", json=how)
        assert answer.status_code in (200, 404), answer.text
        return answer.status_code == 200

    await until(is_allowed, "the request is stored")


async def test_a_decision_is_not_replayed_not_shared_and_does_not_last(tmp_path: Path) -> None:
    rules = {"all": {"tools": ["bank.*"], "expires": 2}}
    async with (
        serving(tmp_path, {"bank": stdio(command())}, callers=CALLERS, approvals=rules, limits=PATIENT) as hub,
        opened(hub, "agent") as agent,
        opened(hub, "other") as other,
        opened(hub, "boss") as boss,
    ):
        await allow(boss, await ask(agent, {"n": 1}))
        assert (await ask(other, {"n": 1}))["reason"] == "approval_pending"
        several = await asyncio.gather(*(ask(agent, {"n": 1}, seconds=1) for _ in range(20)))
        assert sum("structuredContent" in each for each in several) == 1
        assert {each["executed"] for each in several if "structuredContent" not in each} == {"no"}
        late = await ask(agent, {"n": 2})
        await allow(boss, late)

        async def is_gone() -> bool:
            return (await boss.get(f"/v1/approvals/{late['approval']}")).status_code == 404

        await until(is_gone, "it expires")
        again = await ask(agent, {"n": 2})
        assert (again["reason"], again["approval"] != late["approval"]) == ("approval_pending", True)


async def test_a_changed_definition_voids_what_was_allowed(tmp_path: Path) -> None:
    fickle = Fickle(tmp_path / "lists.json")
    fickle.lists(tool("pay", "Pays."))
    rules = {"all": {"tools": ["fickle.pay"]}}
    async with (
        serving(tmp_path, {"fickle": fickle.entry}, callers=CALLERS, approvals=rules, limits=PATIENT) as hub,
        opened(hub, "agent") as agent,
        opened(hub, "boss") as boss,
        Raw(hub.url, key=KEYS["agent"]) as raw,
    ):
        first = await ask(agent, {}, "fickle.pay")
        await allow(boss, first, **{"for": "hour"})
        assert "content" in await ask(agent, {}, "fickle.pay", seconds=10)
        fickle.lists(tool("pay", "Pays twice."))
        await announced(raw)

        async def is_changed() -> bool:
            return bool((await definitions(raw))["fickle.pay"]["description"] == "Pays twice.")

        await until(is_changed, "the new definition is listed")
        second = await ask(agent, {}, "fickle.pay")
        assert (second["reason"], second["executed"]) == ("approval_pending", "no")
        assert second["approval"] != first["approval"]


# -- kill -9, and bounds -----------------------------------------------------------------------------------------------


async def test_pending_approvals_survive_a_killed_hub_and_one_caller_has_a_limit(tmp_path: Path) -> None:
    keys = {f"agent{number}": f"key-of-agent-{number}-0123456789" for number in range(CALLERS_OF_PENDING)}
    callers = {**CALLERS, **{name: {"key": key, "allow": ["*"]} for name, key in keys.items()}}
    config = write_config(tmp_path, {"bank": stdio(command())}, callers=callers, approvals=RULES, limits=PATIENT)
    each = PENDING // CALLERS_OF_PENDING
    async with killed(config) as hub:
        ids: set[str] = set()
        for key in keys.values():
            async with http_of(hub.port, key) as http:
                made = await asyncio.gather(*(ask(http, {"n": number}, seconds=0.5) for number in range(each)))
                ids |= {problem["approval"] for problem in made}
                assert (await ask(http, {"n": -1}))["reason"] == "too_many_approvals"
        assert len(ids) == PENDING
        hub.process.kill()
    async with killed(config) as hub, opened(hub, "boss") as boss:
        found: set[str] = set()
        cursor: str | None = ""
        while cursor is not None:
            page = (await boss.get(f"/v1/approvals?state=pending&limit=100&cursor={cursor}")).json()
            found |= {each["id"] for each in page["approvals"]}
            cursor = page["next"]
        assert found == ids
        # Those that were allowed serve after the next kill, too, and only once.
        chosen = min(found)
        owner = (await boss.post(f"/v1/approvals/allow/{chosen}", json={})).json()
        hub.process.kill()
    async with killed(config) as hub, http_of(hub.port, keys[owner["caller"]]) as http:
        assert (await ask(http, owner["arguments"], seconds=20))["structuredContent"] == owner["arguments"]
        hub.process.kill()
    async with killed(config) as hub, http_of(hub.port, keys[owner["caller"]]) as http:
        assert (await ask(http, owner["arguments"]))["reason"] == "approval_pending"
