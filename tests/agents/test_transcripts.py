"""Clients that can no longer be installed: their recorded requests are sent again, byte for byte.

`a2a_0_1` is the client that was published with A2A 0.1, `agentvault_1_0_0` that of AgentVault after its last package.
Only what belongs to the place is put in: the host, the length, and the names of the server and of the tasks.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.agents.field import Field
from tests.agents.tool_requests import SERVERS, fresh
from tests.frontends.wire import Reply, connected

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("agents")]

every_server = pytest.mark.parametrize("server", SERVERS)

RECORDED = Path(__file__).with_name("transcripts")
TEXT = [{"type": "text", "text": "the text of /x"}]
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z")


class Transcript:
    """What a client said, with other names put in."""

    def __init__(self, field: Field, name: str, names: dict[str, str]) -> None:
        self._port = field.hub.port
        self._names = names
        lines = (RECORDED / f"{name}.jsonl").read_text().splitlines()
        self._said = {said["name"]: said for said in map(json.loads, lines)}

    async def say(self, name: str, **more: str) -> Reply:
        """Say it on a connection of its own, as these clients do; what is answered."""
        said = self._said[name]
        body = said["body"]
        for old, new in {**self._names, **more}.items():
            body = body.replace(f'"{old}"', f'"{new}"')
        content = body.encode()
        length = [f"Content-Length: {len(content)}"] if content else []
        head = [said["head"][0], f"Host: localhost:{self._port}", *said["head"][1:], *length, "", ""]
        async with connected(self._port) as wire:
            await wire.say("\r\n".join(head).encode() + content)
            return await wire.reply()

    def id(self, name: str) -> str:
        """The id of a request."""
        return str(json.loads(self._said[name]["body"])["id"])


# -- A2A 0.1 -----------------------------------------------------------------------------------------------------------


class First:
    """The first generation at one server; `tasks` are the names that the client gives its tasks."""

    def __init__(self, field: Field, server: str) -> None:
        self.tasks = {f"task-{number}": fresh(f"task-{number}") for number in range(1, 5)}
        self.transcript = Transcript(field, "a2a_0_1", {"fs": server, **self.tasks})

    async def ask(self, name: str) -> Any:
        """The answer to a request."""
        reply = await self.transcript.say(name)
        assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
        return _timeless(reply.body)

    async def follow(self, name: str) -> list[Any]:
        """The items of a stream."""
        reply = await self.transcript.say(name)
        assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream")
        assert all(line.startswith(b"data: ") for line in reply.body.split(b"\n") if line), "it reads nothing else"
        return [_timeless(line[6:]) for line in reply.body.split(b"\n") if line]

    def answer(self, name: str, result: dict[str, Any]) -> dict[str, Any]:
        """What a result comes in."""
        return {"jsonrpc": "2.0", "id": self.transcript.id(name), "result": result}


def _timeless(body: bytes) -> Any:
    return json.loads(TIME.sub("TIME", body.decode()))


def _artifact(server: str, **more: Any) -> dict[str, Any]:
    structured = {"structuredContent": {"result": "the text of /x"}}
    output = {"success": True, "mcp_result": {"content": TEXT, **structured, "isError": False}}
    return {"parts": [{"type": "data", "data": output}], "index": 0, "name": "readFile", **more}


def _status(state: str) -> dict[str, Any]:
    return {"state": state, "timestamp": "TIME"}


async def test_the_first_generation_reads_its_card(field: Field) -> None:
    reply = await First(field, "stdio").transcript.say("card")

    card = reply.json
    assert (card["name"], card["defaultInputModes"], card["capabilities"]["streaming"]) == (
        "MCP Gateway Agent",
        ["data"],
        True,
    )
    assert {"name", "url", "version", "capabilities", "skills"} <= card.keys()
    assert {"id": "execute_mcp_command", "name": "Execute MCP Command"}.items() <= card["skills"][0].items()


@every_server
async def test_the_first_generation_sends_and_gets_tasks_and_cannot_cancel_ended_ones(
    field: Field, server: str
) -> None:
    first = First(field, server)
    task = {"id": first.tasks["task-1"], "sessionId": "sess-1", "status": _status("completed")}
    done = {**task, "artifacts": [_artifact(server)]}

    assert await first.ask("send") == first.answer("send", {**done, "history": []})
    instruction = {"target_mcp_server_id": server, "tool_name": "readFile", "arguments": {"path": "/x"}}
    said = {"role": "user", "parts": [{"type": "data", "data": instruction}]}
    assert await first.ask("get") == first.answer("get", {**done, "history": [said]})
    assert (await first.ask("cancel"))["error"]["code"] == -32002
    assert (await first.ask("missing"))["error"]["code"] == -32001


@every_server
async def test_the_first_generation_follows_a_task_to_its_end(field: Field, server: str) -> None:
    first = First(field, server)
    task = first.tasks["task-2"]

    *before, made, end = await first.follow("stream")
    working = first.answer("stream", {"id": task, "status": _status("working"), "final": False})
    submitted = first.answer("stream", {"id": task, "status": _status("submitted"), "final": False})
    # It is submitted while its first call waits for a link, and a quick tool may be over before any update is sent.
    assert before in ([], [working], [submitted, working]), before
    artifact = made["result"]["artifact"]
    assert {key: artifact[key] for key in ("parts", "index")} == {
        key: _artifact(server)[key] for key in ("parts", "index")
    }
    assert end == first.answer("stream", {"id": task, "status": _status("completed"), "final": True})


@every_server
async def test_the_first_generation_is_offered_tools_and_says_which(field: Field, server: str) -> None:
    first = First(field, server)

    [offer] = await first.follow("words")
    status = offer["result"]["status"]
    assert (status["state"], offer["result"]["final"]) == ("input-required", True)
    assert status["message"]["parts"][0]["text"].startswith("Which tool should run?")
    done = (await first.ask("instruct"))["result"]
    assert (done["id"], done["status"]["state"]) == (first.tasks["task-3"], "completed")
    assert done["artifacts"] == [_artifact(server)]


# -- AgentVault 1.0.0 --------------------------------------------------------------------------------------------------


def _vault(field: Field, server: str) -> Transcript:
    names = {"filesystem": server, "filesystem.readFile": f"{server}.readFile", "test_data.json": "/x"}
    return Transcript(field, "agentvault_1_0_0", names)


async def _follow(vault: Transcript, sent: Reply) -> list[tuple[str, Any]]:
    """The named events of the task that an answer is about."""
    reply = await vault.say("subscribe", **{"mcp-proxy-b2d44b36": sent.json["result"]["id"]})
    assert reply.headers["content-type"] == "text/event-stream"
    named = [block.split("\n") for block in reply.body.decode().split("\n\n") if block.strip()]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in named]


@every_server
async def test_agentvault_1_0_0_receives_its_data(field: Field, server: str) -> None:
    vault = _vault(field, server)

    sent = await vault.say("send")
    assert (sent.status, list(sent.json["result"])) == (200, ["id"])
    events = await _follow(vault, sent)
    [message] = [data["message"] for name, data in events if name == "task_message"]
    assert message["parts"][0]["content"]["mcp_result"]["content"] == TEXT
    assert (events[-1][0], events[-1][1]["state"]) == ("task_status", "COMPLETED")
    found = (await vault.say("get", **{"mcp-proxy-b2d44b36": sent.json["result"]["id"]})).json["result"]
    assert found["state"] == "COMPLETED"
    assert found["messages"][-1] == message


@pytest.mark.parametrize(("name", "code"), [("incomplete", "INVALID_INPUT"), ("astray", "-32601")])
async def test_agentvault_1_0_0_gets_the_error_in_its_data(field: Field, name: str, code: str) -> None:
    vault = _vault(field, "stdio")

    events = await _follow(vault, await vault.say(name))
    [message] = [data["message"] for event, data in events if event == "task_message"]
    content = message["parts"][0]["content"]
    assert (content["success"], content["error"]["source"], content["error"]["code"]) == (False, "A2A_PROXY", code)
    assert events[-1][1]["state"] == "FAILED"


async def test_agentvault_1_0_0_is_asked_which_tool_its_words_mean(field: Field) -> None:
    vault = _vault(field, "stdio")

    events = await _follow(vault, await vault.say("words"))
    assert [name for name, _ in events] == ["task_message", "task_status"]
    assert events[-1][1]["state"] == "INPUT_REQUIRED"
    assert events[-1][1]["message"].startswith("Which tool should run?")
