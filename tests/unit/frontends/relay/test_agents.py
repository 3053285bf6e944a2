"""The view of one agent's devices: its own servers, others by its rules, and notifications of changes."""

from __future__ import annotations

import gc
import weakref

import msgspec
from structlog.testing import capture_logs

from isthmus.core.access.tenants import Tenants, TenantSettings
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.catalog.tool_rules import ToolRules
from isthmus.frontends.relay.settings import RelaySettings
from isthmus.model.callers import Grants
from isthmus.model.names import ServerName
from isthmus.model.relay import AgentRules
from tests.unit.core.doubles import tool
from tests.unit.frontends.relay.doubles import KITCHEN, ConnectedDevice, Room, until


async def test_configured_servers_are_seen_where_the_rules_say_so_and_after_the_agents_own() -> None:
    room = Room()
    configured = room.sit("clock", "add", "now", is_own=False)
    room.sit("hidden", "secret", is_own=False)
    room.sit("s1", "add")
    device = ConnectedDevice(room, RelaySettings(agents={KITCHEN: AgentRules(allow=("clock.add", "clock.now"))}))
    listed = device.list_tools()
    assert [(entry["name"], entry["server_id"]) for entry in listed["tools"]] == [
        ("add", "s1"),
        ("clock.add", "clock"),
        ("now", "clock"),
    ]
    assert (listed["total_servers"], listed["responded_servers"]) == (2, 2)
    device.call("clock.add")
    assert configured.call.name == "add"
    device.call("secret", id=2)
    assert device.last["error"]["code"] == -32601


async def test_a_server_that_is_away_is_not_listed_and_leaves_the_bare_name() -> None:
    room = Room()
    gone = room.sit("s1", "add", "sub")
    room.sit("s2", "add")
    room.sit("clock", "now", "sub", is_own=False)
    device = ConnectedDevice(room, RelaySettings(agents={KITCHEN: AgentRules(allow=("clock",))}))
    assert [entry["name"] for entry in device.list_tools()["tools"]] == ["add", "sub", "s2.add", "now", "clock.sub"]
    room.go_away(gone)
    assert [entry["name"] for entry in device.list_tools()["tools"]] == ["add", "now", "sub"]
    device.call("s1.sub")
    assert device.last["error"]["code"] == -32001, "a device may have listed it before"


async def test_a_wildcard_covers_configured_servers_and_no_other_agents_servers() -> None:
    room = Room()
    room.sit("clock", "now", is_own=False)
    room.hub.publish(ServerStatus(room.sit("x", is_own=False).server, "ready", tools=(tool("spy", "x"),), agent="bath"))
    device = ConnectedDevice(room, RelaySettings(agents={KITCHEN: AgentRules(allow=("*",))}))
    assert [entry["name"] for entry in device.list_tools()["tools"]] == ["now"]
    shared = RelaySettings(agents={KITCHEN: AgentRules(allow=("agent:bath",))})
    device.agent.change(shared)
    assert [entry["name"] for entry in device.list_tools()["tools"]] == ["spy"]
    device.agent.change(RelaySettings())
    assert device.list_tools()["tools"] == []


async def test_labels_cover_configured_servers_only() -> None:
    room = Room()
    room.sit("clock", "now", "set", is_own=False)
    rules = ToolRules(tags={"now": ("safe",)})
    clock = room.hub.snapshot.server_statuses[ServerName("clock")]
    room.hub.publish(msgspec.structs.replace(clock, rules=rules))
    spy = ServerStatus(
        room.sit("x", is_own=False).server, "ready", tools=(tool("now", "x"),), agent="bath", rules=rules
    )
    room.hub.publish(spy)
    device = ConnectedDevice(room, RelaySettings(agents={KITCHEN: AgentRules(allow=("tag:safe",))}))
    assert [entry["name"] for entry in device.list_tools()["tools"]] == ["now"]


async def test_an_agent_is_bounded_by_its_tenant() -> None:
    room = Room()
    room.sit("s1", "add", "sub")
    room.sit("clock", "now", is_own=False)
    bounds = TenantSettings(Grants(("*",), (f"{KITCHEN}_s1.sub", "clock")))
    settings = RelaySettings(agents={KITCHEN: AgentRules(allow=("clock",))}, tenants=Tenants({"default": bounds}))
    device = ConnectedDevice(room, settings)
    assert [entry["name"] for entry in device.list_tools()["tools"]] == ["add"]
    none = RelaySettings(tenants=Tenants({"default": TenantSettings(Grants(()))}))
    device.agent.change(none)
    assert (device.list_tools()["tools"], device.agent.servers()) == ([], [])


async def test_the_table_is_made_anew_only_when_something_in_it_changed() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room)
    table = device.agent.table()
    room.sit("elsewhere", "other", is_own=False)
    assert device.agent.table() is table
    room.relist(agent_server, "add", "sub")
    assert device.agent.table() is not table
    assert list(device.agent.table().entries) == ["add", "sub"]


async def test_a_server_that_left_is_not_listed() -> None:
    room = Room()
    room.sit("s1", "add")
    device = ConnectedDevice(room)
    assert list(device.agent.table().entries) == ["add"]
    room.get_up("s1")
    assert list(device.agent.table().entries) == []


async def test_the_last_device_to_leave_leaves_no_watcher_behind() -> None:
    room = Room()
    device = ConnectedDevice(room, RelaySettings(agents={KITCHEN: AgentRules(allow=("*",))}))
    assert room.watchers == 1
    device.agent.close()
    assert room.watchers == 0
    assert not room.hub._watchers


async def test_a_configured_server_that_is_not_there_is_named() -> None:
    room = Room()
    clock = room.sit("clock", "now", is_own=False)
    room.go_away(clock, "it was stopped")
    device = ConnectedDevice(room, RelaySettings(agents={KITCHEN: AgentRules(allow=("clock", "nobody.here"))}))
    listed = device.list_tools()
    assert [entry["name"] for entry in listed["tools"]] == ["now"]
    assert listed["missing"] == [{"server_id": "clock", "reason": "it was stopped"}]
    assert (listed["total_servers"], listed["responded_servers"]) == (1, 0)


async def test_a_server_without_a_reason_is_not_connected() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    room.hub.close_server_queue(agent_server.server)
    agent_server.is_here = False
    listed = ConnectedDevice(room).list_tools()
    assert listed["tools"] == []
    assert listed["missing"] == [{"server_id": "s1", "reason": "it is not connected"}]


async def test_a_server_that_comes_back_is_not_missed_twice() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    room.go_away(agent_server)
    room.expect("s1")
    assert [absent.server_id for absent in ConnectedDevice(room).agent.absent()] == ["s1"]


async def test_a_device_that_cannot_be_notified_does_not_keep_others_from_the_news() -> None:
    room = Room()
    agent_server = room.sit("s1", "add")
    device = ConnectedDevice(room)

    class Broken:
        def tools_changed(self) -> None:
            raise RuntimeError("broken")

    device.agent.leave(device.line)
    device.agent.join(Broken())
    device.agent.join(device.line)
    device.send("notifications/initialized", {})
    with capture_logs() as logs:
        room.relist(agent_server, "sub")
        await until(lambda: bool(device.said))
    assert [entry["event"] for entry in logs] == ["device could not be notified of changed tools"]


async def test_a_server_that_is_denied_is_neither_seen_nor_counted_nor_asked() -> None:
    room = Room()
    denied = room.sit("s1", "add")
    room.sit("s2", "sub")
    room.sit("clock", "now", is_own=False)
    room.sit("off", "never", is_own=False)
    room.hub.publish(ServerStatus(ServerName("off"), "disabled"))
    rules = AgentRules(allow=("*",), deny=("kitchen_s1", "clock"))
    device = ConnectedDevice(room, RelaySettings(agents={KITCHEN: rules}))
    listed = device.list_tools()
    assert [entry["name"] for entry in listed["tools"]] == ["sub"]
    assert (listed["total_servers"], listed["responded_servers"]) == (1, 1)
    device.send("ping", id=3)
    assert device.last["result"]["responses"] == [{"server_id": "s2"}]
    device.send("custom/thing", id=4)
    assert not denied.link.sent


async def test_an_agent_keeps_no_old_snapshot_in_memory() -> None:
    room = Room()
    room.sit("s1", "add")
    device = ConnectedDevice(room)
    device.list_tools()
    old = weakref.ref(room.hub.snapshot)
    room.sit("elsewhere", "other", is_own=False)
    assert "elsewhere" in room.hub.snapshot.server_statuses
    gc.collect()
    assert old() is None, "among ten thousand servers, ten thousand of them would not fit"
