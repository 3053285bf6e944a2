"""The agent of a running hub: streams while tools run, and tasks that outlast their callers and the hub."""

from __future__ import annotations

import asyncio
import json
import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import Ledger
from tests.faults import quick_server
from tests.faults.progress_server import ProgressServer
from tests.faults.scripted import EVENTS, ReceivedRequest, Scripted, events
from tests.faults.watching import Tail, eventually, watches_files
from tests.fork_server import quick_isthmus
from tests.hubs import PATIENT, TRUSTED, HubProcess, environment, node_urls, serving, stdio, write_config
from tests.peers.launch import command

SECONDS = 60.0
STEPS = 5


class Agent:
    """A client of the agent that writes its requests by hand."""

    def __init__(self, hub: HubProcess) -> None:
        self.http = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", timeout=SECONDS, verify=TRUSTED)

    async def __aenter__(self) -> Agent:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def ask(self, method: str, params: Any) -> Any:
        """The result of a request."""
        answer = (await self.http.post("/a2a", json=envelope(method, params))).json()
        assert "result" in answer, answer
        return answer["result"]

    async def begin(self, tool: str, **arguments: Any) -> str:
        """Have a tool run, and do not wait for it."""
        params = {**run(tool, **arguments), "configuration": {"returnImmediately": True}}
        return str((await self.ask("SendMessage", params))["task"]["id"])

    async def state(self, task: str) -> str:
        """How a task stands."""
        return str((await self.ask("GetTask", {"id": task}))["status"]["state"])

    @asynccontextmanager
    async def following(self, method: str, params: Any) -> AsyncIterator[AsyncIterator[Any]]:
        """The events of a stream, as names and data."""
        async with self.http.stream("POST", "/a2a", json=envelope(method, params)) as answer:
            assert answer.headers["content-type"] == "text/event-stream"
            yield stream_events(answer.aiter_lines())


async def stream_events(lines: AsyncIterator[str]) -> AsyncIterator[tuple[str, Any]]:
    """What the lines of a stream say."""
    name = ""
    async for line in lines:
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            yield name, json.loads(line[6:])


def envelope(method: str, params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def run(tool: str, **arguments: Any) -> dict[str, Any]:
    """The parameters that have a tool run, in a message of its own."""
    part = {"data": {"tool": tool, "arguments": arguments}}
    return {"message": {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [part]}}


SAID = {"messageId": "m1", "role": "ROLE_USER"}


class Stepwise(Scripted):
    """A server that reports step by step, each when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = asyncio.Semaphore(0)

    async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        out.write(EVENTS)
        token = request.message["params"]["_meta"]["progressToken"]
        for step in range(1, STEPS + 1):
            await self.steps.acquire()
            report = {"progressToken": token, "progress": step, "message": f"step {step}"}
            out.write(events({"jsonrpc": "2.0", "method": "notifications/progress", "params": report}))
        await self.steps.acquire()
        out.write(events(request.result({"content": [{"type": "text", "text": "done"}]})) + b"0\r\n\r\n")


async def test_every_progress_report_arrives_before_the_server_sends_the_next(tmp_path: Path) -> None:
    async with (
        Stepwise() as server,
        serving(tmp_path, {"s": server.entry}, limits=PATIENT) as hub,
        Agent(hub) as agent,
        agent.following("SendStreamingMessage", run("s.t")) as first,
        asyncio.timeout(SECONDS),
    ):
        task = (await anext(first))[1]["result"]["task"]["id"]
        async with agent.following("SubscribeToTask", {"id": task}) as second:
            assert (await anext(second))[1]["result"]["task"]["id"] == task
            for step in range(1, STEPS + 1):
                server.steps.release()
                parts = [await next_report(stream) for stream in (first, second)]
                assert parts == [{"text": f"step {step}"}] * 2
            server.steps.release()
            for stream in (first, second):
                rest = [next(iter(data["result"])) async for _, data in stream]
                assert rest == ["artifactUpdate", "statusUpdate"]


async def next_report(stream: Any) -> Any:
    """What the tool reports next; that its call has left the queue is no report."""
    while "message" not in (status := (await anext(stream))[1]["result"]["statusUpdate"]["status"]):
        assert status["state"] == "TASK_STATE_WORKING"
    return status["message"]["parts"][0]


HASTY = """
from isthmus.upstream.python.context import Context

async def run(context: Context) -> str:
    context.progress(1, 1, "already")
    return "done"
"""


async def test_the_sender_receives_progress_that_a_tool_reports_at_once(tmp_path: Path) -> None:
    (tmp_path / "hasty.py").write_text(HASTY)
    servers = {"hasty": {"python": "hasty", "path": str(tmp_path)}}
    async with (
        serving(tmp_path, servers, limits=PATIENT) as hub,
        Agent(hub) as agent,
        agent.following("SendStreamingMessage", run("hasty.run")) as stream,
    ):
        received = [data["result"] async for _, data in stream]
    assert received[1]["statusUpdate"]["status"]["message"]["parts"][0] == {"text": "already"}


@pytest.mark.parametrize(
    ("answer", "received"),
    [
        ({"data": {"name": "Ann"}}, {"action": "accept", "content": {"name": "Ann"}}),
        ({"text": "no"}, {"action": "decline"}),
    ],
)
async def test_a_servers_question_is_answered_by_the_tasks_next_message(
    tmp_path: Path, answer: dict[str, Any], received: dict[str, Any]
) -> None:
    async with (
        ProgressServer() as server,
        serving(tmp_path, {"s": server.entry}, limits=PATIENT) as hub,
        Agent(hub) as agent,
        asyncio.timeout(SECONDS),
    ):
        server.may_work.set()
        server.may_end.set()
        task = (await agent.ask("SendMessage", run("s.t", asks=True)))["task"]
        assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        assert task["status"]["message"]["parts"][0] == {"text": "Who?"}
        said = {"messageId": "m2", "role": "ROLE_USER", "taskId": task["id"], "parts": [answer]}
        done = (await agent.ask("SendMessage", {"message": said}))["task"]
        assert done["status"]["state"] == "TASK_STATE_COMPLETED"
        assert server.answered_with == received


async def test_giving_a_task_up_reaches_its_server_and_leaving_it_does_not(tmp_path: Path, ledger: Ledger) -> None:
    servers = {"raw": stdio(command("raw_server", "--ledger", str(ledger.path)))}
    tail = Tail(ledger.path)
    async with serving(tmp_path, servers, limits=PATIENT) as hub, Agent(hub) as agent:
        async with agent.following("SendStreamingMessage", run("raw.pay", nonce="left", mode="sleep:2")) as stream:
            left = (await anext(stream))[1]["result"]["task"]["id"]
        given_up = await agent.begin("raw.pay", nonce="given up", mode="sleep:60")
        await eventually(lambda: tail.look().ran >= {"left", "given up"}, "both have begun")
        status = (await agent.ask("CancelTask", {"id": given_up}))["status"]
        assert status["state"] == "TASK_STATE_CANCELED"
        assert status["message"]["metadata"] == {"executed": "unknown", "reason": "cancelled", "server": "raw"}
        await eventually(lambda: "given up" in tail.look().cancelled, "the server was cancelled")
        await eventually(lambda: _is(agent, left, "TASK_STATE_COMPLETED"), "the other went on")
        assert "left" not in tail.look().cancelled


async def _is(agent: Agent, task: str, state: str) -> bool:
    return await agent.state(task) == state


async def test_tasks_are_there_after_a_restart_and_one_that_runs_is_waited_for(tmp_path: Path, ledger: Ledger) -> None:
    servers = {"raw": stdio(command("raw_server", "--ledger", str(ledger.path)))}
    async with serving(tmp_path, servers, limits=PATIENT) as hub, Agent(hub) as agent:
        done = (await agent.ask("SendMessage", run("raw.pay", nonce="a")))["task"]
        running = await agent.begin("raw.pay", nonce="b", mode="sleep:1")
        await ledger_has(ledger, "b")
    async with serving(tmp_path, servers, limits=PATIENT) as hub, Agent(hub) as agent:
        assert await agent.ask("GetTask", {"id": done["id"]}) == done
        assert await agent.state(running) == "TASK_STATE_COMPLETED"
        listed = await agent.ask("ListTasks", {})
        assert [task["id"] for task in listed["tasks"]] == [running, done["id"]]
        assert ledger.ran() == {"a": 1, "b": 1}


async def test_old_ended_tasks_are_deleted(tmp_path: Path) -> None:
    async with serving(tmp_path, {}) as hub, Agent(hub) as agent:
        task = (await agent.ask("SendMessage", run("no.such")))["task"]["id"]
        waiting = (await agent.ask("SendMessage", {"message": {**SAID, "parts": [{"text": "hello"}]}}))["task"]["id"]
    async with serving(tmp_path, {}, a2a={"keep": 0.001}) as hub, Agent(hub) as agent:

        async def is_gone() -> bool:
            return [each["id"] for each in (await agent.ask("ListTasks", {}))["tasks"]] == [waiting]

        await eventually(is_gone, "only the other is left")
        answer = (await agent.http.post("/a2a", json=envelope("GetTask", {"id": task}))).json()
        assert answer["error"]["code"] == -32001


async def ledger_has(ledger: Ledger, nonce: str) -> None:
    await eventually(lambda: nonce in ledger.ran(), f"{nonce} has begun")


async def test_agentvault_receives_its_data_however_fast_the_tool_is(tmp_path: Path, ledger: Ledger) -> None:
    servers = {"quick": stdio(quick_server.command(ledger.path))}
    async with serving(tmp_path, servers, limits=PATIENT) as hub, Agent(hub) as agent:
        for number in range(100):
            content = {"target_mcp_server_id": "quick", "tool_name": "pay", "arguments": {"nonce": str(number)}}
            part = {"type": "data", "content": content, "mediaType": "application/json"}
            sent = await agent.ask("tasks/send", {"message": {"role": "user", "parts": [part]}})
            async with agent.following("tasks/sendSubscribe", sent) as stream:
                received = [(name, data) async for name, data in stream]
            [message] = [data["message"] for name, data in received if name == "task_message"]
            result = message["parts"][0]["content"]["mcp_result"]
            assert result["content"] == [{"type": "text", "text": str(number)}]
            assert received[-1][1]["state"] == "COMPLETED"


async def test_settings_of_the_agent_apply_as_soon_as_the_file_changes(tmp_path: Path, ledger: Ledger) -> None:
    servers = {"quick": stdio(quick_server.command(ledger.path))}
    async with serving(tmp_path, servers, limits=PATIENT, a2a={"name": "Before"}) as hub, Agent(hub) as agent:
        card = "/.well-known/agent-card.json"
        assert (await agent.http.get(card)).json()["name"] == "Before"
        await eventually(lambda: all(watches_files(node.pid) for node in hub.each), "the file is watched")
        write_config(tmp_path, servers, limits=PATIENT, a2a={"name": "After", "card": "strict", "keep": 60})

        async def is_renamed() -> bool:
            shown = [(await agent.http.get(url)).json() for url in node_urls(f"http://127.0.0.1:{hub.port}{card}")]
            return {each["name"] for each in shown} == {"After"}

        await eventually(is_renamed, "the card says the new name")
        assert "url" not in (await agent.http.get(card)).json()
        await eventually(lambda: any("a2a.keep" in line for line in hub.said), "it is logged")


@pytest.mark.parametrize("table", [{"keep": -1}, {"card": "loose"}])
async def test_a_hub_with_a_bad_word_about_the_agent_does_not_start(tmp_path: Path, table: dict[str, Any]) -> None:
    code, said = await refused(write_config(tmp_path, {}, a2a=table))
    assert code == 3
    assert f"a2a.{next(iter(table))}" in said


@pytest.mark.one_process("two hubs want one SQLite file; nodes share a database")
async def test_a_folder_of_its_own_is_not_shared_with_another_hub(tmp_path: Path) -> None:
    async with serving(tmp_path, {}) as hub:
        code, said = await refused(write_config(tmp_path, {}))
        assert code == 3
        assert "another hub is using" in said
        async with Agent(hub) as agent:
            assert (await agent.ask("ListTasks", {}))["totalSize"] == 0


async def refused(config: Path) -> tuple[int | None, str]:
    """The exit code and the words of a hub that does not start."""
    process = await asyncio.create_subprocess_exec(
        *quick_isthmus("serve", "--config", str(config), "--port", "0"),
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
        cwd=config.parent,
    )
    try:
        _, said = await asyncio.wait_for(process.communicate(), SECONDS)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
            await process.wait()
    return process.returncode, said.decode()
