"""The official clients of both eras at a set: they list it, call it, and are notified when it changes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.faults.watching import eventually
from tests.frontends.set_server import command
from tests.hubs import MODERN, PATIENT, serving, stdio, write_config
from tests.matrix.in_process_clients import InProcessClient, fastmcp_over_http, sdk2_over_http
from tests.matrix.session_steps import MODES, NOTIFICATION_SECONDS, SPOKEN, ClientName
from tests.peers.client_sdk2 import Listener
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
