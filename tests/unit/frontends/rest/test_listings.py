"""Documents contain exactly the facts that a caller may know."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.catalog.view import ServerState
from isthmus.frontends.http.auth import Authenticator, Fields, OriginGuard
from isthmus.frontends.rest.http import RestHttp
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
from isthmus.model.relay import DialledServer, Forgetting, RelayDevice, RelayStatus
from isthmus.wire.mcp.lists import PROMPTS, RESOURCES, TEMPLATES, TOOLS
from tests.unit.core.doubles import ANYONE, SERVER, Stage, raw, tool
from tests.unit.frontends.http.raw_client import Answer, connect_raw, opened, request

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


async def test_a_list_has_the_callers_tools_and_the_missing_servers() -> None:
    made = stage()
    received = listed(made)
    assert [entry["name"] for entry in received["tools"]] == ["files.read", "files.write"]
    assert received["missing"] == {"away": {"state": "retrying", "reason": "refused", "listed": False}}
    assert listed(made, READER) == {"tools": [received["tools"][0]], "missing": {}}


async def test_every_list_has_its_own_member() -> None:
    view = stage().hub.snapshot.view(ANYONE.grants, EVERYTHING)
    found = {shape.member: json.loads(list_document(view, shape))[shape.member] for shape in (PROMPTS, RESOURCES)}
    assert found == {"prompts": [{"name": "files.ask"}], "resources": [{"uri": "file:///a", "name": "a"}]}
    assert json.loads(list_document(view, TEMPLATES))["resourceTemplates"] == []


async def test_a_list_is_rendered_once_per_view() -> None:
    view = stage().hub.snapshot.view(ANYONE.grants, EVERYTHING)
    assert list_document(view, TOOLS) is list_document(view, TOOLS)


async def test_only_an_operator_learns_the_address_of_a_missing_server() -> None:
    made = stage()
    reason = "connection refused by 10.1.2.3:9"
    made.hub.publish(ServerStatus(AWAY, "retrying", reason, is_settled=True))
    view = made.hub.snapshot.view(ANYONE.grants, EVERYTHING)

    def listing(*, is_operator: bool) -> str:
        return str(json.loads(list_document(view, TOOLS, is_operator=is_operator))["missing"]["away"]["reason"])

    both = (listing(is_operator=True), listing(is_operator=False))
    assert both == (reason, "connection refused by its address")
    assert both == (listing(is_operator=True), listing(is_operator=False)), "whichever reader came first"


async def test_an_entry_is_found_by_the_name_it_is_listed_by() -> None:
    made = stage()
    view = made.hub.snapshot.view(READER.grants, EVERYTHING)
    entry = entry_document(view, TOOLS, "files.read")
    assert entry is not None
    assert json.loads(entry)["description"] == "Read."
    assert entry_document(view, TOOLS, "files.write") is None
    assert entry_document(view, TOOLS, "read") is None


async def test_an_operator_sees_all_servers_with_their_log() -> None:
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


async def test_a_caller_with_all_permissions_is_not_thereby_an_operator() -> None:
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


def server(agent: str, id: str, state: Any = "ready", tools: tuple[str, ...] = (), **more: Any) -> DialledServer:
    name = ServerName(f"{agent}_{id}".replace("/", "_"))
    return DialledServer(agent, id, name, state, 1000.0, tools, client="192.0.2.7:5000", **more)


OVEN = server("kitchen", "oven", tools=("heat", "look"), title="oven 1.2", is_muxed=True, calls=2)
SINK = server("kitchen", "sink", "away", ("rinse",), reason="it is not connected: it left")
RACK = server("acme/cellar", "rack", tools=("look",))
NEW = server("attic", "new", "connecting")
ROBOT = RelayDevice("d1", "kitchen", 1001.0, "192.0.2.8:6000", "robot 1.0", calls=1, answered=7)
LONELY = RelayDevice("d2", "garden", 1002.0, "192.0.2.9:6000")
STATUS = RelayStatus((OVEN, SINK, RACK, NEW), (ROBOT, LONELY))

CALLERS = {
    b"operator": Caller("operator", "default", Grants(()), is_operator=True),
    b"all": ANYONE,
    b"kitchen": Caller("kitchen", "default", Grants(("agent:kitchen",))),
    b"one": Caller("one", "default", Grants(("kitchen_oven.look",))),
    b"garden": Caller("garden", "default", Grants(("agent:garden",))),
    b"most": Caller("most", "default", Grants(("*",), ("agent:kitchen",))),
    b"barred": Caller("barred", "default", Grants(("agent:garden",), ("*",))),
}


class Book:
    async def status(self) -> RelayStatus:
        return STATUS

    def forget(self, server: ServerName) -> Forgetting:
        received = next((received for received in STATUS.servers if received.name == server), None)
        return "unknown" if received is None else "forgotten" if received.state == "away" else "connected"


class Hall:
    def __init__(self, port: int) -> None:
        self._port = port

    async def ask(self, path: str, key: str = "operator", method: str = "GET") -> Answer:
        async with connect_raw(self._port) as raw_client:
            raw_client.say(request(path, b"", f"X-Api-Key: {key}", method=method))
            return await raw_client.receive()

    async def document(self, path: str, key: str = "operator") -> Any:
        answer = await self.ask(path, key)
        assert answer.status == 200, answer.body
        return json.loads(answer.body)

    async def names(self, path: str, key: str = "operator") -> list[str]:
        """What a list is of: names of servers and tools, or of agents, or ids of devices."""
        ((_, entries),) = (await self.document(path, key)).items()
        return [entry.get("name") or entry.get("id") or entry["agent"] for entry in entries]


def identify(fields: Fields) -> Caller | None:
    return CALLERS.get(fields.get(b"x-api-key", b""))


def dialled_in(stage: Stage, received: DialledServer) -> None:
    state: ServerState = "ready" if received.state == "ready" else "away"
    tools = tuple(tool(name, server=received.name) for name in received.tools)
    server_status = ServerStatus(received.name, state, is_settled=True, tools=tools, agent=received.agent)
    stage.hub.open_server_queue(ServerQueue(received.name, stage.hub.limits), server_status)


@asynccontextmanager
async def hall(*, has_relay: bool = True) -> AsyncIterator[Hall]:
    stage = Stage()
    for received in STATUS.servers:
        dialled_in(stage, received)
    frontend = RestHttp(
        stage.hub, Authenticator(OriginGuard(bind_host="127.0.0.1"), identify), Book() if has_relay else None
    )
    async with opened(frontend.serve) as (_, port):
        yield Hall(port)


async def test_an_operator_sees_everybody_and_everything_of_them() -> None:
    async with hall() as here:
        assert (await here.document("/v1/relay/agents"))["agents"][-1] == {
            "agent": "kitchen", "states": {"ready": 1, "connecting": 0, "away": 1}, "servers": 2, "tools": 3,
            "devices": 1, "calls": 2,
        }  # fmt: skip
        assert await here.names("/v1/relay/agents") == ["acme/cellar", "attic", "garden", "kitchen"]
        assert (await here.document("/v1/relay/servers"))["servers"][0] == {
            "agent": "kitchen", "serverId": "oven", "name": "kitchen_oven", "state": "ready", "since": 1000.0,
            "reason": None, "title": "oven 1.2", "tools": ["heat", "look"], "client": "192.0.2.7:5000", "shared": True,
            "calls": 2,
        }  # fmt: skip
        assert (await here.document("/v1/relay/tools"))["tools"][0] == {
            "name": "kitchen_oven.heat", "tool": "heat", "agent": "kitchen", "server": "kitchen_oven",
            "serverId": "oven", "state": "ready",
        }  # fmt: skip
        assert (await here.document("/v1/relay/devices"))["devices"][0] == {
            "id": "d1", "agent": "kitchen", "since": 1001.0, "title": "robot 1.0", "client": "192.0.2.8:6000",
            "calls": 1, "answered": 7,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("agents?agent=kitchen", ["kitchen"]),
        ("agents?state=away", ["kitchen"]),
        ("agents?state=ready&agent=acme%2Fcellar", ["acme/cellar"]),
        ("agents?state=asleep", []),
        ("agents?agent=nobody", []),
        ("servers?agent=kitchen", ["kitchen_oven", "kitchen_sink"]),
        ("servers?state=ready", ["kitchen_oven", "acme_cellar_rack"]),
        ("servers?tool=look", ["kitchen_oven", "acme_cellar_rack"]),
        ("servers?tool=look&agent=kitchen&state=ready", ["kitchen_oven"]),
        ("servers?tool=look&state=away", []),
        ("servers?agent=", []),
        ("tools?agent=kitchen", ["kitchen_oven.heat", "kitchen_oven.look", "kitchen_sink.rinse"]),
        ("tools?server=kitchen_sink", ["kitchen_sink.rinse"]),
        ("tools?server=rack", ["acme_cellar_rack.look"]),
        ("tools?server=none", []),
        ("devices?agent=garden", ["d2"]),
        ("devices?agent=attic", []),
    ],
)
async def test_filters_keep_matching_entries(path: str, names: list[str]) -> None:
    async with hall() as here:
        assert await here.names(f"/v1/relay/{path}") == names


async def test_an_agent_is_shown_with_its_servers_and_devices() -> None:
    async with hall() as here:
        response = await here.document("/v1/relay/agents/kitchen")
        assert [entry["name"] for entry in response["servers"]] == ["kitchen_oven", "kitchen_sink"]
        assert [entry["id"] for entry in response["devices"]] == ["d1"]
        assert (response["agent"], response["tools"]) == ("kitchen", 3)
        for path in ("acme/cellar", quote("acme/cellar", safe="")):
            assert (await here.document(f"/v1/relay/agents/{path}"))["agent"] == "acme/cellar"


@pytest.mark.parametrize(
    ("key", "agents", "servers", "tools", "devices"),
    [
        ("kitchen", ["kitchen"], ["kitchen_oven", "kitchen_sink"], 3, ["d1"]),
        ("one", ["kitchen"], ["kitchen_oven"], 1, ["d1"]),
        ("garden", ["garden"], [], 0, ["d2"]),
        ("most", ["acme/cellar", "attic"], ["acme_cellar_rack", "attic_new"], 1, []),
        ("barred", [], [], 0, []),
    ],
)
async def test_other_callers_see_granted_entries_without_addresses(
    key: str, agents: list[str], servers: list[str], tools: int, devices: list[str]
) -> None:
    async with hall() as here:
        assert await here.names("/v1/relay/agents", key) == agents
        assert await here.names("/v1/relay/servers", key) == servers
        assert len(await here.names("/v1/relay/tools", key)) == tools
        assert await here.names("/v1/relay/devices", key) == devices
        for path in ("servers", "devices", *(f"agents/{quote(agent)}" for agent in agents)):
            assert b"192.0.2." not in (await here.ask(f"/v1/relay/{path}", key)).body


@pytest.mark.parametrize(
    ("path", "key", "status", "reason"),
    [
        ("agents/nobody", "all", 404, "unknown_agent"),
        ("agents/acme/cellar", "kitchen", 404, "unknown_agent"),
        ("agents?server=x", "all", 400, "bad_request"),
        ("servers?agent=a&agent=b", "all", 400, "bad_request"),
        ("agents/kitchen?agent=kitchen", "all", 400, "bad_request"),
        ("robots", "all", 404, "unknown_path"),
        ("agents", "nobody", 401, "unauthenticated"),
    ],
)
async def test_invalid_requests_for_listings_are_refused(path: str, key: str, status: int, reason: str) -> None:
    async with hall() as here:
        answer = await here.ask(f"/v1/relay/{path}", key)
        assert (answer.status, json.loads(answer.body)["reason"]) == (status, reason)


async def test_an_agent_that_may_not_be_seen_is_refused_as_one_that_is_not_there() -> None:
    async with hall() as here:
        hidden, absent = (
            await here.ask("/v1/relay/agents/attic", "one"),
            await here.ask("/v1/relay/agents/attix", "one"),
        )
        assert hidden.body.replace(b"attic", b"attix") == absent.body


async def test_without_a_relay_there_is_nothing_of_one() -> None:
    async with hall(has_relay=False) as here:
        answer = await here.ask("/v1/relay/agents")
        assert (answer.status, json.loads(answer.body)["reason"]) == (404, "unknown_path")


@pytest.mark.parametrize(
    ("name", "key", "status", "reason"),
    [
        ("kitchen_sink", "operator", 200, None),
        ("kitchen_oven", "operator", 409, "not_away"),
        ("kitchen_none", "operator", 404, "unknown_server"),
        ("kitchen_sink", "all", 403, "forbidden"),
        ("kitchen_sink", "kitchen", 403, "forbidden"),
        ("kitchen_sink", "most", 403, "forbidden"),
    ],
)
async def test_an_operator_has_a_server_forgotten_that_is_away(
    name: str, key: str, status: int, reason: str | None
) -> None:
    async with hall() as here:
        answer = await here.ask(f"/v1/relay/servers/{name}", key, "DELETE")
        response = json.loads(answer.body)
        assert (answer.status, response.get("reason") if status != 200 else None) == (status, reason)
        if status == 200:
            assert (response["name"], response["tools"]) == (name, ["rinse"])


async def test_nothing_is_forgotten_where_there_is_no_relay() -> None:
    async with hall(has_relay=False) as here:
        assert (await here.ask("/v1/relay/servers/kitchen_sink", method="DELETE")).status == 404
