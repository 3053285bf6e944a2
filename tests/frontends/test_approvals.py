"""Calls that wait for a person, on every frontend: who sees them, who decides, and what their callers are told."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

from isthmus.library import Questions, ToolRequest, ToolService
from tests.faults.scripted import Scripted
from tests.faults.test_tasks_crash import killed
from tests.fork_server import quick_isthmus
from tests.frontends.receiver import Receiver
from tests.frontends.task_server import TASKS
from tests.frontends.test_a2a import envelope, run
from tests.hubs import (
    META,
    MODERN,
    PATIENT,
    TRUSTED,
    HubProcess,
    Raw,
    environment,
    serving,
    started,
    stdio,
    write_config,
)
from tests.peers.client_sdk2 import client_over_http, client_over_stdio
from tests.property.echo_server import command
from tests.security.fickle import command as isthmus_command
from tests.security.fickle import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEYS = {name: f"key-of-{name}-0123456789" for name in ("agent", "other", "attended", "boss")}
CALLERS: dict[str, Any] = {
    **{name: {"key": KEYS[name], "allow": ["*"]} for name in ("agent", "other", "attended")},
    "boss": {"key": KEYS["boss"], "allow": [], "operator": True},
}
RULES: dict[str, Any] = {
    "free": {"tools": ["bank.echo"], "arguments": {"free": {"equals": True}}, "approve": False},
    "attended": {"tools": ["bank.*"], "callers": ["attended"], "by": "caller"},
    "rest": {"tools": ["bank.*"]},
}
TOOL = "bank.echo"
MODES = ["legacy", MODERN]
KNOWS_TASKS = {**META, "io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}}}


class Person:
    """Somebody at the hub, over REST and A2A."""

    def __init__(self, port: int, who: str) -> None:
        self.http = httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            headers={"authorization": f"Bearer {KEYS[who]}"},
            timeout=30,
            verify=TRUSTED,
        )

    async def call(self, arguments: Mapping[str, Any], seconds: float = 20.0) -> Any:
        return (await self.http.post(f"/v1/tools/{TOOL}?timeout={seconds}", json=dict(arguments))).json()

    async def pending(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.http.get("/v1/approvals?state=pending")).json()["approvals"]
        return found

    async def id_of(self, arguments: Mapping[str, Any]) -> str:
        """Wait until a call with these arguments waits, and return its id."""
        found: list[str] = []

        async def is_there() -> bool:
            found[:] = [each["id"] for each in await self.pending() if each["arguments"] == arguments]
            return bool(found)

        await until(is_there, "the call waits")
        return found[0]

    async def decide(self, what: str, id: str, **body: str) -> httpx2.Response:
        return await self.http.post(f"/v1/approvals/{what}/{id}", json=body)

    async def a2a(self, method: str, params: Any) -> Any:
        answer = (await self.http.post("/a2a", json=envelope(method, params))).json()
        return answer.get("result", answer)

    async def state(self, task: str) -> str:
        return str((await self.a2a("GetTask", {"id": task}))["status"]["state"])


@asynccontextmanager
async def client(hub: HubProcess, who: str) -> AsyncIterator[Person]:
    made = Person(hub.port, who)
    try:
        yield made
    finally:
        await made.http.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("approvals")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(folder: Path) -> AsyncIterator[HubProcess]:
    servers = {"bank": stdio(command())}
    async with serving(folder, servers, callers=CALLERS, approvals=RULES, limits=PATIENT) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(hub: HubProcess) -> AsyncIterator[Person]:
    async with client(hub, "agent") as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def boss(hub: HubProcess) -> AsyncIterator[Person]:
    async with client(hub, "boss") as made:
        yield made


def reason(problem: Mapping[str, Any]) -> tuple[str, str]:
    return problem["reason"], problem["executed"]


# -- REST and the command line -----------------------------------------------------------------------------------------


async def test_a_call_that_waits_continues_when_it_is_allowed(agent: Person, boss: Person) -> None:
    call = asyncio.ensure_future(agent.call({"n": 1}))
    id = await boss.id_of({"n": 1})
    assert (await boss.decide("allow", id)).json()["scope"] == "once"
    assert (await call)["structuredContent"] == {"n": 1}

    async def is_used() -> bool:
        return bool((await boss.http.get(f"/v1/approvals/{id}")).json().get("reason") == "unknown_approval")

    await until(is_used, "it is used, and other nodes know it")


async def test_an_exempted_call_does_not_wait(agent: Person) -> None:
    assert (await agent.call({"free": True}))["structuredContent"] == {"free": True}


async def test_at_the_deadline_the_problem_says_what_to_do(agent: Person, boss: Person) -> None:
    problem = await agent.call({"n": 2}, seconds=0.1)
    assert reason(problem) == ("approval_pending", "no")
    assert problem["status"] == 409
    assert problem["approval"] in problem["detail"]
    assert "again with the same arguments" in problem["detail"]
    await boss.decide("allow", problem["approval"])
    assert (await agent.call({"n": 2.0}))["structuredContent"] == {"n": 2.0}
    assert reason(await agent.call({"n": 2}, seconds=0.1)) == ("approval_pending", "no")


async def test_a_denial_has_the_operators_reason(agent: Person, boss: Person) -> None:
    call = asyncio.ensure_future(agent.call({"n": 3}))
    await boss.decide("deny", await boss.id_of({"n": 3}), reason="Ask Bob first")
    for problem in (await call, await agent.call({"n": 3})):
        assert reason(problem) == ("approval_denied", "no")
        assert "an operator denied it: Ask Bob first" in problem["detail"]


async def test_a_caller_sees_its_own_requests_and_cannot_decide(hub: HubProcess, agent: Person, boss: Person) -> None:
    id = (await agent.call({"n": 4}, seconds=0.1))["approval"]
    async with client(hub, "other") as other:
        assert [each["id"] for each in await other.pending()] == []
        assert (await other.http.get(f"/v1/approvals/{id}")).status_code == 404
        assert (await other.decide("allow", id)).status_code == 403
    assert (await agent.http.get(f"/v1/approvals/{id}")).json()["arguments"] == {"n": 4}
    for what in ("allow", "deny"):
        refused = await agent.decide(what, id)
        assert (refused.status_code, refused.json()["reason"]) == (403, "forbidden")
    assert (await boss.decide("deny", id)).json()["decidedBy"] == "boss"
    assert (await agent.http.get(f"/v1/approvals/{id}")).json()["decidedBy"] is None
    late = await boss.decide("allow", id)
    assert (late.status_code, late.json()["reason"]) == (409, "already_decided")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/approvals/allow/ap_0", {"for": "ever"}),
        ("/v1/approvals/allow/ap_0", {"reason": "x"}),
        ("/v1/approvals/deny/ap_0", {"reason": "x" * 1001}),
        ("/v1/approvals/deny/ap_0", {"reason": 1}),
    ],
)
async def test_a_decision_that_makes_no_sense_is_refused(boss: Person, path: str, body: Any) -> None:
    answer = await boss.http.post(path, json=body)
    assert (answer.status_code, answer.json()["reason"]) == (400, "bad_request")


@pytest.mark.parametrize("query", ["limit=101", "limit=x", "state=lost", "cursor=x"])
async def test_a_list_that_makes_no_sense_is_refused(boss: Person, query: str) -> None:
    assert (await boss.http.get(f"/v1/approvals?{query}")).status_code == 400


async def test_the_command_line_lists_shows_and_decides(folder: Path, agent: Person) -> None:
    call = asyncio.ensure_future(agent.call({"n": 5, "evil": "\x1b[2J\u202e"}))
    id = await agent.id_of({"n": 5, "evil": "\x1b[2J\u202e"})
    listed = await isthmus_command(folder, "approvals", "list")
    assert id in listed
    shown = await isthmus_command(folder, "approvals", "show", id)
    assert '"n": 5' in shown
    assert "\x1b" not in listed + shown
    assert "\u202e" not in listed + shown
    assert "Allowed for an hour: bank.echo for agent" in await isthmus_command(
        folder, "approvals", "allow", id, "--hour"
    )
    assert (await call)["structuredContent"]["n"] == 5
    assert "allowed" in await isthmus_command(folder, "approvals", "list", "--all")
    assert "It was allowed by" in await isthmus_command(folder, "approvals", "allow", id, code=1)
    assert "Denied: bank.echo for agent" in await isthmus_command(folder, "approvals", "deny", id)
    assert "It was denied by" in await isthmus_command(folder, "approvals", "deny", id, code=1)
    again = f"isthmus approvals allow {id} --override"
    assert again in await isthmus_command(folder, "approvals", "allow", id, code=1)
    assert "Allowed once: bank.echo for agent" in await isthmus_command(folder, *again.split()[1:])
    assert "isthmus approvals list" in await isthmus_command(folder, "approvals", "show", "ap_0", code=1)


async def test_a_command_says_at_once_that_its_call_waits(hub: HubProcess, boss: Person) -> None:
    where = {"ISTHMUS_HUB": f"http://127.0.0.1:{hub.port}", "ISTHMUS_KEY": KEYS["agent"]}
    command = await asyncio.create_subprocess_exec(
        *quick_isthmus("call", TOOL, "--args", '{"n": 70}'),
        env=environment(where),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert command.stderr is not None
    async with asyncio.timeout(30):
        said = [(await command.stderr.readline()).decode() for _ in range(2)]
        id = await boss.id_of({"n": 70})
        await boss.decide("allow", id)
        printed, _ = await command.communicate()
    assert said == [
        f"{TOOL} waits for an operator's approval ({id}). It continues by itself. Allow it with:\n",
        f"  isthmus approvals allow {id}\n",
    ]
    assert (command.returncode, b"70" in printed) == (0, True)


async def test_the_audit_log_has_every_step_without_arguments(agent: Person, boss: Person) -> None:
    call = asyncio.ensure_future(agent.call({"n": 6, "private": "for-your-eyes"}))
    id = await boss.id_of({"n": 6, "private": "for-your-eyes"})
    await boss.decide("allow", id)
    await call
    records: list[Any] = []

    async def is_written() -> bool:
        found = (await boss.http.get("/v1/audit?event=approval.*&limit=500")).json()["records"]
        records[:] = [each["record"] for each in reversed(found) if each["record"].get("approval") == id]
        return len(records) >= 3

    await until(is_written, "the log has it")
    assert [each["event"] for each in records] == ["approval.requested", "approval.allowed", "approval.used"]
    assert records[1]["by"] == "boss"
    assert "for-your-eyes" not in json.dumps(records)


async def test_without_a_running_hub_no_decision_is_possible_and_the_call_fails_at_once(folder: Path) -> None:
    told = await isthmus_command(folder, "call", TOOL, "n=1", "--private", code=1)
    assert "only `isthmus serve` has operators" in told
    assert "executed: no" in told


async def test_a_program_with_its_own_hub_asks_its_own_user(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    async def answer(params: dict[str, Any]) -> dict[str, Any]:
        asked.append(params)
        return {"decision": "once"}

    rules = {"mine": {"tools": ["bank.*"], "by": "caller"}}
    config = write_config(tmp_path, {"bank": stdio(command())}, approvals=rules, limits=PATIENT)
    service = ToolService(questions=Questions(elicitation=answer))
    await service.initialize(config=str(config))
    try:
        result = await service.execute_tool(ToolRequest(TOOL, parameters={"n": 1}))
    finally:
        await service.shutdown()
    assert result.data == {"n": 1}
    assert len(asked) == 1


# -- MCP ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_an_mcp_caller_waits_in_both_eras(hub: HubProcess, boss: Person, mode: Any) -> None:
    headers = {"authorization": f"Bearer {KEYS['agent']}"}
    async with client_over_http(hub.url, mode=mode, headers=headers) as mcp:
        call = asyncio.ensure_future(mcp.call_tool(TOOL, {"era": mode}))
        await boss.decide("allow", await boss.id_of({"era": mode}))
        assert (await call).structured_content == {"era": mode}


async def test_an_mcp_caller_learns_of_the_approval_from_the_errors_data(
    hub: HubProcess, agent: Person, boss: Person
) -> None:
    await boss.decide("deny", (await agent.call({"n": 7}, seconds=0.1))["approval"], reason="no")
    async with Raw(hub.url, key=KEYS["agent"]) as raw:
        error = (await raw.call(TOOL, {"n": 7}))["error"]
    assert (error["code"], error["data"]["reason"], error["data"]["executed"]) == (-32010, "approval_denied", "no")
    assert error["data"]["approval"].startswith("ap_")


@pytest.mark.parametrize("mode", MODES)
async def test_a_hub_before_the_hub_reports_its_faults_as_they_are(
    hub: HubProcess, agent: Person, boss: Person, mode: Any
) -> None:
    arguments = {"before": mode}
    await boss.decide("deny", (await agent.call(arguments, seconds=0.1))["approval"], reason="no")
    async with Raw(hub.url, key=KEYS["agent"]) as raw:
        direct = (await raw.call(TOOL, arguments))["error"]
    words, env = quick_isthmus("stdio", "--hub", hub.url), environment({"ISTHMUS_KEY": KEYS["agent"]})
    async with client_over_stdio(words, mode=mode, env=env) as mcp:
        with pytest.raises(MCPError) as refused:
            await mcp.call_tool(TOOL, arguments)
    error = refused.value.error
    assert (error.code, error.message) == (direct["code"], direct["message"])
    assert error.data == {**direct["data"], "server": "hub"}
    assert (error.data["executed"], error.data["reason"]) == ("no", "approval_denied")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("decision", ["once", "deny"])
async def test_a_caller_whose_user_can_be_asked_is_asked_in_both_eras(
    hub: HubProcess, mode: Any, decision: str
) -> None:
    asked: list[str] = []

    async def answer(_: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"decision": decision})

    headers = {"authorization": f"Bearer {KEYS['attended']}"}
    arguments = {"how": f"{mode} {decision}"}
    answers: dict[str, Any] = {"elicitation_callback": answer}
    async with httpx2.AsyncClient(headers=headers, verify=TRUSTED, timeout=30) as http:
        transport = streamable_http_client(hub.url, http_client=http)
        async with Client(transport, mode=mode, **answers) as mcp:
            if decision == "once":
                assert (await mcp.call_tool(TOOL, arguments)).structured_content == arguments
            else:
                with pytest.raises(MCPError, match="denied it"):
                    await mcp.call_tool(TOOL, arguments)
    assert len(asked) == 1
    assert arguments["how"] in asked[0]


async def test_a_caller_that_cannot_be_asked_waits_for_the_operator(hub: HubProcess, boss: Person) -> None:
    async with client(hub, "attended") as attended:
        call = asyncio.ensure_future(attended.call({"n": 8}))
        await boss.decide("allow", await boss.id_of({"n": 8}))
        assert (await call)["structuredContent"] == {"n": 8}


async def test_a_rest_caller_that_answers_questions_is_asked(hub: HubProcess) -> None:
    async with client(hub, "attended") as attended:
        request = attended.http.stream(
            "POST", f"/v1/tools/{TOOL}?questions=form", json={"n": 9}, headers={"accept": "text/event-stream"}
        )
        async with request as stream:
            name = ""
            async for line in stream.aiter_lines():
                name = line[7:] if line.startswith("event: ") else name
                if line.startswith("data: ") and name == "question":
                    id = json.loads(line[6:])["id"]
                    body = {"action": "accept", "content": {"decision": "hour"}}
                    assert (await attended.http.post(f"/v1/questions/{id}", json=body)).status_code == 200
                elif line.startswith("data: ") and name == "result":
                    assert json.loads(line[6:])["structuredContent"] == {"n": 9}
                    return
    raise AssertionError("there was no result")


class TaskClient:
    """The MCP client of an agent: in the modern era its calls may become tasks, in the legacy era it asks for tasks."""

    def __init__(self, agent: Person, mode: str) -> None:
        self._http = agent.http
        self._is_modern = mode == MODERN

    async def send(self, method: str, **params: Any) -> Any:
        headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}
        if self._is_modern:
            params["_meta"] = KNOWS_TASKS
            headers |= {"mcp-protocol-version": MODERN, "mcp-method": method}
            headers["mcp-name"] = params.get("name") or params["taskId"]
        answer = await self._http.post("/mcp", json=envelope(method, params), headers=headers)
        assert "result" in answer.json(), answer.text
        return answer.json()["result"]

    async def start(self, arguments: Mapping[str, Any]) -> str:
        """Start a task, and return its id."""
        if self._is_modern:
            made = await self.send("tools/call", name=TOOL, arguments=arguments)
            assert made["resultType"] == "task"
        else:
            made = (await self.send("tools/call", name=TOOL, arguments=arguments, task={}))["task"]
        return str(made["taskId"])

    async def state(self, task: str) -> tuple[str, bool]:
        """The status of a task, and whether it says that it waits for approval."""
        found = await self.send("tasks/get", taskId=task)
        return found["status"], "waits for an operator's approval" in found.get("statusMessage", "")

    async def result(self, task: str) -> Any:
        """The result of a task that has ended."""
        if self._is_modern:
            return (await self.send("tasks/get", taskId=task))["result"]
        return await self.send("tasks/result", taskId=task)


@pytest.mark.one_process("a hub with SQLite is killed and started again")
@pytest.mark.parametrize("mode", MODES)
async def test_a_held_call_of_an_mcp_client_with_tasks_is_a_task_and_waits_durably(tmp_path: Path, mode: str) -> None:
    servers = {"bank": stdio(command(), timeout=5)}
    tables: dict[str, Any] = {"callers": CALLERS, "approvals": RULES, "limits": PATIENT, "tasks": {"after": 0.1}}
    config = write_config(tmp_path, servers, **tables)
    async with killed(config) as hub, client(hub, "agent") as agent, client(hub, "boss") as boss:
        task = await TaskClient(agent, mode).start({"n": 1})
        id = await boss.id_of({"n": 1})
    async with killed(config) as hub, client(hub, "agent") as agent, client(hub, "boss") as boss:
        mcp = TaskClient(agent, mode)

        async def is_waiting() -> bool:
            return await mcp.state(task) == ("working", True)

        await until(is_waiting, "the task waits on")
        assert [each["id"] for each in await boss.pending()] == [id]
        await boss.decide("allow", id)

        async def is_done() -> bool:
            return (await mcp.state(task))[0] == "completed"

        await until(is_done, "the task ends")
        assert (await mcp.result(task))["structuredContent"] == {"n": 1}


# -- A2A ---------------------------------------------------------------------------------------------------------------


async def test_a_task_shows_that_it_waits_and_continues_by_itself(agent: Person, boss: Person) -> None:
    task = (await agent.a2a("SendMessage", run(TOOL, n=10)))["task"]
    assert task["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
    text, data = task["status"]["message"]["parts"]
    id = data["data"]["params"]["approval"]
    assert id in text["text"]
    said = {"messageId": "m2", "role": "ROLE_USER", "taskId": task["id"], "parts": [{"text": "please"}]}
    assert "waits for an operator's approval" in json.dumps(await agent.a2a("SendMessage", {"message": said}))
    entry = (await boss.http.get(f"/v1/tasks/{task['id']}?caller=agent&tenant=default")).json()
    assert entry["state"] == "auth_required"
    await boss.decide("allow", id)

    async def is_done() -> bool:
        return await agent.state(task["id"]) == "TASK_STATE_COMPLETED"

    await until(is_done, "the task ends")
    done = await agent.a2a("GetTask", {"id": task["id"]})
    assert done["artifacts"][0]["parts"][0]["data"] == {"n": 10}


async def test_a_denied_task_is_rejected_with_the_reason(agent: Person, boss: Person) -> None:
    task = (await agent.a2a("SendMessage", run(TOOL, n=11)))["task"]
    await boss.decide("deny", await boss.id_of({"n": 11}), reason="not today")

    async def is_done() -> bool:
        return await agent.state(task["id"]) == "TASK_STATE_REJECTED"

    await until(is_done, "the task ends")
    status = (await agent.a2a("GetTask", {"id": task["id"]}))["status"]
    assert "not today" in status["message"]["parts"][0]["text"]
    assert status["message"]["metadata"]["executed"] == "no"


async def test_a_task_that_waits_can_be_cancelled(agent: Person, boss: Person) -> None:
    task = (await agent.a2a("SendMessage", run(TOOL, n=12)))["task"]
    cancelled = await agent.a2a("CancelTask", {"id": task["id"]})
    assert cancelled["status"]["state"] == "TASK_STATE_CANCELED"
    await boss.decide("allow", await boss.id_of({"n": 12}))
    assert await agent.state(task["id"]) == "TASK_STATE_CANCELED"


async def test_a_task_asks_the_caller_if_the_rule_says_so(hub: HubProcess) -> None:
    async with client(hub, "attended") as attended:
        task = (await attended.a2a("SendMessage", run(TOOL, n=13)))["task"]
        assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        part = {"data": {"action": "accept", "content": {"decision": "once"}}}
        said = {"messageId": "m2", "role": "ROLE_USER", "taskId": task["id"], "parts": [part]}
        done = (await attended.a2a("SendMessage", {"message": said}))["task"]
        assert done["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_servers_that_callers_name_by_address_are_held_too(tmp_path: Path) -> None:
    callers = {**CALLERS, "agent": {**CALLERS["agent"], "targets": True}}
    async with (
        Scripted() as server,
        serving(
            tmp_path,
            callers=callers,
            approvals={"all": {"tools": ["*"]}},
            targets={"allow": [str(server.entry["url"]).removesuffix("/mcp")]},
            limits=PATIENT,
        ) as hub,
        client(hub, "agent") as agent,
        client(hub, "boss") as boss,
    ):
        params = {"name": "t", "arguments": {"n": 1}}
        data = {"mcp_target_url": server.entry["url"], "mcp_method": "tools/call", "mcp_params": params}
        message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"data": data}]}
        task = (await agent.a2a("SendMessage", {"message": message}))["task"]
        assert task["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
        assert server.count("tools/call") == 0
        await boss.decide("allow", await boss.id_of({"n": 1}))

        async def is_done() -> bool:
            return await agent.state(task["id"]) == "TASK_STATE_COMPLETED"

        await until(is_done, "the task ends")
        assert server.count("tools/call") == 1


async def test_a_task_waits_for_longer_than_any_call_may_take(tmp_path: Path) -> None:
    limits = {**PATIENT, "call_seconds": 1.0, "hard_seconds": 1.0}
    async with (
        serving(tmp_path, {"bank": stdio(command())}, callers=CALLERS, approvals=RULES, limits=limits) as hub,
        client(hub, "agent") as agent,
        client(hub, "boss") as boss,
    ):
        task = (await agent.a2a("SendMessage", run(TOOL, n=1)))["task"]
        id = await boss.id_of({"n": 1})
        assert reason(await agent.call({"n": 1})) == ("approval_pending", "no"), "an ordinary call has its deadline"
        assert await agent.state(task["id"]) == "TASK_STATE_AUTH_REQUIRED"
        await boss.decide("allow", id)

        async def is_done() -> bool:
            return await agent.state(task["id"]) == "TASK_STATE_COMPLETED"

        await until(is_done, "the task ends")


@pytest.mark.one_process("a hub with SQLite is killed and started again")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_task_waits_durably(tmp_path: Path, how: signal.Signals) -> None:
    servers = {"bank": stdio(command())}
    tables: dict[str, Any] = {"callers": CALLERS, "approvals": RULES, "limits": PATIENT}
    config = write_config(tmp_path, servers, **tables)
    first = killed(config) if how is signal.SIGKILL else started(tmp_path, "--config", str(config))
    async with first as hub, client(hub, "agent") as agent, client(hub, "boss") as boss:
        task = (await agent.a2a("SendMessage", run(TOOL, n=1)))["task"]
        id = await boss.id_of({"n": 1})
    async with serving(tmp_path, servers, **tables) as hub, client(hub, "agent") as agent, client(hub, "boss") as boss:
        assert await agent.state(task["id"]) == "TASK_STATE_AUTH_REQUIRED"
        assert [each["id"] for each in await boss.pending()] == [id]
        await boss.decide("allow", id)

        async def is_done() -> bool:
            return await agent.state(task["id"]) == "TASK_STATE_COMPLETED"

        await until(is_done, "the task ends")


# -- reload, shutdown, webhooks ----------------------------------------------------------------------------------------


async def test_removing_the_rules_lets_waiting_calls_run(tmp_path: Path) -> None:
    servers = {"bank": stdio(command())}
    tables: dict[str, Any] = {"callers": CALLERS, "limits": PATIENT}
    async with serving(tmp_path, servers, approvals=RULES, **tables) as hub, client(hub, "agent") as agent:
        call = asyncio.ensure_future(agent.call({"n": 1}))
        await agent.id_of({"n": 1})
        write_config(tmp_path, servers, **tables)
        assert (await call)["structuredContent"] == {"n": 1}


async def test_calls_wait_once_a_caller_has_spent_so_much_of_a_budget(tmp_path: Path) -> None:
    rules = {"dear": {"tools": ["bank.*"], "spent": {"budget": "day", "above": 4}}}
    budgets = {"day": {"cost": 10, "costs": {"bank.echo": 2}}}
    servers = {"bank": stdio(command())}
    async with (
        serving(tmp_path, servers, callers=CALLERS, approvals=rules, budgets=budgets, limits=PATIENT) as hub,
        client(hub, "agent") as agent,
        client(hub, "other") as other,
        client(hub, "boss") as boss,
    ):
        for number in range(2):
            assert (await agent.call({"n": number}))["structuredContent"] == {"n": number}
        for number in (3, 4, 5):
            call = asyncio.ensure_future(agent.call({"n": number}))
            id = await boss.id_of({"n": number})
            why = f"with this call, the budget day has cost {number * 2} of 10 units this day for the caller agent"
            shown = (await boss.http.get(f"/v1/approvals/{id}")).json()
            assert shown["why"] == f"{why}; above 4 a person is asked"
            assert f"why: {why}" in await isthmus_command(tmp_path, "approvals", "show", id)
            assert (await agent.http.get(f"/v1/approvals/{id}")).json()["why"] is None, "an operator decides"
            assert (await boss.decide("allow", id)).status_code == 200
            assert (await call)["structuredContent"] == {"n": number}
        # Nobody is asked about a call that the budget refuses anyway.
        assert reason(await agent.call({"n": 6})) == ("budget_exceeded", "no")
        assert await boss.pending() == []
        assert (await other.call({"n": 1}))["structuredContent"] == {"n": 1}


async def test_a_hub_that_shuts_down_does_not_wait_for_people(tmp_path: Path) -> None:
    servers = {"bank": stdio(command())}
    async with (
        serving(tmp_path, servers, callers=CALLERS, approvals=RULES, limits={**PATIENT, "drain_seconds": 20}) as hub,
        client(hub, "agent") as agent,
    ):
        call = asyncio.ensure_future(agent.call({"n": 1}))
        await agent.id_of({"n": 1})
        hub.terminate()
        assert reason(await call) == ("approval_pending", "no")


async def test_a_webhook_gets_no_arguments_unless_the_operator_wants_them(tmp_path: Path) -> None:
    async with Receiver() as receiver:
        receiver.words["/brief"].append("500 Oops")
        rules = {
            "whole": {
                "tools": ["bank.*"],
                "callers": ["other"],
                "webhook": receiver.url("/whole"),
                "webhook_arguments": True,
            },
            "brief": {"tools": ["bank.*"], "webhook": receiver.url("/brief")},
        }
        async with serving(
            tmp_path, {"bank": stdio(command())}, callers=CALLERS, approvals=rules, limits=PATIENT
        ) as hub:
            for who in ("agent", "other"):
                async with client(hub, who) as caller:
                    await caller.call({"n": 1}, seconds=0.1)

            async def is_told() -> bool:
                return [each.path for each in receiver.posted].count("/brief") == 2 and any(
                    each.path == "/whole" for each in receiver.posted
                )

            await until(is_told, "both are told, one again")
    by_path = {each.path: each for each in receiver.posted}
    assert "arguments" not in by_path["/brief"].body
    assert by_path["/brief"].body["tool"] == TOOL
    assert by_path["/brief"].headers["x-approval-id"] == by_path["/brief"].body["id"]
    assert by_path["/whole"].body["arguments"] == {"n": 1}


async def test_the_hub_warns_of_mistyped_rules_and_holds_the_calls_that_they_name(tmp_path: Path) -> None:
    mistyped = {"tools": ["builtin.echo"], "arguments": {"txet": {"matches": "secret"}}}

    async def warned(hub: HubProcess, words: str) -> None:
        async def is_said() -> bool:
            return any("warning" in line and words in line for line in hub.said)

        await until(is_said, words)

    async with serving(tmp_path, {}, callers=CALLERS, approvals={"a": mistyped}, limits=PATIENT) as hub:
        await warned(hub, "approvals.a.arguments.txet names an argument that builtin.echo does not have")
        async with client(hub, "agent") as agent:
            called = await agent.http.post("/v1/tools/builtin.echo?timeout=0.1", json={"text": "a secret"})
            assert reason(called.json()) == ("approval_pending", "no")
            rules = {"b": {"tools": ["builtin.ehco"]}}
            write_config(tmp_path, {}, callers=CALLERS, approvals=rules, limits=PATIENT)
            hub.process.send_signal(signal.SIGHUP)
            await warned(hub, "approvals.b.tools has builtin.ehco, which matches nothing")
            called = await agent.http.post("/v1/tools/builtin.echo", json={"text": "a secret"})
            assert called.status_code == 200
