"""A service without servers of its own: the tools of a running hub, by its names and for one of its callers."""

from __future__ import annotations

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
from isthmus.library.engine import plan_of
from isthmus.upstream.settings import HttpSettings
from tests.hubs import PATIENT, serving, stdio
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
    (server,) = plan_of(None, said, None).configuration.servers
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
            ({"hub": address, "key": "wrong"}, "it does not take the key"),
            ({"hub": address}, "it wants a key, which is given as key="),
            ({"hub": f"http://127.0.0.1:{deaf_port}"}, "refused"),
        ]
        for given, why in unusable:
            with pytest.raises(ConfigurationError, match=f"the hub cannot be reached: .*{why}") as refused:
                await ToolService().initialize(**given)
            assert "wrong" not in str(refused.value)
