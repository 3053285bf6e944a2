"""The relay as REST shows it: agents, the servers that dialled in under them, their tools, and devices.

An operator sees everything. Anybody else sees the agents, servers and tools that its grants reach, and no addresses.
JSON made of one look at the relay; nothing waits or is sent here. Called by `faces.rest.http`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec

from isthmus.core.access.policy import AGENT, Policy, is_of_agent
from isthmus.core.calls.hub import Hub
from isthmus.core.catalog.view import View
from isthmus.core.ports.relay import RelayBook
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING
from isthmus.model.names import ServerName
from isthmus.model.relay import Device, DialledServer, DialledState, RelayStatus

ANY_SERVER = ServerName(":")
"""Stands for a server of an agent, whatever it is called; no server has this name."""

STATES: tuple[DialledState, ...] = ("ready", "connecting", "away")

T = TypeVar("T", DialledServer, Device)

Query: TypeAlias = Mapping[str, str]
"""The filters that were given, by name; one that fits nothing leaves nothing."""


class Seen:
    """What one caller sees of the relay at one moment."""

    def __init__(self, hub: Hub, book: RelayBook, caller: Caller) -> None:
        status = book.status()
        view = None if caller.is_operator else hub.snapshot.view(caller.grants, EVERYTHING)
        self._is_trusted = view is None
        if view is not None:
            status = _reached(status, view, caller)
        self.servers = status.servers
        self.devices = status.devices

    # -- documents -----------------------------------------------------------------------------------------------------

    def list_agents(self, query: Query) -> bytes:
        """Who there is, and how much of each."""
        wanted, state = query.get("agent"), query.get("state")
        named = dict.fromkeys([*(server.agent for server in self.servers), *(device.agent for device in self.devices)])
        if state is not None:
            named = dict.fromkeys(server.agent for server in self.servers if server.state == state)
        servers, devices = _by_agent(self.servers), _by_agent(self.devices)
        told = [
            _summary(agent, servers.get(agent, []), devices.get(agent, []))
            for agent in sorted(named)
            if wanted in (None, agent)
        ]
        return msgspec.json.encode({"agents": told})

    def show_agent(self, agent: str) -> bytes | None:
        """One agent with its servers and devices; None if there is none."""
        servers = [server for server in self.servers if server.agent == agent]
        devices = [device for device in self.devices if device.agent == agent]
        if not servers and not devices:
            return None
        told = _summary(agent, servers, devices)
        told["servers"] = [self._server(server) for server in servers]
        told["devices"] = [self._device(device) for device in devices]
        return msgspec.json.encode(told)

    def list_servers(self, query: Query) -> bytes:
        """Everybody who dialled in."""
        wanted, state, tool = query.get("agent"), query.get("state"), query.get("tool")
        told = [
            self._server(server)
            for server in self.servers
            if wanted in (None, server.agent)
            and state in (None, server.state)
            and (tool is None or tool in server.tools)
        ]
        return msgspec.json.encode({"servers": told})

    def show_server(self, name: str) -> bytes | None:
        """One server; None if there is none."""
        found = [server for server in self.servers if server.name == name]
        return msgspec.json.encode(self._server(found[0])) if found else None

    def list_tools(self, query: Query) -> bytes:
        """What dialled in, tool by tool."""
        wanted, named = query.get("agent"), query.get("server")
        told = [
            _tool(server, tool)
            for server in self.servers
            if wanted in (None, server.agent) and named in (None, server.name, server.server_id)
            for tool in server.tools
        ]
        return msgspec.json.encode({"tools": told})

    def list_devices(self, query: Query) -> bytes:
        """Devices that are connected."""
        wanted = query.get("agent")
        told = [self._device(device) for device in self.devices if wanted in (None, device.agent)]
        return msgspec.json.encode({"devices": told})

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

    def _device(self, device: Device) -> dict[str, Any]:
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
        return client if self._is_trusted else None


def _reached(status: RelayStatus, view: View, caller: Caller) -> RelayStatus:
    """What is left of the relay for somebody who may not see everything."""
    servers = tuple(_with_tools(server, view) for server in status.servers if server.name in view.servers)
    agents = {server.agent for server in servers} | _granted(caller.grants)
    return RelayStatus(servers, tuple(device for device in status.devices if device.agent in agents))


def _with_tools(server: DialledServer, view: View) -> DialledServer:
    seen = tuple(tool for tool in server.tools if f"{server.name}.{tool}" in view.routes)
    return msgspec.structs.replace(server, tools=seen)


def _granted(grants: Grants) -> set[str]:
    """The agents of which everything may be used, whether or not a server of theirs is there."""
    named: set[str] = set()
    each: Grants | None = grants
    while each is not None:
        named |= {pattern.removeprefix(AGENT) for pattern in each.allow if is_of_agent(pattern)}
        each = each.within
    return {agent for agent in named if _may_use_all(grants, agent)}


def _may_use_all(grants: Grants, agent: str) -> bool:
    return Policy(grants, lambda _: agent).may_use_all_of(ANY_SERVER)


def _by_agent(told: Iterable[T]) -> dict[str, list[T]]:
    groups: dict[str, list[T]] = {}
    for one in told:
        groups.setdefault(one.agent, []).append(one)
    return groups


def _tool(server: DialledServer, tool: str) -> dict[str, Any]:
    return {
        "name": f"{server.name}.{tool}",
        "tool": tool,
        "agent": server.agent,
        "server": server.name,
        "serverId": server.server_id,
        "state": server.state,
    }


def _summary(agent: str, servers: list[DialledServer], devices: list[Device]) -> dict[str, Any]:
    counts = Counter(server.state for server in servers)
    return {
        "agent": agent,
        "states": {state: counts[state] for state in STATES},
        "servers": len(servers),
        "tools": sum(len(server.tools) for server in servers),
        "devices": len(devices),
        "calls": sum(server.calls for server in servers),
    }
