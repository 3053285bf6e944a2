"""The official clients of both eras at a set: they list it, call it, and are notified when it changes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from mcp import MCPError
from mcp_types import PromptReference, TextContent, TextResourceContents

from tests.faults.watching import eventually
from tests.frontends.set_server import command
from tests.hubs import MODERN, PATIENT, serving, stdio, write_config
from tests.matrix.in_process_clients import InProcessClient, fastmcp_over_http, sdk2_over_http
from tests.matrix.session_steps import MODES, NOTIFICATION_SECONDS, SPOKEN, ClientName
from tests.peers.client_sdk2 import Listener, client_over_http
from tests.peers.sdk1_steps import run_sdk1

CLIENTS: tuple[ClientName, ...] = ("sdk2-legacy", "sdk2-modern", "sdk2-auto", "fastmcp-legacy", "fastmcp-auto")
SERVERS = {"one": stdio(command()), "two": stdio(command())}
CHANGE = {"name": "new_issue", "fixed": {"repo": "acme/x"}, "hide": ["verbose"]}
DEV: dict[str, Any] = {"tools": ["one.create_issue", "two.search"], "tool": {"one.create_issue": CHANGE}}
NARROWER: dict[str, Any] = {**DEV, "tools": ["one.create_issue"]}


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_client_lists_and_calls_its_set_and_is_notified_of_changes(tmp_path: Path, name: ClientName) -> None:
    listener = Listener()
    connects = sdk2_over_http if name.startswith("sdk2") else fastmcp_over_http
    async with (
        serving(tmp_path, SERVERS, sets={"dev": DEV}, limits=PATIENT) as hub,
        connects(hub.url_of("dev"))(MODES[name], listener) as client,
    ):
        assert client.protocol_version == SPOKEN[name]
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == ["new_issue", "search"]
        assert set(tools[0].input_schema["properties"]) == {"title", "options"}
        result = await client.call_tool("new_issue", {"title": "t"})
        assert result.structured_content == {"title": "t", "repo": "acme/x"}
        async with asyncio.timeout(NOTIFICATION_SECONDS):
            await _change(tmp_path, client, listener, is_modern=SPOKEN[name] == MODERN)

        async def is_narrower() -> bool:
            return [tool.name for tool in (await client.list_tools()).tools] == ["new_issue"]

        await eventually(is_narrower, "each node has read its file")


async def _change(folder: Path, client: InProcessClient, listener: Listener, *, is_modern: bool) -> None:
    """Change the set, and wait until the client is notified."""
    if is_modern:
        async with client.listen(tools_list_changed=True) as changes:
            write_config(folder, SERVERS, sets={"dev": NARROWER}, limits=PATIENT)
            await anext(aiter(changes))
    else:
        listener.changed.clear()
        write_config(folder, SERVERS, sets={"dev": NARROWER}, limits=PATIENT)
        await listener.changed.wait()


async def test_the_earlier_sdk_lists_and_calls_a_set(tmp_path: Path) -> None:
    async with serving(tmp_path, SERVERS, sets={"dev": DEV}, limits=PATIENT) as hub:
        steps: list[dict[str, Any]] = [
            {"do": "list"},
            {"do": "call", "tool": "new_issue", "arguments": {"title": "t"}},
            {"do": "call", "tool": "new_issue", "arguments": {"title": "t", "repo": "evil/x"}},
            {"do": "call", "tool": "one.create_issue", "arguments": {"title": "t", "repo": "evil/x"}},
        ]
        listed, called, overridden, unknown = await run_sdk1(steps, url=hub.url_of("dev"))
    assert [tool["name"] for tool in listed["tools"]] == ["new_issue", "search"]
    assert called["result"]["structuredContent"] == {"title": "t", "repo": "acme/x"}
    assert not overridden["ok"]
    assert not unknown["ok"]


# -- prompts and resources -----------------------------------------------------------------------------------------

REVIEW: dict[str, Any] = {"name": "look_over", "description": "Look it over.", "fixed": {"repo": "acme/x"}}
PAPERS: dict[str, Any] = {
    "prompts": ["one.review"],
    "resources": ["one.memo://one", "one.note://{id}"],
    "prompt": {"one.review": REVIEW},
    "resource": {"one.memo://one": {"name": "first"}, "one.note://{id}": {"description": "One note."}},
}
COMPLETED = [
    '{"type":"ref/prompt","name":"review"}',
    '{"name":"change","value":"7"}',
    '{"arguments":{"tone":"kind","repo":"acme/x"}}',
]


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_client_has_prompts_and_resources_as_its_set_says_and_is_notified(tmp_path: Path, mode: Any) -> None:
    changed: asyncio.Queue[str] = asyncio.Queue()

    async def hear(message: Any) -> None:
        changed.put_nowait(type(message).__name__)

    async with (
        serving(tmp_path, SERVERS, sets={"papers": PAPERS}, limits=PATIENT) as hub,
        client_over_http(hub.url_of("papers"), mode=mode, listener=hear) as client,
        asyncio.timeout(NOTIFICATION_SECONDS),
        AsyncExitStack() as stack,
    ):
        (prompt,) = (await client.list_prompts()).prompts
        assert (prompt.name, prompt.title, prompt.description) == ("look_over", "Review a change", "Look it over.")
        assert [each.name for each in prompt.arguments or ()] == ["change", "tone"]
        (message,) = (await client.get_prompt("look_over", {"change": "7"})).messages
        assert isinstance(message.content, TextContent)
        assert message.content.text == 'review {"change":"7","repo":"acme/x"}'
        with pytest.raises(MCPError, match="not accepted here: repo"):
            await client.get_prompt("look_over", {"change": "7", "repo": "evil/x"})
        with pytest.raises(MCPError, match="review"):
            await client.get_prompt("review", {"change": "7"})
        ref = PromptReference(type="ref/prompt", name="look_over")
        suggested = await client.complete(ref, {"name": "change", "value": "7"}, {"tone": "kind"})
        assert suggested.completion.values == COMPLETED
        (memo,) = (await client.list_resources()).resources
        assert (memo.name, str(memo.uri)) == ("first", "memo://one")
        (note,) = (await client.list_resource_templates()).resource_templates
        assert (note.name, note.description) == ("note", "One note.")
        (content,) = (await client.read_resource("memo://one")).contents
        assert isinstance(content, TextResourceContents)
        assert content.text == "memo://one"

        async def next_change() -> str:
            return await changed.get()

        if mode != "legacy":
            listens = client.listen(tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True)
            events = await stack.enter_async_context(listens)

            async def next_change() -> str:
                return type(await anext(aiter(events))).__name__

        # The first edit also sets a limit that changes no byte of what is listed.
        same = {**PAPERS["resource"], "one.memo://one": {"name": "first", "title": "First"}}
        again = {**PAPERS, "prompt": {"one.review": {**REVIEW, "description": "Again."}}, "description_max": 300}
        while not changed.empty():
            changed.get_nowait()
        for kind, edited in (
            ("Prompt", again),
            ("Resource", {**again, "resource": same}),
            ("Prompt", PAPERS | {"resource": same}),
        ):
            write_config(tmp_path, SERVERS, sets={"papers": edited}, limits=PATIENT)
            assert (await next_change()).startswith(kind)


async def test_the_earlier_sdk_has_prompts_and_resources_of_a_set(tmp_path: Path) -> None:
    async with serving(tmp_path, SERVERS, sets={"papers": PAPERS}, limits=PATIENT) as hub:
        ref = {"type": "ref/prompt", "name": "look_over"}
        steps: list[dict[str, Any]] = [
            {"do": "prompts"},
            {"do": "prompt", "name": "look_over", "arguments": {"change": "7"}},
            {"do": "prompt", "name": "look_over", "arguments": {"change": "7", "repo": "evil/x"}},
            {"do": "complete", "ref": ref, "argument": {"name": "change", "value": "7"}, "known": {"tone": "kind"}},
            {"do": "resources"},
        ]
        listed, got, overridden, suggested, resources = await run_sdk1(steps, url=hub.url_of("papers"))
    assert [prompt["name"] for prompt in listed["prompts"]] == ["look_over"]
    assert got["result"]["messages"][0]["content"]["text"] == 'review {"change":"7","repo":"acme/x"}'
    assert not overridden["ok"]
    assert suggested["result"]["completion"]["values"] == COMPLETED
    assert [(each["name"], each["uri"]) for each in resources["resources"]] == [("first", "memo://one")]
