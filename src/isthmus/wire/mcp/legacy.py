"""MCP before 2026-07-28: a handshake, a negotiated version, and (over HTTP) a session.

Pure readers and writers for both ends of the handshake. Sessions themselves are kept by whoever has a clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import msgspec

from isthmus.model.calls import NO_CAPABILITIES, ClientCapabilities
from isthmus.model.features import Ability
from isthmus.wire.jsonrpc import Payload
from isthmus.wire.mcp.capabilities import ServerCapabilities, write_client_capabilities, write_server_capabilities
from isthmus.wire.mcp.hub_meta import NO_HUBS, write_hubs
from isthmus.wire.mcp.messages import Implementation

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
LATEST = VERSIONS[-1]
SESSION_HEADER = "mcp-session-id"
EVENT_HEADER = "last-event-id"

INFO_LENGTH_MAX = 200
"""How much of a name, version or title that a server gives itself is kept."""


class InitializeResult(msgspec.Struct):
    """What a server says of itself when it is greeted."""

    protocolVersion: str = ""
    capabilities: ServerCapabilities = msgspec.field(default_factory=ServerCapabilities)
    meta: msgspec.Raw = msgspec.field(name="_meta", default=msgspec.Raw(b"{}"))
    serverInfo: msgspec.Raw = msgspec.Raw(b"{}")


def read_server_info(info: Payload | None) -> Implementation | None:
    """Who a server says it is, as far as it says so; None if it has no name, which is no reason to do without it."""
    try:
        members = msgspec.json.decode(info or b"{}", type=dict[str, Any])
    except msgspec.MsgspecError:
        return None
    name, version, title = (_short(members.get(key)) for key in ("name", "version", "title"))
    return Implementation(name, version or "", title) if name else None


def _short(value: Any) -> str | None:
    """What of a text can be shown on a line."""
    if not isinstance(value, str):
        return None
    return "".join(character for character in value[:INFO_LENGTH_MAX] if character.isprintable()).strip()


def initialize_params(me: Implementation, client_caps: ClientCapabilities = NO_CAPABILITIES) -> bytes:
    """What the hub says when it opens a legacy link, with what those whose calls it carries can be asked."""
    capabilities = write_client_capabilities(client_caps)
    return msgspec.json.encode({"protocolVersion": LATEST, "capabilities": capabilities, "clientInfo": me})


def read_initialize_result(result: Payload) -> InitializeResult | str:
    """Read an `initialize` result, or say why it is none."""
    try:
        welcome = msgspec.json.decode(result, type=InitializeResult)
    except msgspec.MsgspecError as error:
        return f"initialize answered with something else ({error})"
    if welcome.protocolVersion not in VERSIONS:
        return f"it speaks MCP {welcome.protocolVersion!r}, this hub {', '.join(VERSIONS)} and 2026-07-28"
    return welcome


def requested_version(params: dict[str, msgspec.Raw]) -> str | None:
    """The version that a client's `initialize` asks for; None if it names none."""
    try:
        return msgspec.json.decode(params["protocolVersion"], type=str)
    except (KeyError, msgspec.MsgspecError):
        return None


def negotiate(requested: str) -> str:
    """Answer with what was asked for if it is spoken here, else with the newest that is."""
    return requested if requested in VERSIONS else LATEST


def initialize_result(
    version: str,
    me: Implementation,
    abilities: Set[Ability],
    instructions: str | None,
    hubs: Mapping[str, int] = NO_HUBS,
) -> bytes:
    """What the hub answers to `initialize`."""
    answer: dict[str, Any] = {
        "protocolVersion": version,
        "capabilities": write_server_capabilities(abilities - {"task_handles"}),
        "serverInfo": me,
    }
    if instructions:
        answer["instructions"] = instructions
    if hubs:
        answer["_meta"] = write_hubs(hubs)
    return msgspec.json.encode(answer)


def list_result(member: str, entries: bytes, meta: Payload | None) -> bytes:
    """A list's result around its rendered entries."""
    tail = b"}" if meta is None else b"".join((b',"_meta":', meta, b"}"))
    return b"".join((b'{"%b":' % member.encode(), entries, tail))
