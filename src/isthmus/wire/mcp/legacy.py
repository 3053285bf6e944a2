"""MCP before 2026-07-28: a handshake, a negotiated version, and (over HTTP) a session.

Pure readers and writers for both ends of the handshake. The sessions are in `frontends.mcp.http_streams`.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import msgspec

from isthmus.model.calls import NO_CAPABILITIES, ClientCapabilities
from isthmus.model.features import Ability
from isthmus.wire.jsonrpc import Payload
from isthmus.wire.mcp.lists import next_cursor
from isthmus.wire.mcp.messages import (
    LEGACY_VERSIONS,
    NO_HUBS,
    Implementation,
    ServerCapabilities,
    write_client_capabilities,
    write_hubs,
    write_server_capabilities,
)

VERSIONS = LEGACY_VERSIONS
LATEST = VERSIONS[-1]
LINKLESS = frozenset(VERSIONS[:2])
"""Versions without resource links: their clients reject a result that has one."""
SESSION_HEADER = "mcp-session-id"
EVENT_HEADER = "last-event-id"

INFO_LENGTH_MAX = 200
"""A server's name, version and title are truncated to this."""


class InitializeResult(msgspec.Struct):
    """A server's `initialize` result."""

    protocolVersion: str = ""
    capabilities: ServerCapabilities = msgspec.field(default_factory=ServerCapabilities)
    meta: msgspec.Raw = msgspec.field(name="_meta", default=msgspec.Raw(b"{}"))
    serverInfo: msgspec.Raw = msgspec.Raw(b"{}")
    instructions: msgspec.Raw = msgspec.Raw(b'""')


def read_server_info(info: Payload | None) -> Implementation | None:
    """A server's `serverInfo`; None if it has no name, which is tolerated."""
    try:
        members = msgspec.json.decode(info or b"{}", type=dict[str, Any])
    except msgspec.MsgspecError:
        return None
    texts: dict[str, str] = {}
    for key in ("name", "version", "title"):
        if isinstance(value := members.get(key), str):
            texts[key] = "".join(letter for letter in value[:INFO_LENGTH_MAX] if letter.isprintable()).strip()
    name = texts.get("name")
    return Implementation(name, texts.get("version", ""), texts.get("title")) if name else None


CLIENT_INFO_BYTES_MAX = 4_096


def read_client_info(info: Payload | None) -> Implementation | None:
    """A client's `clientInfo`; None if it has no name, or is longer than any sensible one."""
    return None if info is None or len(memoryview(info)) > CLIENT_INFO_BYTES_MAX else read_server_info(info)


def initialize_params(me: Implementation, client_caps: ClientCapabilities = NO_CAPABILITIES) -> bytes:
    """The hub's `initialize` parameters, with the capabilities of the callers whose calls the link carries."""
    capabilities = write_client_capabilities(client_caps)
    return msgspec.json.encode({"protocolVersion": LATEST, "capabilities": capabilities, "clientInfo": me})


def read_initialize_result(result: Payload) -> InitializeResult | str:
    """Read an `initialize` result, or return what is wrong with it."""
    try:
        welcome = msgspec.json.decode(result, type=InitializeResult)
    except msgspec.MsgspecError as error:
        return f"initialize returned an invalid result ({error})"
    if welcome.protocolVersion not in VERSIONS:
        return f"it speaks MCP {welcome.protocolVersion!r}, this hub {', '.join(VERSIONS)} and 2026-07-28"
    return welcome


def requested_version(params: dict[str, msgspec.Raw]) -> str | None:
    """The version that a client's `initialize` requests; None if it is missing."""
    try:
        return msgspec.json.decode(params["protocolVersion"], type=str)
    except (KeyError, msgspec.MsgspecError):
        return None


def negotiate(requested: str) -> str:
    """The requested version if the hub supports it, else the newest legacy version."""
    return requested if requested in VERSIONS else LATEST


def initialize_result(
    version: str,
    me: Implementation,
    abilities: Set[Ability],
    hubs: Mapping[str, int] = NO_HUBS,
    instructions: str = "",
) -> bytes:
    """The hub's `initialize` result."""
    answer: dict[str, Any] = {
        "protocolVersion": version,
        "capabilities": write_server_capabilities(abilities - {"task_handles"}),
        "serverInfo": me,
    }
    if hubs:
        answer["_meta"] = write_hubs(hubs)
    if instructions:
        answer["instructions"] = instructions
    return msgspec.json.encode(answer)


def list_result(member: str, entries: bytes, meta: Payload | None, cursor: str | None = None) -> bytes:
    """A list's result around its rendered entries; `cursor` is that of the next page."""
    tail = b"}" if meta is None else b"".join((b',"_meta":', meta, b"}"))
    return b"".join((b'{"%b":' % member.encode(), entries, next_cursor(cursor), tail))
