"""Functions as tools by `@tool`: the same on every frontend and in process, with progress, questions and errors."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from isthmus.library import Questions, ToolRequest, ToolService, ToolStatus, tool
from isthmus.upstream.python.registry import REGISTRY
from tests.frontends.test_a2a import Agent, run, stream_events
from tests.hubs import PATIENT, HubProcess, serving
from tests.matrix.answering_clients import FORMS, Action, Answerer, Behaviour, ClientName, client_of

SECONDS = 30.0

GADGETS = '''
from isthmus.library import ToolContext, tool

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}

print("a module may say something while it is imported")

@tool(annotations={"readOnlyHint": True})
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b

@tool
def greet(context: ToolContext) -> str:
    """Ask who it is, in a thread."""
    context.progress(1, 2, "asking")
    answer = context.ask_blocking("Your name?", NAME)
    context.progress(2, 2, "asked")
    return "Then not." if answer is None else f"Hello {answer['name']}"

@tool
async def greet_later(context: ToolContext) -> str:
    """Ask who it is, on the loop."""
    context.progress(1, 2, "asking")
    answer = await context.ask("Your name?", NAME)
    context.progress(2, 2, "asked")
    return "Then not." if answer is None else f"Hello {answer['name']}"

@tool
def fail(words: str) -> None:
    """Fail."""
    raise ValueError(words)

def helper() -> None:
    """No tool."""
'''

MARKED = """
from isthmus.library import tool

@tool(name="plus", permissions=["sums"])
def add(a: int, b: int) -> int:
    return a + b

def beside() -> None: ...
"""

OWN = ["builtin.add", "builtin.chat_log", "builtin.echo", "builtin.fail", "builtin.greet", "builtin.greet_later"]
LISTED = [*OWN, "builtin.timestamp", "x.plus"]
HELLO = f"Hello {FORMS['name']['name']}"
MODULES = ("gadgets_of_ours", "marked_of_ours")
SERVERS = {"x": {"python": MODULES[1], "path": "."}}
TOOLS = [MODULES[0], "nowhere_of_ours"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in zip(MODULES, (GADGETS, MARKED), strict=True):
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


@pytest.fixture
def own_imports() -> Iterator[None]:
    """What a service imports into this process is forgotten after the test."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name in MODULES:
        sys.modules.pop(name, None)
        REGISTRY.forget(name)


@pytest_asyncio.fixture
async def hub(folder: Path) -> AsyncIterator[HubProcess]:
    async with serving(folder, SERVERS, hub={"tools": TOOLS}, limits=PATIENT) as hub:
        yield hub


async def test_every_frontend_runs_the_same_function(hub: HubProcess) -> None:
    """One hub for all of it: to start one takes longer than the rest."""
    async with asyncio.timeout(SECONDS):
        await over_rest(hub)
        await over_a2a(hub)
        for client_name in ("sdk2-legacy", "sdk2-modern"):
            await over_mcp(hub, client_name)
    lost = "hub.tools.1 gives no tools: there is no Python module called nowhere_of_ours"
    assert any(lost in line for line in hub.said)


async def over_rest(hub: HubProcess) -> None:
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}/v1", timeout=SECONDS) as http:
        listed = (await http.get("/tools")).json()["tools"]
        assert sorted(each["name"] for each in listed) == LISTED
        (add,) = [each for each in listed if each["name"] == "builtin.add"]
        assert (add["description"], add["annotations"]) == ("Add two numbers.", {"readOnlyHint": True})
        assert add["inputSchema"]["required"] == ["a"]
        answer = (await http.post("/tools/builtin.add", json={"a": 2})).json()
        assert answer["structuredContent"] == {"result": 3}
        assert (await http.post("/tools/x.plus", json={"a": 2, "b": 3})).json()["structuredContent"] == {"result": 5}
        failed = (await http.post("/tools/builtin.fail", json={"words": "no"})).json()
        assert (failed["isError"], failed["content"][0]["text"]) == (True, "ValueError: no")
        assert (await http.post("/tools/builtin.add", json={"a": "x"})).status_code == 400
        unasked = (await http.post("/tools/builtin.greet", json={})).json()
        assert unasked["content"][0]["text"] == "NoAnswerError: This caller cannot be asked"
        stream = await http.post("/tools/builtin.greet_later", json={}, headers={"accept": "text/event-stream"})
        assert [line for line in stream.text.splitlines() if line.startswith("event")] == [
            "event: progress",
            "event: question",
            "event: result",
        ]


async def over_a2a(hub: HubProcess) -> None:
    async with Agent(hub) as agent:
        for name in ("greet", "greet_later"):
            asked = (await agent.ask("SendMessage", run(f"builtin.{name}")))["task"]
            assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
            assert asked["status"]["message"]["parts"][0] == {"text": "Your name?"}
            said = {
                "messageId": f"{name}2",
                "role": "ROLE_USER",
                "taskId": asked["id"],
                "parts": [{"data": FORMS["name"]}],
            }
            done = (await agent.ask("SendMessage", {"message": said}))["task"]
            assert done["status"]["state"] == "TASK_STATE_COMPLETED"
            assert HELLO in json.dumps(done["artifacts"])
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": run("builtin.fail", words="no")}
        async with agent.http.stream("POST", "/a2a", json=body) as answer:
            events = [data["result"] async for _, data in stream_events(answer.aiter_lines())]
        assert events[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_FAILED"


async def over_mcp(hub: HubProcess, client_name: ClientName) -> None:
    for name in ("greet", "greet_later"):
        assert await _greeted(hub, client_name, name, "accept") == (HELLO, ["asking", "asked"])
        assert await _greeted(hub, client_name, name, "decline") == ("Then not.", ["asking", "asked"])
    if client_name == "sdk2-legacy":  # the other client raises at once, and the hub hears nothing more
        text, _ = await _greeted(hub, client_name, "greet_later", "error")
        assert text == "NoAnswerError: User rejected"


async def _greeted(hub: HubProcess, client_name: ClientName, name: str, action: Action) -> tuple[str, list[str | None]]:
    """What a call came to, and what was heard on the way."""
    received: list[str | None] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        received.append(message)

    async with AsyncExitStack() as stack:
        client = await client_of(stack, hub.url, Answerer(Behaviour(("elicitation",), action)), client_name)
        result = await client.call_tool(f"builtin.{name}", {}, progress_callback=hear)
    block: Any = result.content[0]
    return block.text, received


@pytest.mark.usefixtures("own_imports")
async def test_the_same_file_gives_the_same_tools_in_process(folder: Path) -> None:
    file = folder / "isthmus.json"
    file.write_text(json.dumps({"servers": SERVERS, "hub": {"tools": TOOLS}, "limits": PATIENT}))
    answers: list[Any] = [FORMS["name"], None]
    async with (
        ToolService(questions=Questions(elicitation=lambda _: answers.pop(0))) as service,
        asyncio.timeout(SECONDS),
    ):
        await service.shutdown()
        await service.initialize(file)
        assert sorted(await service.list_tools()) == LISTED
        assert "nowhere_of_ours" in service.notes["builtin"][0]
        assert (await service.execute_tool(ToolRequest("plus", parameters={"a": 2, "b": 3}))).result_data == {
            "result": 5
        }
        assert (await service.resolve("plus")).required_permissions == ["x.plus", "sums"]
        chunks = [chunk async for chunk in service.execute_tool_stream(ToolRequest("greet"))]
        assert [chunk.chunk_type for chunk in chunks] == ["progress", "progress", "data", "complete"]
        assert chunks[-1].content == {"result": HELLO}
        assert (await service.execute_tool(ToolRequest("greet_later"))).result_data == {"result": "Then not."}
        failed = await service.execute_tool(ToolRequest("fail", parameters={"words": "no"}))
        assert (failed.status, failed.error_message) == (ToolStatus.ERROR, "ValueError: no")
        assert tool.remove("add")
        assert "builtin.add" not in await service.list_tools()
