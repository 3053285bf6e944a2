"""One server of every kind, one hub in front of them, and the clients that call it.

`conftest` opens it once for all tests here. A client is a program that runs under the interpreter of its SDK and
reports in lines of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.agents.tool_requests import QUICK, fresh
from tests.conftest import Ledger
from tests.faults import quick_server
from tests.hubs import CARD_LEADS_HERE, PATIENT, HubProcess, serving, stdio
from tests.matrix.field import until_complete
from tests.peers.forking import quickly
from tests.peers.launch import CHECKOUT, Sdk, http_peer, quick_command, sdk_python

RUN_SECONDS = 240.0
"""For all that a client does; each step is bounded by itself."""

CARRIERS: dict[str, tuple[str, ...]] = {
    "sse": ("--transport", "sse"),
    "stateful": (),
    "stateless": ("--stateless",),
}


@dataclass(frozen=True, slots=True)
class StepReports:
    """The reports of a client, by server and step."""

    token: str
    reports: dict[tuple[str, str], dict[str, Any]]

    def __getitem__(self, place: tuple[str, str]) -> dict[str, Any]:
        found = self.reports[place]
        assert "broken" not in found, found["broken"]
        return found


@dataclass(slots=True)
class Field:
    """The hub with all servers, and the reports of the clients that ran so far."""

    hub: HubProcess
    grpc: HubProcess
    """One that speaks gRPC too, and says so in its card: the Agent Development Kit takes no such card."""
    ledger: Ledger
    _reports: dict[tuple[str, ...], StepReports] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Where the agent is; one of its clients takes no plain address but that of `localhost`."""
        return f"http://localhost:{self.hub.port}"

    async def reports(self, sdk: Sdk, client: str, *options: str) -> StepReports:
        """The reports of a client; each client runs once."""
        key = (sdk, client, *options)
        if key not in self._reports:
            token = fresh(client)
            url = f"http://localhost:{self.grpc.port}" if "GRPC" in options else self.url
            reports = await run(sdk, client, *options, url, token)
            self._reports[key] = StepReports(token, {(found["server"], found["step"]): found for found in reports})
        return self._reports[key]


@asynccontextmanager
async def open_field(folder: Path) -> AsyncIterator[Field]:
    """Start the servers and the hub, and wait until the hub has all of them."""
    ledger = Ledger(folder / "ledger")
    async with AsyncExitStack() as stack:

        async def start(peer: str, *options: str) -> str:
            return (await stack.enter_async_context(http_peer(peer, *options, env=ledger.env))).url

        names = list(CARRIERS)
        addresses = await asyncio.gather(
            start("rpc_server", "--listed"), *(start("agent_tools_sdk1", *CARRIERS[name]) for name in names)
        )
        servers = {
            "rpc": {"rpc": addresses[0].replace("/mcp", "/rpc")},
            "stdio": stdio(quick_command("agent_tools_sdk1"), env=ledger.env),
            QUICK: stdio(quick_server.command(folder / "paid")),
            **{name: {"url": address} for name, address in zip(names, addresses[1:], strict=True)},
        }
        servers["sse"]["url"] = servers["sse"]["url"].replace("/mcp", "/sse")
        hub = await stack.enter_async_context(
            serving(_made(folder / "hub"), servers, limits=PATIENT, hub=CARD_LEADS_HERE)
        )
        a2a = {"grpc_port": 0}
        speaking = serving(_made(folder / "grpc"), servers, limits=PATIENT, hub=CARD_LEADS_HERE, a2a=a2a)
        grpc = await stack.enter_async_context(speaking)
        await until_complete(hub.url)
        await until_complete(grpc.url)
        yield Field(hub, grpc, ledger)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def run(sdk: Sdk, client: str, *options: str) -> list[dict[str, Any]]:
    """Run a client to its end; what it reported.

    Raises:
        RuntimeError: It broke off; the message holds what it wrote to stderr.
    """
    process = await asyncio.create_subprocess_exec(
        *quickly([sdk_python(sdk), str(CHECKOUT / "tests" / "agents"), client, *options]),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "NO_PROXY": "*"},
    )
    try:
        said, complained = await asyncio.wait_for(process.communicate(), RUN_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise RuntimeError(f"{client} ended with {process.returncode}: {complained.decode(errors='replace')[-4000:]}")
    return [json.loads(line) for line in said.splitlines()]
