"""The remote agent of Google's Agent Development Kit, unmodified and without a model, in both of its ways."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.agents.field import Field
from tests.agents.tool_requests import ASKING, EXACT, SERVERS, STEPS, TALKING

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("agents")]

every_way = pytest.mark.parametrize("way", ["legacy", "extension"])
every_server = pytest.mark.parametrize("server", SERVERS)


async def run_steps(field: Field, way: str, server: str, step: str) -> dict[str, Any]:
    return (await field.reports("a2a10", "client_adk", way))[server, step]


def texts_in(events: list[dict[str, Any]], kind: str) -> list[Any]:
    """What the events say in parts of a kind."""
    return [part[kind] for event in events for part in event["parts"] if kind in part]


@every_way
@every_server
async def test_an_instruction_runs_a_tool(field: Field, way: str, server: str) -> None:
    events = (await run_steps(field, way, server, "called"))["events"]

    [blob] = texts_in(events, "inline_data")
    assert b'"value"' in base64.urlsafe_b64decode(blob["data"])
    assert len({event["task"] for event in events}) == 1
    if server in TALKING:  # whose result is also a text, which the kit does not turn into doubles
        assert texts_in(events, "text") == [json.dumps(EXACT, ensure_ascii=False)]


@every_way
@every_server
async def test_a_failure_is_said(field: Field, way: str, server: str) -> None:
    words = " ".join(texts_in((await run_steps(field, way, server, "failed"))["events"], "text"))

    assert ("the shop is closed" if server == "rpc" else "this call always fails") in words


@every_way
@pytest.mark.parametrize("server", TALKING)
async def test_progress_arrives_as_thoughts_before_the_result(field: Field, way: str, server: str) -> None:
    parts = [part for event in (await run_steps(field, way, server, "counted"))["events"] for part in event["parts"]]

    thoughts = [part["text"] for part in parts if part.get("thought") and "text" in part]
    assert thoughts == [f"step {step}" for step in range(1, STEPS + 1)]
    assert parts[-1] == {"text": f"{STEPS} steps"}


@every_way
@pytest.mark.parametrize("server", TALKING)
async def test_files_are_data_and_addresses(field: Field, way: str, server: str) -> None:
    events = (await run_steps(field, way, server, "shown"))["events"]

    files = {blob["mime_type"]: base64.urlsafe_b64decode(blob["data"]) for blob in texts_in(events, "inline_data")}
    assert files == {
        "image/png": b"\x89PNG a pixel",
        "audio/wav": b"RIFF a tune",
        "application/x-sheet": bytes(range(256)),
    }
    assert [link["file_uri"] for link in texts_in(events, "file_data")] == ["https://shelf.example/book.pdf"]


@every_way
@pytest.mark.parametrize("server", ASKING)
async def test_a_question_is_a_call_and_its_response_the_answer(field: Field, way: str, server: str) -> None:
    found = await run_steps(field, way, server, "asked")

    [call] = texts_in(found["asked"], "function_call")
    assert call["args"] == {"input_required": "What is your name?"}
    assert texts_in(found["events"], "text") == ["Hello, Ann!"]
    assert {event["task"] for event in found["events"]} == {event["task"] for event in found["asked"]}
