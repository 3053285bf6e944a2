"""JSON of callers through every dialect: the same text comes out as went in. And no request makes a reader raise."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from isthmus.model.tasks import Task, TaskStatus
from isthmus.wire.a2a import agentvault, v0_1, v0_3, v0_3_rest, v1_0
from isthmus.wire.a2a.operations import A2aProblem, SendMessage
from isthmus.wire.a2a.v1_0 import Dialect
from tests.unit.wire.a2a import captured
from tests.unit.wire.a2a.samples import AT, Json, some_json, some_object, steady, values

Around = Callable[[bytes, bytes], bytes]
"""Writes a message that holds this data and this metadata."""


def latest(data: bytes, metadata: bytes) -> bytes:
    return b'{"messageId":"m","role":"ROLE_USER","parts":[{"data":%b}],"metadata":%b}' % (data, metadata)


def earlier(data: bytes, metadata: bytes) -> bytes:
    return b'{"messageId":"m","role":"user","parts":[{"kind":"data","data":%b}],"metadata":%b}' % (data, metadata)


def plain_http(data: bytes, metadata: bytes) -> bytes:
    return b'{"messageId":"m","role":"ROLE_USER","content":[{"data":{"data":%b}}],"metadata":%b}' % (data, metadata)


def first(data: bytes, metadata: bytes) -> bytes:
    return b'{"role":"user","parts":[{"type":"data","data":%b}],"metadata":%b}' % (data, metadata)


def vault(data: bytes, metadata: bytes) -> bytes:
    return b'{"role":"user","parts":[{"type":"data","content":%b}],"metadata":%b}' % (data, metadata)


ALL: list[tuple[Dialect, str, Around]] = [
    (v1_0.DIALECT, "SendMessage", latest),
    (v0_3.DIALECT, "message/send", earlier),
    (v0_3_rest.DIALECT, "message/send", plain_http),
    (v0_1.DIALECT, "tasks/send", first),
    (agentvault.DIALECT, "tasks/send", vault),
]


def through(dialect: Dialect, method: str, message: bytes) -> bytes:
    """A message as its sender is shown it when asking for the task."""
    operation = dialect.read(method, {"id": Raw(b'"t"'), "message": Raw(message)})
    assert isinstance(operation, SendMessage)
    task = Task("t", "c", TaskStatus("working", AT), AT, (), (operation.message,))
    return bytes(dialect.write_task(task, 1))


def exact(text: bytes, whole: bytes) -> bool:
    """Whether JSON stands in a text as it is, and what is parsed of it is equal, whole numbers staying whole."""
    parsed, expected = json.loads(whole), json.loads(text)
    found: list[Any] = [parsed]
    while found:
        value = found.pop()
        if value == expected and repr(value) == repr(expected):
            return text in whole
        found += value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return False


@pytest.mark.parametrize(("dialect", "method", "around"), ALL, ids=["1.0", "0.3", "0.3 http", "0.1", "agentvault"])
def test_data_and_metadata_come_back_as_the_text_they_were(dialect: Dialect, method: str, around: Around) -> None:
    @given(some_object, some_object)
    @steady
    def check(data: Raw, metadata: Raw) -> None:
        whole = through(dialect, method, around(bytes(data), bytes(metadata)))
        assert exact(bytes(data), whole)
        assert exact(bytes(metadata), whole)

    check()


@given(some_json)
@steady
def test_1_0_takes_any_json_as_data(data: Raw) -> None:
    assert exact(bytes(data), through(v1_0.DIALECT, "SendMessage", latest(bytes(data), b"{}")))


@pytest.mark.parametrize(("dialect", "method", "around"), ALL, ids=["1.0", "0.3", "0.3 http", "0.1", "agentvault"])
@pytest.mark.parametrize(
    "data",
    [
        b'{"i":1,"f":1.0,"e":1e3,"z":-0}',
        b'{"big":123456789012345678901234567890,"edge":9007199254740993}',
        b'{"b":1,"a":2}',
        b'{"a":1,"a":2}',
        b'{ "spaced" : [ 1 , 2 ] }',
        b'{"escaped":"\\u00e9\\ud83d\\ude00","plain":"\xc3\xa9"}',
    ],
)
def test_numbers_that_a_parser_would_change_are_not_parsed(
    dialect: Dialect, method: str, around: Around, data: bytes
) -> None:
    assert data in through(dialect, method, around(data, b"null"))


# -- invalid requests ----------------------------------------------------------------------------------------------

REQUESTS: list[tuple[Dialect, str, dict[str, Raw]]] = [
    (dialect, request.method, request.params)
    for dialect, package in (
        (v1_0.DIALECT, "sdk-1.3.0"),
        (v0_3.DIALECT, "sdk-0.3.26"),
        (v0_1.DIALECT, "samples-0.1"),
        (agentvault.DIALECT, "agentvault-0.2.1"),
    )
    for request in captured.requests(package).values()
]


def places(value: Json, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """All places in a value, its own included."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, part in inner for place in places(part, (*path, key)))]


def changed(value: Any, path: tuple[str | int, ...], into: Json) -> Any:
    """A value with something else in one place."""
    if not path:
        return into
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], into)
    return copy


@given(st.sampled_from(REQUESTS), st.data(), values)
@steady
def test_a_request_with_anything_anywhere_is_read_or_refused(
    request: tuple[Dialect, str, dict[str, Raw]], data: st.DataObject, into: Json
) -> None:
    dialect, method, params = request
    whole: Any = {name: json.loads(bytes(raw)) for name, raw in params.items()}
    place = data.draw(st.sampled_from(places(whole)[1:]))
    spoilt = (
        msgspec.json.encode(changed(whole, place, None)) if into is None else json.dumps(changed(whole, place, into))
    )
    read = dialect.read(method, msgspec.json.decode(spoilt, type=dict[str, Raw]))
    if isinstance(read, A2aProblem):
        assert read.kind == "invalid_params"
        assert read.details["field"] in read.message
