"""Lists and entries as REST shows them, and how servers stand: JSON made of a view. Nothing waits or is sent here.

The command line prints the same documents for a hub of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from isthmus.core.calls.hub import Hub
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.catalog.view import Route, View
from isthmus.model.callers import Caller
from isthmus.model.calls import EVERYTHING
from isthmus.model.names import ServerName
from isthmus.model.places import without_places
from isthmus.wire.mcp.lists import PROMPTS, RESOURCES, TEMPLATES, TOOLS, ListShape, array_of, write_entry


def list_document(view: View, shape: ListShape, *, is_operator: bool = False) -> bytes:
    """A list with the servers that are missing from it, rendered once per view; operators are told where these are."""
    key = f"rest {shape.method}{' for operators' if is_operator else ''}"
    rendered = view.memo.get(key)
    if rendered is None:
        entries = array_of(_entry(shape, route) for route in _table(view, shape).values())
        missing = msgspec.json.encode(_missing(view, is_operator=is_operator))
        parts = (b'{"', shape.member.encode(), b'":', entries, b',"missing":', missing, b"}")
        rendered = view.memo[key] = b"".join(parts)
    return rendered


def entry_document(view: View, shape: ListShape, name: str) -> bytes | None:
    """One entry of a list; None if the caller does not see it."""
    route = _table(view, shape).get(name)
    return None if route is None else _entry(shape, route)


def _entry(shape: ListShape, route: Route) -> bytes:
    return write_entry(shape, route.exposed, route.feature.definition)


def _table(view: View, shape: ListShape) -> Mapping[str, Route]:
    tables = {
        TOOLS.method: view.routes,
        PROMPTS.method: view.prompts,
        RESOURCES.method: view.resources,
        TEMPLATES.method: view.templates,
    }
    return tables[shape.method]


def _missing(view: View, *, is_operator: bool) -> dict[str, dict[str, Any]]:
    return {
        server: {
            "state": missing.state,
            "reason": _reason(missing.reason, is_operator=is_operator),
            "listed": missing.is_listed,
        }
        for server, missing in view.missing.items()
    }


def _reason(reason: str | None, *, is_operator: bool) -> str | None:
    return reason if reason is None or is_operator else without_places(reason)


# -- servers -------------------------------------------------------------------------------------------------------


def servers_document(hub: Hub, caller: Caller) -> bytes:
    """How every server stands that the caller may see."""
    return msgspec.json.encode({"servers": [told for told, _ in _told(hub, caller)]})


def server_document(hub: Hub, caller: Caller, name: str) -> bytes | None:
    """How one server stands; None if the caller does not see it."""
    for told, server_status in _told(hub, caller):
        if server_status.server == name:
            return msgspec.json.encode({**told, **_heard(hub, server_status.server)} if caller.is_operator else told)
    return None


def _told(hub: Hub, caller: Caller) -> Iterable[tuple[dict[str, Any], ServerStatus]]:
    view = hub.snapshot.view(caller.grants, EVERYTHING)
    counts = {shape: _counts(view, shape) for shape in (TOOLS, PROMPTS, RESOURCES, TEMPLATES)}
    is_trusted = caller.is_operator
    for name, server_status in sorted(hub.snapshot.server_statuses.items()):
        if name in view.servers or is_trusted:
            told = _summary(server_status, is_operator=is_trusted) | {
                shape.member: counts[shape][name] for shape in counts
            }
            yield (told | _detail(server_status) if is_trusted else told), server_status


def _counts(view: View, shape: ListShape) -> Counter[ServerName]:
    return Counter(route.feature.server for route in _table(view, shape).values())


def _summary(server_status: ServerStatus, *, is_operator: bool) -> dict[str, Any]:
    return {
        "name": server_status.server,
        "state": server_status.state,
        "reason": _reason(server_status.reason, is_operator=is_operator),
        "transport": server_status.carrier,
        "era": server_status.era,
        "capabilities": sorted(server_status.abilities),
        "unlisted": server_status.is_unlisted,
    }


def _detail(server_status: ServerStatus) -> dict[str, Any]:
    return {"detail": server_status.detail, "notes": server_status.notes}


def _heard(hub: Hub, server: ServerName) -> dict[str, Any]:
    return {"log": list(hub.server_queues[server].heard)}
