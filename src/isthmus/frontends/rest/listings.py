"""The JSON documents of the REST API, made without I/O: lists and their entries, servers, their logs and figures."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from isthmus.core.calls.hub import Hub
from isthmus.core.catalog.snapshot import Route, ServerStatus, View
from isthmus.core.ports import HubAdmin
from isthmus.model.callers import Caller
from isthmus.model.calls import EVERYTHING
from isthmus.model.locations import without_locations
from isthmus.model.names import ServerName
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
