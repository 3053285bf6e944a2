"""Malformed messages, generated from valid ones, with the expected answers.

`mutations` changes one member at a time; `expected` is the rule of the protocol, written down a second time and in
plain words, for what then has to happen. `TEXTS` are bodies that are no message at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from tests.frontends.wire import encoded, legacy, modern
from tests.hubs import META, MODERN

Era = Literal["legacy", "modern"]
Change = Literal["drop", "double", "double with another value", "other case", "null", "7", '"x"', "true", "[]", "{}"]
CHANGES: tuple[Change, ...] = (
    "drop", "double", "double with another value", "other case", "null", "7", '"x"', "true", "[]", "{}",
)  # fmt: skip
Carrier = Literal["http", "stdio"]

VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"

PARSE, INVALID, UNKNOWN_METHOD, PARAMS = -32700, -32600, -32601, -32602
MISMATCH, UNSUPPORTED = -32020, -32022


@dataclass(frozen=True, slots=True)
class ExpectedReply:
    """What must come back: a status, an error code (None: a result), and the id as text (None: no JSON-RPC answer)."""

    status: int
    code: int | None
    id: str | None


@dataclass(frozen=True, slots=True)
class Case:
    """One body with the request it was made from."""

    label: str
    era: Era
    method: str
    body: bytes
    path: tuple[str, ...] = ()
    change: Change = "drop"
    name: str | None = None


ID = "41"
ECHO = {"name": "builtin.echo", "arguments": {"text": "hi"}}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}

VALID: tuple[tuple[Era, dict[str, Any]], ...] = (
    ("legacy", legacy("initialize", HELLO, id=41)),
    ("legacy", legacy("ping", {}, id=41)),
    ("legacy", legacy("tools/list", {}, id=41)),
    ("legacy", legacy("tools/call", {**ECHO, "_meta": {"progressToken": 5}}, id=41)),
    ("legacy", legacy("notifications/initialized", {}, id=None)),
    ("legacy", legacy("notifications/cancelled", {"requestId": 9, "reason": "x"}, id=None)),
    ("modern", modern("server/discover", id=41)),
    ("modern", modern("tools/list", id=41)),
    ("modern", modern("tools/call", ECHO, id=41)),
    ("modern", modern("notifications/cancelled", {"requestId": 9}, id=None)),
)


def mutations() -> Iterator[Case]:
    """Every change of every member of every valid message."""
    for era, message in VALID:
        name = message["params"].get("name")
        for path in _paths(message):
            for change in CHANGES:
                label = f"{era} {message['method']}: {'.'.join(path)} {change}"
                body = _changed(message, path, change)
                yield Case(label, era, message["method"], body, path, change, name)


def _paths(message: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for key in message:
        yield (key,)
    for key in message["params"]:
        yield ("params", key)
    for key in message["params"].get("_meta", {}):
        yield ("params", "_meta", key)


def _changed(node: Any, path: tuple[str, ...], change: Change) -> bytes:
    """The node as JSON, with the member at `path` changed."""
    members: list[tuple[str, bytes]] = []
    for key, value in node.items():
        if key != path[0]:
            members.append((key, encoded(value)))
        elif len(path) > 1:
            members.append((key, _changed(value, path[1:], change)))
        else:
            members += _member(key, encoded(value), change)
    return b"{" + b",".join(encoded(key) + b":" + value for key, value in members) + b"}"


def _member(key: str, value: bytes, change: Change) -> list[tuple[str, bytes]]:
    match change:
        case "drop":
            return []
        case "double":
            return [(key, value), (key, value)]
        case "double with another value":
            return [(key, value), (key, b'"another"')]
        case "other case":
            return [(key.upper(), value)]
        case text:
            return [(key, text.encode())]


# -- what must be answered -----------------------------------------------------------------------------------------


def expected(case: Case, carrier: Carrier) -> ExpectedReply | None:
    """The answer to a case; None on a carrier where none is given."""
    has_id = not case.method.startswith("notifications/")
    received = _envelope(case, has_id=has_id)
    if received is None:
        received = _request(case, carrier) if has_id and case.path != ("id",) else None
    if received is None:
        return _well(case, has_id=has_id, carrier=carrier)
    return replace(received, status=0) if carrier == "stdio" else received


def _well(case: Case, *, has_id: bool, carrier: Carrier) -> ExpectedReply | None:
    """A change that does no harm: an answer to a request, an acknowledgement of a notification."""
    is_request = has_id and (case.path, case.change) != (("id",), "drop")
    if not is_request:
        return None if carrier == "stdio" else ExpectedReply(202, None, None)
    id = case.change if case.path == ("id",) else ID
    return ExpectedReply(0 if carrier == "stdio" else 200, None, id)


def _envelope(case: Case, *, has_id: bool) -> ExpectedReply | None:
    """What is wrong with the message as JSON-RPC; None if nothing is."""
    id = ID if has_id else "null"
    doubled = case.change.startswith("double")
    match case.path:
        case (_,) if doubled:
            return ExpectedReply(400, INVALID, "null")
        case ("id",):
            return None if case.change in ("drop", "7", '"x"') else ExpectedReply(400, INVALID, "null")
        case (key,) if case.change == "other case" or key == "jsonrpc":
            return ExpectedReply(400, INVALID, id)
        case ("method",):
            return None if case.change == '"x"' else ExpectedReply(400, INVALID, id)
        case ("params",):
            return None if case.change in ("drop", "{}") else ExpectedReply(400, PARAMS, id)
        case ("params", _) if doubled:
            return ExpectedReply(400, INVALID, id)
        case _:
            return None


def _request(case: Case, carrier: Carrier) -> ExpectedReply | None:
    """What is wrong with a request that JSON-RPC has nothing against; None if nothing is."""
    if case.era == "modern":
        code = _modern_code(case, carrier)
        status = {UNKNOWN_METHOD: 404}.get(code or 0, 400)
    else:
        code, status = _legacy_code(case), 200
    return None if code is None else ExpectedReply(status, code, ID)


def _legacy_code(case: Case) -> int | None:
    match case.path:
        case ("method",):
            return UNKNOWN_METHOD
        case ("params",):
            return PARAMS if case.method in ("initialize", "tools/call") else None
        case ("params", "protocolVersion"):
            return None if case.change == '"x"' else PARAMS
        case ("params", "name"):
            return PARAMS
        case ("params", "arguments"):
            return PARAMS  # `{}` too: echo needs its text
        case ("params", "_meta"):
            return None if case.change in ("drop", "{}") else PARAMS
        case ("params", "_meta", _):
            return PARAMS if case.change.startswith("double") else None
        case _:
            return None


def _modern_code(case: Case, carrier: Carrier) -> int | None:
    is_http = carrier == "http"
    match case.path:
        case ("method",):
            return MISMATCH if is_http else UNKNOWN_METHOD
        case ("params",):
            return _without_envelope(case, carrier)
        case ("params", "_meta"):
            return _without_envelope(case, carrier)
        case ("params", "_meta", _) if case.change.startswith("double"):
            return PARAMS if is_http else _without_envelope(case, carrier)
        case ("params", "_meta", key) if key == VERSION:
            return _version_code(case, carrier)
        case ("params", "_meta", key) if key == CAPABILITIES:
            return PARAMS if case.change in ("drop", "other case") else None
        case ("params", "name") if is_http and case.change not in ("drop", "other case"):
            return MISMATCH
        case ("params", "name" | "arguments"):
            return PARAMS
        case _:
            return None


def _version_code(case: Case, carrier: Carrier) -> int | None:
    if case.change in ("drop", "other case"):
        return PARAMS if carrier == "http" else _without_envelope(case, carrier)
    if carrier == "http":
        return MISMATCH
    return UNSUPPORTED if case.change == '"x"' else PARAMS


def _without_envelope(case: Case, carrier: Carrier) -> int | None:
    """A modern header without its envelope is a mistake; without either, a request is of the earlier era."""
    if carrier == "http":
        return PARAMS
    has_params = case.path != ("params",)
    match case.method:
        case "server/discover":
            return UNKNOWN_METHOD
        case "tools/list":
            return None
        case _ if not has_params:
            return PARAMS
        case _:
            is_dropped = case.path == ("params", "_meta") and case.change in ("drop", "{}")
            is_other = case.path[-1] == VERSION and case.change in ("drop", "other case")
            return None if is_dropped or is_other else PARAMS


# -- bodies that are no message ------------------------------------------------------------------------------------

CALL = encoded(legacy("tools/call", ECHO, id=41))


def _with_text(text: bytes) -> bytes:
    return CALL.replace(b'"hi"', text)


def _deep(levels: int) -> bytes:
    """A call whose body is nested so deep: the body, its params and the arguments are the first three."""
    return _with_text(b"[" * (levels - 3) + b"]" * (levels - 3))


TEXTS: dict[str, tuple[bytes, ExpectedReply]] = {
    "nothing": (b"", ExpectedReply(400, PARSE, "null")),
    "spaces": (b"  ", ExpectedReply(400, PARSE, "null")),
    "null": (b"null", ExpectedReply(400, INVALID, "null")),
    "a string": (b'"ping"', ExpectedReply(400, INVALID, "null")),
    "a number": (b"7", ExpectedReply(400, INVALID, "null")),
    "an empty object": (b"{}", ExpectedReply(400, INVALID, "null")),
    "an empty batch": (b"[]", ExpectedReply(400, INVALID, "null")),
    "a batch of one": (b"[" + CALL + b"]", ExpectedReply(400, INVALID, "null")),
    "a batch of notifications": (
        b'[{"jsonrpc":"2.0","method":"notifications/initialized"}]',
        ExpectedReply(400, INVALID, "null"),
    ),
    "words": (b"hello", ExpectedReply(400, PARSE, "null")),
    "two objects": (CALL + CALL, ExpectedReply(400, PARSE, "null")),
    "an object and a brace": (CALL + b"}", ExpectedReply(400, PARSE, "null")),
    "a trailing comma": (CALL[:-1] + b",}", ExpectedReply(400, PARSE, "null")),
    "single quotes": (CALL.replace(b'"', b"'"), ExpectedReply(400, PARSE, "null")),
    "a comment": (b"/* hi */" + CALL, ExpectedReply(400, PARSE, "null")),
    "NaN": (_with_text(b"NaN"), ExpectedReply(400, PARSE, "null")),
    "Infinity": (_with_text(b"-Infinity"), ExpectedReply(400, PARSE, "null")),
    "a leading zero": (_with_text(b"01"), ExpectedReply(400, PARSE, "null")),
    "a byte order mark": (b"\xef\xbb\xbf" + CALL, ExpectedReply(400, PARSE, "null")),
    "UTF-16": (CALL.decode().encode("utf-16"), ExpectedReply(400, PARSE, "null")),
    "UTF-16 without a mark": (CALL.decode().encode("utf-16-le"), ExpectedReply(400, PARSE, "null")),
    "UTF-32": (CALL.decode().encode("utf-32"), ExpectedReply(400, PARSE, "null")),
    "Latin-1": (_with_text('"ä"'.encode("latin-1")), ExpectedReply(400, PARSE, "null")),
    "an encoded surrogate": (_with_text(b'"\xed\xa0\x80"'), ExpectedReply(400, PARSE, "null")),
    "an overlong character": (_with_text(b'"\xc0\xaf"'), ExpectedReply(400, PARSE, "null")),
    "a raw control character": (_with_text(b'"\x01"'), ExpectedReply(400, PARSE, "null")),
    "NUL bytes": (b"\0" * 40, ExpectedReply(400, PARSE, "null")),
    "a lone surrogate in the arguments": (_with_text(b'"\\ud800"'), ExpectedReply(400, PARSE, "null")),
    "a lone surrogate in the name": (CALL.replace(b"builtin.echo", b"\\udfff"), ExpectedReply(400, PARSE, "null")),
    "a lone surrogate in the method": (CALL.replace(b"tools/call", b"\\ud800"), ExpectedReply(400, PARSE, "null")),
    "a number out of range": (_with_text(b"1e999"), ExpectedReply(200, PARAMS, ID)),
    "a number of 5,000 digits": (_with_text(b"9" * 5000), ExpectedReply(200, PARAMS, ID)),
    "a number where a text belongs": (_with_text(b"9" * 300), ExpectedReply(200, PARAMS, ID)),
    "65 levels": (_deep(65), ExpectedReply(400, INVALID, ID)),
    "500 levels": (_deep(500), ExpectedReply(400, INVALID, ID)),
    "64 levels": (_deep(64), ExpectedReply(200, PARAMS, ID)),
    "100,000 levels": (b"[" * 100_000 + b"]" * 100_000, ExpectedReply(400, INVALID, "null")),
    "100,000 levels that do not end": (b'{"a":' * 100_000, ExpectedReply(400, INVALID, "null")),
    "an id of 5,000 digits": (CALL.replace(b"41", b"4" * 5000), ExpectedReply(200, None, "4" * 5000)),
    "a negative id": (CALL.replace(b"41", b"-0"), ExpectedReply(200, None, "-0")),
    "an id with a fraction": (CALL.replace(b"41", b"1.50e1"), ExpectedReply(200, None, "1.50e1")),
    "an id beyond 2^53": (CALL.replace(b"41", b"9007199254740993"), ExpectedReply(200, None, "9007199254740993")),
    "an empty id": (CALL.replace(b"41", b'""'), ExpectedReply(200, None, '""')),
    "an escaped id": (CALL.replace(b"41", b'"\\u0041\\n"'), ExpectedReply(200, None, '"\\u0041\\n"')),
    "a result and a method": (CALL[:-1] + b',"result":{}}', ExpectedReply(400, INVALID, ID)),
    "an unknown member": (CALL[:-1] + b',"more":{}}', ExpectedReply(200, None, ID)),
    "another version of JSON-RPC": (CALL.replace(b'"2.0"', b'"1.0"'), ExpectedReply(400, INVALID, ID)),
    "an unknown method": (CALL.replace(b"tools/call", b"tools/guess"), ExpectedReply(200, UNKNOWN_METHOD, ID)),
    "a method in other letters": (CALL.replace(b"tools/call", b"Tools/Call"), ExpectedReply(200, UNKNOWN_METHOD, ID)),
    "an unknown tool": (CALL.replace(b"builtin.echo", b"builtin.guess"), ExpectedReply(200, PARAMS, ID)),
    "a tool in other letters": (CALL.replace(b"builtin.echo", b"Builtin.Echo"), ExpectedReply(200, PARAMS, ID)),
    "an unknown cursor": (encoded(legacy("tools/list", {"cursor": "abc"}, id=41)), ExpectedReply(200, PARAMS, ID)),
    "20,000 keys": (
        _with_text(json.dumps({str(at): at for at in range(20_000)}).encode()),
        ExpectedReply(200, PARAMS, ID),
    ),
    "a subscription without a filter": (
        encoded(legacy("subscriptions/listen", {"_meta": META}, id=41)),
        ExpectedReply(400, PARAMS, ID),
    ),
    "a ping in the modern era": (
        encoded(legacy("ping", {"_meta": META}, id=41)),
        ExpectedReply(404, UNKNOWN_METHOD, ID),
    ),
    "an initialize in the modern era": (
        encoded(legacy("initialize", {**HELLO, "_meta": META}, id=41)),
        ExpectedReply(404, UNKNOWN_METHOD, ID),
    ),
    "an unknown cursor in the modern era": (
        encoded(legacy("tools/list", {"cursor": "abc", "_meta": META}, id=41)),
        ExpectedReply(400, PARAMS, ID),
    ),
}
"""Bodies with what HTTP answers; over standard streams the same code and id. Modern ones need their headers."""

ANSWERS = {
    "an answer to nothing": encoded({"jsonrpc": "2.0", "id": 41, "result": {}}),
    "an error to nothing": encoded({"jsonrpc": "2.0", "id": 41, "error": {"code": 1, "message": "x"}}),
}
"""The hub asked nothing, so there is nothing to answer."""


def is_modern(body: bytes) -> bool:
    """Whether a text above needs modern headers."""
    return MODERN.encode() in body


def method_in(body: bytes) -> str:
    """The method of a well-formed text."""
    method: str = json.loads(body)["method"]
    return method
