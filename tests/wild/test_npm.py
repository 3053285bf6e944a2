"""The reference servers from npm through the hub, by official clients of their era."""

from __future__ import annotations

import asyncio
import base64
import gzip
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from mcp import Client
from mcp_types import ListRootsResult, PromptReference, ResourceTemplateReference, Root, TextContent
from pydantic import FileUrl

from tests.hubs import HubProcess, serving, stdio
from tests.matrix.field import until_complete
from tests.peers.client_sdk2 import call_with_progress, client_over_http
from tests.peers.npm_servers import everything_over_http, npm_command
from tests.peers.sdk1_steps import Step, run_sdk1
from tests.peers.survey import NOTIFICATION_SECONDS
from tests.peers.surveyor import MessageListener, plain, subscribed

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("npm")]

EVERYTHING = ("everything-stdio", "everything-sse", "everything-http")
DOCUMENT = "demo://resource/static/document/features.md"
GRAPH = "memory://knowledge-graph"

every_everything = pytest.mark.parametrize("server", EVERYTHING)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    folder = tmp_path_factory.mktemp("npm")
    (folder / "hello.txt").write_text("hello from a file\n")
    async with everything_over_http("sse") as sse, everything_over_http("streamableHttp") as http:
        servers = {
            "everything-stdio": stdio(npm_command("everything")),
            "everything-sse": {"url": sse.at("/sse")},
            "everything-http": {"url": http.url},
            "filesystem": stdio(npm_command("filesystem", str(folder))),
            "memory": stdio(npm_command("memory"), env={"MEMORY_FILE_PATH": str(folder / "memory.jsonl")}),
        }
        async with serving(folder, servers) as running:
            await until_complete(running.url)
            yield running


def text_of(result: Any) -> str:
    (first, *_) = result.content
    assert isinstance(first, TextContent)
    return first.text


async def names_of(client: Client) -> dict[str, set[str]]:
    return {
        "prompts": {prompt.name for prompt in (await client.list_prompts()).prompts},
        "resources": {resource.uri for resource in (await client.list_resources()).resources},
        "templates": {found.uri_template for found in (await client.list_resource_templates()).resource_templates},
    }


@every_everything
async def test_everything_shows_all_it_has(hub: HubProcess, server: str) -> None:
    async with client_over_http(hub.url_of(server), mode="legacy") as client:
        shown = plain(client.server_capabilities)
        found = await names_of(client)

    assert shown.keys() == {"tools", "prompts", "resources", "completions", "logging", "tasks"}
    assert shown["resources"] == {"listChanged": True, "subscribe": True}
    assert found["prompts"] == {"simple-prompt", "args-prompt", "completable-prompt", "resource-prompt"}
    assert DOCUMENT in found["resources"]
    assert found["templates"] == {f"demo://resource/dynamic/{kind}/{{resourceId}}" for kind in ("text", "blob")}


@every_everything
async def test_everything_answers_each_kind_of_request(hub: HubProcess, server: str) -> None:
    async with client_over_http(hub.url_of(server), mode="legacy") as client:
        summed = await client.call_tool("get-sum", {"a": 40, "b": 2})
        steps, progress = await call_with_progress(
            client, "trigger-long-running-operation", {"duration": 0.05, "steps": 5}
        )
        document = plain(await client.read_resource(DOCUMENT))["contents"][0]
        dynamic = plain(await client.read_resource("demo://resource/dynamic/blob/7"))["contents"][0]
        prompt = plain(await client.get_prompt("args-prompt", {"city": "Paris", "state": "Texas"}))
        departments = await client.complete(
            PromptReference(name="completable-prompt"), {"name": "department", "value": "S"}
        )
        heads = await client.complete(
            PromptReference(name="completable-prompt"), {"name": "name", "value": "E"}, {"department": "Sales"}
        )
        ids = await client.complete(
            ResourceTemplateReference(uri="demo://resource/dynamic/text/{resourceId}"),
            {"name": "resourceId", "value": "12"},
        )

    assert "42" in text_of(summed)
    assert ("5" in text_of(steps), [done for done, *_ in progress]) == (True, [1, 2, 3, 4, 5])
    assert document["text"].startswith("#")
    assert b"Resource 7" in base64.b64decode(dynamic["blob"])
    assert "Paris" in prompt["messages"][0]["content"]["text"]
    assert departments.completion.values == ["Sales", "Support"]
    assert (heads.completion.values, ids.completion.values) == (["Eve"], ["12"])


@every_everything
async def test_the_everything_server_notifies_of_watched_and_new_resources(hub: HubProcess, server: str) -> None:
    ear = MessageListener()
    async with (
        asyncio.timeout(NOTIFICATION_SECONDS),
        client_over_http(hub.url_of(server), mode="legacy", listener=ear) as client,
    ):
        await subscribed(client, DOCUMENT)
        await client.call_tool("toggle-subscriber-updates", {})
        await ear.wait_for(DOCUMENT, 0)
        await client.call_tool("toggle-subscriber-updates", {})
        zipped = {"name": f"{server}.gz", "data": "data:text/plain,hello", "outputType": "resourceLink"}
        link = plain(await client.call_tool("gzip-file-as-resource", zipped))["content"][0]
        listed, response = set[str](), 0
        while link["uri"] not in listed:  # an earlier announcement may be about something else
            response = await ear.wait_for("resources", response)
            listed = {resource.uri for resource in (await client.list_resources()).resources}
        read = plain(await client.read_resource(link["uri"]))["contents"][0]

    assert gzip.decompress(base64.b64decode(read["blob"])) == b"hello"


async def test_an_old_client_gets_the_same_of_everything(hub: HubProcess) -> None:
    steps: list[Step] = [
        {"do": "prompts"},
        {"do": "templates"},
        {"do": "read", "uri": DOCUMENT},
        {"do": "prompt", "name": "simple-prompt"},
        {"do": "call", "tool": "echo", "arguments": {"message": "héllo"}},
    ]
    prompts, templates, document, prompt, echoed = await run_sdk1(steps, url=hub.url_of("everything-sse"))

    assert len(prompts["prompts"]) == 4
    assert len(templates["resourceTemplates"]) == 2
    assert document["result"]["contents"][0]["text"].startswith("#")
    assert prompt["result"]["messages"][0]["content"]["text"]
    assert echoed["result"]["content"][0]["text"] == "Echo: héllo"


async def test_the_file_server_shows_only_tools_and_reads_files(hub: HubProcess) -> None:
    async with client_over_http(hub.url_of("filesystem"), mode="legacy") as client:
        shown = plain(client.server_capabilities)
        folders = text_of(await client.call_tool("list_allowed_directories", {}))
        folder = folders.splitlines()[-1].strip()
        read = await client.call_tool("read_text_file", {"path": str(Path(folder) / "hello.txt")})
        refused = await client.call_tool("read_text_file", {"path": "/etc/hostname"})

    assert shown.pop("tasks")["requests"] == {"tools": {"call": {}}}, "the hub keeps them"
    assert shown == {"tools": {"listChanged": True}}
    assert text_of(read) == "hello from a file\n"
    assert (refused.is_error, "denied" in text_of(refused)) == (True, True)


async def test_the_file_server_asks_each_conversation_for_its_own_roots(hub: HubProcess, tmp_path: Path) -> None:
    async def allowed(name: str) -> str:
        (root := tmp_path / name).mkdir()

        async def roots(context: Any) -> ListRootsResult:
            return ListRootsResult(roots=[Root(uri=FileUrl(root.as_uri()))])

        async with Client(hub.url_of("filesystem"), mode="legacy", list_roots_callback=roots) as client:
            async with asyncio.timeout(NOTIFICATION_SECONDS):
                while str(root) not in (  # noqa: ASYNC110 - it takes them up when it does
                    received := text_of(await client.call_tool("list_allowed_directories", {}))
                ):
                    await asyncio.sleep(0.05)
        return received

    one, two = await asyncio.gather(allowed("one"), allowed("two"))
    assert ("two" in one, "one" in two) == (False, False)


async def test_the_memory_server_shows_tools_and_its_graph(hub: HubProcess) -> None:
    ear = MessageListener()
    async with (
        asyncio.timeout(NOTIFICATION_SECONDS),
        client_over_http(hub.url_of("memory"), mode="legacy", listener=ear) as client,
    ):
        shown = plain(client.server_capabilities)
        await subscribed(client, GRAPH)
        ada = {"name": "Ada", "entityType": "person", "observations": ["wrote the first program"]}
        made = await client.call_tool("create_entities", {"entities": [ada]})
        await ear.wait_for(GRAPH, 0)
        graph = plain(await client.read_resource(GRAPH))["contents"][0]

    assert shown.pop("tasks")["requests"] == {"tools": {"call": {}}}, "the hub keeps them"
    assert shown == {"tools": {"listChanged": True}, "resources": {"listChanged": True, "subscribe": True}}
    assert not made.is_error
    assert "Ada" in graph["text"]


async def test_at_the_common_address_all_are_there_and_nothing_more_is_shown_than_one_of_them_has(
    hub: HubProcess,
) -> None:
    async with client_over_http(hub.url, mode="legacy") as client:
        shown = plain(client.server_capabilities)
        tools = {tool.name for tool in (await client.list_tools()).tools}
        found = await names_of(client)

    assert shown.keys() == {"tools", "prompts", "resources", "completions", "logging", "tasks"}
    assert {name.partition(".")[0] for name in tools} >= {*EVERYTHING, "filesystem", "memory"}
    assert {name.partition(".")[0] for name in found["prompts"]} == set(EVERYTHING)
    assert GRAPH in found["resources"]
    assert f"isthmus://hub/everything-sse/{DOCUMENT}" in found["resources"]
