"""Every official SDK, in every binding that it has, at a server of every kind: unmodified, over real sockets."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

import pytest

from tests.agents.field import Field, StepReports, run
from tests.agents.tool_requests import ASKING, EXACT, SERVERS, STEPS, TALKING
from tests.hubs import NODES
from tests.peers.launch import Sdk

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("agents")]


@dataclass(frozen=True, slots=True)
class Client:
    """An official client in one of its bindings, and what it raises when it is refused."""

    sdk: Sdk
    program: str
    binding: str
    missing: tuple[str, int | None]
    ended: tuple[str, int | None]
    over: tuple[str, int | None]

    def __str__(self) -> str:
        return f"{self.sdk}-{self.binding}"


RAISED_BY_1_0 = {
    "missing": ("TaskNotFoundError", None),
    "ended": ("TaskNotCancelableError", None),
    "over": ("UnsupportedOperationError", None),
}
RPC_0_3 = "A2AClientJSONRPCError"
HTTP_0_3 = "A2AClientHTTPError"

CLIENTS = (
    Client("a2a10", "client_v1", "JSONRPC", **RAISED_BY_1_0),
    Client("a2a10", "client_v1", "HTTP+JSON", **RAISED_BY_1_0),
    Client("a2a10", "client_v1", "GRPC", **RAISED_BY_1_0),
    Client("a2a03", "client_v03", "JSONRPC", (RPC_0_3, -32001), (RPC_0_3, -32002), (RPC_0_3, -32004)),
    # The SDK itself says 400 of every stream that does not begin.
    Client("a2a03", "client_v03", "HTTP+JSON", (HTTP_0_3, 404), (HTTP_0_3, 409), (HTTP_0_3, 400)),
)

every_client = pytest.mark.parametrize("client", CLIENTS, ids=str)
every_server = pytest.mark.parametrize("server", SERVERS)


async def run_steps(field: Field, client: Client) -> StepReports:
    return await field.reports(client.sdk, client.program, client.binding)


@every_client
@every_server
async def test_a_client_finds_the_tools_in_the_card(field: Field, client: Client, server: str) -> None:
    card = (await run_steps(field, client))[server, "card"]["card"]

    assert card["streaming"]
    assert {"execute_mcp_command", "mcp.execute_tool", f"{server}.tell"} <= card["skills"].keys()


@every_client
@every_server
async def test_a_message_runs_a_tool_and_its_numbers_and_keys_come_back_as_they_were(
    field: Field, client: Client, server: str
) -> None:
    called = (await run_steps(field, client))[server, "called"]

    assert called["task"]["state"] == "completed"
    if client.binding != "GRPC":
        [value] = _values(json.loads(called["body"]))
        assert json.dumps(value) == json.dumps(EXACT)
    if server in TALKING:  # who says it as a text too, which is exact where a number is a double by nature
        assert called["task"]["parts"][-1] == {"text": json.dumps(EXACT, ensure_ascii=False)}


def _values(body: Any) -> list[Any]:
    """What is under the key `value` anywhere in a body, texts apart."""
    if isinstance(body, dict):
        return [body["value"]] if "value" in body else [found for each in body.values() for found in _values(each)]
    return [found for each in body for found in _values(each)] if isinstance(body, list) else []


@every_client
@every_server
async def test_a_task_is_found_afterwards_as_it_was_answered(field: Field, client: Client, server: str) -> None:
    called = (await run_steps(field, client))[server, "called"]

    assert called["found"] == called["task"]
    assert called["listed"] == ([called["task"]] if client.sdk == "a2a10" else None)


@every_client
@every_server
async def test_a_stream_has_the_task_its_progress_its_result_and_its_end(
    field: Field, client: Client, server: str
) -> None:
    first, *reports, last = (await run_steps(field, client))[server, "streamed"]["events"]

    made = [event for event in reports if event["kind"] == "artifact"]
    assert (first["kind"], last["kind"], last["state"]) == ("task", "status", "completed")
    assert made == reports[-len(made) :], "the result comes after the progress"
    # A task that takes a moment to be stored is submitted first, and then working, which has no words.
    steps = [event["parts"][0]["text"] for event in reports[: -len(made)] if event["parts"] or NODES == 1]
    assert steps == ([f"step {step}" for step in range(1, STEPS + 1)] if server in TALKING else [])


@every_client
@every_server
async def test_a_cancelled_task_ends_for_all_its_followers(field: Field, client: Client, server: str) -> None:
    reports = await run_steps(field, client)
    found = reports[server, "cancelled"]

    assert found["cancelled"]["state"] == "canceled"
    assert found["first"][-1]["state"] == found["second"][-1]["state"] == "canceled"
    assert (found["second"][0]["kind"], found["second"][0]["state"]) == ("task", "working")
    if server in ASKING:
        await field.ledger.wait_for(f"cancelled {reports.token} {server}")


@every_client
@every_server
async def test_a_failed_call_is_a_failed_task_with_its_reason(field: Field, client: Client, server: str) -> None:
    found = (await run_steps(field, client))[server, "failed"]

    assert found["task"]["state"] == found["unknown"]["state"] == "failed"
    why = [part.get("text", "") for part in (*found["task"]["parts"], *found["task"]["said"])]
    assert any(reason in text for text in why for reason in ("always fails", "the shop is closed"))
    assert found["unknown"]["said"][0]["text"].startswith(f"Unknown tool: {server}.nothing")


@every_client
@every_server
async def test_refusals_raise_the_sdks_own_exceptions(field: Field, client: Client, server: str) -> None:
    found = (await run_steps(field, client))[server, "refused"]

    raised = {name: (error["type"], error["code"]) for name, error in found.items() if name in RAISED_BY_1_0}
    assert raised == {"missing": client.missing, "ended": client.ended, "over": client.over}
    assert "answer" not in found["closed"]


@every_client
@every_server
async def test_a_caller_without_a_tool_is_asked_for_one_and_then_it_runs(
    field: Field, client: Client, server: str
) -> None:
    found = (await run_steps(field, client))[server, "offered"]

    assert found["offer"]["state"] == "input_required"
    assert found["offer"]["said"][0]["text"].startswith("Which tool should run?")
    assert (found["chosen"]["task"], found["chosen"]["state"]) == (found["offer"]["task"], "completed")
    assert {"text": "the text of /x"} in found["chosen"]["parts"]


@every_client
@pytest.mark.parametrize("server", TALKING)
async def test_pictures_sounds_and_documents_arrive_as_files(field: Field, client: Client, server: str) -> None:
    parts = (await run_steps(field, client))[server, "shown"]["task"]["parts"]

    text, picture, sound, sheet, book = parts
    assert text == {"text": "three things"}
    assert [part["type"] for part in parts[1:]] == ["image/png", "audio/wav", "application/x-sheet", "application/pdf"]
    assert base64.b64decode(picture["file"]) == b"\x89PNG a pixel"
    assert base64.b64decode(sound["file"]) == b"RIFF a tune"
    assert (base64.b64decode(sheet["file"]), sheet["name"]) == (bytes(range(256)), "sheet.bin")
    assert (book["url"], book["name"]) == ("https://shelf.example/book.pdf", "book.pdf")


@every_client
@pytest.mark.parametrize("server", ASKING)
async def test_a_servers_question_is_answered_by_the_next_message(field: Field, client: Client, server: str) -> None:
    reports = await run_steps(field, client)
    found = reports[server, "asked"]

    assert (found["question"]["state"], found["question"]["said"][0]) == (
        "input_required",
        {"text": "What is your name?"},
    )
    assert (found["answered"]["state"], found["answered"]["task"]) == ("completed", found["question"]["task"])
    assert {"text": "Hello, Ann!"} in found["answered"]["parts"]
    assert {"text": "Nobody: decline"} in reports[server, "declined"]["answered"]["parts"]


async def test_a_client_of_0_3_that_says_nothing_of_waiting_gets_the_answer(field: Field) -> None:
    plain, at_once, stream = await run("a2a03", "plain_v03", field.url)

    assert (plain["step"], plain["state"], plain["artifacts"]) == ("plain", "completed", 1)
    assert (at_once["state"], at_once["artifacts"]) in (("submitted", 0), ("working", 0))
    # It says what it accepts on two lines: its HTTP client's `*/*`, and that it wants a stream.
    assert (stream["type"], stream["code"]) == (RPC_0_3, -32001)
