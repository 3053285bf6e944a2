"""The audit log of a program: kept where its configuration says so, and nowhere else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from isthmus.library import ConfigurationError, ToolRequest, ToolService, UserContext, UserPermissions
from isthmus.storage import log_sqlite
from isthmus.storage.seats import file_of

ASKED = ToolRequest("builtin.echo", parameters={"text": "hi"})
EVE = UserContext("eve", permissions=UserPermissions(["builtin"]))
PLACE = ("tenant", "kind", "server", "executed", "session")
ADA = UserContext("ada", permissions=UserPermissions(["files"]))


async def called(config: Any) -> None:
    """Call what there is, what there is not, and what is not somebody's to call."""
    service = ToolService()
    await service.initialize(config)
    async with service:
        assert (await service.execute_tool(ASKED)).is_success
        for refused in (ToolRequest("no.such"), ToolRequest("builtin.echo", user_context=ADA)):
            assert not (await service.execute_tool(refused)).is_success
        for odd in ({"text": 7}, {"text": object()}, {"text": {"a", 1}}, {"text": float("nan")}):
            wrong = ToolRequest("echo", parameters=odd, user_context=EVE, session_id="s1")
            assert (await service.execute_tool(wrong)).status == "invalid_parameters"
            assert [chunk.chunk_type async for chunk in service.execute_tool_stream(wrong)] == ["error"]


async def told(state: Path) -> list[dict[str, Any]]:
    async with log_sqlite.reading(file_of(state, 1)) as log:
        return [msgspec.json.decode(row.content) async for row in log.rows()]


@pytest.mark.parametrize("mode", ["batched", "strict"])
@pytest.mark.parametrize("form", ["dictionary", "file"])
async def test_where_it_is_said_every_call_is_in_the_log(tmp_path: Path, form: str, mode: str) -> None:
    state = tmp_path / "state"
    config: Any = {"audit": mode, "state": state}
    if form == "file":
        config = tmp_path / "isthmus.json"
        config.write_text(json.dumps({"hub": {"audit": mode, "state": "state"}}))
    await called(config)
    found = await told(state)
    assert [found[0]["by"], found[-1]["event"]] == ["library", "hub.stopped"]
    calls = [(each["caller"], each["face"], each["name"], each["outcome"]) for each in found if each["event"] == "call"]
    # What never came to be a call is written with the next batch, also where calls wait for their own records.
    assert sorted(calls) == [
        ("ada", "library", "builtin.echo", "unknown_tool"),
        *[("eve", "library", "builtin.echo", "bad_arguments")] * 8,
        ("local", "library", "builtin.echo", "result"),
        ("local", "library", "no.such", "unknown_tool"),
    ]
    unfit, *unwritten = ({key: each[key] for key in PLACE} for each in found if each.get("outcome") == "bad_arguments")
    assert unwritten == [unfit] * 7
    assert len([each for each in found if each["event"] == "call.begun"]) == (mode == "strict")


async def test_unless_it_is_said_nothing_is_written_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers": {}}')
    off = tmp_path / "isthmus.json"
    off.write_text(json.dumps({"hub": {"audit": "off", "state": str(tmp_path / "state")}}))
    unsaid: list[Any] = [None, {"mcp_servers": []}, file, off, {"audit": "off", "state": str(tmp_path / "state")}]
    for config in unsaid:
        await called(config)
    assert sorted(os.listdir(tmp_path)) == ["isthmus.json", "mcp.json"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"audit": "sometimes"}, "audit must be one of off, batched, strict, not 'sometimes'"),
        ({"audit": True}, "audit must be one of"),
        ({"state": 5}, "state must be the path of a folder"),
        ({"state": ""}, "state must be the path of a folder"),
        ({"audit": "strict", "state": "/dev/null/state"}, 'cannot be "strict"'),
    ],
)
async def test_what_cannot_be_is_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        await ToolService().initialize(config)
