"""Cassettes of real servers replay to official clients of both eras, byte for byte, without the servers."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp_types import PromptReference, ResourceTemplateReference

from tests.cassettes.wire import Messages, teed_client
from tests.hubs import PATIENT, started, write_config
from tests.peers.client_sdk2 import Mode, call_with_progress, cancel_once_begun, client_over_http
from tests.peers.npm_servers import npm_command

Tour = Callable[[Client], Awaitable[None]]
ERAS: list[Mode] = ["legacy", "2026-07-28"]


async def see_everything(client: Client) -> None:
    """Use every capability of `server-everything`."""
    tools = {tool.name for tool in (await client.list_tools()).tools}
    # First: otherwise the server asks for roots by itself some time later, in the middle of another call.
    assert "file:///work" in (await client.call_tool("everything.get-roots-list", {})).model_dump_json()
    await client.list_prompts()
    resources = await client.list_resources()
    await client.list_resource_templates()
    await client.call_tool("everything.echo", {"message": "Grüße 日本 🎉"})
    await client.call_tool("everything.get-sum", {"a": 1, "b": 2.5})
    _, progress = await call_with_progress(
        client, "everything.trigger-long-running-operation", {"duration": 0.3, "steps": 3}
    )
    assert progress
    for tool in ("get-tiny-image", "get-structured-content", "get-annotated-message", "get-resource-links"):
        given = {"get-structured-content": {"location": "Chicago"}, "get-annotated-message": {"messageType": "error"}}
        await client.call_tool(f"everything.{tool}", given.get(tool, {}))
    assert {"everything.trigger-elicitation-request", "everything.trigger-sampling-request"} <= tools
    answered = await client.call_tool("everything.trigger-elicitation-request", {})
    assert "Zoë" in answered.model_dump_json()
    sampled = await client.call_tool("everything.trigger-sampling-request", {"prompt": "Capital?", "maxTokens": 5})
    assert "Paris" in sampled.model_dump_json()
    await client.get_prompt("everything.simple-prompt")
    await client.get_prompt("everything.args-prompt", {"city": "Zürich", "state": "ZH"})
    await client.complete(
        PromptReference(type="ref/prompt", name="everything.completable-prompt"), {"name": "department", "value": "E"}
    )
    template = ResourceTemplateReference(type="ref/resource", uri="demo://resource/dynamic/text/{resourceId}")
    await client.complete(template, {"name": "resourceId", "value": "1"})
    await client.read_resource(str(resources.resources[0].uri))
    blob = await client.read_resource("demo://resource/dynamic/blob/1")
    assert "blob" in blob.model_dump_json()
    await client.read_resource("demo://resource/dynamic/text/1")  # it contains the time
    with pytest.raises(MCPError):
        await client.read_resource("demo://resource/dynamic/text/none")
    failed = await client.call_tool("everything.get-resource-reference", {"resourceType": "Text", "resourceId": -1})
    assert failed.is_error


async def see_odd_things(client: Client) -> None:
    """Large and strange results, errors, faults, cancelled calls, parallel calls, questions."""
    await client.list_tools()
    big = await client.call_tool("odd.big", {})
    assert len(big.model_dump_json()) > 1_000_000
    await client.call_tool("odd.unicode", {})
    assert (await client.call_tool("odd.fails", {})).is_error
    with pytest.raises(MCPError) as refused:
        await client.call_tool("odd.refuses", {})
    assert refused.value.error.code == -32050
    asked = await client.call_tool("odd.asks", {})
    assert "blue" in asked.model_dump_json()
    await cancel_once_begun(client, "odd.waits", {})
    sums = [{"n": n, "ms": 150 - 30 * n} for n in range(4)]
    await asyncio.gather(*(client.call_tool("odd.square", given) for given in sums))
    await client.call_tool("odd.tells", {})
    with pytest.raises(MCPError) as lost:
        await client.call_tool("odd.exits", {})
    data = lost.value.error.data
    assert isinstance(data, dict), lost.value.error
    assert (data["reason"], data["executed"]) == ("lost", "unknown")


async def visit(url: str, mode: Mode, tour: Tour) -> Messages:
    """Take a tour, and return what the client received."""
    async with client_over_http(url) as early:
        await early.list_tools()  # waits for the server: `initialize` names what is known by then
    failure: Exception | None = None
    async with teed_client(url, mode) as (client, messages):
        try:
            await tour(client)
        except Exception as error:  # noqa: BLE001 - raised below, without the groups of the client's tasks
            failure = error
    if failure is not None:
        raise failure
    return messages


def odd_server() -> dict[str, Any]:
    """The entry of the server of odd things."""
    script = Path(__file__).parent / "odd_server.py"
    return {"command": sys.executable, "args": [str(script)], "env": {"API_KEY": "key-0123456789"}}


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("tour", [see_everything, see_odd_things])
async def test_a_client_gets_the_same_bytes_from_a_cassette(tmp_path: Path, mode: Mode, tour: Tour) -> None:
    if tour is see_everything:
        command, *arguments = npm_command("everything")
        servers: dict[str, Any] = {"everything": {"command": command, "args": arguments}}
    else:
        servers = {"odd": odd_server()}
    config = write_config(tmp_path, servers, limits=PATIENT)
    cassette = tmp_path / "calls.jsonl"
    async with started(tmp_path, str(cassette), "--config", str(config), command="record") as hub:
        recorded = await visit(hub.url, mode, tour)

    async with started(tmp_path, str(cassette), command="replay") as hub:
        replayed = await visit(hub.url, mode, tour)

    if tour is see_odd_things:
        assert "key-0123456789" not in cassette.read_text()
    assert replayed.responses().keys() == recorded.responses().keys()
    for id, message in recorded.responses().items():
        assert replayed.responses()[id] == message.replace(b"key-0123456789", b"***")
    hidden = [message.replace(b"key-0123456789", b"***") for message in recorded.others()]
    assert replayed.others() == hidden
    lines = [json.loads(line) for line in cassette.read_text().split("\n")[:-1]]
    assert lines[-1]["end"]["calls"] == sum("call" in line for line in lines)
