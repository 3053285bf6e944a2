"""Messages of devices are read as JSON-RPC, and `"params": null` as no params."""

from __future__ import annotations

import json

import pytest

from isthmus.wire.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, Batch, Malformed, Notification, Request
from isthmus.wire.relay.device_messages import (
    MissingServer,
    add_server_id,
    decode,
    error_entry,
    list_result,
    read_entries,
    server_counts,
    with_error_text,
)


def test_null_params_count_as_empty() -> None:
    message = decode(b'{"jsonrpc":"2.0","method":"tools/list","params":null,"id":2}', max_depth=64)
    assert isinstance(message, Request)
    assert (bytes(message.id), message.method, message.params) == (b"2", "tools/list", {})
    assert isinstance(decode(b'{"jsonrpc":"2.0","method":"notifications/x","params":null}', max_depth=64), Notification)


def test_a_line_break_at_the_end_does_no_harm() -> None:
    assert isinstance(decode(b'{"jsonrpc":"2.0","method":"ping","id":0}\n', max_depth=64), Request)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"no json", PARSE_ERROR),
        (b'"text"', INVALID_REQUEST),
        (b"7", INVALID_REQUEST),
        (b"[" * 100 + b"]" * 100, INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","method":"ping","id":1,"id":2}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","method":"ping","id":null}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","method":"ping","params":[],"id":1}', INVALID_PARAMS),
        (b'{"jsonrpc":"2.0","method":"ping","params":"x","id":1}', INVALID_PARAMS),
    ],
)
def test_an_invalid_message_is_malformed_with_a_code(body: bytes, code: int) -> None:
    message = decode(body, max_depth=64)
    if isinstance(message, Batch):
        assert body.startswith(b"[")
    else:
        assert isinstance(message, Malformed)
        assert message.code == code


def test_totals_name_missing_servers_only_if_there_are_any() -> None:
    assert server_counts(2, ()) == {"total_servers": b"2", "responded_servers": b"2"}
    received = server_counts(1, [MissingServer("s2", "gone")])
    assert (received["total_servers"], received["responded_servers"]) == (b"2", b"1")
    assert json.loads(bytes(received["missing"])) == [{"server_id": "s2", "reason": "gone"}]


def test_an_objects_own_server_id_is_replaced() -> None:
    assert json.loads(add_server_id(b'{"a":1.50,"server_id":"forged"}', "s1") or b"") == {"a": 1.5, "server_id": "s1"}
    assert b"1.50" in (add_server_id(b'{"a":1.50}', "s1") or b"")
    assert add_server_id(b"[]", "s1") is None
    assert add_server_id(b'{"a":1,"a":2}', "s1") is None


def test_a_list_stands_under_its_own_member() -> None:
    assert list_result("prompts", [b'{"name":"p"}'], {"n": b"1"}) == b'{"prompts":[{"name":"p"}],"n":1}'


def test_an_error_among_answers_keeps_its_code_message_and_data() -> None:
    entry = json.loads(error_entry(-32000, "坏了", b"[1]", "s2"))
    assert entry == {"error": {"code": -32000, "message": "坏了", "data": [1]}, "server_id": "s2"}
    assert "data" not in json.loads(error_entry(-32000, "x", None, "s2"))["error"]


@pytest.mark.parametrize(
    ("result", "error"),
    [
        ({"content": [{"type": "text", "text": "no milk"}], "isError": True}, "no milk"),
        ({"content": [{"type": "image", "data": ""}, {"type": "text", "text": "x"}], "isError": True}, "x"),
        ({"content": [{"type": "text", "text": "a"}], "isError": True, "error": "own"}, "own"),
        ({"content": [], "isError": True}, None),
        ({"content": "nonsense", "isError": True}, None),
    ],
)
def test_a_tool_that_said_no_says_so_where_devices_look(result: dict[str, object], error: str | None) -> None:
    response = json.loads(bytes(with_error_text(json.dumps(result).encode())))
    assert response == (result if error is None else {**result, "error": error})


@pytest.mark.parametrize(
    "result", [b"[]", b"{}", b'{"prompts":{}}', b'{"prompts":[],"nextCursor":7}', b'{"a":1,"a":1}']
)
def test_an_invalid_list_is_ignored(result: bytes) -> None:
    assert read_entries(result, "prompts") is None


def test_a_page_is_read_with_its_cursor() -> None:
    entries, cursor = read_entries(b'{"prompts":[{"name":"p"}],"nextCursor":"n"}', "prompts") or ([], None)
    assert ([bytes(entry) for entry in entries], cursor) == ([b'{"name":"p"}'], "n")
    assert read_entries(b'{"prompts":[]}', "prompts") == ([], None)
