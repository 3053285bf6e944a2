"""What callers send, at every endpoint of a running hub. Called by `fuzz.targets`.

Whatever they send is answered, with something other than a defect of the hub's own.
"""

from __future__ import annotations

import json
import re
import struct

from fuzz.house import Defect, house
from tests.relay.tokens import python_quoted, python_token

MODERN = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "fuzz", "version": "1"},
}
METHODS = (
    "tools/list", "tools/call", "resources/list", "resources/read", "resources/templates/list", "prompts/list",
    "prompts/get", "completion/complete", "ping", "initialize", "server/discover", "subscriptions/listen", "tasks/list",
    "tasks/get", "tasks/result", "tasks/cancel", "logging/setLevel", "resources/subscribe", "notifications/cancelled",
)  # fmt: skip
SAID = (
    "SendMessage", "SendStreamingMessage", "GetTask", "ListTasks", "CancelTask", "SubscribeToTask", "message/send",
    "message/stream", "tasks/send", "tasks/get", "tasks/cancel", "tasks/pushNotificationConfig/set",
    "tasks/resubscribe", "CreateTaskPushNotificationConfig", "agent/getAuthenticatedExtendedCard",
)  # fmt: skip
PLAIN = ("/a2a/rest/message:send", "/a2a/rest/message:stream", "/a2a/rest/v1/message:send", "/a2a/rest/tasks/x:cancel")
REST = (
    "POST /v1/tools/builtin.echo", "POST /v1/tools/nobody", "POST /v1/prompts/x", "POST /v1/completions",
    "POST /v1/tools/builtin.chat_log",
)  # fmt: skip

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")
_INCIDENT = re.compile(rb"[Ii]ncident [0-9a-f]{12}")


def _check(answer: bytes) -> None:
    """Raises: Defect if an answer tells of one."""
    if _INCIDENT.search(answer) or any(status == b"500" for status in _STATUS.findall(answer)):
        raise Defect(answer[-2000:].decode("latin-1"))


def _request(line: str, body: bytes, *headers: str) -> bytes:
    head = (
        f"{line} HTTP/1.1", "host: localhost", "connection: close", "content-type: application/json",
        "accept: application/json, text/event-stream", f"content-length: {len(body)}", *headers,
    )  # fmt: skip
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body


def _knock(request: bytes, *, is_whole: bool = True) -> None:
    _check(house().run(house().knock(request, is_whole=is_whole)))


def http(data: bytes) -> None:
    """Bytes at the endpoint, whatever they are, and a line that may end what they have begun."""
    _knock(data + b"\r\n\r\n", is_whole=False)


def mcp(data: bytes) -> None:
    """A body of MCP: as it is, or as the parameters of some method, in either era."""
    if not data:
        return
    choice, body = data[0], data[1:]
    if choice < 64:
        _knock(_request("POST /mcp", body))
        return
    method = METHODS[choice % len(METHODS)]
    if choice < 160:
        wrapped = b'{"jsonrpc":"2.0","id":1,"method":"%s","params":%s}' % (method.encode(), body)
        _knock(_request("POST /mcp", wrapped))
        return
    members = body.strip().removeprefix(b"{").removesuffix(b"}")
    meta = json.dumps(META).encode()
    joined = b"%s,%s" % (b'"_meta":' + meta, members) if members else b'"_meta":' + meta
    wrapped = b'{"jsonrpc":"2.0","id":1,"method":"%s","params":{%s}}' % (method.encode(), joined)
    _knock(_request("POST /mcp", wrapped, f"mcp-protocol-version: {MODERN}", f"mcp-method: {method}", "mcp-name: x"))


def agent(data: bytes) -> None:
    """What an A2A client says, in each generation's words, by JSON-RPC or plainly."""
    if not data:
        return
    choice, body = data[0], data[1:]
    if choice < 64:
        _knock(_request("POST /a2a", body))
    elif choice < 192:
        method = SAID[choice % len(SAID)].encode()
        _knock(_request("POST /a2a", b'{"jsonrpc":"2.0","id":1,"method":"%s","params":%s}' % (method, body)))
    else:
        _knock(_request(f"POST {PLAIN[choice % len(PLAIN)]}", body))


def rest(data: bytes) -> None:
    """A body of the REST frontend."""
    if data:
        _knock(_request(REST[data[0] % len(REST)], data[1:]))


def relay(data: bytes) -> None:
    """Frames on a WebSocket of the relay: as they are, or as the text of one; from a device or a server."""
    if not data:
        return
    choice, body = data[0], data[1:]
    end = "call" if choice & 1 else "mcp"
    token = python_quoted(python_token("fuzz"))
    protocol = ("sec-websocket-protocol: isthmus.mux.v1",) if choice & 4 and end == "mcp" else ()
    head = (
        f"GET /mcp_endpoint/{end}/?token={token} HTTP/1.1", "host: localhost", "connection: upgrade",
        "upgrade: websocket", "sec-websocket-version: 13", "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==", *protocol,
    )  # fmt: skip
    # Who closes at once is not answered what it asked; who does not is waited for.
    frames = (body if choice & 2 else _frame(body)) + (b"" if choice & 8 else _CLOSE)
    _knock("\r\n".join(head).encode() + b"\r\n\r\n" + frames, is_whole=False)


def _frame(text: bytes) -> bytes:
    size = bytes([0x80 | len(text)]) if len(text) < 126 else b"\xfe" + struct.pack("!H", len(text) & 0xFFFF)
    return b"\x81" + size + b"\0\0\0\0" + text[:0xFFFF]


_CLOSE = b"\x88\x82\0\0\0\0\x03\xe8"


def answered(data: bytes) -> None:
    """What a server answers to a call over HTTP: JSON, a stream of events, or anything at all."""
    if not data:
        return
    choice, body = data[0] % 4, data[1:]
    kind = b"text/event-stream" if choice == 1 else b"application/json"
    if choice == 3:
        house().said.answer = body
    elif choice == 2:
        house().said.answer = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\n\r\n%s" % (kind, body)
    else:
        house().said.answer = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: $LEN\r\n\r\n%s" % (kind, body)
    _knock(_request("POST /v1/tools/s.t", b"{}"))
