"""T55: something leads back to where it began: a list to its first page, a question to itself, a hub to a hub.

Answer: a list is read for so many pages and entries as the limits allow, and ends where a cursor comes again; a call is
sent again with answers ten times at most; a hub that finds itself behind a server, by MCP or by A2A, does without
that server and says why, and hubs that start each other by stdio do so eight times. Two hubs that are each other's
servers: `tests/faults/test_loop_detection.py`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from isthmus.app.links import HOPS_VARIABLE, Links, hops_in
from isthmus.core.background import BackgroundTasks
from isthmus.core.settings import Limits
from isthmus.core.watch.server_tasks import ServerTasks
from isthmus.model.fault_table import Unanswered
from isthmus.model.names import ServerName
from isthmus.upstream.base_link import ConnectFailed
from isthmus.upstream.reconnector import HOPS_MAX, find_loop
from isthmus.upstream.response_waiters import ROUNDS_MAX
from isthmus.upstream.server_settings import ServerSettings, StdioSettings
from tests.faults.scripted import ReceivedRequest, Scripted, hub_of, reply, tool
from tests.faults.watching import eventually
from tests.hubs import Raw, serving, write_config


class Turning(Scripted):
    """Has one more page whenever it is asked for one."""

    def __init__(self, *, is_new: bool) -> None:
        super().__init__()
        self._is_new = is_new

    async def on(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        if request.method != "tools/list":
            await super().on(request, out)
            return
        at = self.count("tools/list")
        out.write(reply(request.result({"tools": [tool("t")], "nextCursor": str(at) if self._is_new else "again"})))


@pytest.mark.parametrize(("is_new", "pages"), [(False, 2), (True, 300)])
async def test_a_list_that_goes_on_for_ever_is_read_for_a_while(tmp_path: Path, *, is_new: bool, pages: int) -> None:
    limits = {"list_pages": 300}
    async with Turning(is_new=is_new) as server, hub_of(tmp_path, {"a": server.entry}, limits=limits) as hub:
        await hub.ready("a")
        assert server.count("tools/list") == pages
        server_status = hub.running.hub.snapshot.server_statuses[ServerName("a")]
        assert [each.name for each in server_status.tools] == ["t"]
        assert server_status.notes


class Asking(Scripted):
    """A server of the modern era that answers every call with another wish to be called again."""

    async def on(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        if request.method == "server/discover":
            info = {"name": "x", "version": "1"}
            received = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "serverInfo": info}
            out.write(reply(request.result(received)))
        else:
            await super().on(request, out)

    async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        state = str(self.count("tools/call"))
        out.write(reply(request.result({"resultType": "input_required", "requestState": state})))


async def test_a_server_that_wants_to_be_asked_again_for_ever_is_asked_ten_times(tmp_path: Path) -> None:
    async with Asking() as server, hub_of(tmp_path, {"a": {**server.entry, "era": "modern"}}) as hub:
        await hub.ready("a")
        outcome = await hub.call("a.t")
        assert isinstance(outcome, Unanswered)
        assert f"after {ROUNDS_MAX} rounds" in outcome.message
        assert server.count("tools/call") == 1 + ROUNDS_MAX == 11


async def test_a_hub_that_is_its_own_server_or_its_own_agent_does_without(tmp_path: Path) -> None:
    async with serving(tmp_path, {}) as hub:
        own: dict[str, Any] = {"me": {"url": hub.url}, "agent": {"agent": f"http://127.0.0.1:{hub.port}"}}
        write_config(tmp_path, own)

        async def reasons() -> dict[str, str]:
            async with Raw(hub.url) as caller:
                meta = (await caller.ask("tools/list"))["result"].get("_meta", {})
            return {server: how["reason"] for server, how in meta.get("isthmus/missing", {}).items()}

        async def is_known() -> bool:
            return await reasons() == dict.fromkeys(own, "it is this hub itself")

        await eventually(is_known, "the hub knows itself by both", within=30.0)


def test_a_hub_behind_others_is_known_too() -> None:
    assert find_loop({"other": 0, "own": 1}, "own") == "it leads back to this hub"
    assert find_loop({"other": 0}, "own") is None


async def test_hubs_start_each_other_eight_times(tmp_path: Path) -> None:
    background = BackgroundTasks()
    server = ServerSettings(ServerName("a"), StdioSettings("/bin/cat"))
    links = Links(Limits(), {HOPS_VARIABLE: str(HOPS_MAX)}, background, ServerTasks(asyncio.get_running_loop().time))
    try:
        with pytest.raises(ConnectFailed, match=f"{HOPS_MAX} hubs have started each other"):
            await links.connect(server, "auto")
    finally:
        await background.aclose()
    assert (HOPS_MAX, hops_in({HOPS_VARIABLE: "7"}), hops_in({HOPS_VARIABLE: "9" * 99})) == (8, 7, 0)
