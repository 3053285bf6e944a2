"""The wire to plain JSON-RPC servers, A2A agents and servers that dialled in is cut, as in `test_cut` (R17).

The agent is another hub with the server behind it. `ISTHMUS_CUT_STEP=1` cuts at every byte; here it is fewer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import WebSocketException

from tests.conftest import Ledger, Spawn
from tests.faults import quick_server
from tests.faults.caller import Caller
from tests.faults.chaos import ChaosProxy, Ending
from tests.faults.test_cut import (
    BREAKER_OFF,
    DEADLINE,
    ENDINGS,
    STEP,
    WAYS,
    CutServer,
    count,
    note_cuts,
    offsets,
    sweep_http,
    verdict,
)
from tests.hubs import PATIENT, serving, stdio
from tests.relay.peers import Json, Manner, RawServer, agent_url, text_answer, wired
from tests.relay.tokens import KEY

COARSE_STEP = 64 if STEP >= 16 else STEP
AGENT_STEP = 512 if STEP >= 16 else STEP
AGENTS = 1 if STEP >= 16 else 12
"""Agents that are cut side by side, each at its share of the places. A link to an agent that is cut is made anew with
its card after a pause, which takes most of the time."""

pytestmark = pytest.mark.timeout(300 if STEP >= 16 else 3600)


async def test_plain_json_rpc_cut_anywhere_is_reported_honestly(tmp_path: Path, ledger: Ledger, spawn: Spawn) -> None:
    peer = await spawn("rpc_server", "--listed", "--ledger", str(ledger.path))
    async with AsyncExitStack() as stack:
        proxies = {ending: await stack.enter_async_context(ChaosProxy(peer.port)) for ending in ENDINGS}
        servers: dict[str, object] = {
            ending: {"rpc": f"http://127.0.0.1:{proxy.port}/rpc", "timeout": DEADLINE}
            for ending, proxy in proxies.items()
        }
        hub = await stack.enter_async_context(serving(tmp_path, servers, limits=BREAKER_OFF))
        caller = await stack.enter_async_context(Caller(hub.port))
        swept = [CutServer(caller, ending, "") for ending in ENDINGS]
        sweeps = (
            sweep_http(server, proxies[ending], ending, COARSE_STEP)
            for server, ending in zip(swept, ENDINGS, strict=True)
        )
        await asyncio.gather(*sweeps)
        check(swept, ledger, "plain JSON-RPC", COARSE_STEP)


async def test_an_a2a_agent_cut_off_anywhere_is_reported_honestly(tmp_path: Path, ledger: Ledger) -> None:
    async with AsyncExitStack() as stack:
        proxies: dict[str, tuple[ChaosProxy, Ending, slice]] = {}
        for ending in ENDINGS if STEP < 16 else ENDINGS[:1]:
            for at in range(AGENTS):
                # The card must lead through the proxy, which is there before the hub behind it.
                proxy = await stack.enter_async_context(ChaosProxy(0))
                proxies[f"{ending}{at}"] = proxy, ending, slice(at, None, AGENTS)

        for name, (proxy, *_) in proxies.items():
            (tmp_path / name).mkdir()
            servers = {"quick": stdio(quick_server.command(ledger.path))}
            address = {"public_url": f"http://127.0.0.1:{proxy.port}"}
            inner = await stack.enter_async_context(serving(tmp_path / name, servers, limits=PATIENT, hub=address))
            proxy.target = inner.port
        entries = {
            name: {"agent": f"http://127.0.0.1:{proxy.port}", "timeout": DEADLINE}
            for name, (proxy, *_) in proxies.items()
        }
        (tmp_path / "outer").mkdir()
        hub = await stack.enter_async_context(serving(tmp_path / "outer", entries, limits=BREAKER_OFF))
        caller = await stack.enter_async_context(Caller(hub.port))
        swept = {name: CutServer(caller, f"{name}.quick", "") for name in proxies}
        sweeps = (
            sweep_http(swept[name], proxy, ending, AGENT_STEP, share)
            for name, (proxy, ending, share) in proxies.items()
        )
        await asyncio.gather(*sweeps)
        check(list(swept.values()), ledger, "A2A agent", AGENT_STEP)


@asynccontextmanager
async def dialling(url: str, ledger: Path) -> AsyncIterator[None]:
    """A server that dials in, and again whenever its connection ends. It notes each call before it answers."""

    class Paying(RawServer):
        def answer_of(self, method: str, message: Json) -> Json | None:
            if method != "tools/call":
                return super().answer_of(method, message)
            nonce = message["params"]["arguments"]["nonce"]
            with ledger.open("a") as file:
                file.write(json.dumps({"nonce": nonce}) + "\n")
            return text_answer(nonce)

    def paying(socket: ClientConnection) -> Paying:
        return Paying(socket, Manner(tools=("pay",)))

    async def dial() -> None:
        while True:
            with suppress(OSError, WebSocketException, TimeoutError):
                async with wired(url, paying, ping_interval=None) as wire:
                    await wire.socket.wait_closed()
            await asyncio.sleep(0.005)

    dialler = asyncio.ensure_future(dial())
    yield
    dialler.cancel()
    await asyncio.gather(dialler, return_exceptions=True)


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_server_that_dialled_in_cut_off_anywhere_is_reported_honestly(
    tmp_path: Path, ledger: Ledger, ending: Ending
) -> None:
    async with (
        serving(tmp_path, relay={"key": KEY}, limits=BREAKER_OFF) as hub,
        ChaosProxy(hub.port) as proxy,
        dialling(agent_url(proxy.port, "lamp", "s"), ledger.path),
        Caller(hub.port) as caller,
    ):
        server = CutServer(caller, "lamp_s", "")
        cut = proxy.reset_after if ending == "reset" else proxy.close_after
        for way in WAYS:  # `up` are the server's answers, `down` the hub's requests
            await server.pay_well()
            await proxy.clear()
            await server.pay_well()
            for offset in offsets(proxy.passed[way]):
                cut(offset, way)
                server.armed.append(await server.pay())
                await proxy.clear()
                await server.pay_well()
        assert proxy.cuts > 5
        check([server], ledger, f"dial-in, {ending}", STEP)


def check(swept: list[CutServer], ledger: Ledger, wire: str, step: int) -> None:
    """Nothing was lost, doubled or invented, and there was something to lose."""
    assert verdict(swept, ledger) == []
    received = count(swept)
    note_cuts(wire, received, step)
    assert min(received.get("ok", 0), received.get("unknown", 0)) > 5, received
