"""A service without servers of its own: the tools of a running hub, by its names and for one of its callers."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.library import (
    ConfigurationError,
    ToolDeniedError,
    ToolRequest,
    ToolResolver,
    ToolService,
    ToolStatus,
    UserContext,
    UserPermissions,
)
from isthmus.library.server_config import read_plan
from isthmus.upstream.server_settings import HttpSettings
from tests.hubs import PATIENT, serving, stdio
from tests.library.services import SETTLE_SECONDS
from tests.peers.launch import command

KEY = "planner-key-of-some-length"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("http://h:1", "http://h:1/mcp"),
        ("http://h:1/", "http://h:1/mcp"),
        ("http://h:1/mcp", "http://h:1/mcp"),
        ("http://h:1/mcp/", "http://h:1/mcp"),
        ("http://h:1/mcp/files", "http://h:1/mcp/files"),
    ],
)
def test_a_hub_is_found_at_its_address_with_or_without_a_path(said: str, meant: str) -> None:
    (server,) = read_plan(None, said, None).configuration.servers
    assert isinstance(server.reach, HttpSettings)
    assert server.reach.url == meant


async def test_a_service_has_the_tools_of_a_running_hub(tmp_path: Path, deaf_port: int) -> None:
    servers = {name: stdio(command("raw_server", "--transport", "stdio")) for name in ("files", "web")}
    planner = {"key": KEY, "allow": ["files.*", "web.pay", "builtin.*"]}
    async with serving(tmp_path, servers, callers={"planner": planner}, limits=PATIENT) as hub:
        address = f"http://127.0.0.1:{hub.port}"
        service = ToolService()
        await service.initialize(hub=address, key=KEY)
        try:
            names = await service.list_tools()
            assert {"builtin.echo", "files.pay", "web.pay"} <= set(names)
            assert "web.echo" not in names

            resolver = ToolResolver(service)
            tools = await resolver.resolve_tools(["grow", "echo", "mcp.meta", "mcp_web_pay"])
            assert [tool.name for tool in tools] == ["files.grow", "builtin.echo", "files.meta", "web.pay"]

            request = ToolRequest("mcp_web_pay", parameters={"nonce": "n", "mode": "progress:2"})
            chunks = [chunk async for chunk in service.execute_tool_stream(request)]
            assert [chunk.chunk_type for chunk in chunks] == ["progress", "progress", "data", "complete"]
            assert (chunks[-1].content, chunks[-1].tool_name) == ("n", "web.pay")

            ada = UserContext("ada", permissions=UserPermissions(["files"]))
            assert {name.partition(".")[0] for name in await service.list_tools(ada)} == {"files"}
            denied = await service.execute_tool(ToolRequest("web.pay", parameters={"nonce": "n"}, user_context=ada))
            assert denied.status is ToolStatus.UNAUTHORIZED
            with pytest.raises(ToolDeniedError):
                await resolver.resolve_tool("web.pay", ada)
        finally:
            await service.shutdown()

        unusable = [
            ({"hub": address, "key": "wrong"}, "it rejected the key"),
            ({"hub": address}, "it needs a key: give key="),
            ({"hub": f"http://127.0.0.1:{deaf_port}"}, "refused"),
        ]
        for given, why in unusable:
            with pytest.raises(ConfigurationError, match=f"The hub cannot be reached: .*{why}") as refused:
                await ToolService().initialize(**given)
            assert "wrong" not in str(refused.value)


async def test_the_tools_of_a_lost_hub_stay_known(tmp_path: Path) -> None:
    service = ToolService()
    try:
        async with serving(tmp_path, {}, limits=PATIENT) as hub:
            await service.initialize(hub=f"http://127.0.0.1:{hub.port}")
        await lost(service)
        slip = await service.execute_tool(ToolRequest("builtin.ecko"))
        assert (slip.status, slip.error_message) == (
            ToolStatus.NOT_FOUND,
            "There is no tool 'builtin.ecko'. Did you mean builtin.echo or builtin.chat_log or builtin.timestamp?",
        )
        echo = await service.execute_tool(ToolRequest("builtin.echo", parameters={"text": "x"}))
        assert echo.status is ToolStatus.UNAVAILABLE
    finally:
        await service.shutdown()


async def test_a_server_that_never_came_to_the_hub_is_unavailable_and_not_unknown(
    tmp_path: Path, deaf_port: int
) -> None:
    dead = {"url": f"http://127.0.0.1:{deaf_port}/mcp"}
    planner = {"key": KEY, "allow": ["web.*", "builtin.*"]}
    async with serving(tmp_path, {"web": dead, "vault": dead}, callers={"planner": planner}, limits=PATIENT) as hub:
        service = ToolService()
        await service.initialize(hub=f"http://127.0.0.1:{hub.port}", key=KEY)
        try:
            for name in ("web.search", "mcp_web_search"):
                away = await service.execute_tool(ToolRequest(name))
                assert (away.status, away.error and away.error.server) == (ToolStatus.UNAVAILABLE, "web")
                assert "Server web is not connected" in str(away.error_message)
            secret = await service.execute_tool(ToolRequest("vault.open"))
            assert (secret.status, "vault is" in str(secret.error_message)) == (ToolStatus.NOT_FOUND, False)
            ada = UserContext("ada", permissions=UserPermissions(["builtin"]))
            denied = await service.execute_tool(ToolRequest("web.search", user_context=ada))
            assert denied.status is ToolStatus.UNAUTHORIZED
            assert service.failures.keys() == {"web"}
        finally:
            await service.shutdown()


async def test_a_server_that_connects_late_is_removed_from_the_failures(tmp_path: Path) -> None:
    late, server = tmp_path / "late", shlex.join(command("raw_server", "--transport", "stdio"))
    waits = {**stdio(command("raw_server", "--transport", "stdio")), "command": "sh"}
    waits["args"] = ["-c", f"test -e {shlex.quote(str(late))} || exit 3; exec {server}"]
    async with serving(tmp_path, {"files": waits}, limits=PATIENT) as hub:
        service = ToolService()
        await service.initialize(hub=f"http://127.0.0.1:{hub.port}")
        try:
            assert service.failures.keys() == {"files"}
            late.touch()
            await changed_until(service, lambda: not service.failures)
            assert "files.pay" in await service.list_tools()
        finally:
            await service.shutdown()


async def changed_until(service: ToolService, is_so: Callable[[], bool]) -> None:
    """Wait until something is so that changes with the tools of a service."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    service.watch(lambda: loop.call_soon_threadsafe(changed.set))
    async with asyncio.timeout(SETTLE_SECONDS):
        while not is_so():
            await changed.wait()
            changed.clear()


async def lost(service: ToolService) -> None:
    """Wait until a service has noticed that it has lost a server."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    service.watch(lambda: loop.call_soon_threadsafe(changed.set))
    async with asyncio.timeout(SETTLE_SECONDS):
        while not service.failures:
            await service.execute_tool(ToolRequest("builtin.timestamp"))  # who is called is missed at once
            await changed.wait()
            changed.clear()
