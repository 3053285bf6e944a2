"""The audit log of a program: kept where its configuration says so, and nowhere else."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from isthmus.library import (
    ConfigurationError,
    Dispatcher,
    ToolRequest,
    ToolService,
    UniversalTool,
    UserContext,
    UserPermissions,
)
from isthmus.library.agent_tools import AgentTools, not_approved
from isthmus.storage import audit_sqlite
from isthmus.storage.audit_log_folders import slot_file

ASKED = ToolRequest("builtin.echo", parameters={"text": "hi"})
EVE = UserContext("eve", permissions=UserPermissions(["builtin"]))
PLACE = ("tenant", "kind", "server", "executed", "session")
ADA = UserContext("ada", permissions=UserPermissions(["files"]))


async def called(config: Any) -> None:
    """Call existing, missing and forbidden tools."""
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


async def records_in(state: Path) -> list[dict[str, Any]]:
    async with audit_sqlite.open_reader(slot_file(state, 1)) as log:
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
    found = await records_in(state)
    assert [found[0]["by"], found[-1]["event"]] == ["library", "hub.stopped"]
    calls = [
        (each["caller"], each["frontend"], each["name"], each["outcome"]) for each in found if each["event"] == "call"
    ]
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


def asked_of(records: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Who asked for what, and how that ended."""
    calls = [each for each in records if each["event"] == "call"]
    return [(each["caller"], each["name"], each["outcome"], each.get("server"), each["executed"]) for each in calls]


async def test_requests_with_an_invalid_field_are_logged(tmp_path: Path) -> None:
    service = ToolService()
    await service.initialize({"audit": "batched", "state": tmp_path})
    odd: list[Any] = [
        {"timeout": -1, "user_context": EVE, "session_id": "s1"},
        {"session_id": "a\nb", "user_context": EVE},
        {"session_id": 7},
        {"metadata": {"headers": 7}, "user_context": UserContext("half \ud800")},
        {"user_context": UserContext(user_id=7)},  # type: ignore[arg-type]
        {"user_context": "eve", "tool_namespace": 7},
        {"tool_name": 7},
    ]
    async with service:
        for wrong in odd:
            request = ToolRequest(**{"tool_name": "echo", "parameters": {"text": "hi"}, **wrong})
            assert (await service.execute_tool(request)).status == "invalid_parameters"
        assert service.blocking.execute_tool(ToolRequest("echo", timeout=-2)).status == "invalid_parameters"
        assert [each.chunk_type async for each in service.execute_tool_stream(ToolRequest("x", timeout=-3))] == [
            "error"
        ]
    found = await records_in(tmp_path)
    assert asked_of(found) == [
        ("eve", "builtin.echo", "bad_arguments", "builtin", "no"),
        ("eve", "builtin.echo", "bad_arguments", "builtin", "no"),
        ("local", "builtin.echo", "bad_arguments", "builtin", "no"),
        ("half ?", "builtin.echo", "bad_arguments", "builtin", "no"),
        ("local", "builtin.echo", "bad_arguments", "builtin", "no"),
        ("local", "echo", "bad_arguments", None, "no"),
        ("local", "", "bad_arguments", None, "no"),
        ("local", "builtin.echo", "bad_arguments", "builtin", "no"),
        ("local", "x", "bad_arguments", None, "no"),
    ]


CALLS: list[tuple[str, Any]] = [
    ("mcp_builtin_ech", "{}"),
    ("mcp_builtin_timestamp", "{}"),
    ("mcp_builtin_chat_log", "{nonsense"),
    ("mcp_builtin_chat_log", '{"message": "hi"}'),
    ("mcp_builtin_echo", '{"text": "hi"}'),
    ("made up " * 100, "{}"),
    ("half \ud800", "{}"),
]


async def test_a_refusal_of_the_dispatcher_is_logged_once(tmp_path: Path) -> None:
    service = ToolService()
    await service.initialize({"audit": "batched", "state": tmp_path})
    some = UserContext("sue", permissions=UserPermissions(["builtin.echo", "builtin.chat_log"]))
    reply = [{"id": str(at), "function": {"name": name, "arguments": given}} for at, (name, given) in enumerate(CALLS)]
    async with service:
        dispatcher = Dispatcher(service, None, some, session_id="talk", needs_approval=["chat_log"])
        await dispatcher.waiting(reply)
        done = await dispatcher.execute(reply)
        assert (
            await service.execute_tool(
                ToolRequest("echo", parameters={"text": "hi"}, user_context=some, session_id="talk")
            )
        ).is_success
    ends = ["not_found", "unauthorized", "invalid_parameters", "unauthorized", "success", "not_found", "not_found"]
    assert [each.result.status for each in done] == ends
    found = await records_in(tmp_path)
    assert sorted(asked_of(found), key=str) == sorted(
        [
            ("sue", "mcp_builtin_ech", "unknown_tool", None, "no"),
            ("sue", "mcp_builtin_timestamp", "unknown_tool", None, "no"),
            ("sue", "builtin.chat_log", "bad_arguments", "builtin", "no"),
            ("sue", "builtin.chat_log", "not_approved", "builtin", "no"),
            ("sue", "builtin.echo", "result", "builtin", "yes"),
            ("sue", "builtin.echo", "result", "builtin", "yes"),
            ("sue", ("made up " * 100)[:256], "unknown_tool", None, "no"),
            ("sue", "half ?", "unknown_tool", None, "no"),
        ],
        key=str,
    )
    assert len({(each["tenant"], each["session"]) for each in found if each["event"] == "call"}) == 1


async def test_a_tool_that_has_gone_is_in_the_log_once_though_it_is_looked_up_again(tmp_path: Path) -> None:
    service, gone = ToolService(), UniversalTool("builtin.gone", metadata={"llm_name": "mcp_builtin_gone"})
    await service.initialize({"audit": "batched", "state": tmp_path})
    async with service:
        box = AgentTools(service)
        result = await box.execute(ToolRequest("builtin.gone", user_context=EVE))
        assert (await box.explain(gone, result, EVE)).tool_name == "mcp_builtin_gone"
    assert asked_of(await records_in(tmp_path)) == [("eve", "builtin.gone", "unknown_tool", None, "no")]


async def test_a_refusal_is_not_logged_when_the_service_is_closed(tmp_path: Path) -> None:
    service = ToolService()
    refusal = not_approved(UniversalTool("builtin.echo"))
    assert service.noted(refusal) is refusal
    await service.initialize({"audit": "batched", "state": tmp_path})
    async with service:
        assert await asyncio.to_thread(service.noted, refusal, {"text": "hi"}, EVE, "s1") is refusal
    assert service.noted(refusal) is refusal
    assert asked_of(await records_in(tmp_path)) == [("eve", "builtin.echo", "not_approved", "builtin", "no")]


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
async def test_an_invalid_configuration_is_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        await ToolService().initialize(config)
