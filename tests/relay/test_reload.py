"""Settings of the relay take effect as soon as the file changes, for connected peers too."""

from __future__ import annotations

import asyncio
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from isthmus.identity.relay_tokens import RelayTokens, TokenSettings
from isthmus.model.relay import Claim
from tests.faults.watching import eventually
from tests.hubs import NODES, HubProcess, serving, write_config
from tests.relay.peers import CallFailed, Manner, agent_call_url, agent_url, device, device_url, raw_server, wired
from tests.relay.tokens import KEY

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("relay")]


async def reload(hub: HubProcess, folder: Path, **relay: Any) -> None:
    """Write the table anew and wait until the hub has taken it."""
    before = len(hub.said)
    table = {"key": KEY, **relay}
    write_config(folder, {}, relay={name: value for name, value in table.items() if value is not None})
    hub.process.send_signal(signal.SIGHUP)
    await eventually(lambda: "configuration reloaded" in "".join(hub.said[before:]), "the table is taken")


async def test_rules_limits_and_tokens_change_for_connected_devices(tmp_path: Path) -> None:
    async with serving(tmp_path, relay={"key": KEY}) as hub, raw_server(hub.port, "kitchen", "oven") as server:
        async with device(hub.port, "kitchen") as it:
            await it.ready()

            async def listed() -> set[str]:
                return {tool["name"] for tool in (await it.ask("tools/list", id=77))["result"]["tools"]}

            async def is_listed(names: set[str]) -> bool:
                return await listed() == names

            assert await listed() == {"echo"}
            await reload(hub, tmp_path, agents={"kitchen": {"allow": ["builtin.timestamp"]}})
            # The hub also sees the file change, so what it said may be about the one before.
            await eventually(partial(is_listed, {"echo", "timestamp"}), "a tool of the hub is allowed")
            await reload(hub, tmp_path, agents={"kitchen": {"deny": ["kitchen_oven.echo"]}})
            await eventually(partial(is_listed, set()), "nothing is allowed")
            # A slip in an entry that forbids something must not allow it.
            await reload(hub, tmp_path, agents={"kitchen": {"deny": ["kitchen_oven.echo"], "grce": 1}})
            assert await listed() == set()
            await reload(hub, tmp_path, agents={"kitchen": {"grce": 1}})
            await eventually(partial(is_listed, {"echo"}), "nothing is forbidden")
            await server.change("echo", "more")
            await eventually(partial(is_listed, {"echo", "more"}), "the server has another tool")
            await reload(hub, tmp_path, max_tools=1)
            await eventually(partial(is_listed, {"echo"}), "there is room for one")
            await reload(hub, tmp_path, max_tools=2)
            await eventually(partial(is_listed, {"echo", "more"}), "there is room for both")
            await server.change("echo")
            await eventually(partial(is_listed, {"echo"}), "the server has one tool")
            await reload(hub, tmp_path, max_agent_connections=2)
            if NODES == 1:  # each node counts its own
                async with wired(agent_call_url(hub.port, "kitchen")) as third:
                    assert (await third.ended()).code in {1008, 1013}
            async with raw_server(hub.port, "cellar", "rack"):  # the limit is each agent's own
                assert it.is_open
            await reload(hub, tmp_path, enabled=False)
            assert "relay.enabled" in "".join(hub.said)
            assert await listed() == {"echo"}
            await reload(hub, tmp_path, compatible=False)
            assert (await it.ended()).code == 1008
        assert (await server.ended()).code == 1008
        async with wired(agent_url(hub.port, "kitchen")) as refused:
            ending = await refused.ended()
            assert (ending.code, ending.reason) == (1008, "不接受兼容token")
        assert KEY not in "".join(hub.said)


async def test_limits_hold_for_servers_that_dialled_in_before(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, relay={"key": KEY}) as hub,
        raw_server(hub.port, "kitchen", "oven", manner=Manner(tools=("hold",))),
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", timeout=20) as rest,
    ):

        async def is_listed() -> bool:
            return bool((await rest.get("/v1/servers/kitchen_oven")).json().get("state") == "ready")

        await eventually(is_listed, "the oven is there")
        before = len(hub.said)
        write_config(tmp_path, {}, relay={"key": KEY}, limits={"call_seconds": 0.2})
        hub.process.send_signal(signal.SIGHUP)
        await eventually(lambda: "configuration reloaded" in "".join(hub.said[before:]), "the table is taken")
        response = (await rest.post("/v1/tools/kitchen_oven.hold", json={})).json()
        assert response["detail"] == "Server kitchen_oven did not answer within 0.2 s"


@pytest.mark.one_process("it changes the key in the state folder, which nodes with a database do not read")
async def test_unreadable_files_in_the_state_folder_cost_no_connection(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "relay"
    folder.mkdir(parents=True)
    (folder / "key").write_text(KEY)
    async with serving(tmp_path, relay={}) as hub, raw_server(hub.port, "kitchen", "oven") as server:
        made = RelayTokens(KEY, TokenSettings(), time.time, lambda _: False).mint(Claim("kitchen"))
        async with device(hub.port, "kitchen", url=device_url(hub.port, made)) as it:
            await it.ready()
            (folder / "key").unlink()
            for name in ("key", "revoked"):
                (folder / name).mkdir()
            await reload(hub, tmp_path, key=None, max_tools=2)
            assert await it.call("echo", {"text": "hello"})
            assert "the relay keeps its current key" in "".join(hub.said)
            assert server.is_open


@pytest.mark.one_process("it changes the key in the state folder, which nodes with a database do not read")
async def test_a_file_that_is_refused_for_the_key_admits_no_other_caller(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, relay={}, callers={"planner": {"key": "k3y-of-the-planner-01234567", "allow": ["*"]}}) as hub,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", timeout=20) as rest,
    ):
        (tmp_path / "state" / "relay" / "key").write_text("cut")
        before = len(hub.said)
        other = {"key": "k3y-of-another-012345678901", "allow": ["*"]}
        write_config(tmp_path, {}, relay={}, callers={"other": other})
        hub.process.send_signal(signal.SIGHUP)
        await eventually(lambda: "configuration refused" in "".join(hub.said[before:]), "the file is refused")
        for key, status in (("k3y-of-the-planner-01234567", 200), (other["key"], 401)):
            assert (await rest.get("/v1/servers", headers={"x-api-key": str(key)})).status_code == status


async def test_a_call_that_waits_for_approval_outlasts_other_changes_and_ends_with_its_permission(
    tmp_path: Path,
) -> None:
    boss = {"key": "key-of-boss-0123456789", "allow": [], "operator": True}
    tables: dict[str, Any] = {
        "relay": {"key": KEY, "agents": {"kitchen": {"allow": ["builtin.echo"]}}},
        "approvals": {"all": {"tools": ["builtin.echo"]}},
        "callers": {"boss": boss},
    }

    async def rewrite(hub: HubProcess, **changed: Any) -> None:
        before = len(hub.said)
        write_config(tmp_path, {}, **{**tables, **changed})
        hub.process.send_signal(signal.SIGHUP)
        await eventually(lambda: "configuration reloaded" in "".join(hub.said[before:]), "the file is taken")

    async with (
        serving(tmp_path, **tables) as hub,
        httpx2.AsyncClient(headers={"authorization": f"Bearer {boss['key']}"}) as http,
        device(hub.port, "kitchen") as it,
    ):
        await it.ready()
        url, found = f"http://127.0.0.1:{hub.port}/v1/approvals", list[Any]()

        async def waits() -> bool:
            found[:] = (await http.get(f"{url}?state=pending")).json()["approvals"]
            return bool(found)

        call = asyncio.ensure_future(it.call("echo", {"text": "hello"}))
        await eventually(waits, "the call waits")
        other = {"key": "key-of-other-0123456789", "allow": ["*"]}
        await rewrite(hub, callers={"boss": boss, "other": other})
        assert (await http.post(f"{url}/allow/{found[0]['id']}", json={})).status_code == 200
        assert "hello" in await call
        call = asyncio.ensure_future(it.call("echo", {"text": "again"}))
        await eventually(waits, "the next call waits")
        await rewrite(hub, relay={"key": KEY, "agents": {"kitchen": {"allow": ["builtin.timestamp"]}}})
        with pytest.raises(CallFailed):
            await call
        assert "permissions changed" in str(it.frames[-2:])  # the list has changed, too
