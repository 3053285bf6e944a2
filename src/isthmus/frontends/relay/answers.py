"""What the hub itself answers to a device: its greeting, the list of tools, a sign of life.

What is read of a request is kept until the answer is given, which may be later; the request is not.
`faces.relay.device` calls both halves.
"""

from __future__ import annotations

from isthmus.frontends.relay.agents import Agent
from isthmus.wire.jsonrpc import object_members, render
from isthmus.wire.mcp import legacy
from isthmus.wire.mcp.lists import array_of
from isthmus.wire.mcp.messages import Implementation, Members, read_string
from isthmus.wire.relay.messages import (
    add_server_id,
    broadcast_result,
    list_result,
    render_with_server_id,
    server_counts,
)

TITLE_LENGTH = 100

CURSOR_LENGTH_MAX = 64
"""None that was given is longer."""

NO_CURSOR = "-"


def greeting(agent: Agent, me: Implementation, version: str) -> bytes:
    """An `InitializeResult`, and beside it what each server said when the hub greeted it."""
    own = object_members(legacy.initialize_result(version, me, frozenset({"tools"}), None)) or {}
    here = [seat for seat in agent.seats() if seat.is_here]
    rest = server_counts(len(here), agent.absent())
    room = agent.settings.frame_bytes * 3 // 4
    told = [add_server_id(seat.welcome, seat.server_id) or _nameless(seat.server_id) for seat in here]
    for responses in (told, [_nameless(seat.server_id) for seat in here]):
        whole = render({**own, "responses": array_of(responses), **rest})
        if len(whole) <= room:
            return whole
    return render(own)


def tools(agent: Agent, cursor: str | None) -> bytes | None:
    """A page of the tools, of which there is only one unless it were too long for a device; None if it is none."""
    table = agent.table()
    agent.listed(table)
    position = 0 if cursor is None else table.position(cursor)
    if position is None:
        return None
    rest = server_counts(len(agent.present()), agent.absent(with_others=True))
    if table.has_page(position + 1):
        rest["nextCursor"] = b'"%b"' % table.cursor(position + 1).encode()
    return list_result("tools", table.page(position), rest)


def read_version(params: Members) -> str | None:
    """The version that is spoken with whoever greets so; None if it asks for none."""
    requested = legacy.requested_version(params)
    return None if requested is None else legacy.negotiate(requested)


def read_cursor(params: Members) -> str | None:
    """The cursor that a request gives; None if it gives none, and what is no cursor if it is no string."""
    cursor = params.get("cursor")
    if cursor is None or bytes(cursor) == b"null":
        return None
    return (read_string(cursor) or NO_CURSOR)[:CURSOR_LENGTH_MAX]


def alive(agent: Agent) -> bytes:
    """Everybody who is here."""
    here = [seat for seat in agent.seats() if seat.is_here]
    return broadcast_result([_nameless(seat.server_id) for seat in here], server_counts(len(here), agent.absent()))


def title_of(params: Members) -> str | None:
    """What a device calls itself when it greets; None if it does not say, or nothing that could be shown."""
    info = object_members(params.get("clientInfo", b"")) or {}
    words = [word for name in ("name", "version") if (word := read_string(info.get(name)))]
    title = " ".join(words)[:TITLE_LENGTH]
    return title if title and title.isprintable() else None


def _nameless(server_id: str) -> bytes:
    return render_with_server_id({}, server_id)
