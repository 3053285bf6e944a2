"""`isthmus token` and `isthmus relay status` as a person runs them, beside a hub that runs."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests import hubs
from tests.faults.watching import eventually
from tests.fork_server import quick_isthmus
from tests.hubs import HubProcess, environment, serving, write_config
from tests.relay.peers import Manner, device, raw_server, wired

pytestmark = pytest.mark.usefixtures("no_leftovers")

RUN_SECONDS = 60.0


async def run(folder: Path, *words: str, given: str = "") -> tuple[int, str, str]:
    """Run a command on the configuration in a folder: its exit code and what it said."""
    config = () if words[:2] == ("relay", "status") else ("--config", str(folder / "isthmus.json"))
    ended = await hubs.run(*words, *config, folder=folder, given=given.encode())
    return ended.code, ended.out, ended.err


async def minted(folder: Path, hub: HubProcess, agent: str, *words: str) -> dict[str, Any]:
    """An agent's addresses at this hub."""
    url = ("--url", f"ws://127.0.0.1:{hub.port}")
    code, out, err = await run(folder, "token", "relay", agent, *url, *words, "--json")
    assert code == 0, err
    response: dict[str, Any] = json.loads(out)
    return response


async def test_addresses_are_good_at_the_hub_until_they_are_revoked(tmp_path: Path) -> None:
    async with serving(
        tmp_path, hub={"log_level": "debug"}
    ) as hub:  # no key is configured: both find the one that is kept
        both = await minted(tmp_path, hub, "kitchen", "--server-id", "oven")
        lone = await minted(tmp_path, hub, "kitchen", "--role", "device")
        async with raw_server(hub.port, "", url=both["server"], manner=Manner(tools=("heat",))) as server:
            async with device(hub.port, "", url=lone["device"]) as it:
                await it.ready()
                assert await it.call("heat", {"text": "on"}) == "on"
                await status_shows_them(tmp_path, hub)
                await wrong_ends_are_refused(lone["device"])
                code, out, _ = await run(tmp_path, "token", "revoke", lone["id"])
                assert (code, out) == (0, f"revoked {lone['id']}\n")
                assert (await it.ended()).code == 1008
            assert server.is_open  # its own token is another
            async with wired(lone["device"]) as refused:
                ending = await refused.ended()
                assert (ending.code, ending.reason) == (1008, "token已撤销")
        said = "".join(hub.said)
        assert not any(made["token"] in said for made in (both, lone))


async def status_shows_them(folder: Path, hub: HubProcess) -> None:
    url = f"http://127.0.0.1:{hub.port}"
    code, out, _ = await run(folder, "relay", "status", "--hub", url)
    server, robot = (re.split(r"  +", line) for line in out.splitlines())
    assert (code, server[:5]) == (0, ["kitchen", "oven", "kitchen_oven", "ready", "1 tool"])
    assert (robot[0], robot[2], robot[3]) == ("kitchen", "device", "connected")
    await watched(hub, url)


async def watched(hub: HubProcess, url: str) -> None:
    """On a terminal, until Ctrl-C, which is how one ends it."""
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *quick_isthmus("relay", "status", "--watch", "--hub", url),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=theirs,
        stderr=asyncio.subprocess.PIPE,
        env=environment({"COLUMNS": "150", "TERM": "xterm"}),
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    shown = bytearray()

    def has_shown() -> bool:
        with suppress(BlockingIOError):
            shown.extend(os.read(ours, 65536))
        return b"kitchen_oven" in shown

    await eventually(has_shown, "the status is shown", within=RUN_SECONDS)
    process.send_signal(signal.SIGINT)
    _, err = await asyncio.wait_for(process.communicate(), RUN_SECONDS)
    os.close(ours)
    assert (process.returncode, err) == (0, b"")


async def wrong_ends_are_refused(device_address: str) -> None:
    async with wired(device_address.replace("/call/", "/mcp/")) as refused:
        ending = await refused.ended()
        assert (ending.code, ending.reason) == (1008, "token角色不符")


async def test_another_key_disconnects_callers_with_the_previous_one(tmp_path: Path) -> None:
    first, second = "first-key-0123456789abcdef", "second-key-0123456789abcdef"
    async with serving(tmp_path, relay={"key": first}) as hub:
        before = await minted(tmp_path, hub, "kitchen")
        async with raw_server(hub.port, "", url=before["server"]) as server:
            write_config(tmp_path, {}, relay={"key": second, "compatible": False})
            hub.process.send_signal(signal.SIGHUP)
            assert (await server.ended()).code == 1008
        async with wired(before["server"]) as refused:
            assert (await refused.ended()).reason == "token无效"
        words = "(the token: it was not made with this hub's key, or was changed)"
        await eventually(lambda: any(words in line for line in hub.said), "the log says why", within=RUN_SECONDS)
        after = await minted(tmp_path, hub, "kitchen")
        async with raw_server(hub.port, "", url=after["server"]) as server:
            assert server.is_open
        code, out, _ = await run(tmp_path, "token", "read", given=before["server"])
        assert (code, out) == (5, "")
        code, out, err = await run(tmp_path, "token", "relay", "kitchen", "--compatible")
        assert (code, out) == (3, "")
        assert not any(key in "".join(hub.said) + err for key in (first, second))
