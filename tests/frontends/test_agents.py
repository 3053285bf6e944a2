"""Agents as servers of a running hub: another hub, in both generations, and agents of the test's own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec import Raw as Json

from isthmus.model.tasks import DataPart, TextPart
from isthmus.wire.a2a.operations import SendMessage
from tests.conftest import Ledger
from tests.faults.progress_server import STEPS, ProgressServer
from tests.faults.scripted import HangUp as ServerHangUp
from tests.faults.scripted import ReceivedRequest, Scripted, reply
from tests.faults.watching import Tail, eventually
from tests.frontends.test_a2a import Agent, run
from tests.hubs import META, MODERN, PATIENT, HubProcess, Raw, node_urls, serving, stdio, write_config
from tests.peers.launch import command
from tests.unit.upstream.a2a.scripted import (
    DONE,
    HELLO,
    KINDS,
    TASK,
    WORKING,
    HangUp,
    Kind,
    Out,
    ScriptedAgent,
    made,
    stands,
    streaming,
)
from tests.unit.upstream.a2a.test_results import BLOCKS

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECONDS = 60.0
KEY = "a-key-of-the-inner-hub"
EXACT = '{"z":9223372036854775807,"a":[1,1.0,1.50],"m":"é"}'
PLACES = {"v1": "", "v03": "/.well-known/agent.json"}
"""Where the inner hub is asked for its card. The earlier one names no version, and is taken for one of 0.3."""


class Echoing(Scripted):
    """A server that gives its arguments back, or the result that is one of them."""

    async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        if request.arguments.get("hangs_up"):
            raise ServerHangUp
        given = {"content": [{"type": "text", "text": "given"}], "structuredContent": request.arguments}
        out.write(reply(request.result(request.arguments.get("result", given))))


@dataclass(frozen=True, slots=True)
class Field:
    """A hub with agents behind it: another hub, by each of its cards, and one agent of every kind."""

    hub: HubProcess
    caller: Raw
    ledger: Ledger
    working: dict[str, ProgressServer]
    agents: dict[Kind, ScriptedAgent]

    def agent(self, kind: Kind = KINDS[0]) -> ScriptedAgent:
        """An agent of the test's own, as if nobody had asked it anything."""
        agent = self.agents[kind]
        agent.asked.clear()
        return agent


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def field(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Field]:
    """Start everything once: a hub takes longer to start than to do all of this."""
    inner, outer = tmp_path_factory.mktemp("inner"), tmp_path_factory.mktemp("outer")
    ledger = Ledger(inner / "ledger")
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        working = {place: await enter(ProgressServer()) for place in PLACES}
        servers = {
            "raw": stdio(command("raw_server", "--ledger", str(ledger.path))),
            "echo": (await enter(Echoing())).entry,
            **{f"work_{place}": server.entry for place, server in working.items()},
        }
        callers = {"outer": {"key": KEY, "allow": ["*"]}}
        behind = await enter(serving(inner, servers, limits=PATIENT, callers=callers))
        for url in node_urls(behind.url):
            # A list waits for all servers that start; a card waits for a second.
            assert "raw.pay" in await (await enter(Raw(url, key=KEY))).names()
        agents = {kind: await enter(ScriptedAgent(kind)) for kind in KINDS}
        for agent in agents.values():
            agent.card_headers = {"cache-control": "max-age=1"}
        headers = {"Authorization": f"Bearer {KEY}"}
        entries = {
            **{p: {"agent": f"http://127.0.0.1:{behind.port}{at}", "headers": headers} for p, at in PLACES.items()},
            **{server_of(kind): {"agent": agent.origin} for kind, agent in agents.items()},
        }
        hub = await enter(serving(outer, entries, limits=PATIENT))
        yield Field(hub, await enter(Raw(hub.url)), ledger, working, agents)


def server_of(kind: Kind) -> str:
    """What the hub calls an agent of a kind."""
    return f"{kind.binding.lower().replace('+', '_')}-{kind.version.replace('.', '_')}"


def inner_arguments(place: str, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments for a tool of the inner hub: its own, or what goes with words where no schema says which."""
    return given if place == "v1" else {"message": "go", "data": given}


def text_of(answer: dict[str, Any]) -> str:
    assert "result" in answer, answer
    return str(answer["result"]["content"][0]["text"])


# -- a hub behind the hub ----------------------------------------------------------------------------------------------


async def test_a_hub_behind_a_hub_offers_its_tools_with_their_schemas(field: Field) -> None:
    tools = {tool["name"]: tool for tool in (await field.caller.ask("tools/list"))["result"]["tools"]}
    assert {"v1.raw.pay", "v1.execute_mcp_command", "v1.mcp.execute_tool", "v03.raw.pay"} <= tools.keys()
    assert "nonce" in tools["v1.raw.pay"]["inputSchema"]["properties"]
    assert "message" in tools["v03.raw.pay"]["inputSchema"]["properties"]
    refused = await field.caller.call("v1.raw.pay", {"nonce": 7})
    assert refused["error"]["code"] == -32602


@pytest.mark.parametrize("place", PLACES)
async def test_a_call_through_both_hubs_runs_once_and_keeps_its_exact_json(field: Field, place: str) -> None:
    given: dict[str, Any] = json.loads(EXACT)
    result = (await field.caller.call(f"{place}.echo.t", inner_arguments(place, given)))["result"]
    assert json.dumps(result["structuredContent"]) == json.dumps(given)
    assert result["content"][-1] == {"type": "text", "text": "given"}
    paid = await field.caller.call(f"{place}.raw.pay", inner_arguments(place, {"nonce": f"once-{place}"}))
    assert "result" in paid, paid
    assert paid["result"]["isError"] is False
    assert field.ledger.ran()[f"once-{place}"] == 1


async def test_a_call_that_is_lost_behind_the_other_hub_may_have_run(field: Field) -> None:
    answer = await field.caller.call("v1.echo.t", {"hangs_up": True})
    data = answer["error"]["data"]
    assert (data["executed"], data["server"]) == ("unknown", "v1"), answer
    assert (data["data"]["reason"], data["data"]["server"]) == ("lost", "echo"), answer
    unknown = await field.caller.call(
        "v1.mcp.execute_tool", {"target_mcp_server_id": "no", "tool_name": "t", "arguments": {}}
    )
    assert "no.t" in json.dumps(unknown["result"]["structuredContent"]), unknown


@pytest.mark.parametrize("is_error", [False, True])
async def test_a_result_passes_through_both_hubs_as_it_is(field: Field, *, is_error: bool) -> None:
    large = {"type": "text", "text": "é" * 300_000}
    result = {"content": [*BLOCKS, large], "structuredContent": {"b": 1, "a": [2.0]}, "isError": is_error}
    answer = (await field.caller.call("v1.echo.t", {"result": result}))["result"]
    assert {name: answer[name] for name in result} == result


@pytest.mark.parametrize("place", PLACES)
async def test_reports_and_questions_pass_through_both_hubs(field: Field, place: str) -> None:
    server = field.working[place]
    asked = run(f"{place}.work_{place}.t", **inner_arguments(place, {"asks": True}))
    async with (
        Agent(field.hub) as agent,
        agent.following("SendStreamingMessage", asked) as stream,
        asyncio.timeout(SECONDS),
    ):
        task = (await anext(stream))[1]["result"]["task"]["id"]
        server.may_work.set()
        server.may_end.set()
        updates = [data["result"]["statusUpdate"]["status"] async for _, data in stream]
        reports = [update["message"]["parts"][0]["data"]["progress"] for update in updates[:-1]]
        assert reports == list(range(1, STEPS + 1))
        assert updates[-1]["state"] == "TASK_STATE_INPUT_REQUIRED"
        assert updates[-1]["message"]["parts"][0] == {"text": "Who?"}
        said = {"messageId": "m2", "role": "ROLE_USER", "taskId": task, "parts": [{"data": {"name": "Ann"}}]}
        done = (await agent.ask("SendMessage", {"message": said}))["task"]
        assert done["status"]["state"] == "TASK_STATE_COMPLETED", done
        assert done["artifacts"][0]["parts"][0] == {"text": "done"}
        assert server.answered_with == {"action": "accept", "content": {"name": "Ann"}}


@pytest.mark.parametrize("place", PLACES)
async def test_giving_a_call_up_reaches_the_server_behind_the_agent(field: Field, place: str) -> None:
    tail, nonce = Tail(field.ledger.path), f"given up {place}"
    async with Agent(field.hub) as agent, asyncio.timeout(SECONDS):
        task = await agent.begin(f"{place}.raw.pay", **inner_arguments(place, {"nonce": nonce, "mode": "sleep:60"}))
        await eventually(lambda: nonce in tail.look().ran, "it runs")
        await agent.ask("CancelTask", {"id": task})
        await eventually(lambda: nonce in tail.look().cancelled, "the server was cancelled")


async def test_a_hub_that_is_its_own_agent_lists_nothing_twice(tmp_path: Path) -> None:
    async with serving(tmp_path, {}) as hub, Raw(hub.url) as caller, asyncio.timeout(SECONDS):
        before = await caller.names()
        write_config(tmp_path, {"me": {"agent": f"http://localhost:{hub.port}"}})

        async def is_known() -> bool:
            meta = (await caller.ask("tools/list"))["result"].get("_meta", {})
            return bool(meta.get("isthmus/missing", {}).get("me", {}).get("reason") == "it is this hub itself")

        await eventually(is_known, "the hub knows itself", SECONDS)
        assert await caller.names() == before


# -- agents of the test's own ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=" ".join)
async def test_a_skill_is_a_tool_and_its_task_the_result(field: Field, kind: Kind) -> None:
    field.agent(kind).scripts[SendMessage] = streaming(
        WORKING, HELLO, made(DataPart(Json(EXACT.encode())), id="b"), DONE
    )
    result = (await field.caller.call(f"{server_of(kind)}.research", {"message": "go"}))["result"]
    assert result["content"][0] == {"type": "text", "text": "hello"}
    assert json.dumps(result["structuredContent"]) == json.dumps(json.loads(EXACT))


async def test_skills_that_change_are_listed_anew(field: Field) -> None:
    kind = KINDS[-1]
    field.agent(kind).skills.append({"id": "other", "name": "Other", "description": "Does something else."})

    async def is_listed() -> bool:
        return f"{server_of(kind)}.other" in await field.caller.names()

    await eventually(is_listed, "the other skill is listed")


async def test_a_caller_without_elicitation_continues_by_calling_again(field: Field) -> None:
    agent, name = field.agent(), f"{server_of(KINDS[0])}.research"
    agent.scripts[SendMessage] = streaming(WORKING, stands("input_required", TextPart("Which one?")))
    asked = (await field.caller.call(name, {"message": "go"}))["result"]
    again = {key: asked["structuredContent"][key] for key in ("task_id", "context_id")}
    agent.scripts[SendMessage] = streaming(HELLO, DONE)
    assert text_of(await field.caller.call(name, {"message": "the red one", **again})) == "hello"
    assert [sent.task for sent in agent.sent()] == [None, TASK]


async def test_a_modern_caller_is_asked_by_the_result_and_comes_back_with_the_answer(field: Field) -> None:
    agent, name = field.agent(), f"{server_of(KINDS[0])}.research"
    agent.scripts[SendMessage] = streaming(WORKING, stands("input_required", TextPart("Which one?")))
    asked = await ask_as_person(field.caller, {"name": name, "arguments": {"message": "go"}})
    assert asked["resultType"] == "input_required", asked
    ((key, question),) = asked["inputRequests"].items()
    assert question["params"]["message"] == "Which one?"
    agent.scripts[SendMessage] = streaming(HELLO, DONE)
    answers = {key: {"action": "accept", "content": {"message": "the red one"}}}
    more = {"inputResponses": answers, "requestState": asked["requestState"]}
    done = await ask_as_person(field.caller, {"name": name, "arguments": {"message": "go"}, **more})
    assert done["content"] == [{"type": "text", "text": "hello"}], done
    assert [sent.message.parts for sent in agent.sent()] == [(TextPart("go"),), (TextPart("the red one"),)]


async def ask_as_person(caller: Raw, params: dict[str, Any]) -> dict[str, Any]:
    """The result of a modern call of a caller with elicitation."""
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**params, "_meta": meta}}
    headers = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": params["name"]}
    answer = (await caller.post(body, headers)).json()
    assert "result" in answer, answer
    result: dict[str, Any] = answer["result"]
    return result


async def test_an_agent_that_hangs_up_may_have_executed_and_gets_no_second_request(field: Field) -> None:
    async def hang_up(_: SendMessage, out: Out) -> None:
        raise HangUp

    agent, name = field.agent(), f"{server_of(KINDS[0])}.research"
    agent.scripts[SendMessage] = hang_up
    answer = await field.caller.call(name, {"message": "go"})
    assert answer["error"]["data"]["executed"] == "unknown", answer
    assert len(agent.sent()) == 1
    agent.scripts[SendMessage] = streaming(WORKING, HELLO, DONE)
    assert text_of(await field.caller.call(name, {"message": "go"})) == "hello"
