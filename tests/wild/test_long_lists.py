"""Servers with 10,000 tools, and with pages of 6 MiB: every caller sees all. Longer lists are cut, with a note."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.frontends.wire import until
from tests.hubs import PATIENT, HubProcess, Raw, run, serving, stdio
from tests.matrix.field import until_complete
from tests.peers.client_sdk2 import Mode, client_over_http
from tests.peers.launch import command, http_peer
from tests.peers.raw_protocol import MANY_TOOLS, many_name
from tests.wild.test_lists import OWN, all_tools

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("long lists")]

LONG_TOOLS = 1_500
DESCRIBED_BYTES = 4_200
"""So that one page of these tools has over 6 MiB."""

PAGED = f"many:{MANY_TOOLS},pages:40"
LONG = f"many:{LONG_TOOLS},pages:1,described:{DESCRIBED_BYTES}"
LAST = {"paged": many_name(MANY_TOOLS - 1), "long": many_name(LONG_TOOLS - 1)}
BUILTIN_TOOLS = 3
ALL_TOOLS = 2 * (MANY_TOOLS + LONG_TOOLS + 2 * len(OWN)) + BUILTIN_TOOLS
PAGE_BYTES_MAX = 4 * 1024 * 1024
CURSORS: tuple[object, ...] = ("", "!", "x", "bm9ib2R5", 7, {})
MODES: tuple[Mode, ...] = ("legacy", "2026-07-28")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    """A hub with both kinds of servers, each over stdio and over HTTP."""
    over_http = ("raw_server", "--transport", "http", "--mode")
    async with http_peer(*over_http, PAGED) as paged, http_peer(*over_http, LONG) as long:
        servers = {
            "paged-stdio": stdio(command("raw_server", "--mode", PAGED)),
            "paged-http": {"url": paged.url},
            "long-stdio": stdio(command("raw_server", "--mode", LONG)),
            "long-http": {"url": long.url},
        }
        sets = {"found": {"tools": ["*"], "expose": "search"}}
        async with serving(tmp_path_factory.mktemp("hub"), servers, limits=PATIENT, sets=sets) as running:
            await until_complete(running.url)
            yield running


async def pages_of(raw: Raw) -> list[dict[str, Any]]:
    """The results of `tools/list`, page by page."""
    pages = [(await raw.ask("tools/list"))["result"]]
    while cursor := pages[-1].get("nextCursor"):
        pages.append((await raw.ask("tools/list", {"cursor": cursor}))["result"])
    return pages


async def test_everything_is_listed_in_pages_of_a_few_megabytes(hub: HubProcess) -> None:
    async with Raw(hub.url) as raw:
        pages = await pages_of(raw)
        again = await pages_of(raw)
    names = [tool["name"] for page in pages for tool in page["tools"]]
    assert len(names) == len(set(names)) == ALL_TOOLS
    assert len(pages) > 2
    for page in pages:
        entries = [json.dumps(tool, separators=(",", ":")) for tool in page["tools"]]
        assert sum(map(len, entries)) <= PAGE_BYTES_MAX
    assert again == pages


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("server", ["paged-stdio", "paged-http", "long-stdio", "long-http"])
async def test_official_clients_list_and_call_all_of_it(hub: HubProcess, server: str, mode: Mode) -> None:
    last = LAST[server.partition("-")[0]]
    async with client_over_http(hub.url_of(server), mode=mode) as client:
        names = await all_tools(client)
        called = await client.call_tool(last, {})
    assert set(names) >= {*OWN, many_name(0), last}
    assert called.content[0].model_dump()["text"] == last


async def test_a_cursor_that_leads_nowhere_is_refused(hub: HubProcess) -> None:
    async with Raw(hub.url) as raw:
        for cursor in CURSORS:
            answer = await raw.ask("tools/list", {"cursor": cursor})
            assert answer["error"]["code"] == -32602, cursor
            assert "Invalid cursor" in answer["error"]["message"]


async def test_a_page_goes_on_behind_any_tool_and_only_pages_in_order_are_kept(hub: HubProcess) -> None:
    """A list may have changed between two pages: the cursor is the name of the last tool, wherever that is now."""
    async with Raw(hub.url_of("paged-stdio")) as raw:
        (whole,) = await pages_of(raw)
        names = [tool["name"] for tool in whole["tools"]]
        behind = await raw.ask("tools/list", {"cursor": "bWFueV8wMDA5OQ=="})  # many_00099
    assert [tool["name"] for tool in behind["result"]["tools"]] == names[names.index(many_name(99)) + 1 :]


async def test_rest_lists_finds_and_calls(hub: HubProcess) -> None:
    async with Raw(f"http://127.0.0.1:{hub.port}/v1/tools") as raw:
        listed = (await raw.http.get(f"{raw.url}?fields=name")).json()["tools"]
        assert len(listed) == ALL_TOOLS
        paged: list[Any] = []
        more: str | None = ""
        while more is not None:
            page = (await raw.http.get(f"{raw.url}?fields=name&limit=10000{more}")).json()
            paged += page["tools"]
            more = None if page["next"] is None else f"&cursor={page['next']}"
        assert paged == listed
        for bad in ("limit=0", "limit=10001", "cursor=nothing", "limit=1&query=x"):
            assert (await raw.http.get(f"{raw.url}?{bad}")).status_code == 400
        found = (await raw.http.get(f"{raw.url}?query=paged-http.{LAST['paged']}")).json()["tools"]
        assert [tool["name"] for tool in found] == [f"paged-http.{LAST['paged']}"]
        for server in ("paged-http", "long-stdio"):
            last = LAST[server.partition("-")[0]]
            called = (await raw.http.post(f"{raw.url}/{server}.{last}", json={})).json()
            assert called["content"][0]["text"] == last


async def test_a_search_finds_one_of_all(hub: HubProcess) -> None:
    async with Raw(hub.url_of("found")) as raw:
        answer = await raw.call("search_tools", {"query": "number 9999", "server": "paged-stdio"})
    assert answer["result"]["structuredContent"]["tools"][0]["name"].endswith(LAST["paged"])


async def test_the_command_line_lists_and_calls(hub: HubProcess) -> None:
    address = ("--hub", f"http://127.0.0.1:{hub.port}")
    listed = await run("tools", *address, folder=hub.folder)
    assert (listed.code, len(listed.out.splitlines())) == (0, ALL_TOOLS), listed.err
    called = await run("call", f"long-http.{LAST['long']}", *address, folder=hub.folder)
    assert (called.code, called.out.strip()) == (0, LAST["long"]), called.err
    doctor = await run("doctor", *address, folder=hub.folder)
    assert "ISD-4" not in doctor.out


# -- beyond the limits -----------------------------------------------------------------------------------------------

LIMITS = {**PATIENT, "tools_per_server": 300, "list_pages": 20, "list_bytes": 200_000, "reply_bytes": 1_000_000}
CUT = {
    "entries": ("many:1000,pages:5", "has over 300 entries", "tools_per_server", 300),
    "pages": ("many:100,pages:50", "has over 20 pages", "list_pages", 40 + len(OWN)),
    "bytes": ("many:290,pages:2,described:2048", "has over 200000 bytes", "list_bytes", 0),
}


@pytest.mark.one_process("each node cuts lists for itself, and notes on a program's lists are at the node that runs it")
async def test_lists_beyond_a_limit_are_cut_and_the_operator_learns_which(tmp_path: Path) -> None:
    servers = {name: stdio(command("raw_server", "--mode", mode)) for name, (mode, *_) in CUT.items()}
    servers["well"] = stdio(command("raw_server"))
    over_http = ("raw_server", "--transport", "http", "--mode", "many:200,pages:1,described:8192")
    async with (
        http_peer(*over_http) as page,
        serving(tmp_path, {**servers, "page": {"url": page.url}}, limits=LIMITS) as hub,
    ):
        address = ("--hub", f"http://127.0.0.1:{hub.port}")
        doctor = await run("doctor", *address, folder=tmp_path, env={"COLUMNS": "300"})
        shown = await run("servers", *address, folder=tmp_path)
        async with Raw(f"http://127.0.0.1:{hub.port}/v1/servers") as raw:
            states = {each["name"]: each for each in (await raw.http.get(raw.url)).json()["servers"]}
        async with Raw(hub.url) as raw:
            assert "result" in await raw.call("well.echo", {"text": "still here"})
            assert "result" in await raw.call("entries.many_00000")
    logged = "".join(hub.said)
    for name, (_, what, limit, count) in CUT.items():
        note = f"its list of tools {what} and was cut; to read all of it, raise limits.{limit}"
        assert note in doctor.out
        assert note in shown.out
        assert logged.count(note) == 1, name
        assert states[name]["state"] == "ready"
        assert states[name]["tools"] == count or (not count and 0 < states[name]["tools"] < 290)
    assert states["page"]["state"] == "retrying"
    reason = "an answer of over 1000000 bytes; to allow that, raise limits.reply_bytes"
    assert reason in states["page"]["reason"]
    assert "ISD-119" in doctor.out
    assert logged.count(reason) == 1


async def test_a_list_that_grows_beyond_a_limit_keeps_the_former_one(tmp_path: Path) -> None:
    over_http = ("raw_server", "--transport", "http", "--era", "legacy", "--mode", "many:100,pages:1")
    async with (
        http_peer(*over_http) as peer,
        serving(tmp_path, {"growing": {"url": peer.url}}, limits=LIMITS) as hub,
    ):
        await until_complete(hub.url)
        async with Raw(hub.url) as raw, Raw(f"http://127.0.0.1:{hub.port}/v1/servers/growing") as rest:
            before = await raw.names()
            await peer.control("many:200,pages:1,described:8192")
            await raw.call("growing.grow", {"name": "more"})

            async def is_noted() -> bool:
                notes = (await rest.http.get(rest.url)).json()["notes"]
                return any("limits.reply_bytes" in note for note in notes)

            await until(is_noted)
            assert await raw.names() == before
            assert "result" in await raw.call("growing.many_00007")
            doctor = await run("doctor", "--hub", f"http://127.0.0.1:{hub.port}", folder=tmp_path)
            assert "ISD-409" in doctor.out
            await peer.control("many:120,pages:1")
            await raw.call("growing.grow", {"name": "less"})

            async def is_listed() -> bool:
                return "growing.many_00119" in await raw.names()

            await until(is_listed)
            assert (await rest.http.get(rest.url)).json()["notes"] == []
