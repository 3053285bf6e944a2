"""Large results of a running hub: cut on every frontend, and the whole is readable by its caller alone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from mcp import MCPError

from tests.frontends import large_server
from tests.frontends.test_a2a import envelope, run
from tests.hubs import MODERN, PATIENT, TRUSTED, HubProcess, serving, stdio, write_config
from tests.peers.client_sdk2 import client_over_http
from tests.relay.peers import device
from tests.relay.tokens import KEY as RELAY_KEY
from tests.security.fickle import command as isthmus_command
from tests.security.fickle import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT = 10_000
SIZE = 40_000
HUGE = 9_000_000
KEYS = {name: f"key-of-{name}-0123456789" for name in ("short", "whole", "other", "seeker", "boss")}
CALLERS: dict[str, Any] = {
    "short": {"key": KEYS["short"], "allow": ["*"]},
    "other": {"key": KEYS["other"], "allow": ["*"]},
    "seeker": {"key": KEYS["seeker"], "allow": ["*"], "expose": "search"},
    "whole": {"key": KEYS["whole"], "allow": ["*"], "max_result_bytes": 0},
    "boss": {"key": KEYS["boss"], "allow": [], "operator": True},
}
MODES = ["legacy", MODERN]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cuts")


def tables(**more: Any) -> dict[str, Any]:
    servers = {"big": stdio(large_server.command()), "roomy": stdio(large_server.command(), max_result_bytes=0)}
    relay = {"key": RELAY_KEY, "agents": {"guest": {"allow": ["big.text"]}}}
    hub = {"max_result_bytes": LIMIT}
    sets = {"tight": {"tools": ["roomy.*"], "max_result_bytes": 4096}}
    return {"servers": servers, "hub": hub, "callers": CALLERS, "limits": PATIENT, "relay": relay, "sets": sets, **more}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(folder: Path) -> AsyncIterator[HubProcess]:
    async with serving(folder, **tables()) as running:
        yield running


@asynccontextmanager
async def mcp_client(hub: HubProcess, mode: Any, who: str = "short", path: str = "") -> AsyncIterator[Any]:
    async with client_over_http(hub.url + path, mode=mode, headers={"authorization": f"Bearer {KEYS[who]}"}) as made:
        yield made


@asynccontextmanager
async def rest_client(hub: HubProcess, who: str = "short") -> AsyncIterator[httpx2.AsyncClient]:
    headers, base = {"authorization": f"Bearer {KEYS[who]}"}, f"http://127.0.0.1:{hub.port}"
    async with httpx2.AsyncClient(base_url=base, headers=headers, timeout=60, verify=TRUSTED) as made:
        yield made


@pytest.mark.parametrize("mode", MODES)
async def test_over_mcp_a_text_is_cut_and_the_link_leads_to_the_whole(hub: HubProcess, mode: Any) -> None:
    async with mcp_client(hub, mode) as mcp:
        cut = await mcp.call_tool("big.text", {"size": SIZE})
        begun, link = cut.content
        whole = large_server.text(SIZE)
        kept, note = begun.text.rsplit("\n[", 1)
        assert whole.startswith(kept)
        assert f"{link.uri} until " in note
        (content,) = (await mcp.read_resource(str(link.uri))).contents
        assert content.text == whole
    async with mcp_client(hub, mode, "other") as other:
        with pytest.raises(MCPError, match="for the caller that got them"):
            await other.read_resource(str(link.uri))


@pytest.mark.parametrize("mode", MODES)
async def test_cut_results_are_read_in_parts(hub: HubProcess, mode: Any) -> None:
    async with mcp_client(hub, mode) as mcp:
        (begun, _) = (await mcp.call_tool("big.text", {"size": SIZE})).content
        found, note = begun.text.rsplit("\n[", 1)
        first = uri = note.partition("; ")[2].partition(" is the next part")[0]
        while uri:
            *parts, last = (await mcp.read_resource(uri)).contents
            is_end = str(last.uri) == uri
            found += "".join(each.text for each in ([*parts, last] if is_end else parts))
            uri = "" if is_end else str(last.uri)
    assert found == large_server.text(SIZE)
    async with rest_client(hub) as rest:
        (part, then) = (await rest.get("/v1/resources/read", params={"uri": first})).json()["contents"]
        assert part["text"] in found
        assert then["uri"].startswith(first.partition("?")[0])
        assert (await rest.get("/v1/resources/read", params={"uri": f"{first}0000000"})).status_code == 404
    async with rest_client(hub, "other") as other:
        assert (await other.get("/v1/resources/read", params={"uri": first})).status_code == 404


@pytest.mark.parametrize("mode", MODES)
async def test_the_official_client_accepts_cut_structured_content(hub: HubProcess, mode: Any) -> None:
    async with mcp_client(hub, mode) as mcp:
        await mcp.list_tools()  # now it knows the output schema, and checks results against it
        few = await mcp.call_tool("big.rows", {"size": 800})
        assert few.structured_content == large_server.rows(800)
        cut = await mcp.call_tool("big.rows", {"size": SIZE})
        assert (cut.is_error, cut.structured_content) == (True, None)
        assert "The tool ran and succeeded; do not repeat the call" in cut.content[0].text
        *_, data = (await mcp.read_resource(str(cut.content[-1].uri))).contents
        assert json.loads(data.text) == large_server.rows(SIZE)


@pytest.mark.parametrize("mode", MODES)
async def test_a_tool_called_by_call_tool_has_not_failed_because_it_is_cut(hub: HubProcess, mode: Any) -> None:
    async with mcp_client(hub, mode, "seeker") as mcp:
        assert "call_tool" in {tool.name for tool in (await mcp.list_tools()).tools}
        cut = await mcp.call_tool("call_tool", {"name": "big.rows", "arguments": {"size": SIZE}})
        assert not cut.is_error, "call_tool has no output schema"
        *_, data = (await mcp.read_resource(str(cut.content[-1].uri))).contents
        assert json.loads(data.text) == large_server.rows(SIZE)


@pytest.mark.parametrize("mode", MODES)
async def test_an_image_is_replaced_by_a_link_to_it(hub: HubProcess, mode: Any) -> None:
    async with mcp_client(hub, mode) as mcp:
        note, link = (await mcp.call_tool("big.image", {"size": SIZE})).content
        assert "1 of 1 content blocks" in note.text
        (content,) = (await mcp.read_resource(str(link.uri))).contents
        assert (content.mime_type, content.blob) == ("image/png", large_server.image(SIZE))


async def test_over_rest_the_whole_is_read_by_its_uri_also_by_the_command_line(hub: HubProcess, folder: Path) -> None:
    async with rest_client(hub) as http, rest_client(hub, "other") as other:
        answer = await http.post("/v1/tools/big.rows", json={"size": SIZE})
        assert answer.status_code == 200
        assert len(answer.content) <= LIMIT
        cut = answer.json()
        assert "isError" not in cut, "nobody checks it here"
        uri = cut["content"][-1]["uri"]
        *_, data = (await http.get("/v1/resources/read", params={"uri": uri})).json()["contents"]
        assert json.loads(data["text"]) == large_server.rows(SIZE)
        refused = await other.get("/v1/resources/read", params={"uri": uri})
        assert (refused.status_code, refused.json()["reason"]) == (404, "unknown_resource")
    output = await isthmus_command(folder, "read", uri, code=1)
    assert "Resource not found" in output, "the command line is another caller"


async def test_over_a2a_the_link_is_a_file_part(hub: HubProcess) -> None:
    async with rest_client(hub) as http:
        sent = envelope("SendMessage", run("big.text", size=SIZE))
        task = (await http.post("/a2a", json=sent)).json()["result"]["task"]
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        text, link = task["artifacts"][0]["parts"]
        assert "Cut by the hub" in text["text"]
        (content,) = (await http.get("/v1/resources/read", params={"uri": link["url"]})).json()["contents"]
        assert content["text"] == large_server.text(SIZE)


async def test_devices_of_the_relay_get_the_cut_text(hub: HubProcess) -> None:
    async with device(hub.port, "guest") as it:
        await it.ready()
        assert "Cut by the hub" in await it.call_unlisted("text", {"size": SIZE})


async def test_a_caller_a_server_and_a_set_may_have_another_limit(hub: HubProcess) -> None:
    async with rest_client(hub, "whole") as whole, rest_client(hub) as http:
        for client, tool in ((whole, "big.text"), (http, "roomy.text")):
            (block,) = (await client.post(f"/v1/tools/{tool}", json={"size": SIZE})).json()["content"]
            assert block["text"] == large_server.text(SIZE)
        answer = await http.post("/v1/tools/text?set=tight", json={"size": SIZE})
        assert len(answer.content) <= 4096


async def test_the_resources_capability_is_announced_at_every_address(hub: HubProcess) -> None:
    async with mcp_client(hub, "legacy", path="/big") as mcp:
        assert mcp.server_capabilities.resources is not None
        cut = await mcp.call_tool("text", {"size": SIZE})
        (content,) = (await mcp.read_resource(str(cut.content[-1].uri))).contents
        assert content.text == large_server.text(SIZE)
        assert (await mcp.list_resources()).resources == [], "only its own caller knows the address"


async def test_nine_megabytes_are_cut_and_read_back(hub: HubProcess) -> None:
    async with rest_client(hub) as http, rest_client(hub, "boss") as boss:
        for tool, value in (("text", large_server.text(HUGE)), ("rows", large_server.rows(HUGE))):
            contents: dict[str, Any] = {}
            for _ in range(2):  # by the hub, and by the second process
                cut = (await http.post(f"/v1/tools/big.{tool}", json={"size": HUGE})).json()
                contents = (await http.get("/v1/resources/read", params={"uri": cut["content"][-1]["uri"]})).json()
            text = contents["contents"][-1]["text"]
            assert (text if tool == "text" else json.loads(text)) == value
        assert (await boss.get("/v1/hub")).status_code == 200


async def test_an_edit_of_the_file_changes_the_limit_at_once(tmp_path: Path) -> None:
    given = tables()
    async with serving(tmp_path, **given) as hub, rest_client(hub) as http:
        cut = (await http.post("/v1/tools/big.text", json={"size": SIZE})).json()
        uri = cut["content"][-1]["uri"]
        write_config(tmp_path, **{**tables(hub={}, sets={}), "callers": {**CALLERS}})

        async def is_whole() -> bool:
            found = (await http.post("/v1/tools/big.text", json={"size": SIZE})).json()
            return len(found["content"]) == 1

        await until(is_whole, "the limit is gone")
        (content,) = (await http.get("/v1/resources/read", params={"uri": uri})).json()["contents"]
        assert content["text"] == large_server.text(SIZE)
