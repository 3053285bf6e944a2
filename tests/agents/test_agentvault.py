"""The AgentVault client, unmodified: its data by its own events, however fast a tool is."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.agents.field import Field, run
from tests.agents.tool_requests import ASKING, EXACT, QUICK, SERVERS, STEPS, TALKING, fresh
from tests.hubs import NODES

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("agents")]

TIMES = 1000

every_server = pytest.mark.parametrize("server", SERVERS)


async def run_steps(field: Field, server: str, step: str) -> dict[str, Any]:
    return (await field.reports("agentvault", "client_agentvault"))[server, step]


def messages_in(events: list[dict[str, Any]]) -> list[Any]:
    """What the messages of a stream hold, part by part."""
    messages = [event["message"] for event in events if event["kind"] == "TaskMessageEvent"]
    assert {message["role"] for message in messages} <= {"assistant"}
    return [part["content"] for message in messages for part in message["parts"]]


def states(events: list[dict[str, Any]]) -> list[tuple[str, str | None]]:
    """The states in a stream, each with its message."""
    return [(event["state"], event["message"]) for event in events if event["kind"] == "TaskStatusUpdateEvent"]


async def test_a_caller_learns_the_result_of_an_instant_tool_a_thousand_times_of_a_thousand(field: Field) -> None:
    reports = await run("agentvault", "client_agentvault", str(TIMES), field.url, fresh("vault"))

    assert reports == [{"server": QUICK, "step": "paid", "whole": TIMES}]


@every_server
async def test_the_card_is_one_that_its_client_takes(field: Field, server: str) -> None:
    card = await run_steps(field, server, "card")

    assert card["schemes"] == ["none"]
    assert {"mcp.execute_tool", f"{server}.tell"} <= set(card["skills"])


@every_server
async def test_an_event_carries_the_result_with_numbers_and_keys_unchanged(field: Field, server: str) -> None:
    found = await run_steps(field, server, "called")

    [content] = messages_in(found["events"])
    assert content["success"] is True
    result = content["mcp_result"]
    returned = result if server == "rpc" else result["structuredContent"]  # what a plain server returns stays as it is
    assert json.dumps(returned) == json.dumps({"value": EXACT})
    assert states(found["events"])[-1] == ("COMPLETED", None)


@every_server
async def test_late_followers_and_readers_of_the_task_get_the_same(field: Field, server: str) -> None:
    found = await run_steps(field, server, "called")

    assert messages_in(found["again"]) == messages_in(found["events"])
    assert states(found["again"]) == [("COMPLETED", None)]
    assert found["read"]["state"] == "COMPLETED"
    user, assistant = found["read"]["messages"]
    assert (user["role"], assistant["role"]) == ("user", "assistant")
    assert [part["content"] for part in assistant["parts"]] == messages_in(found["events"])


@pytest.mark.parametrize("server", TALKING)
async def test_progress_is_sent_as_it_arrives(field: Field, server: str) -> None:
    events = (await run_steps(field, server, "counted"))["events"]

    steps = [("WORKING", f"step {step}") for step in range(1, STEPS + 1)]
    reported = states(events)
    if NODES > 1 and reported[0] == ("SUBMITTED", None):
        del reported[
            0
        ]  # the first call that its node makes for this caller waits for a link, as that of a single hub does
    assert reported == [("WORKING", None), *steps, ("COMPLETED", None)]


@every_server
async def test_every_failure_is_sent_with_its_data(field: Field, server: str) -> None:
    failed, unknown, nowhere = (await run_steps(field, server, "failed"))["events"]

    sources = [messages_in(events)[0]["error"]["source"] for events in (failed, unknown, nowhere)]
    assert sources == ["MCP_PROTOCOL" if server == "rpc" else "MCP_TOOL", "A2A_PROXY", "A2A_PROXY"]
    for events in (failed, unknown, nowhere):
        [content] = messages_in(events)
        state, words = states(events)[-1]
        error = content["error"]
        assert (content["success"], state) == (False, "FAILED")
        assert words == f"[{error['source']}/{error['code']}] {error['message']}"


@every_server
async def test_refusals_are_errors_of_the_remote_agent(field: Field, server: str) -> None:
    found = await run_steps(field, server, "refused")

    assert {error.get("type") for name, error in found.items() if name not in ("server", "step")} == {
        "A2ARemoteAgentError"
    }
    assert [found[name]["code"] for name in ("missing", "ended", "closed")] == [-32001, -32004, -32004]
    assert "Task not found" in found["unfollowed"]["message"]


@every_server
async def test_followers_of_a_cancelled_task_learn_of_the_cancellation(field: Field, server: str) -> None:
    found = await run_steps(field, server, "cancelled")

    assert found["cancelled"] is True
    assert states(found["events"])[-1][0] == found["read"]["state"] == "CANCELED"
    if server in ASKING:
        token = (await field.reports("agentvault", "client_agentvault")).token
        await field.ledger.wait_for(f"cancelled {token} {server}")


@pytest.mark.parametrize("server", ASKING)
async def test_a_question_waits_for_the_next_message(field: Field, server: str) -> None:
    found = await run_steps(field, server, "asked")

    assert states(found["asked"])[-1] == ("INPUT_REQUIRED", "What is your name?")
    assert (found["question"]["state"], messages_in(found["asked"])[0]) == ("INPUT_REQUIRED", "What is your name?")
    assert messages_in(found["events"])[-1]["mcp_result"]["content"] == [{"type": "text", "text": "Hello, Ann!"}]
    assert states(found["events"])[-1] == ("COMPLETED", None)


@pytest.mark.parametrize("server", TALKING)
async def test_files_arrive_in_parts_that_its_client_takes(field: Field, server: str) -> None:
    found = await run_steps(field, server, "shown")

    [message] = [event["message"] for event in found["events"] if event["kind"] == "TaskMessageEvent"]
    text, picture, sound, sheet, book = message["parts"]
    assert text == {"type": "text", "content": "three things"}
    assert [base64.b64decode(part["content"]["bytes"]) for part in (picture, sound, sheet)] == [
        b"\x89PNG a pixel",
        b"RIFF a tune",
        bytes(range(256)),
    ]
    assert (book["type"], book["url"]) == ("file", "https://shelf.example/book.pdf")
    assert found["read"]["messages"][-1]["parts"] == message["parts"]
