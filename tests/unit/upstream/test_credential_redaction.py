"""Credentials shown to a server are removed from its error messages, and nothing else is changed."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from isthmus.upstream.credential_redaction import (
    LOOKAHEAD_BYTES,
    REDACTED,
    REDACTED_RESULT,
    RESULT_LENGTH_MIN,
    STRINGS_MAX,
    redact_beginning,
    redact_error,
    redact_json,
    redact_result,
    redact_whole,
)
from isthmus.wire.jsonrpc import ErrorReply

SECRET = 'abc"\\/é-0123456789'


def redact(text: str) -> str:
    return text.replace(SECRET, "***").replace("text", "***")


def hidden(payload: bytes, shortest: int = 0) -> bytes:
    return bytes(redact_json(msgspec.Raw(payload), redact, shortest))


@pytest.mark.parametrize("is_ascii", [True, False])
def test_a_secret_is_found_however_it_is_written(*, is_ascii: bool) -> None:
    received = {"a": [f"Bearer {SECRET}!", {"b": SECRET}], SECRET: 1, "n": 1}
    text = json.dumps(received, ensure_ascii=is_ascii).replace("/", r"\/").encode()
    assert json.loads(hidden(text)) == {"a": ["Bearer ***!", {"b": "***"}], "***": 1, "n": 1}


def test_a_secret_is_found_within_the_name_of_a_member_and_a_word_is_not() -> None:
    received = {f"https://s.example/?token={SECRET}": 404, "the text of a long name": 1}
    assert json.loads(hidden(json.dumps(received).encode())) == {
        "https://s.example/?token=***": 404,
        "the text of a long name": 1,
    }


def test_all_else_stays_byte_for_byte() -> None:
    odd = rb'{ "n" : 1.00e2,"big":123456789012345678901234567890, "lone":"\ud800\n", "s":"a text"}'
    assert hidden(odd) == odd.replace(b'"a text"', b'"a ***"')
    assert hidden(b'{"text":1}') == b'{"text":1}'
    bare = msgspec.Raw(b'{"a":"b"}')
    assert redact_json(bare, redact) is bare
    assert redact_json(msgspec.Raw(odd), str) == msgspec.Raw(odd)


def test_a_result_keeps_the_words_of_the_protocol() -> None:
    result = b'{"content":[{"type":"text","text":"the text is wrong"}],"isError":true}'
    assert hidden(result, RESULT_LENGTH_MIN) == result.replace(b"the text", b"the ***")


def test_an_error_is_reported_without_it() -> None:
    reply = ErrorReply(msgspec.Raw(b"1"), -1, f"no: {SECRET}", msgspec.Raw(json.dumps([SECRET]).encode()))
    assert redact_error(reply, redact) == ErrorReply(msgspec.Raw(b"1"), -1, "no: ***", msgspec.Raw(b'["***"]'))
    assert redact_error(reply, str) is reply
    assert redact_error(ErrorReply(None, -1, "no", None), redact) == ErrorReply(None, -1, "no", None)


def test_a_result_with_a_secret_that_takes_too_long_to_redact_is_left_out() -> None:
    crowd = [b'"x\\n"'] * (STRINGS_MAX + 1)
    harmless = msgspec.Raw(b"[" + b",".join(crowd) + b"]")
    telling = msgspec.Raw(b"[" + b",".join([*crowd, b'"a text"']) + b"]")
    assert redact_json(harmless, redact) is harmless
    assert redact_json(telling, redact) == REDACTED
    few = [*crowd[2:], b'"a text"']
    assert redact_json(msgspec.Raw(b"[" + b",".join(few) + b"]"), redact) != REDACTED
    assert redact_result(telling, redact) == REDACTED_RESULT
    assert json.loads(bytes(REDACTED_RESULT))["isError"] is True


@given(some.recursive(some.text() | some.integers() | some.booleans(), lambda each: some.lists(each, max_size=4)))
def test_text_without_a_secret_is_not_changed(value: object) -> None:
    text = json.dumps(value).encode()
    assert bytes(redact_json(msgspec.Raw(text), lambda said: said.replace("a-secret-0123456789", "***"))) == text


@pytest.mark.parametrize("is_ascii", [True, False])
@pytest.mark.parametrize("before", [0, 80, 99, 100])
@pytest.mark.parametrize("after", [0, 50, LOOKAHEAD_BYTES + 200])
def test_the_beginning_of_a_text_contains_no_part_of_a_secret(*, is_ascii: bool, before: int, after: int) -> None:
    payload = json.dumps(["é" * before + SECRET + "\\" * after], ensure_ascii=is_ascii).encode()
    shown = redact_beginning(msgspec.Raw(payload), redact, 100)
    assert len(shown) <= 100
    assert "abc" not in shown


@example("\x1f", 0, 4)
@given(some.recursive(some.text(), some.lists), some.integers(0, 60), some.integers(0, 40))
def test_a_text_may_be_cut_anywhere(value: object, length: int, ahead: int) -> None:
    payload = msgspec.Raw(json.dumps(value).encode())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("isthmus.upstream.credential_redaction.LOOKAHEAD_BYTES", ahead)
        assert len(redact_beginning(payload, redact, length)) <= length


@pytest.mark.parametrize(
    ("received", "shown"),
    [
        ('{"isError":true,"a":"true"}', {"isError": True, "a": "***"}),
        (
            '{"a":null,"b":[4711,1471100,-4711.5e1,1],"4711":"x4711"}',
            {"a": None, "b": ["***"] * 3 + [1], "4711": "x***"},
        ),
        ('{"a":"\\u0034711","b":4711}', {"a": "***", "b": "***"}),
        ('{"a":"4711"}', {"a": "***"}),
    ],
)
def test_a_whole_text_stays_json_where_a_credential_is_a_word_or_a_number(received: str, shown: object) -> None:
    def redact(text: str) -> str:
        return text.replace("true", "***").replace("null", "***").replace("text", "***").replace("4711", "***")

    assert json.loads(bytes(redact_whole(msgspec.Raw(received.encode()), redact))) == shown
