"""The requests that the load sends, built before the clock starts.

Used by `load` and by the gate's scenarios. It is not a client library: it knows one tool, `echo`, and the
two ways (modern and legacy) of asking for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

Era = Literal["legacy", "modern"]

VERSIONS: Mapping[Era, str] = {"legacy": "2025-11-25", "modern": "2026-07-28"}
"""The newest revision of each era."""

CLIENT = {"name": "bench", "version": "1"}


class Ask(msgspec.Struct, frozen=True):
    """One prebuilt HTTP request, and the id and text that its answer must hold."""

    wire: bytes
    id: int
    text: str
    unique: bytes = b""
    """What in it is replaced by other digits each time it is sent, where the same request twice would be a repeat."""


def call_body(id: int, tool: str, text: str, era: Era) -> bytes:
    """Return the JSON-RPC body of one `tools/call`."""
    params: dict[str, object] = {"name": tool, "arguments": {"text": text}}
    if era == "modern":
        params["_meta"] = modern_meta()
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})


def modern_meta() -> dict[str, object]:
    """Return the `_meta` that every request carries since sessions are gone."""
    prefix = "io.modelcontextprotocol/"
    return {
        prefix + "protocolVersion": VERSIONS["modern"],
        prefix + "clientCapabilities": {},
        prefix + "clientInfo": CLIENT,
    }


def call_headers(tool: str, era: Era, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of one `tools/call`; `extra` holds the credential or the session."""
    headers = {
        "Host": "127.0.0.1",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": VERSIONS[era],
    }
    if era == "modern":
        headers |= {"Mcp-Method": "tools/call", "Mcp-Name": tool}
    return headers | dict(extra)


def http_request(path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """Return one whole HTTP/1.1 POST."""
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


PROSE = 'He said "yes", and wrote:\n\titem[0] = {a, b}; then he left for the village. '
"""What long texts repeat: as many escapes and brackets as a page of documentation has."""


def asks(
    path: str, tool: str, era: Era, extra: Mapping[str, str], *, first_id: int, count: int, text_bytes: int = 0
) -> list[Ask]:
    """Return `count` calls with ids from `first_id` on, each echoing a text of its own, of `text_bytes` and more."""
    headers = call_headers(tool, era, extra)
    return [
        Ask(http_request(path, headers, call_body(id, tool, text, era)), id, text)
        for id in range(first_id, first_id + count)
        for text in [f"echo number {id}" + PROSE * (text_bytes // len(PROSE))]
    ]
