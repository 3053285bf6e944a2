"""What devices send is read as any JSON-RPC, and `"params": null` as no params."""

from __future__ import annotations

import pytest

from isthmus.wire.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, Batch, Malformed, Notification, Request
from isthmus.wire.relay.messages import decode


def test_null_params_are_none() -> None:
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
def test_what_is_no_message_says_what_is_wrong(body: bytes, code: int) -> None:
    message = decode(body, max_depth=64)
    if isinstance(message, Batch):
        assert body.startswith(b"[")
    else:
        assert isinstance(message, Malformed)
        assert message.code == code
