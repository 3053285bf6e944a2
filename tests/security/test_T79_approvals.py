"""T79: an approved call is not the call that runs, or runs more often than it was approved.

What a person allows is bound to caller, set, tool, definition and arguments: equal arguments in any spelling and by any
frontend share one digest exactly if the server would see equal JSON. A call that was held runs with the arguments that
the person saw. A decision serves once, for its caller, until it expires or the definition changes. Requests outlast a
killed hub, and one caller cannot fill the store.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
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
from tests.fork_server import quick_isthmus
from tests.frontends.test_a2a_grpc import address as grpc_address
from tests.frontends.test_a2a_grpc import call as grpc_call
from tests.hubs import META, MODERN, PATIENT, TRUSTED, HubProcess, Raw, environment, serving, stdio, write_config
from tests.property.echo_server import command
from tests.property.respelled import Json, documents, is_equal, respelled
from tests.relay.peers import Device, device
from tests.relay.tokens import KEY
from tests.security.fickle import Fickle, announced, definitions, until
from tests.security.fickle_server import tool

EXAMPLES = 12 if IS_FULL else 6
RESUMED_EXAMPLES = 6 if IS_FULL else 2
PENDING = 1_000
CALLERS_OF_PENDING = 10
HELD_SECONDS = 0.4
"""The timeout of the server whose calls are refused in the property: so long each refused call takes."""
RESUMED_SECONDS = 60.0
"""The timeout of the server whose calls are allowed while they wait."""

KEYS = {name: f"key-of-{name}-0123456789" for name in ("agent", "other", "finder", "coder", "boss")}
CALLERS: dict[str, Any] = {
    **{name: {"key": KEYS[name], "allow": ["*"]} for name in ("agent", "other")},
    "finder": {"key": KEYS["finder"], "allow": ["*"], "expose": "search"},
    "coder": {"key": KEYS["coder"], "allow": ["*"], "expose": "code"},
    "boss": {"key": KEYS["boss"], "allow": [], "operator": True},
}
RULES: dict[str, Any] = {"all": {"tools": ["bank.*"]}}
SETS: dict[str, Any] = {"picked": {"tools": ["bank.*"]}}
NAME = "bank.echo"
DEVICES = "garden"
"""The agent of the relay whose device calls."""
PLAIN = {"content-type": "application/json", "accept": "application/json"}
COMPLETED = ("TASK_STATE_COMPLETED", "completed")
AUTH_REQUIRED = ("TASK_STATE_AUTH_REQUIRED", "auth-required")
WORKING = ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING", "submitted", "working")
JSON_TYPE = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


def http_of(port: int, who: str) -> httpx2.AsyncClient:
    headers = {"authorization": f"Bearer {KEYS.get(who, who)}"}
    return httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60, verify=TRUSTED)


# -- every frontend ----------------------------------------------------------------------------------------------------

Ran: TypeAlias = str | None
"""The text of the arguments that the server saw; None if the call waits for approval."""


class Entry(NamedTuple):
    """One way to call the tool."""

    call: Callable[[str], Awaitable[Ran]]
    sent: Callable[[str], str] = str
    """What it makes of a text before the hub sees it."""
    resumed: Callable[[str], Awaitable[Ran]] | None = None
    """Calls the tool and follows the task to its end; other entries wait with their call."""


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
    approval: str = ""


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


async def mcp_modern(http: httpx2.AsyncClient, text: str, name: str = NAME, path: str = "/mcp") -> Ran:
    return ran(await modern_answer(http, text, name, path))


async def modern_answer(http: httpx2.AsyncClient, text: str, name: str, path: str) -> _Answer:
    params = f'{{"name":"{name}","arguments":{text},"_meta":{json.dumps(META)}}}'
    headers = {**JSON_TYPE, "mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": name}
    body = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}'
    answer = await http.post(path, content=body.encode(), headers=headers)
    return msgspec.json.decode(last_message(answer), type=_Answer)


async def by_set(http: httpx2.AsyncClient, text: str) -> Ran:
    return await mcp_modern(http, text, "echo", "/mcp/picked")


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


class Session:
    """A session of the legacy era whose messages come one by one: over HTTP+SSE, or over standard streams."""

    def __init__(self, send: Callable[[bytes], Awaitable[object]], messages: AsyncIterator[bytes]) -> None:
        self._send = send
        self._messages = messages
        self.question: Any = None
        """The hub asks this user whether the call may run."""

    async def begin(self, **capabilities: Any) -> None:
        info = {"name": "t", "version": "1"}
        client = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": info}
        body = {"jsonrpc": "2.0", "id": "begin", "method": "initialize", "params": client}
        await self._answer(json.dumps(body).encode(), "begin")
        await self._send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')

    async def call(self, text: str) -> Ran:
        id = f"call-{next(_ids)}"
        params = f'{{"name":"{NAME}","arguments":{text}}}'
        # One line, as standard streams have it; the line breaks here are white space between members.
        body = f'{{"jsonrpc":"2.0","id":"{id}","method":"tools/call","params":{params}}}'.replace("\n", " ")
        return ran(msgspec.json.decode(await self._answer(body.encode(), id), type=_Answer))

    async def decide(self, decision: str) -> None:
        result = {"action": "accept", "content": {"decision": decision}}
        await self._send(json.dumps({"jsonrpc": "2.0", "id": self.question["id"], "result": result}).encode())

    async def allow_for_an_hour(self, text: str) -> None:
        """Make a call, and allow it; again if its time was over before."""
        while True:
            self.question, call = None, asyncio.ensure_future(self.call(text))

            async def is_asked_or_over(call: asyncio.Future[Ran] = call) -> bool:
                return self.question is not None or call.done()

            await until(is_asked_or_over, "it is asked")
            if self.question is not None:
                await self.decide("hour")
            if await call is not None:
                return

    async def _answer(self, body: bytes, id: str) -> bytes:
        await self._send(body)
        async with asyncio.timeout(RESUMED_SECONDS):
            async for message in self._messages:
                decoded = json.loads(message)
                if decoded.get("method") == "elicitation/create":
                    self.question = decoded
                elif decoded.get("id") == id:
                    return message
        raise AssertionError("the stream has ended")


async def data_of(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of each event. `aiter_lines` would also split at U+2028, which JSON may contain."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


@asynccontextmanager
async def sse_session(http: httpx2.AsyncClient) -> AsyncIterator[Session]:
    async with http.stream("GET", "/sse", headers={"accept": "text/event-stream"}) as answer:
        data = data_of(answer.aiter_bytes())
        endpoint = (await anext(data)).decode()
        session = Session(lambda body: http.post(endpoint, content=body, headers=JSON_TYPE), data)
        await session.begin()
        yield session


def stdio_command(folder: Path, servers: Mapping[str, Any]) -> list[str]:
    """The words that start `isthmus stdio`, which has no operators: its own user decides."""
    folder.mkdir()
    rules = {"own": {"tools": ["bank.*"], "by": "caller"}}
    config = write_config(folder, servers, approvals=rules, limits=PATIENT)
    return quick_isthmus("stdio", "--config", str(config))


@asynccontextmanager
async def stdio_session(words: Sequence[str]) -> AsyncIterator[Session]:
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment(),
        limit=1 << 20,
    )
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None
    assert stdout is not None

    async def send(body: bytes) -> None:
        stdin.write(body + b"\n")
        await stdin.drain()

    try:
        session = Session(send, aiter(stdout))
        await session.begin(elicitation={})
        yield session
    finally:
        stdin.close()
        await process.wait()


class _Part(msgspec.Struct):
    data: msgspec.Raw = msgspec.Raw(b"null")


class _Artifact(msgspec.Struct):
    parts: list[_Part]


class _Status(msgspec.Struct):
    state: str


class _Task(msgspec.Struct):
    id: str
    status: _Status
    artifacts: list[_Artifact] = []


class _Sent(msgspec.Struct):
    task: _Task


class A2a(NamedTuple):
    """One binding of A2A."""

    send: Callable[[str], Awaitable[_Task]]
    """Sends a message with this data."""
    get: Callable[[str], Awaitable[_Task]]

    async def call(self, text: str) -> Ran:
        return result_of(await self.send(instruction(text)))

    async def resumed(self, text: str) -> Ran:
        return await self.finished(await self.send(instruction(text)))

    async def finished(self, task: _Task) -> Ran:
        async with asyncio.timeout(RESUMED_SECONDS):
            while task.status.state not in COMPLETED:
                assert task.status.state in (*AUTH_REQUIRED, *WORKING), task
                await asyncio.sleep(0.05)
                task = await self.get(task.id)
        return result_of(task)


def instruction(text: str) -> str:
    return f'{{"tool":"{NAME}","arguments":{text}}}'


def result_of(task: _Task) -> Ran:
    if task.status.state in COMPLETED:
        return next(bytes(part.data).decode() for part in task.artifacts[0].parts if bytes(part.data) != b"null")
    assert task.status.state in AUTH_REQUIRED, task
    return None


def a2a_by_rpc(http: httpx2.AsyncClient) -> A2a:
    async def ask(method: str, params: str, kind: type[Any]) -> Any:
        body = f'{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}'
        answer = await http.post("/a2a", content=body.encode(), headers={**JSON_TYPE, "a2a-version": "1.0"})
        return msgspec.json.decode(
            msgspec.json.decode(answer.content, type=dict[str, msgspec.Raw])["result"], type=kind
        )

    async def send(data: str) -> _Task:
        sent: _Sent = await ask("SendMessage", f'{{"message":{message_of(data)}}}', _Sent)
        return sent.task

    async def get(id: str) -> _Task:
        task: _Task = await ask("GetTask", json.dumps({"id": id}), _Task)
        return task

    return A2a(send, get)


def a2a_by_http_json(http: httpx2.AsyncClient) -> A2a:
    headers = {**PLAIN, "a2a-version": "1.0"}

    async def send(data: str) -> _Task:
        body = f'{{"message":{message_of(data)}}}'
        answer = await http.post("/a2a/rest/message:send", content=body.encode(), headers=headers)
        return msgspec.json.decode(answer.content, type=_Sent).task

    async def get(id: str) -> _Task:
        answer = await http.get(f"/a2a/rest/tasks/{id}", headers=headers)
        return msgspec.json.decode(answer.content, type=_Task)

    return A2a(send, get)


def a2a_0_3(http: httpx2.AsyncClient) -> A2a:
    async def ask(method: str, params: str) -> _Task:
        body = f'{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}'
        answer = await http.post("/a2a", content=body.encode(), headers=PLAIN)
        return msgspec.json.decode(
            msgspec.json.decode(answer.content, type=dict[str, msgspec.Raw])["result"], type=_Task
        )

    async def send(data: str) -> _Task:
        parts = f'[{{"kind":"data","data":{data}}}]'
        message = f'{{"kind":"message","messageId":"m-{next(_ids)}","role":"user","parts":{parts}}}'
        return await ask("message/send", f'{{"message":{message},"configuration":{{"blocking":true}}}}')

    return A2a(send, lambda id: ask("tasks/get", json.dumps({"id": id})))


def a2a_by_grpc(channel: Any) -> A2a:
    def read(task: Any) -> _Task:
        return msgspec.json.decode(json_format.MessageToJson(task), type=_Task)

    async def send(data: str) -> _Task:
        message = {"message": json.loads(message_of(data))}
        return read((await grpc_call(channel, "SendMessage", message, KEYS["agent"])).task)

    async def get(id: str) -> _Task:
        return read(await grpc_call(channel, "GetTask", {"id": id}, KEYS["agent"]))

    return A2a(send, get)


def message_of(data: str) -> str:
    return f'{{"messageId":"m-{next(_ids)}","role":"ROLE_USER","parts":[{{"data":{data}}}]}}'


def script(text: str) -> str:
    # As text: what a script returns has integers of 64 bits at most.
    return json.dumps({"code": f"import json\njson.dumps(await bank_echo(**json.loads({text!a})))"})


async def by_script(http: httpx2.AsyncClient, text: str) -> Ran:
    task = await a2a_by_rpc(http).send(script(text))
    if (returned := result_of(task)) is not None:
        return str(json.loads(returned)["result"])
    # A script that waits has a process, and a caller has only so many.
    body = {"jsonrpc": "2.0", "id": 1, "method": "CancelTask", "params": {"id": task.id}}
    assert "result" in (await http.post("/a2a", json=body, headers={"a2a-version": "1.0"})).json()
    return None


async def resumed_script(http: httpx2.AsyncClient, text: str) -> Ran:
    agent = a2a_by_rpc(http)
    returned = await agent.finished(await agent.send(script(text)))
    assert returned is not None
    return str(json.loads(returned)["result"])


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
    allow: Mapping[str, Callable[[str], Awaitable[None]]]
    """Makes a call and has it allowed for an hour, for each caller and set."""
    boss: httpx2.AsyncClient
    attended: Session
    """The entry `stdio`, whose own user decides."""


@asynccontextmanager
async def everywhere(folder: Path, timeout: float) -> AsyncIterator[Everywhere]:
    servers = {"bank": stdio(command(), timeout=timeout)}
    tables: dict[str, Any] = {
        "relay": {"key": KEY, "agents": {DEVICES: {"allow": ["bank.*"]}}},
        "a2a": {"grpc_port": 0},
        "sets": SETS,
    }
    async with (
        serving(folder, servers, callers=CALLERS, approvals=RULES, limits=PATIENT, **tables) as hub,
        opened(hub, "agent") as agent,
        opened(hub, "finder") as finder,
        opened(hub, "coder") as coder,
        opened(hub, "boss") as boss,
        grpc.aio.insecure_channel(await grpc_address(hub)) as channel,
        device(hub.port, DEVICES) as thing,
        sse_session(agent) as sse,
        stdio_session(stdio_command(folder / "stdio", servers)) as attended,
    ):
        await thing.ready()
        service = ToolService()
        await service.initialize(hub=hub.url, key=KEYS["agent"])
        async with service:
            rpc, http_json, earlier = a2a_by_rpc(agent), a2a_by_http_json(agent), a2a_0_3(agent)
            by_grpc = a2a_by_grpc(channel)
            entries = {
                "modern": Entry(partial(mcp_modern, agent)),
                "legacy": Entry(partial(mcp_legacy, agent)),
                "sse": Entry(sse.call),
                "stdio": Entry(attended.call),
                "set": Entry(partial(by_set, agent)),
                "call_tool": Entry(partial(by_call_tool, finder)),
                "rest": Entry(partial(rest, agent)),
                "a2a": Entry(rpc.call, resumed=rpc.resumed),
                "a2a, HTTP+JSON": Entry(http_json.call, resumed=http_json.resumed),
                "a2a 0.3": Entry(earlier.call, resumed=earlier.resumed),
                "grpc": Entry(by_grpc.call, as_doubles, by_grpc.resumed),
                "library": Entry(partial(by_library, service), as_values),
                "script": Entry(partial(by_script, coder), as_values, partial(resumed_script, coder)),
                "relay": Entry(partial(by_device, thing)),
            }

            async def ask_by_device(text: str) -> Any:
                return json.loads(await device_answer(thing, text))["error"]["data"]

            async def ask_by_set(text: str) -> Any:
                answer = await modern_answer(agent, text, "echo", "/mcp/picked")
                assert answer.error is not None
                return msgspec.to_builtins(answer.error.data)

            async def allowed(asks: Callable[[str], Awaitable[Any]], text: str) -> None:
                await allow(boss, await asks(text), **{"for": "hour"})

            clients = {"agent": agent, "finder": finder, "coder": coder}
            asking: dict[str, Callable[[str], Awaitable[Any]]] = {"device": ask_by_device, "set": ask_by_set}
            asking |= {name: partial(ask_by_rest, http) for name, http in clients.items()}
            allowing = {name: partial(allowed, asks) for name, asks in asking.items()}
            yield Everywhere(entries, {**allowing, "stdio": attended.allow_for_an_hour}, boss, attended)


async def ask_by_rest(http: httpx2.AsyncClient, text: str) -> Any:
    return (await http.post(f"/v1/tools/{NAME}?timeout=0.05", content=text.encode(), headers=PLAIN)).json()


def test_what_was_allowed_serves_equal_arguments_by_every_frontend_and_no_others(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        entries, allowing, _, _ = runner.run(stack.enter_async_context(everywhere(tmp_path, HELD_SECONDS)))
        numbers = itertools.count()

        async def compare(allowed: str, others: Mapping[str, str]) -> None:
            await asyncio.gather(*(allows(allowed) for allows in allowing.values()))
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


class _Shown(msgspec.Struct):
    """A request as the operator sees it."""

    id: str
    arguments: msgspec.Raw


class _ShownList(msgspec.Struct):
    approvals: list[_Shown]


def test_a_held_call_of_every_frontend_resumes_with_the_arguments_that_were_shown(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        entries, _, boss, attended = runner.run(stack.enter_async_context(everywhere(tmp_path, RESUMED_SECONDS)))
        numbers = itertools.count()

        async def resume(texts: Mapping[str, str]) -> None:
            attended.question = None
            calls = {
                name: asyncio.ensure_future((entries[name].resumed or entries[name].call)(text))
                for name, text in texts.items()
            }
            shown: dict[str, str] = {}
            ids: list[str] = []

            async def are_held() -> bool:
                for name, each in calls.items():
                    assert not each.done(), (name, "it ended before anybody allowed it", each)
                listed = msgspec.json.decode((await boss.get("/v1/approvals?state=pending")).content, type=_ShownList)
                ids[:] = [each.id for each in listed.approvals]
                told = [bytes(each.arguments).decode() for each in listed.approvals]
                if attended.question is not None:
                    told.append(attended.question["params"]["message"].partition("Arguments:\n")[2])
                shown.update({json.loads(each)["entry"]: each for each in told})
                return shown.keys() == texts.keys()

            try:
                await until(are_held, "every call waits")
                await attended.decide("once")
                for id in ids:
                    assert (await boss.post(f"/v1/approvals/allow/{id}", json={})).status_code == 200
                for name, text in texts.items():
                    seen = await calls[name]
                    assert is_equal(entries[name].sent(text), shown[name]), (name, text, shown[name])
                    assert seen is not None, name
                    assert is_equal(shown[name], seen), (name, shown[name], seen)
            finally:  # hypothesis runs a failing example again: these calls would hide why it failed
                for each in calls.values():
                    each.cancel()

        @settings(
            max_examples=RESUMED_EXAMPLES,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(st.data(), documents())
        def check(data: st.DataObject, value: Json) -> None:
            number = next(numbers)
            runner.run(
                resume({name: data.draw(respelled({**value, "number": number, "entry": name})) for name in entries})
            )

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
