"""Documents say what a caller may know, and not more."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.frontends.rest.listings import (
    entry_document,
    list_document,
    server_document,
    servers_document,
)
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING
from isthmus.model.features import Prompt, Resource
from isthmus.model.names import FeatureName, ServerName
from isthmus.wire.mcp.lists import PROMPTS, RESOURCES, TEMPLATES, TOOLS
from tests.unit.core.doubles import ANYONE, SERVER, Stage, raw, tool

OPERATOR = msgspec.structs.replace(ANYONE, is_operator=True)
READER = Caller("reader", "default", Grants(("files.read",)))
AWAY = ServerName("away")


def stage() -> Stage:
    made = Stage(tool("read", description="Read."), tool("write"))
    prompt = Prompt.of(SERVER, FeatureName("ask"), {"name": raw("ask")})
    resource = Resource.of(SERVER, FeatureName("file:///a"), {"uri": raw("file:///a"), "name": raw("a")})
    server_status = made.hub.snapshot.server_statuses[SERVER]
    made.hub.publish(
        ServerStatus(
            SERVER, "ready", tools=server_status.tools, prompts=(prompt,), resources=(resource,), is_settled=True,
            abilities=frozenset({"tools", "prompts"}), era="2025-11-25", carrier="stdio",
            notes=("a schema cannot be checked",), detail="last words",
        )
    )  # fmt: skip
    made.server_queue.log.add(5.0, "log", "low on space", level="warning")
    made.hub.open_server_queue(
        ServerQueue(AWAY, made.hub.limits), ServerStatus(AWAY, "retrying", "refused", is_settled=True)
    )
    off = ServerName("off")
    made.hub.open_server_queue(
        ServerQueue(off, made.hub.limits), ServerStatus(off, "disabled", "disabled", is_settled=True)
    )
    return made


def listed(made: Stage, caller: Caller = ANYONE) -> Any:
    return json.loads(list_document(made.hub.snapshot.view(caller.grants, EVERYTHING), TOOLS))


async def test_a_list_has_what_the_caller_sees_and_who_is_missing() -> None:
    made = stage()
    told = listed(made)
    assert [entry["name"] for entry in told["tools"]] == ["files.read", "files.write"]
    assert told["missing"] == {"away": {"state": "retrying", "reason": "refused", "listed": False}}
    assert listed(made, READER) == {"tools": [told["tools"][0]], "missing": {}}


async def test_every_list_has_its_own_member() -> None:
    view = stage().hub.snapshot.view(ANYONE.grants, EVERYTHING)
    found = {shape.member: json.loads(list_document(view, shape))[shape.member] for shape in (PROMPTS, RESOURCES)}
    assert found == {"prompts": [{"name": "files.ask"}], "resources": [{"uri": "file:///a", "name": "a"}]}
    assert json.loads(list_document(view, TEMPLATES))["resourceTemplates"] == []


async def test_a_list_is_rendered_once_per_view() -> None:
    view = stage().hub.snapshot.view(ANYONE.grants, EVERYTHING)
    assert list_document(view, TOOLS) is list_document(view, TOOLS)


async def test_where_a_missing_server_is_an_operator_is_told_and_nobody_else_of_the_same_permissions() -> None:
    made = stage()
    reason = "connection refused by 10.1.2.3:9"
    made.hub.publish(ServerStatus(AWAY, "retrying", reason, is_settled=True))
    view = made.hub.snapshot.view(ANYONE.grants, EVERYTHING)

    def told(*, is_operator: bool) -> str:
        return str(json.loads(list_document(view, TOOLS, is_operator=is_operator))["missing"]["away"]["reason"])

    both = (told(is_operator=True), told(is_operator=False))
    assert both == (reason, "connection refused by its address")
    assert both == (told(is_operator=True), told(is_operator=False)), "whoever was there first"


async def test_an_entry_is_found_by_the_name_it_is_listed_by() -> None:
    made = stage()
    view = made.hub.snapshot.view(READER.grants, EVERYTHING)
    entry = entry_document(view, TOOLS, "files.read")
    assert entry is not None
    assert json.loads(entry)["description"] == "Read."
    assert entry_document(view, TOOLS, "files.write") is None
    assert entry_document(view, TOOLS, "read") is None


async def test_an_operator_sees_all_servers_and_what_they_said() -> None:
    made = stage()
    servers = json.loads(servers_document(made.hub, OPERATOR))["servers"]
    assert [(server["name"], server["state"]) for server in servers] == [
        ("away", "retrying"), ("files", "ready"), ("off", "disabled"),
    ]  # fmt: skip
    one = server_document(made.hub, OPERATOR, "files")
    assert one is not None
    assert json.loads(one) == {
        "name": "files", "state": "ready", "reason": None, "transport": "stdio", "era": "2025-11-25",
        "capabilities": ["prompts", "tools"], "unlisted": False,
        "tools": 2, "prompts": 1, "resources": 1, "resourceTemplates": 0,
        "detail": "last words", "fix": None, "place": None, "notes": ["a schema cannot be checked"],
        "log": [{"at": 5.0, "level": "warning", "text": "low on space"}],
    }  # fmt: skip


async def test_who_may_use_everything_is_no_operator_by_that() -> None:
    made = stage()
    servers = json.loads(servers_document(made.hub, ANYONE))["servers"]
    assert [server["name"] for server in servers] == ["away", "files"]
    assert all(server.keys().isdisjoint({"detail", "fix", "place", "notes", "log"}) for server in servers)
    one = server_document(made.hub, ANYONE, "files")
    assert one is not None
    assert json.loads(one) == servers[1]


async def test_other_callers_see_their_servers_and_count_their_own_tools() -> None:
    made = stage()
    (server,) = json.loads(servers_document(made.hub, READER))["servers"]
    assert (server["name"], server["tools"], server["prompts"]) == ("files", 1, 0)
    assert server.keys().isdisjoint({"detail", "fix", "place", "notes", "log"})
    one = server_document(made.hub, READER, "files")
    assert one is not None
    assert json.loads(one) == server
    assert server_document(made.hub, READER, "away") is None
    assert server_document(made.hub, READER, "no such") is None
