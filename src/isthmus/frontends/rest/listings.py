"""The JSON documents of the REST API, made without I/O: lists and their entries, servers, their figures, the relay."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from isthmus.core.access.policy import AGENT, Policy, is_of_agent
from isthmus.core.admin_ports import HubAdmin
from isthmus.core.calls.hub import Hub
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.catalog.view import Route, View
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING
from isthmus.model.location_redaction import without_locations
from isthmus.model.names import ServerName
from isthmus.model.relay import DialledServer, DialledState, RelayDevice, RelayStatus
from isthmus.wire.jsonrpc import Passes, Payload, finish, render
from isthmus.wire.mcp.lists import (
    ENTRIES_BYTES,
    PROMPTS,
    RESOURCES,
    TEMPLATES,
    TOOLS,
    ListShape,
    array_passes,
    write_entry,
)
from isthmus.wire.mcp.messages import read_string

NO_CALLS: dict[str, object] = {"calls": 0, "seconds": 0.0, "late": 0, "outcomes": {}, "latency": None}


def list_document(view: View, shape: ListShape, *, is_operator: bool = False) -> bytes:
    """A list with its missing servers, rendered once per view. Only operators see the locations of servers."""
    return finish(list_passes(view, shape, is_operator=is_operator))


def list_passes(view: View, shape: ListShape, *, is_operator: bool) -> Passes[bytes]:
    """The passes of `list_document`."""
    key = f"rest {shape.method}{' for operators' if is_operator else ''}"
    rendered = view.memo.get(key)
    if rendered is None:
        entries = yield from array_passes(_entry(shape, route) for route in _table(view, shape).values())
        rendered = view.memo[key] = _whole_list(view, shape, entries, is_operator=is_operator)
    return rendered


def page_passes(
    view: View, shape: ListShape, limit: int, after: str, fields: Sequence[str] | None, *, is_operator: bool
) -> Passes[bytes | None]:
    """A page of a list: so many entries behind the one of this name; None if no entry has it.

    With `fields`, entries have only these members.
    """
    table = _table(view, shape)
    names = iter(table)
    if after and (after not in table or all(name != after for name in names)):
        return None
    chosen = list(islice(names, limit))
    last = chosen[-1] if next(names, None) is not None else None
    entries = yield from array_passes(
        _entry(shape, table[name])
        if fields is None
        else render({shape.key: msgspec.json.encode(name), **_members(table[name], fields)})
        for name in chosen
    )
    page = _whole_list(view, shape, entries, is_operator=is_operator)
    return b"".join((page[:-1], b',"next":', msgspec.json.encode(last), b"}"))


def _whole_list(view: View, shape: ListShape, entries: bytes, *, is_operator: bool) -> bytes:
    absent = {
        server: {
            "state": missing.state,
            "reason": _reason(missing.reason, is_operator=is_operator),
            "listed": missing.is_listed,
        }
        for server, missing in view.missing.items()
    }
    parts = (b'{"', shape.member.encode(), b'":', entries, b',"missing":', msgspec.json.encode(absent), b"}")
    return b"".join(parts)


def search_passes(view: View, query: str, *, is_operator: bool) -> Passes[bytes]:
    """The list of tools whose name, title or description has every word of a query.

    Tools with all words in their name come first; then those with at least one.
    """
    words = query.lower().split()
    found: list[tuple[int, Route]] = []
    size = 0
    for route in view.routes.values():
        definition = route.feature.definition
        name = route.exposed.lower()
        texts = [read_string(definition.get(key)) or "" for key in ("title", "description")]
        text = "\n".join((name, *texts)).lower()
        if all(word in text for word in words):
            found.append((-sum(word in name for word in words), route))
        if (size := size + len(text)) > ENTRIES_BYTES:
            size = 0
            yield
    found.sort(key=lambda each: each[0])
    entries = yield from array_passes(_entry(TOOLS, route) for _, route in found)
    return _whole_list(view, TOOLS, entries, is_operator=is_operator)


def short_list_passes(view: View, shape: ListShape, fields: Sequence[str]) -> Passes[bytes]:
    """A list whose entries have only these members, and their names; rendered once per view."""
    key = f"rest {shape.method} {','.join(fields)}"
    rendered = view.memo.get(key)
    if rendered is None:
        entries = yield from array_passes(
            render({shape.key: msgspec.json.encode(exposed), **_members(route, fields)})
            for exposed, route in _table(view, shape).items()
        )
        rendered = view.memo[key] = b"".join((b'{"', shape.member.encode(), b'":', entries, b"}"))
    return rendered


def _members(route: Route, fields: Sequence[str]) -> dict[str, Payload]:
    definition = route.feature.definition
    return {field: definition[field] for field in fields if field in definition}


def entry_document(view: View, shape: ListShape, name: str) -> bytes | None:
    """One entry of a list; None if the caller does not see it."""
    route = view.routes.get(name) or view.virtual.get(name) if shape is TOOLS else _table(view, shape).get(name)
    return None if route is None else _entry(shape, route)


def _entry(shape: ListShape, route: Route) -> bytes:
    return write_entry(shape, route.exposed, route.feature.definition)


def _table(view: View, shape: ListShape) -> Mapping[str, Route]:
    tables = {
        TOOLS.method: view.listed,
        PROMPTS.method: view.prompts,
        RESOURCES.method: view.resources,
        TEMPLATES.method: view.templates,
    }
    return tables[shape.method]


def _reason(reason: str | None, *, is_operator: bool) -> str | None:
    return reason if reason is None or is_operator else without_locations(reason)


# -- servers -------------------------------------------------------------------------------------------------------


def servers_document(hub: Hub, caller: Caller, admin: HubAdmin | None = None) -> bytes:
    """The state of every server that the caller may see, rendered once per view."""
    memo = hub.snapshot.view(caller.grants, EVERYTHING).memo
    key = _servers_key(caller, admin)
    if key not in memo:
        memo[key] = msgspec.json.encode({"servers": [document for document, _ in _visible_servers(hub, caller, admin)]})
    return memo[key]


def servers_tag(hub: Hub, caller: Caller, admin: HubAdmin | None = None) -> bytes:
    """The entity tag of that document."""
    memo = hub.snapshot.view(caller.grants, EVERYTHING).memo
    key = f"{_servers_key(caller, admin)}, tag"
    if key not in memo:
        memo[key] = entity_tag(hashlib.blake2b(servers_document(hub, caller, admin), digest_size=16).digest())
    return memo[key]


def _servers_key(caller: Caller, admin: HubAdmin | None) -> str:
    if not caller.is_operator:
        return "rest servers"
    return f"rest servers for operators {0 if admin is None else admin.fixes_version()}"


def entity_tag(digest: bytes, about: str = "") -> bytes:
    """The `ETag` of a document with this digest; `about` tells apart documents of the same content."""
    return f'"{digest.hex()}{about}"'.encode()


def server_document(hub: Hub, caller: Caller, name: str, admin: HubAdmin | None = None) -> bytes | None:
    """The state of one server, for operators with its log; None if the caller does not see it."""
    for document, server_status in _visible_servers(hub, caller, admin):
        if server_status.server == name:
            if caller.is_operator:
                lines = hub.server_queues[server_status.server].log_lines
                document["log"] = [{"at": line.at, "level": line.level, "text": line.text} for line in lines]
            return msgspec.json.encode(document)
    return None


def log_document(hub: Hub, server: ServerName, after: int) -> bytes:
    """The last lines of a server after this number, for operators."""
    return msgspec.json.encode({"server": server, "lines": hub.server_queues[server].log.lines(after)})


STATS_PASS = 50
"""Servers whose figures are read in one pass: at most 2 ms."""


def stats_passes(hub: Hub, admin: HubAdmin, loop_figures: object) -> Passes[bytes]:
    """How often each server was called, how long that took and how it ended, for operators."""
    counts = admin.call_counts()
    servers = []
    for position, (name, server_status) in enumerate(sorted(hub.snapshot.server_statuses.items())):
        if position % STATS_PASS == STATS_PASS - 1:
            yield
        if (queue := hub.server_queues.get(name)) is None:
            continue  # it was removed since the last pass
        servers.append(
            {
                "name": name,
                "state": server_status.state,
                "running": queue.running,
                "queued": queue.queued,
                **counts.pop(name, NO_CALLS.copy)(),
            }
        )
    # What is left was called at servers that are gone, at addresses that callers named, or at no server at all.
    others = []
    for position, (named, figures) in enumerate(sorted(counts.items(), key=lambda each: each[0] or "")):
        if position % STATS_PASS == STATS_PASS - 1:
            yield
        others.append({"name": named, "state": None, "running": 0, "queued": 0, **figures()})
    return msgspec.json.encode({"at": time.time(), "servers": [*servers, *others], "event_loop": loop_figures})


def _visible_servers(hub: Hub, caller: Caller, admin: HubAdmin | None) -> Iterable[tuple[dict[str, Any], ServerStatus]]:
    view = hub.snapshot.view(caller.grants, EVERYTHING)
    counts = {
        shape: Counter(
            route.feature.server for route in (view.routes if shape is TOOLS else _table(view, shape)).values()
        )
        for shape in (TOOLS, PROMPTS, RESOURCES, TEMPLATES)
    }
    for name, server_status in sorted(hub.snapshot.server_statuses.items()):
        if name not in view.servers and not caller.is_operator:
            continue
        document: dict[str, Any] = {
            "name": server_status.server,
            "state": server_status.state,
            "reason": _reason(server_status.reason, is_operator=caller.is_operator),
            "transport": server_status.carrier,
            "era": server_status.era,
            "capabilities": sorted(server_status.abilities),
            "unlisted": server_status.is_unlisted,
            **{shape.member: counts[shape][name] for shape in counts},
        }
        if caller.is_operator:
            if hub.snapshot.hides is not None and hub.snapshot.hides(server_status):
                document["tools"] = len(server_status.tools)  # a fleet lists them
            fix, place = (admin and admin.server_fix(name)) or (None, None)
            document |= {"detail": server_status.detail, "fix": fix, "place": place, "notes": server_status.notes}
        yield document, server_status


# -- the relay ---------------------------------------------------------------------------------------------------------
#
# Agents, servers that dialled in, their tools, and devices. Operators see everything. Other callers see the agents,
# servers and tools that they are granted, and no addresses. Made from one snapshot of the relay, without I/O.

ANY_SERVER = ServerName(":")
"""Stands for any server of an agent; no server has this name."""

STATES: tuple[DialledState, ...] = ("ready", "connecting", "away")

T = TypeVar("T", DialledServer, RelayDevice)

Query: TypeAlias = Mapping[str, str]
"""The filters by name."""


class RelayView:
    """The relay at one moment, as one caller sees it."""

    def __init__(self, hub: Hub, status: RelayStatus, caller: Caller) -> None:
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
