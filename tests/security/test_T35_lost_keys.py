"""T35: the list of revoked keys cannot be read, and revoked keys, or all keys, are accepted.

A hub does not start with a list of keys that it cannot read. One that runs goes by what it knew for at most thirty
seconds; then nobody comes in by a key of that list, what they had open is ended, and they are told 503 with the
reason. Keys of the configuration are not touched, and a hub that wanted keys is never open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Container
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from isthmus.app.caller_identity import Identities
from isthmus.app.hub import RunningHub
from isthmus.app.key_files import TRUST_SECONDS, KeyFile
from isthmus.app.routes import Routes
from isthmus.config.settings import Configuration, HubSettings
from isthmus.frontends.http.auth import Authenticator, OriginGuard
from isthmus.frontends.http.listener import HttpListener, HttpListenerSettings
from isthmus.frontends.mcp.http import McpHttp
from isthmus.frontends.rest.http import RestHttp
from isthmus.identity.keys import digest_of
from isthmus.identity.minted_keys import mint, revoked
from isthmus.model.callers import Caller, Grants
from tests.fork_server import quick_isthmus
from tests.frontends.wire import BASE, PING, Reply, connected, encoded, key_header, legacy
from tests.hubs import environment, write_config

KEY = "a-key-of-the-configuration"
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
DAMAGE = {"gone": None, "empty": b"", "cut short": b'{"version":1,"keys":[', "another's": b"{}"}


class Hub:
    """A hub with a key of its configuration and one of its list, and a clock of its own."""

    def __init__(self, state: Path) -> None:
        self.file = KeyFile(state)
        self.now = 1_900_000_000.0
        self.key, self.made = mint("reader", Grants(("*",)), "default", targets=False, now=self.now, expires_at=None)
        self.file.change(lambda _: (self.made,))
        callers = ((digest_of(KEY), Caller("planner", "default", Grants(("*",)))),)
        configuration = replace(Configuration(None, HubSettings(state=str(state))), callers=callers)
        self.identities = Identities(configuration, now=lambda: self.now, clock=lambda: self.now)
        self.identities.decide()
        self.running = RunningHub(configuration, {})
        auth = Authenticator(OriginGuard(bind_host="127.0.0.1"), self.identities.identify)
        self.mcp = McpHttp(self.running.mcp_methods(), auth)
        routes = Routes(self.running.surface, self.mcp, RestHttp(self.running.hub, auth), {})
        self.endpoint = HttpListener(routes, HttpListenerSettings(port=0))
        self.endpoint.offer(routes.take)
        self.port = 0

    def damage(self, content: bytes | None) -> None:
        self.file.path.unlink()
        if content is not None:
            self.file._write(self.file.path, content)

    def look(self) -> None:
        """What the hub does by itself four times a second."""
        self.identities._live_keys.reload()
        if self.identities.refresh():
            self.retain(self.identities)

    def retain(self, callers: Container[Caller]) -> None:
        self.mcp.retain(callers)

    async def ask(self, body: bytes, key: str | None, *more: tuple[str, str], path: str = "/mcp") -> Reply:
        async with connected(self.port) as wire:
            return await wire.request(body, [*BASE, *key_header(key), *more], path=path)


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    made = Hub(tmp_path)
    made.port = await made.endpoint.open()
    yield made
    await made.endpoint.close()
    await made.running.aclose()


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
async def test_a_lost_list_admits_no_caller_after_a_while(hub: Hub, damage: bytes | None) -> None:
    opened = await hub.ask(encoded(legacy("initialize", HELLO)), hub.key)
    session = ("mcp-session-id", opened.headers["mcp-session-id"])
    hub.damage(damage)
    hub.look()
    hub.now += TRUST_SECONDS
    hub.look()
    assert (await hub.ask(PING, hub.key, session)).status == 200
    hub.now += 1
    with structlog.testing.capture_logs() as logs:
        hub.look()
    assert [line["log_level"] for line in logs] == ["error"]
    refused = await hub.ask(PING, hub.key, session)
    assert (refused.status, refused.headers["retry-after"]) == (503, "5")
    assert b"cannot read its list of keys" in refused.body
    rest = await hub.ask(b"{}", hub.key, path="/v1/tools/builtin.echo")
    assert (rest.status, rest.json["reason"], rest.json["executed"]) == (503, "unprovable", "no")
    assert len(hub.mcp.sessions) == 0
    assert (await hub.ask(PING, None)).status == 401
    assert (await hub.ask(PING, "a-key-that-nobody-has")).status == 503
    assert (await hub.ask(PING, KEY)).status == 200


async def test_a_key_revoked_meanwhile_is_rejected_once_the_list_is_back(hub: Hub) -> None:
    content = hub.file.path.read_bytes()
    hub.damage(None)
    hub.look()
    hub.now += TRUST_SECONDS + 1
    hub.look()
    hub.file._write(hub.file.path, content)
    hub.look()
    assert (await hub.ask(PING, hub.key)).status == 200
    hub.file.change(lambda keys: tuple(revoked(key, hub.now) for key in keys))
    hub.look()
    assert (await hub.ask(PING, hub.key)).status == 401


async def test_a_hub_whose_list_is_lost_does_not_start(tmp_path: Path) -> None:
    """Not even on loopback, where it would be open: keys were configured."""
    config = write_config(tmp_path, {})
    _, made = mint("reader", Grants(("*",)), "default", targets=False, now=1.0, expires_at=None)
    file = KeyFile(tmp_path / "state")
    file.change(lambda _: (made,))
    file.path.unlink()
    process = await asyncio.create_subprocess_exec(
        *quick_isthmus("serve", "--config", str(config), "--port", "0", "--insecure"),
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    _, said = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 3
    assert b"keys.json cannot be used: it is gone" in said
    assert f"delete {file.folder}".encode() in said
