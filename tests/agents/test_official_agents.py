"""Agents of the official SDKs as servers of a hub, of both generations and in every binding that they have.

Each is a program of its own (`agent_v1`, `agent_v03`) under the interpreter of its SDK, which does what its message's
first word says (`agent_behaviour`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.agents.agent_behaviour import FILE_URL, PIXEL, STEPS
from tests.conftest import Ledger
from tests.faults.watching import eventually
from tests.frontends.test_a2a import Agent, run
from tests.hubs import PATIENT, HubProcess, Raw, serving
from tests.peers.launch import CHECKOUT, Sdk, listening_peer, sdk_python

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("official agents")]

SECONDS = 60.0
AGENTS: dict[str, tuple[Sdk, str, tuple[str, ...]]] = {
    "v1": ("a2a10", "agent_v1", ()),
    "v1-plain": ("a2a10", "agent_v1", ("--binding", "HTTP+JSON")),
    "v1-silent": ("a2a10", "agent_v1", ("--silent",)),
    "v03": ("a2a03", "agent_v03", ()),
    "v03-plain": ("a2a03", "agent_v03", ("--binding", "HTTP+JSON")),
    "v03-silent": ("a2a03", "agent_v03", ("--silent",)),
}
TALKING = [name for name in AGENTS if not name.endswith("silent")]


class Wire:
    """What lies between the hub and one agent, and can be cut."""

    def __init__(self) -> None:
        self.target = 0
        """The agent's port."""
        self._ends: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[int]:
        """Lay it; yields the port of its near end."""
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            self.cut()

    def cut(self) -> None:
        """Break all connections; new ones can be made."""
        for end in self._ends:
            end.transport.abort()
        self._ends.clear()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        self._ends |= {writer, far_writer}
        await asyncio.gather(_pour(reader, far_writer), _pour(far_reader, writer))


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
    writer.close()


@dataclass(frozen=True, slots=True)
class Field:
    """A hub with an official agent of every kind behind it."""

    hub: HubProcess
    caller: Raw
    ledger: Ledger
    wires: dict[str, Wire]

    async def ask(self, server: str, message: str, **more: str) -> dict[str, Any]:
        """The result of a call."""
        answer = await self.caller.call(f"{server}.run_tools", {"message": message, **more})
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def field(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Field]:
    """Start all agents at once, and the hub."""
    folder = tmp_path_factory.mktemp("official")
    ledger = Ledger(folder / "ledger")
    async with AsyncExitStack() as stack:

        async def start(name: str) -> dict[str, str]:
            sdk, program, options = AGENTS[name]
            port = await stack.enter_async_context(wires[name].open())
            words = [sdk_python(sdk), str(CHECKOUT / "tests" / "agents"), program, *options, "--public", str(port)]
            peer = await stack.enter_async_context(listening_peer(words, env=ledger.env))
            wires[name].target = peer.port
            return {"agent": peer.at("")}

        wires = {name: Wire() for name in AGENTS}
        entries = await asyncio.gather(*(start(name) for name in AGENTS))
        servers = dict(zip(AGENTS, entries, strict=True))
        hub = await stack.enter_async_context(serving(folder, servers, limits=PATIENT))
        yield Field(hub, await stack.enter_async_context(Raw(hub.url)), ledger, wires)


def texts(result: dict[str, Any]) -> list[str]:
    return [block["text"] for block in result["content"] if block["type"] == "text"]


@pytest.mark.parametrize("server", AGENTS)
async def test_an_official_agent_runs_each_request_once(field: Field, server: str) -> None:
    result = await field.ask(server, f"echo {server} é")
    assert (texts(result), result["isError"]) == ([f"{server} é"], False)
    assert field.ledger.lines().count(f"did echo {server} é") == 1
    assert texts(await field.ask(server, "say hello")) == ["hello"]


@pytest.mark.parametrize("server", AGENTS)
async def test_every_part_of_an_official_agent_arrives(field: Field, server: str) -> None:
    result = await field.ask(server, "parts")
    assert result["structuredContent"] == {"n": 1, "text": "é"}
    _, image, link, words = result["content"]
    assert image == {"type": "image", "data": PIXEL, "mimeType": "image/png"}
    assert link == {"type": "resource_link", "uri": FILE_URL, "name": "report.pdf", "mimeType": "application/pdf"}
    assert words == {"type": "text", "text": "That is all."}


@pytest.mark.parametrize("server", AGENTS)
async def test_an_official_agent_that_fails_is_an_error(field: Field, server: str) -> None:
    for message in ("fail so", "reject so"):
        result = await field.ask(server, message)
        assert (texts(result), result["isError"]) == (["Cannot so"], True)
    login = await field.ask(server, "login")
    assert login["isError"] is True
    assert texts(login)[-1] == "Log in at https://login.example/"


@pytest.mark.parametrize("server", TALKING)
async def test_events_of_an_official_agent_arrive_while_it_works(field: Field, server: str) -> None:
    async with (
        Agent(field.hub) as agent,
        agent.following("SendStreamingMessage", run(f"{server}.run_tools", message="steps")) as stream,
        asyncio.timeout(SECONDS),
    ):
        updates = [data["result"] async for _, data in stream]
    working = [update["statusUpdate"]["status"] for update in updates if "statusUpdate" in update][:-1]
    reports = [status["message"]["parts"][0]["text"] for status in working]
    assert reports == [f"step {step}" for step in range(1, STEPS + 1)]
    (made,) = [update["artifactUpdate"]["artifact"] for update in updates if "artifactUpdate" in update]
    assert made["parts"] == [{"text": "one, two, three"}]


@pytest.mark.parametrize("server", AGENTS)
async def test_a_question_of_an_official_agent_is_answered(field: Field, server: str) -> None:
    async with Agent(field.hub) as agent, asyncio.timeout(SECONDS):
        asked = (await agent.ask("SendMessage", run(f"{server}.run_tools", message="ask")))["task"]
        assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        assert asked["status"]["message"]["parts"][0] == {"text": "Which one?"}
        answer = {"parts": [{"data": {"message": "the red one"}}], "taskId": asked["id"]}
        said = {"messageId": f"answer-{server}", "role": "ROLE_USER", **answer}
        done = (await agent.ask("SendMessage", {"message": said}))["task"]
        assert done["artifacts"][0]["parts"] == [{"text": "You said the red one"}]


@pytest.mark.parametrize("server", AGENTS)
async def test_a_caller_without_elicitation_answers_an_official_agent_by_calling_again(
    field: Field, server: str
) -> None:
    asked = await field.ask(server, "ask")
    again = {key: asked["structuredContent"][key] for key in ("task_id", "context_id")}
    assert texts(await field.ask(server, "the blue one", **again)) == ["You said the blue one"]


@pytest.mark.parametrize("server", AGENTS)
async def test_an_official_agent_learns_that_its_task_is_cancelled(field: Field, server: str) -> None:
    before = field.ledger.lines().count("cancelled")
    async with Agent(field.hub) as agent, asyncio.timeout(SECONDS):
        task = await agent.begin(f"{server}.run_tools", message=f"hold {server}")
        await eventually(lambda: f"did hold {server}" in field.ledger.lines(), "it works")
        await agent.ask("CancelTask", {"id": task})
        await eventually(lambda: field.ledger.lines().count("cancelled") > before, "the agent is cancelled")


@pytest.mark.parametrize("server", TALKING)
async def test_a_stream_that_breaks_is_gone_on_with_and_nothing_is_done_twice(
    field: Field, tmp_path: Path, server: str
) -> None:
    may_end = tmp_path / "may end"
    asked = run(f"{server}.run_tools", message=f"until {may_end}")
    async with (
        Agent(field.hub) as agent,
        agent.following("SendStreamingMessage", asked) as stream,
        asyncio.timeout(SECONDS),
    ):
        await anext(stream)
        assert "waiting" in str(await anext(stream))
        field.wires[server].cut()
        may_end.touch()
        made = [data["result"] async for _, data in stream]
    assert made[0]["artifactUpdate"]["artifact"]["parts"] == [{"text": "done"}], made
    assert field.ledger.lines().count(f"did until {may_end}") == 1
