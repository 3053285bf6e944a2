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
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp_types import PromptReference, ResourceTemplateReference

from tests.cassettes.wire import Messages, bare, teed_client
from tests.frontends.test_task_lists import open_client
from tests.hubs import PATIENT, HubProcess, started, write_config
from tests.peers.client_sdk2 import Mode, call_with_progress, cancel_once_begun, client_over_http
from tests.peers.npm_servers import npm_command
from tests.security.fickle import until

MODERN: Mode = "2026-07-28"
Tour = Callable[[Client, str], Awaitable[None]]
ERAS: list[Mode] = ["legacy", MODERN]
NOT_OFFERED = {"trigger-elicitation-request-async", "trigger-sampling-request-async"}
"""Tools for clients that run the server's questions as tasks, which the hub declares for no client."""
RESEARCH = "everything.simulate-research-query"


async def see_everything(client: Client, url: str) -> None:
    """Use every tool, prompt, resource and completion that `server-everything` offers to a client of the hub.

    Its log lines and updates of resources every five seconds are not in a cassette, since they belong to no call: the
    tour starts and stops both, and subscribes to nothing. The two tools of `NOT_OFFERED` are listed to no client. The
    legacy client of the SDK cannot ask for tasks, so `simulate-research-query` refuses it; for a client that can, see
    `test_a_task_of_a_server_is_replayed_to_a_legacy_client`.
    """
    is_legacy = client.mode == "legacy"
    tools = {tool.name for tool in (await client.list_tools()).tools}
    assert "file:///work" in (await client.call_tool("everything.get-roots-list", {})).model_dump_json()
    await client.list_prompts()
    # These add resources to the list. A cassette has the lists as they are at the end.
    file = {"name": "a.txt.gz", "data": "data:text/plain,hello"}
    await client.call_tool("everything.gzip-file-as-resource", {**file, "outputType": "resource"})
    await client.call_tool("everything.gzip-file-as-resource", {**file, "name": "b.txt.gz"})
    await until_listed(url, "legacy" if is_legacy else MODERN, "demo://resource/session/b.txt.gz")
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
    await see_url_questions(client)
    if is_legacy:
        with pytest.warns(MCPDeprecationWarning):
            await client.set_logging_level("debug")
    for tool in ("toggle-simulated-logging", "toggle-subscriber-updates"):
        begun, ended = [await client.call_tool(f"everything.{tool}", {}) for _ in range(2)]
        assert "Started simulated" in begun.model_dump_json()
        assert "Stopped simulated" in ended.model_dump_json()
    assert "PATH" in (await client.call_tool("everything.get-env", {})).model_dump_json()
    researched = await client.call_tool(RESEARCH, {"topic": "python", "ambiguous": True})
    assert ("requires task augmentation" if is_legacy else "python (snake)") in researched.model_dump_json()
    await client.get_prompt("everything.simple-prompt")
    await client.get_prompt("everything.args-prompt", {"city": "Zürich", "state": "ZH"})
    await client.get_prompt("everything.completable-prompt", {"department": "Engineering", "name": "Alice"})
    await client.get_prompt("everything.resource-prompt", {"resourceType": "Blob", "resourceId": "2"})
    await client.complete(
        PromptReference(type="ref/prompt", name="everything.completable-prompt"), {"name": "department", "value": "E"}
    )
    template = ResourceTemplateReference(type="ref/resource", uri="demo://resource/dynamic/text/{resourceId}")
    await client.complete(template, {"name": "resourceId", "value": "1"})
    for resource in resources.resources:
        await client.read_resource(str(resource.uri))
    blob = await client.read_resource("demo://resource/dynamic/blob/1")
    assert "blob" in blob.model_dump_json()
    await client.read_resource("demo://resource/dynamic/text/1")  # it contains the time
    with pytest.raises(MCPError):
        await client.read_resource("demo://resource/dynamic/text/none")
    failed = await client.call_tool("everything.get-resource-reference", {"resourceType": "Text", "resourceId": -1})
    assert failed.is_error


async def see_url_questions(client: Client) -> None:
    """Open an address for the server: as its question, and as an error before the call is made again."""
    opened = {"url": "https://example.com/login", "elicitationId": "one"}
    said = await client.call_tool("everything.trigger-url-elicitation", opened)
    assert "completed the URL elicitation" in said.model_dump_json()
    with pytest.raises(MCPError) as required:
        await client.call_tool("everything.trigger-url-elicitation", {**opened, "errorPath": True})
    assert required.value.error.code == -32042
    again = await client.call_tool("everything.trigger-url-elicitation", {**opened, "errorPath": True})
    assert "completed the URL elicitation" in again.model_dump_json()


async def until_listed(url: str, mode: Mode, uri: str) -> None:
    """Wait until the hub has read the server's new list for clients such as this one."""
    async with teed_client(url, mode) as (client, _):

        async def is_listed() -> bool:
            return uri in {str(each.uri) for each in (await client.list_resources()).resources}

        await until(is_listed, "the resource is listed")


async def see_odd_things(client: Client, _: str) -> None:
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
            await tour(client, url)
        except Exception as error:  # noqa: BLE001 - raised below, without the groups of the client's tasks
            failure = error
    if failure is not None:
        raise failure
    return messages


def everything_server() -> dict[str, Any]:
    """The entry of `server-everything`."""
    command, *arguments = npm_command("everything")
    preload = Path(__file__).parent / "no_own_roots.cjs"
    return {"command": command, "args": ["--require", str(preload), *arguments]}


def odd_server() -> dict[str, Any]:
    """The entry of the server of odd things."""
    script = Path(__file__).parent / "odd_server.py"
    return {"command": sys.executable, "args": [str(script)], "env": {"API_KEY": "key-0123456789"}}


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("tour", [see_everything, see_odd_things])
async def test_a_client_gets_the_same_bytes_from_a_cassette(tmp_path: Path, mode: Mode, tour: Tour) -> None:
    servers = {"everything": everything_server()} if tour is see_everything else {"odd": odd_server()}
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
    if tour is see_everything:
        for topic, kind in (("tools", "tool"), ("prompts", "prompt")):
            listed = {line["definition"]["name"] for line in lines if line.get("list") == topic}
            assert listed == {line["call"] for line in lines if "call" in line and line.get("kind", "tool") == kind}
            assert not listed & NOT_OFFERED
    assert lines[-1]["end"]["calls"] == sum("call" in line for line in lines)


async def test_a_task_of_a_server_is_replayed_to_a_legacy_client(tmp_path: Path) -> None:
    config = write_config(tmp_path, {"everything": everything_server()}, limits=PATIENT)
    cassette = tmp_path / "calls.jsonl"
    async with started(tmp_path, str(cassette), "--config", str(config), command="record") as hub:
        recorded = await run_task(hub)
    async with started(tmp_path, str(cassette), command="replay") as hub:
        assert await run_task(hub) == recorded
    assert [each["result"]["status"] for each in recorded if "status" in each["result"]] == ["working", "completed"]
    assert "Research Report: bees" in json.dumps(recorded)


async def run_task(hub: HubProcess) -> list[Any]:
    """What a client receives that asks for a task, how it stands, its result, and again how it stands."""
    async with open_client(hub, "", listens=False) as client:
        await client.ask("tools/list")
        params = {"name": RESEARCH, "arguments": {"topic": "bees"}, "task": {"ttl": 60_000}}
        received = await client.ask_all("tools/call", params)
        id = {"taskId": received[-1]["result"]["task"]["taskId"]}
        for method in ("tasks/get", "tasks/result", "tasks/get"):
            received += await client.ask_all(method, id)
    return [json.loads(bare(json.dumps(each, separators=(",", ":")).encode())) for each in received]
