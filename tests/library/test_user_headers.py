"""Headers of a program's user: given with a request, sent where a server is configured for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.library import ErrorCode, ToolRequest, ToolResult, ToolService, ToolStatus
from tests.conftest import Spawn
from tests.library.services import with_servers

HEADERS = {"X-User-Id": "ann", "Authorization": "Bearer hers"}


async def asked(service: ToolService, name: str, headers: Any) -> ToolResult:
    return await service.execute_tool(ToolRequest(name, metadata={"headers": headers}))


async def test_a_users_headers_go_with_the_request_to_servers_that_list_them(spawn: Spawn) -> None:
    peer = await spawn("raw_server")
    received = {"name": "told", "endpoint": peer.url, "user_headers": ["X-User-Id"]}
    service = ToolService()
    await service.initialize(with_servers(received, {"name": "untold", "endpoint": peer.url}))
    async with service:
        results = [await asked(service, f"{server}.meta", HEADERS) for server in ("told", "untold")]
        refused = await asked(service, "told.meta", {"X-User-Id": "ann\r\nX-Admin: yes"})
        unusable = [await asked(service, "told.meta", wrong) for wrong in ({"X-User-Id": 7}, "X-User-Id: ann")]

    seen, unseen = [json.loads(result.result_data)["headers"] for result in results]
    assert (seen["x-user-id"], "authorization" in seen) == ("ann", False)
    assert not unseen.keys() & {"x-user-id", "authorization"}
    for result in (refused, *unusable):
        assert result.status is ToolStatus.INVALID_PARAMETERS
        assert result.error is not None
        assert (result.error.code, result.error.executed) == (ErrorCode.TOOL_INVALID_PARAMETERS, "no")
    assert "X-Admin" not in str(refused.error_message)


@pytest.mark.parametrize("headers", [None, {}])
async def test_a_request_without_headers_succeeds(headers: Any) -> None:
    service = ToolService()
    await service.initialize()
    async with service:
        result = await service.execute_tool(
            ToolRequest("builtin.echo", parameters={"text": "hi"}, metadata={"headers": headers})
        )
    assert result.status is ToolStatus.SUCCESS
