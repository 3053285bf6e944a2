"""The JSON documents of the relay: agents, servers that dialled in, their tools, and devices.

Operators see everything. Other callers see the agents, servers and tools that they are granted, and no addresses.
Made from one snapshot of the relay, without I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from isthmus.core.access.policy import AGENT, Policy, is_of_agent
from isthmus.core.calls.hub import Hub
from isthmus.core.ports import RelayAdmin
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING
from isthmus.model.names import ServerName
from isthmus.model.relay import DialledServer, DialledState, RelayDevice

ANY_SERVER = ServerName(":")
"""Stands for any server of an agent; no server has this name."""

STATES: tuple[DialledState, ...] = ("ready", "connecting", "away")

T = TypeVar("T", DialledServer, RelayDevice)

Query: TypeAlias = Mapping[str, str]
"""The filters by name."""


class RelayView:
    """The relay at one moment, as one caller sees it."""

    def __init__(self, hub: Hub, relay: RelayAdmin, caller: Caller) -> None:
        status = relay.status()
        self._is_operator = caller.is_operator
        self.servers: Sequence[DialledServer] = status.servers
        self.devices: Sequence[RelayDevice] = status.devices
        if not caller.is_operator:
            view = hub.snapshot.view(caller.grants, EVERYTHING)
            self.servers = [
                replace(server, tools=tuple(tool for tool in server.tools if f"{server.name}.{tool}" in view.routes))
                for server in status.servers
                if server.name in view.servers
            ]
            agents = {server.agent for server in self.servers} | _granted_agents(caller.grants)
            self.devices = [device for device in status.devices if device.agent in agents]

    # -- documents -----------------------------------------------------------------------------------------------------

    def list_agents(self, query: Query) -> bytes:
        """All agents, with counts."""
        wanted, state = query.get("agent"), query.get("state")
        named = dict.fromkeys([*(server.agent for server in self.servers), *(device.agent for device in self.devices)])
        if state is not None:
            named = dict.fromkeys(server.agent for server in self.servers if server.state == state)
        servers, devices = _by_agent(self.servers), _by_agent(self.devices)
        entries = [
            _summary(agent, servers.get(agent, []), devices.get(agent, []))
            for agent in sorted(named)
            if wanted in (None, agent)
        ]
        return msgspec.json.encode({"agents": entries})

    def get_agent(self, agent: str) -> bytes | None:
        """One agent with its servers and devices; None if it is unknown."""
        servers = [server for server in self.servers if server.agent == agent]
        devices = [device for device in self.devices if device.agent == agent]
        if not servers and not devices:
            return None
        document = _summary(agent, servers, devices)
        document["servers"] = [self._server(server) for server in servers]
        document["devices"] = [self._device(device) for device in devices]
        return msgspec.json.encode(document)

    def list_servers(self, query: Query) -> bytes:
        """The servers that dialled in."""
        wanted, state, tool = query.get("agent"), query.get("state"), query.get("tool")
        entries = [
            self._server(server)
            for server in self.servers
            if wanted in (None, server.agent)
            and state in (None, server.state)
            and (tool is None or tool in server.tools)
        ]
        return msgspec.json.encode({"servers": entries})

    def get_server(self, name: str) -> bytes | None:
        """One server; None if it is unknown."""
        found = [server for server in self.servers if server.name == name]
        return msgspec.json.encode(self._server(found[0])) if found else None

    def list_tools(self, query: Query) -> bytes:
        """The tools of servers that dialled in."""
        wanted, named = query.get("agent"), query.get("server")
        entries = [
            {
                "name": f"{server.name}.{tool}",
                "tool": tool,
                "agent": server.agent,
                "server": server.name,
                "serverId": server.server_id,
                "state": server.state,
            }
            for server in self.servers
            if wanted in (None, server.agent) and named in (None, server.name, server.server_id)
            for tool in server.tools
        ]
        return msgspec.json.encode({"tools": entries})

    def list_devices(self, query: Query) -> bytes:
        """The connected devices."""
        wanted = query.get("agent")
        entries = [self._device(device) for device in self.devices if wanted in (None, device.agent)]
        return msgspec.json.encode({"devices": entries})

    # -- entries -------------------------------------------------------------------------------------------------------

    def _server(self, server: DialledServer) -> dict[str, Any]:
        return {
            "agent": server.agent,
            "serverId": server.server_id,
            "name": server.name,
            "state": server.state,
            "since": server.since,
            "reason": server.reason,
            "title": server.title,
            "tools": server.tools,
            "client": self._address(server.client),
            "shared": server.is_muxed,
            "calls": server.calls,
        }

    def _device(self, device: RelayDevice) -> dict[str, Any]:
        return {
            "id": device.id,
            "agent": device.agent,
            "since": device.since,
            "title": device.title,
            "client": self._address(device.client),
            "calls": device.calls,
            "answered": device.answered,
        }

    def _address(self, client: str | None) -> str | None:
        return client if self._is_operator else None


def _granted_agents(grants: Grants) -> set[str]:
    """The agents that are granted as a whole, whether or not they have servers."""
    named: set[str] = set()
    each: Grants | None = grants
    while each is not None:
        named |= {pattern.removeprefix(AGENT) for pattern in each.allow if is_of_agent(pattern)}
        each = each.within
    return {agent for agent in named if _is_granted(grants, agent)}


def _is_granted(grants: Grants, agent: str) -> bool:
    return Policy(grants, lambda _: agent).may_use_all_of(ANY_SERVER)


def _by_agent(entries: Iterable[T]) -> dict[str, list[T]]:
    groups: dict[str, list[T]] = {}
    for one in entries:
        groups.setdefault(one.agent, []).append(one)
    return groups


def _summary(agent: str, servers: list[DialledServer], devices: list[RelayDevice]) -> dict[str, Any]:
    counts = Counter(server.state for server in servers)
    return {
        "agent": agent,
        "states": {state: counts[state] for state in STATES},
        "servers": len(servers),
        "tools": sum(len(server.tools) for server in servers),
        "devices": len(devices),
        "calls": sum(server.calls for server in servers),
    }
