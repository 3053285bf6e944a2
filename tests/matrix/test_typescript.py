"""The official TypeScript SDK, both majors, through the hub: servers of both eras, and those from npm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import pytest_asyncio

from tests.conformance.run import fixture
from tests.fork_server import quick_isthmus
from tests.hubs import PATIENT, HubProcess, serving, stdio, write_config
from tests.matrix.field import Kind, until_complete
from tests.matrix.full_servers import FullServerMatrix
from tests.matrix.matrix_sessions import SHARED_KINDS, MatrixSessions
from tests.matrix.session_steps import TEXT, TRACE, SessionRecord, session_steps
from tests.peers.expectations import assert_changed, assert_looked
from tests.peers.forking import quickly
from tests.peers.forms import Form
from tests.peers.launch import listening_peer
from tests.peers.npm_servers import everything_over_http, npm_command
from tests.peers.sdk1_steps import Answer, Step
from tests.peers.survey import Survey, changing, looking
from tests.peers.typescript import Major, Mode, SessionPlan, run_typescript

pytestmark = pytest.mark.asyncio(loop_scope="session")

in_the_field = pytest.mark.xdist_group("matrix")
on_full_servers = pytest.mark.xdist_group("capabilities")
among_askers = pytest.mark.xdist_group("npm")


@dataclass(frozen=True, slots=True)
class TypeScriptClient:
    """A TypeScript client."""

    major: Major
    mode: Mode
    speaks: Literal["2025-11-25", "2026-07-28"]

    def __str__(self) -> str:
        return f"{self.major}.x-{self.mode}"


OLD = TypeScriptClient(1, "legacy", "2025-11-25")
CLIENTS = (OLD, TypeScriptClient(2, "legacy", "2025-11-25"), TypeScriptClient(2, "auto", "2026-07-28"))

every_client = pytest.mark.parametrize("client", CLIENTS, ids=str)


@in_the_field
@every_client
async def test_calls_progress_cancelling_and_changes_are_as_without_a_hub(
    sessions: MatrixSessions, client: TypeScriptClient
) -> None:
    records = await run_sessions(sessions, client)

    for kind, found in records.items():
        direct = await sessions.direct(kind)
        assert found.answers["hello"]["hello"]["protocolVersion"] == client.speaks
        for step in ("echoed", "added", "decorated", "failed", "raised"):
            assert found.result(step) == direct.result(step)
        assert found.text("echoed") == TEXT
        assert found.answers["slow"]["progress"] == [[step, 5, f"step {step}"] for step in range(1, 6)]
        assert {key: found.meta().get(key) for key in TRACE} == TRACE
        await sessions.field.ledger.wait_for(f"cancelled {found.token}")
        assert found.token in found.tools("changed")


async def run_sessions(sessions: MatrixSessions, client: TypeScriptClient) -> dict[Kind, SessionRecord]:
    """Run sessions of a client with servers of every program, era and carrier, each at its own address."""
    tokens = {kind: f"typescript_{client.major}_{client.mode}_{kind.name}" for kind in SHARED_KINDS}
    listening: dict[str, Step] = {"listening": {"do": "listen"}}
    plans = [
        SessionPlan({**listening, **session_steps(token)}, sessions.field.hub.url_of(kind.name))
        for kind, token in tokens.items()
    ]
    answers = await run_typescript(client.major, client.mode, plans)
    return {kind: SessionRecord(tokens[kind], "", found) for kind, found in zip(tokens, answers, strict=True)}


LOOKED_AT = (
    Form("sdk1", "legacy", "stateful"),
    Form("sdk2", "legacy", "stateful"),
    Form("fastmcp", "legacy", "stdio"),
    Form("sdk2", "modern", "stateless"),
    Form("fastmcp", "modern", "stateless"),
)


@on_full_servers
@every_client
async def test_resources_prompts_completions_and_announcements_are_the_servers_own(
    full_servers: FullServerMatrix, client: TypeScriptClient
) -> None:
    era = "legacy" if client.speaks == "2025-11-25" else "modern"
    forms = [form for form in LOOKED_AT if form.era == era]
    plans = [SessionPlan(steps(client, form), full_servers.hub.url_of(form.name)) for form in forms]
    for form, answers in zip(forms, await run_typescript(client.major, client.mode, plans), strict=True):
        found = Survey(answers)
        assert_looked(found)
        assert_changed(found, form)


def steps(client: TypeScriptClient, form: Form) -> dict[str, Step]:
    """Look at everything, and change what can be heard of."""
    can, token = form.abilities, f"typescript_{client.major}_{client.mode}_{form.name}"
    return {**looking(), **changing(token, listens="announces" in can, updates="updates" in can)}


ASKERS = ("legacy-http", "legacy-stdio", "modern-http", "modern-stdio")
EVERYTHING = ("everything-http", "everything-stdio")
QUESTIONS: Mapping[str, tuple[dict[str, str], str]] = {
    "test_elicitation": ({"message": "Who are you?"}, "elicitation/create"),
    "test_sampling": ({"prompt": "Say hello."}, "sampling/createMessage"),
    "test_input_required_result_list_roots": ({}, "roots/list"),
}


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def askers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    """Servers that ask things of their callers."""
    async with (
        listening_peer(quickly(fixture("http", "legacy"))) as legacy,
        listening_peer(quickly(fixture("http", "modern"))) as modern,
        everything_over_http("streamableHttp") as everything,
    ):
        servers = {
            "legacy-http": {"url": legacy.url},
            "legacy-stdio": stdio(quickly(fixture("stdio", "legacy"))),
            "modern-http": {"url": modern.url},
            "modern-stdio": stdio(quickly(fixture("stdio", "modern"))),
            "everything-http": {"url": everything.url},
            "everything-stdio": stdio(npm_command("everything")),
        }
        async with serving(tmp_path_factory.mktemp("askers"), servers) as hub:
            await until_complete(hub.url)
            yield hub


@among_askers
@every_client
async def test_a_servers_questions_are_answered_in_every_era(askers: HubProcess, client: TypeScriptClient) -> None:
    asking = {tool: call(tool, given) for tool, (given, _) in QUESTIONS.items()}
    naming = {"named": call("test_input_required_result_elicitation")}
    plans = [SessionPlan({**asking, **naming}, askers.url_of(server)) for server in ASKERS]
    for found in await run_typescript(client.major, client.mode, plans):
        assert {tool: found[tool]["asked"] for tool in QUESTIONS} == {
            tool: [method] for tool, (_, method) in QUESTIONS.items()
        }
        assert {text_of(found[tool]).split(",")[0] for tool in QUESTIONS} == {"state-ok"}
        assert text_of(found["named"]) == "Hello, Ada!"


@among_askers
@every_client
async def test_everything_from_npm_is_at_hand(askers: HubProcess, client: TypeScriptClient) -> None:
    plan: dict[str, Step] = {
        "tools": {"do": "list"},
        "resources": {"do": "resources"},
        "prompts": {"do": "prompts"},
        "greeted": {"do": "prompt", "name": "args-prompt", "arguments": {"city": "Paris", "state": "Texas"}},
        "read": {"do": "read", "uri": "demo://resource/static/document/features.md"},
        "summed": call("get-sum", {"a": 40, "b": 2}),
        # It asks for the roots 350 ms after it is greeted, and a modern caller that comes back with them has missed
        # what was reported meanwhile: let that be over first.
        "asked": call("trigger-long-running-operation", {"duration": 0.6, "steps": 1}),
        "steps": {**call("trigger-long-running-operation", {"duration": 0.05, "steps": 5}), "progress": True},
        "sampled": call("trigger-sampling-request", {"prompt": "Say hello."}),
        "elicited": call("trigger-elicitation-request"),
    }
    plans = [SessionPlan(plan, askers.url_of(server)) for server in EVERYTHING]
    for found in await run_typescript(client.major, client.mode, plans):
        assert {"echo", "get-sum"} <= {tool["name"] for tool in found["tools"]["tools"]}
        assert found["read"]["result"]["contents"][0]["text"].startswith("#")
        assert "Paris" in found["greeted"]["result"]["messages"][0]["content"]["text"]
        assert "42" in text_of(found["summed"])
        assert [done for done, *_ in found["steps"]["progress"]] == [1, 2, 3, 4, 5]
        assert len(found["prompts"]["prompts"]) == 4
        assert found["resources"]["resources"]
        # It lists these tools only to those whom it can ask.
        assert "a greeting" in text_of(found["sampled"])
        assert "Ada" in str(found["elicited"]["result"]["content"])


@among_askers
async def test_an_earlier_transport_and_a_command_lead_to_the_same(askers: HubProcess, tmp_path: Path) -> None:
    steps: dict[str, Step] = {"named": call("modern-stdio.test_input_required_result_elicitation")}
    config = write_config(tmp_path, {"modern-stdio": stdio(quickly(fixture("stdio", "modern")))}, limits=PATIENT)
    command = SessionPlan(steps, command=quick_isthmus("stdio", "--config", str(config)))
    earlier = SessionPlan(steps, askers.url.removesuffix("/mcp") + "/sse", sse=True)
    old, new = await asyncio.gather(
        run_typescript(1, "legacy", [earlier, command]), run_typescript(2, "2026-07-28", [command])
    )
    for found in (*old, *new):
        assert text_of(found["named"]) == "Hello, Ada!"


def call(tool: str, arguments: Mapping[str, Any] | None = None) -> Step:
    """A step that calls a tool."""
    return {"do": "call", "tool": tool, "arguments": dict(arguments or {})}


def text_of(answer: Answer) -> str:
    """The text of a call's result."""
    assert answer["ok"], answer
    text: str = answer["result"]["content"][0]["text"]
    return text
