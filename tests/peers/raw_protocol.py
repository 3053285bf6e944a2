"""The messages of a raw server: both eras of MCP for tools, without I/O and without any SDK.

`RawProtocol` answers everything except `tools/call`, which `raw_calls` performs. It keeps the tools and the ledger.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from typing import Any

from tests.peers.raw_modes import Modes

Json = dict[str, Any]

LEGACY_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSION = "2026-07-28"
META = "io.modelcontextprotocol/"
SERVER_INFO = {"name": "raw", "version": "1"}
CAPABILITIES = {"tools": {"listChanged": True}}

MANY_TOOLS = 10_000
MANY_PAGES = 200
MANY_PREFIX = "many_"
PROSE = "It reads the named document and returns each line that fits. "
CIRCLE = {"b": "c", "c": "d", "d": "b"}
"""Cursors, each with the next one, that never come to an end."""

METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INVALID_REQUEST = -32600
HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022


class Ledger:
    """The truth about what ran: one fsynced line per execution, written before the answer."""

    def __init__(self, path: str | None) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600) if path else None

    def record(self, **facts: object) -> None:
        """Append the facts with this process's id and wait until they are on disk."""
        if self._descriptor is not None:
            line = json.dumps({**facts, "pid": os.getpid()}) + "\n"
            os.write(self._descriptor, line.encode())
            os.fsync(self._descriptor)


def tool(name: str, description: str, /, **properties: str) -> Json:
    """A listing entry whose arguments are all of the named JSON types."""
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"name": name, "description": description, "inputSchema": schema}


class RawProtocol:
    """A raw server's answers; `era` is `legacy`, `modern` or `both`."""

    def __init__(self, era: str, ledger: Ledger, modes: Modes) -> None:
        self.era = era
        self.ledger = ledger
        self.modes = modes
        self.turn = 0
        """How often the list has changed by itself, in the mode `churn`."""
        self.tools = [
            tool("pay", "Write the nonce to the ledger, then give it back.", nonce="string", mode="string"),
            tool("echo", "Give the text back.", text="string", mode="string"),
            tool("meta", "Give back the request's _meta and HTTP headers.", mode="string"),
            tool("grow", "Add a tool of that name and announce it.", name="string", mode="string"),
        ]

    def refuse(self, request: Json, headers: Mapping[str, str] | None) -> Json | None:
        """The error for a request of the wrong era, or whose headers do not say what its body says."""
        is_modern = version_of(request) is not None or method_of(request) == "server/discover"
        if is_modern and self.era == "legacy":
            # A server of that time does not know the method on a pipe, and over HTTP not even the version.
            return _unknown_version(headers or {}) or error(METHOD_NOT_FOUND, "Method not found")
        if not is_modern and self.era == "modern":
            data = {"supported": [MODERN_VERSION], "requested": _requested(request)}
            return error(UNSUPPORTED_VERSION, "Unsupported protocol version", data)
        if headers is None:
            return None
        return _mismatch(request, headers) if is_modern else _unknown_version(headers)

    def answer(self, request: Json) -> Json:
        """The result or error for any request but `tools/call`, without its envelope."""
        match method_of(request):
            case "initialize":
                return {"result": self._initialized(request)}
            case "server/discover":
                return {"result": self._discovered()}
            case "tools/list":
                return {"result": finished(request, self._listing(request), is_cacheable=True)}
            case "ping":
                return {"result": {}}
            case method:
                return {"error": error(METHOD_NOT_FOUND, f"Method not found: {method}")}

    def _initialized(self, request: Json) -> Json:
        asked = _requested(request)
        version = asked if asked in LEGACY_VERSIONS else LEGACY_VERSIONS[-1]
        return {"protocolVersion": version, "capabilities": CAPABILITIES, "serverInfo": SERVER_INFO}

    def _discovered(self) -> Json:
        return {
            "resultType": "complete",
            "supportedVersions": [MODERN_VERSION],
            "capabilities": CAPABILITIES,
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": {META + "serverInfo": SERVER_INFO},
        }

    def _listing(self, request: Json) -> Json:
        cursor = params_of(request).get("cursor")
        if "many" in self.modes:
            return self._page(int(cursor or 0))
        if "churn" in self.modes:
            self.ledger.record(listed_at=self.turn)
            return {"tools": [*self.tools, tool("turn", f"The list has changed {self.turn} times.")]}
        if "lying_list" not in self.modes:
            return {"tools": self.tools}
        return lying_listing(self.modes.given["lying_list"] or "mixed", self.tools, cursor)

    def _page(self, page: int) -> Json:
        """One page of `many`; the first begins with the tools that are always there."""
        total, pages = self.modes.count("many", MANY_TOOLS), self.modes.count("pages", MANY_PAGES)
        numbers = range(total * page // pages, total * (page + 1) // pages)
        more = PROSE * (self.modes.count("described", 0) // len(PROSE))
        listed = [tool(many_name(number), f"Number {number}. {more}", text="string") for number in numbers]
        last = page == pages - 1
        return {"tools": listed if page else [*self.tools, *listed], **({} if last else {"nextCursor": str(page + 1)})}

    def is_one_of_many(self, name: str) -> bool:
        """Whether the mode `many` lists a tool of that name."""
        number = name.removeprefix(MANY_PREFIX)
        return "many" in self.modes and number.isdecimal() and int(number) < self.modes.count("many", MANY_TOOLS)


def many_name(number: int) -> str:
    """What a tool of the mode `many` is called."""
    return f"{MANY_PREFIX}{number:05}"


def lying_listing(kind: str, tools: list[Json], cursor: object) -> Json:
    """A listing that is wrong in the named way; the good tools are in it wherever a list is."""
    schema = {"type": "object"}
    nameless = [
        {"inputSchema": schema},
        {"name": 7, "inputSchema": schema},
        {"name": "", "inputSchema": schema},
        "pay",
    ]
    duplicates = [{**tools[0], "description": "The second of that name."}]
    wrong: tuple[object, ...] = ("object", [], None, 7)
    bad_schema = [{"name": f"bad{at}", "inputSchema": bad} for at, bad in enumerate(wrong)]
    match kind:
        case "not_list":
            return {"tools": {"pay": tools[0]}}
        case "cyclic":
            return {"tools": tools if cursor is None else [], "nextCursor": "again"}
        case "circle":
            return {"tools": tools if cursor is None else [], "nextCursor": CIRCLE.get(str(cursor), "b")}
        case "nameless":
            return {"tools": [*nameless, *tools]}
        case "duplicates":
            return {"tools": [*tools, *duplicates]}
        case "bad_schema":
            return {"tools": [*bad_schema, {"name": "bad4"}, *tools]}
        case "mixed":
            return {"tools": [*nameless, *bad_schema, *tools, *duplicates]}
        case _:
            raise ValueError(f"no lying_list is called {kind!r}")


def method_of(request: Json) -> str:
    """The method, or nothing at all for what has none."""
    method = request.get("method")
    return method if isinstance(method, str) else ""


def params_of(request: Json) -> Json:
    """The parameters as an object, whatever was sent."""
    params = request.get("params")
    return params if isinstance(params, dict) else {}


def meta_of(request: Json) -> Json:
    """The request's `_meta` as an object, whatever was sent."""
    meta = params_of(request).get("_meta")
    return meta if isinstance(meta, dict) else {}


def version_of(request: Json) -> str | None:
    """The protocol version that a modern request states; legacy ones state none."""
    return meta_of(request).get(META + "protocolVersion")


def finished(request: Json, result: Json, *, is_cacheable: bool = False) -> Json:
    """The result with what the caller's era adds to it."""
    if version_of(request) is None:
        return result
    cache = {"ttlMs": 0, "cacheScope": "private"} if is_cacheable else {}
    return {**result, **cache, "resultType": "complete", "_meta": {META + "serverInfo": SERVER_INFO}}


def error(code: int, message: str, data: object = None) -> Json:
    """A JSON-RPC error object."""
    return {"code": code, "message": message, **({} if data is None else {"data": data})}


def _requested(request: Json) -> object:
    return params_of(request).get("protocolVersion")


def _unknown_version(headers: Mapping[str, str]) -> Json | None:
    version = headers.get("mcp-protocol-version")
    if version is None or version in LEGACY_VERSIONS:
        return None
    return error(INVALID_REQUEST, f"Bad Request: Unsupported protocol version: {version}")


def _mismatch(request: Json, headers: Mapping[str, str]) -> Json | None:
    said = {"mcp-protocol-version": version_of(request), "mcp-method": method_of(request)}
    if method_of(request) == "tools/call":
        said["mcp-name"] = params_of(request).get("name")
    wrong = [name for name, value in said.items() if _decoded(headers.get(name)) != value]
    return error(HEADER_MISMATCH, f"headers and body disagree on {', '.join(wrong)}") if wrong else None


def _decoded(value: str | None) -> str | None:
    if value is None or not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    return base64.b64decode(value[9:-2]).decode()
