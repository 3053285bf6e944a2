"""T45: a server claims that a dangerous tool is harmless (`readOnlyHint`, `idempotentHint`), and is believed.

Answer: what a server says of its tools counts only if the operator trusts it (`trusted = true`), and then only where
the operator asks for it: in `allow`, and for whether an answer to a question may be given twice. Nothing is ever sent
twice because of it: the hub repeats no call that may have run. In `deny`, a server that is not trusted cannot talk
itself out (`tests/unit/core/catalog/test_tool_rules.py`; by every entry, T31).
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import msgspec
import pytest

import isthmus
from isthmus.core.catalog.tool_rules import NO_TOOL_RULES, ToolRules
from isthmus.library import UniversalTool, is_destructive
from isthmus.model.names import ServerName
from tests.frontends.wire import BASE, connected, encoded, key_header, legacy, until
from tests.hubs import serving
from tests.security.permitted import SERVERS, key_of, server
from tests.unit.frontends.mcp.test_input_required import AskingHub, is_refused

READER = "isthmus/core/catalog/tool_rules.py"
"""The one module that reads what servers say of their tools."""

OWN_SAY = {
    "isthmus/upstream/python/builtin.py",  # what the hub says of its own tools
    "isthmus/code/virtual_tools.py",  # the same
    "isthmus/core/calls/search_tools.py",  # the same
    "isthmus/core/catalog/fleets.py",  # the same, of `fleet_members`
    "isthmus/config/named_tables.py",  # documentation of a rule, which believes a hint only where it holds a call
    "isthmus/upstream/python/signatures.py",  # documentation of what functions may say of theirs
    "isthmus/library/own_tools.py",  # the same
    "isthmus/library/agent_tools.py",  # `is_destructive`, which believes trusted servers only (see below)
    "isthmus/cli/tools.py",  # shows them to a person
    "isthmus/integrations/openai_agents.py",  # passes them on to a framework
}


async def test_a_call_that_may_have_run_is_not_repeated_despite_hints(tmp_path: Path) -> None:
    callers = {"all": {"key": key_of("all"), "allow": ["*"]}}
    servers = {name: server(name) for name in SERVERS}  # one of which is trusted
    async with serving(tmp_path, servers, callers=callers) as hub, connected(hub.port) as wire:

        async def call(name: str, **arguments: str) -> dict[str, Any]:
            body = legacy("tools/call", {"name": f"{name}.look", "arguments": arguments})
            answer: dict[str, Any] = (await wire.request(encoded(body), [*BASE, *key_header(key_of("all"))])).json
            return answer

        async def are_all_there() -> bool:
            return all(["result" in await call(name) for name in SERVERS])

        await until(are_all_there)
        for name in SERVERS:
            error = (await call(name, die=str(tmp_path / name)))["error"]
            assert error["data"]["executed"] == "unknown"
        await until(are_all_there)  # others have taken their places, and were not told to die
        assert [(tmp_path / name).read_text() for name in SERVERS] == ["ran\n"] * 2


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_only_a_trusted_server_may_have_an_answer_given_twice(*, is_trusted: bool) -> None:
    asking_hub = AskingHub()
    server_status = asking_hub.stage.hub.snapshot.server_statuses[ServerName("files")]
    rules = ToolRules(is_trusted=True) if is_trusted else NO_TOOL_RULES
    asking_hub.stage.hub.publish(msgspec.structs.replace(server_status, rules=rules))
    state = asking_hub.required(name="files.look").state
    caller_requests = [asking_hub.caller_request("files.look", state=state) for _ in range(3)]
    assert [is_refused(caller_request) for caller_request in caller_requests if caller_request.ends] == (
        [] if is_trusted else [True, True]
    )


@pytest.mark.parametrize("is_trusted", [True, False])
def test_no_approval_is_skipped_by_the_word_of_a_server_that_is_not_trusted(*, is_trusted: bool) -> None:
    metadata = {"annotations": {"readOnlyHint": True, "destructiveHint": False}, "trusted": is_trusted}
    assert is_destructive(UniversalTool("shop.pay", metadata=metadata), {}) is not is_trusted


def test_only_one_module_reads_tool_annotations() -> None:
    root = Path(isthmus.__file__).parent
    found = {
        f"isthmus/{file.relative_to(root).as_posix()}"
        for file in root.rglob("*.py")
        if "Hint" in (text := file.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "Hint" in node.value
    }
    assert found - OWN_SAY == {READER}
