from __future__ import annotations

import json
import tracemalloc
from typing import TypeAlias

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Raw

from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import Batch, ErrorReply, Malformed, Notification, Request, Response

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

CALL = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hi"}}}'

# What meets the seams of the checks: members, their variants, quotation marks, brackets, escapes.
keys = st.sampled_from(["name", "Name", "arguments", "_meta", "id", "", 'a"b', "a\\", "é", "😀", "[", "\n"])
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | keys
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values: st.SearchStrategy[Json] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)


def plain(raw: Raw) -> Json:
    parsed: Json = json.loads(bytes(raw))
    return parsed


def plain_members(members: dict[str, Raw]) -> Json:
    return {key: plain(value) for key, value in members.items()}


def nested(levels: int) -> bytes:
    """A request that is `levels` deep, its own two included."""
    inner = b"[" * (levels - 2) + b"]" * (levels - 2)
    return b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"a":%b}}' % inner


def refused(body: bytes) -> tuple[int, bytes | None]:
    """The code and id text of the error to answer."""
    message = jsonrpc.decode(body)
    assert isinstance(message, Malformed)
    return message.code, None if message.id is None else bytes(message.id)


def test_a_request_comes_out_with_its_params_one_level_deep() -> None:
    message = jsonrpc.decode(CALL)
    assert isinstance(message, Request)
    assert (bytes(message.id), message.method) == (b"7", "tools/call")
    assert {key: bytes(raw) for key, raw in message.params.items()} == {
        "name": b'"echo"',
        "arguments": b'{"text":"hi"}',
    }


@pytest.mark.parametrize(
    "text", [b"0", b'""', b"9007199254740993", b"1.0", b"-1e5", b'"\\u0061"', b'"a\\"b"', b"9" * 5000]
)
def test_an_id_keeps_its_text(text: bytes) -> None:
    message = jsonrpc.decode(b'{"jsonrpc":"2.0","id":%b,"method":"ping"}' % text)
    assert isinstance(message, Request)
    assert message.params == {}
    assert jsonrpc.result(message.id, b"{}") == b'{"jsonrpc":"2.0","id":%b,"result":{}}' % text


def test_a_message_without_an_id_is_a_notification() -> None:
    body = jsonrpc.notification("notifications/progress", b'{"progress":1}')
    assert jsonrpc.decode(body) == Notification("notifications/progress", {"progress": Raw(b"1")})
    assert jsonrpc.decode(jsonrpc.notification("notifications/initialized")) == Notification(
        "notifications/initialized", {}
    )


@pytest.mark.parametrize("payload", [b"{}", b"null", b'{"content": [1.0]}', b'"\\""'])
def test_a_result_comes_out_as_it_was_written(payload: bytes) -> None:
    assert jsonrpc.decode(jsonrpc.result(b"7", payload)) == Response(Raw(b"7"), Raw(payload))


def test_an_error_comes_out_with_its_data() -> None:
    body = jsonrpc.error(Raw(b'"x"'), -32601, 'no "such" method', b'{"executed":"no"}')
    expected = ErrorReply(Raw(b'"x"'), -32601, 'no "such" method', Raw(b'{"executed":"no"}'))
    assert jsonrpc.decode(body) == expected


def test_an_error_without_an_id_is_written_as_null() -> None:
    body = jsonrpc.error(None, jsonrpc.PARSE_ERROR, "what?")
    assert json.loads(body) == {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "what?"}}
    assert jsonrpc.decode(body) == ErrorReply(None, -32700, "what?", None)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (b'{"code":"x","message":"m"}', -32603, "m"),
        (b'{"code":-32601.5,"message":"m"}', -32603, "m"),
        (b'{"code":%b,"message":"m"}' % (b"9" * 5000), -32603, "m"),
        (b'{"code":-1}', -1, ""),
        (b'{"code":-1,"message":{}}', -1, ""),
        (b'{"code":0,"message":"zero"}', 0, "zero"),
        (b'{"code":1,"code":2,"message":"m"}', -32603, ""),
        (b'"boom"', -32603, ""),
        (b"null", -32603, ""),
    ],
)
def test_a_sloppy_error_still_answers_its_request(error: bytes, code: int, message: str) -> None:
    reply = jsonrpc.decode(b'{"jsonrpc":"2.0","id":7,"error":%b}' % error)
    assert reply == ErrorReply(Raw(b"7"), code, message, None)


def test_an_array_is_a_batch_for_the_caller_to_judge() -> None:
    assert jsonrpc.decode(b"[%b, %b]" % (CALL, CALL)) == Batch()
    assert jsonrpc.decode(b" []") == Batch()
    assert jsonrpc.elements(b'[{"a": 1} , [2], "x"]', 3) == [b'{"a": 1}', b"[2]", b'"x"']
    assert jsonrpc.elements(b"[]", 3) == []
    assert jsonrpc.elements(b"[1,2,3,4]", 3) is None
    assert jsonrpc.elements(b" [1, 2, 3] ", 3) == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{", id="truncated"),
        pytest.param(CALL + CALL, id="two objects"),
        pytest.param(CALL + b"\x00", id="trailing byte"),
        pytest.param(b"[%b" % CALL, id="truncated batch"),
        pytest.param(CALL.replace(b'"hi"', b"NaN"), id="NaN"),
        pytest.param(CALL.replace(b'"hi"', b"-Infinity"), id="infinity"),
        pytest.param(CALL.replace(b"hi", b"\xff"), id="not UTF-8"),
        pytest.param(CALL.replace(b"hi", b"\xed\xa0\x80"), id="surrogate in UTF-8"),
        pytest.param(CALL.replace(b"hi", b"\xc0\xaf"), id="overlong UTF-8"),
        pytest.param(CALL.replace(b"hi", b"\\ud800 and more"), id="lone surrogate"),
        pytest.param(CALL.replace(b"hi", b"a\nb"), id="raw newline in a string"),
        pytest.param(CALL.replace(b'"hi"', b"01"), id="leading zero"),
        pytest.param(CALL.replace(b'"hi"', b"[1,]"), id="trailing comma"),
        pytest.param(CALL.replace(b"{", b"{/**/", 1), id="comment"),
        pytest.param(b"\xef\xbb\xbf" + CALL, id="BOM"),
        pytest.param(CALL.decode().encode("utf-16"), id="UTF-16"),
        pytest.param(CALL.decode().encode("utf-16-le"), id="UTF-16 without BOM"),
        pytest.param(CALL.decode().encode("utf-32"), id="UTF-32"),
    ],
)
def test_anything_but_one_json_text_in_utf8_is_a_parse_error(body: bytes) -> None:
    assert refused(body) == (jsonrpc.PARSE_ERROR, None)


@pytest.mark.parametrize(
    ("member", "id"),
    [
        pytest.param(b'"method":"tools/list"', None, id="other value"),
        pytest.param(b'"method":"tools/call"', None, id="same value"),
        pytest.param(b'"\\u006dethod":"tools/list"', None, id="escaped"),
        pytest.param(b'"id":8', None, id="id"),
        pytest.param(b'"params":{}', None, id="params"),
        pytest.param(b'"jsonrpc":"2.0"', None, id="jsonrpc"),
        pytest.param(b'"x":1,"x":1', None, id="unknown member"),
        pytest.param(b'"":0,"":0', None, id="empty key"),
        pytest.param(b'"Method":"tools/list"', b"7", id="case variant"),
        pytest.param(b'"PARAMS":{}', b"7", id="upper case"),
        pytest.param('"paramſ":{}'.encode(), b"7", id="long s, which folds to s"),
        pytest.param(b'"ID":8', None, id="case variant of the id"),
        pytest.param(b'"result":{}', b"7", id="a request and a response"),
        pytest.param(b'"error":{}', b"7", id="a request and an error"),
    ],
)
def test_an_ambiguous_envelope_is_refused_whichever_way_round_it_is_written(member: bytes, id: bytes | None) -> None:
    for body in (CALL[:-1] + b"," + member + b"}", b"{" + member + b"," + CALL[1:]):
        assert refused(body) == (jsonrpc.INVALID_REQUEST, id)


@pytest.mark.parametrize("member", [b'"result":2', b'"result":"2"', b'"id":8', b'"x":1,"x":2', b'"Result":2'])
def test_an_ambiguous_answer_is_refused(member: bytes) -> None:
    code, _ = refused(b'{"jsonrpc":"2.0","id":7,"result":1,%b}' % member)
    assert code == jsonrpc.INVALID_REQUEST


@pytest.mark.parametrize(
    "member",
    [
        '"name":"rm"',
        '"name":"echo"',
        '"\\u006eame":"rm"',
        '"Name":"rm"',
        '"ARGUMENTS":{}',
        '"argumentſ":{}',
        '"x":[],"X":[]',
    ],
)
def test_an_ambiguous_param_is_refused_whichever_way_round_it_is_written(member: str) -> None:
    params = '{"name":"echo","arguments":{"text":"hi"}}'
    for twisted in (params[:-1] + "," + member + "}", "{ " + member + " ," + params[1:]):
        assert refused(CALL.replace(params.encode(), twisted.encode())) == (jsonrpc.INVALID_REQUEST, b"7")


def test_keys_inside_arguments_may_differ_in_case_only() -> None:
    assert isinstance(jsonrpc.decode(CALL.replace(b'"text"', b'"a":1,"A":2,"text"')), Request)


def test_an_escaped_key_is_unescaped() -> None:
    message = jsonrpc.decode(CALL.replace(b'"name"', b'"\\u006eame"'))
    assert isinstance(message, Request)
    assert bytes(message.params["name"]) == b'"echo"'


def test_unknown_members_of_the_envelope_are_dropped() -> None:
    assert jsonrpc.decode(CALL[:-1] + b',"trace":{"id":1}, "\\"":"\\""}') == jsonrpc.decode(CALL)


@pytest.mark.parametrize(
    ("body", "code", "id"),
    [
        (b'{"id":7,"method":"m"}', -32600, b"7"),
        (b'{"id":7,"id":8,"method":"m","x":1}', -32600, None),
        (b'{"jsonrpc":"1.0","id":7,"method":"m"}', -32600, b"7"),
        (b'{"jsonrpc":2.0,"id":7,"method":"m"}', -32600, b"7"),
        (b'{"jsonrpc":"2.0","id":7,"method":5}', -32600, b"7"),
        (b'{"jsonrpc":"2.0","id":7,"method":null}', -32600, b"7"),
        (b'{"jsonrpc":"2.0","id":null,"method":"m"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":true,"method":"m"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":{},"method":"m"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":[7],"method":"m"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":7,"method":"m","params":[1]}', -32602, b"7"),
        (b'{"jsonrpc":"2.0","id":7,"method":"m","params":null}', -32602, b"7"),
        (b'{"jsonrpc":"2.0","method":"m","params":"x"}', -32602, None),
        (b'{"jsonrpc":"2.0","id":7}', -32600, b"7"),
        (b'{"jsonrpc":"2.0","id":7,"result":1,"error":{}}', -32600, b"7"),
        (b'{"jsonrpc":"2.0","result":1}', -32600, None),
        (b'{"jsonrpc":"2.0","id":null,"result":1}', -32600, None),
        (b"{}", -32600, None),
        (b"7", -32600, None),
        (b'"text"', -32600, None),
        (b"null", -32600, None),
    ],
)
def test_an_invalid_message_is_refused_with_the_id_that_could_be_read(body: bytes, code: int, id: bytes | None) -> None:
    assert refused(body) == (code, id)
    assert refused(b"\r\n " + body.replace(b":", b" : ").replace(b",", b"\t,\n") + b" ") == (code, id)


def test_sixty_four_levels_are_allowed() -> None:
    assert isinstance(jsonrpc.decode(nested(64)), Request)
    assert isinstance(jsonrpc.decode(nested(64).replace(b'"a":', b'"b":[[],[{}],"]"],"a":')), Request)


@pytest.mark.parametrize("levels", [65, 66, 300])
def test_deeper_nesting_is_refused_with_an_error_for_its_sender(levels: int) -> None:
    assert refused(nested(levels)) == (jsonrpc.INVALID_REQUEST, b"7")


@pytest.mark.parametrize("levels", [1_000, 100_000, 1_000_000])
def test_nesting_that_overflows_a_parser_is_refused(levels: int) -> None:
    code, _ = refused(nested(levels))
    assert code == jsonrpc.INVALID_REQUEST


def test_the_depth_can_be_set() -> None:
    assert isinstance(jsonrpc.decode(CALL, max_depth=3), Request)
    assert isinstance(jsonrpc.decode(CALL, max_depth=2), Malformed)
    assert isinstance(jsonrpc.decode(CALL.replace(b'{"text":"hi"}', b'"[[]"'), max_depth=2), Request)


def test_brackets_in_strings_are_not_depth() -> None:
    text = b'["' + b"[{" * 100 + b'","\\"' + b"[" * 100 + b'\\\\","' + b"]" * 100 + b'"]'
    assert isinstance(jsonrpc.decode(CALL.replace(b'"hi"', text)), Request)


def crowd(count: int) -> bytes:
    return b"".join([b'"%d":0,' % number for number in range(count)])


PLACES = {
    "message": (b'"jsonrpc"', 4),
    "params": (b'"name"', 3),
    "_meta": (b'"seen"', 1),
}
"""Where members are looked at one by one: before which member more can stand, and how many there are already."""


@pytest.mark.parametrize("place", PLACES)
def test_a_message_with_too_many_members_is_refused(place: str) -> None:
    body = CALL.replace(b'"name"', b'"_meta":{"seen":1},"name"')
    before, already = PLACES[place]
    full = body.replace(before, crowd(jsonrpc.MEMBERS_MAX - already) + before)
    assert isinstance(jsonrpc.decode(full), Request)
    message = jsonrpc.decode(body.replace(before, crowd(jsonrpc.MEMBERS_MAX - already + 1) + before))
    assert isinstance(message, Malformed)
    assert (message.code, place in message.message) == (jsonrpc.INVALID_REQUEST, True)
    assert (message.id and bytes(message.id)) == (None if place == "message" else b"7")


def test_members_that_stay_unread_may_be_any_number() -> None:
    many = crowd(50_000)
    message = jsonrpc.decode(CALL.replace(b'"text"', many + b'"text"'))
    assert isinstance(message, Request)
    assert len(bytes(message.params["arguments"])) > len(many)
    assert isinstance(jsonrpc.decode(b'{"jsonrpc":"2.0","id":7,"result":{%b"a":1}}' % many), Response)
    twice = CALL.replace(b'"text"', many + b'"text"').replace(b'"name"', b'"name":1,"name"')
    assert refused(twice) == (jsonrpc.INVALID_REQUEST, b"7")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(CALL.replace(b'"jsonrpc"', crowd(100_000) + b'"jsonrpc"'), id="message"),
        pytest.param(CALL.replace(b'"name"', crowd(100_000) + b'"name"'), id="params"),
        pytest.param(CALL.replace(b'"name"', b'"_meta":{%b"a":0},"name"' % crowd(100_000)), id="_meta"),
        pytest.param(CALL.replace(b'"name"', crowd(100_000) + b'"name"')[:-1], id="cut off"),
        pytest.param(b'{"jsonrpc":"2.0","id":7,"error":{%b"code":1}}' % crowd(100_000), id="error"),
        pytest.param(b"[%b1]" % (b"{},[]," * 100_000), id="batch"),
        pytest.param(b"[%b1]" % (b'{"a":1},' * 100_000), id="batch of objects"),
    ],
)
def test_nothing_is_made_of_members_or_elements_beyond_counting_them(body: bytes) -> None:
    tracemalloc.start()
    try:
        jsonrpc.decode(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * len(body), "an object for each of them takes ten times as much"


def test_elements_beyond_the_most_are_not_made() -> None:
    body = b"[%b1]" % (b"1," * 100_000)
    jsonrpc.elements(body, 100)  # what is made once, for all batches, is not counted
    tracemalloc.start()
    try:
        assert jsonrpc.elements(body, 100) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(body), "a list of them takes fifty times as much"


@given(st.binary(max_size=64) | st.text(max_size=64).map(lambda text: text.encode(errors="replace")))
def test_no_bytes_make_decode_raise(body: bytes) -> None:
    jsonrpc.decode(body)


@given(values)
def test_the_depth_matches_a_walk_over_the_value(value: Json) -> None:
    def walk(inner: Json) -> int:
        match inner:
            case dict():
                return 1 + max(map(walk, inner.values()), default=0)
            case list():
                return 1 + max(map(walk, inner), default=0)
            case _:
                return 0

    levels = 3 + walk(value)
    body = b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"a":[%b]}}' % json.dumps(value).encode()
    assert isinstance(jsonrpc.decode(body, max_depth=levels), Request)
    assert isinstance(jsonrpc.decode(body, max_depth=levels - 1), Malformed)


@st.composite
def objects(draw: st.DrawFn) -> str:
    """The text of an object, keys repeated and escaped at will."""
    members = draw(st.lists(st.tuples(keys, values), max_size=4))
    spaces = st.sampled_from(["", "", " ", "\r\n\t"])
    return "{" + ",".join(draw(_member(key, value, draw(spaces))) for key, value in members) + draw(spaces) + "}"


def _member(key: str, value: Json, space: str) -> st.SearchStrategy[str]:
    escaped = "".join(f"\\u{ord(mark):04x}" if ord(mark) < 0x10000 else mark for mark in key)
    spelt = st.sampled_from([json.dumps(key), json.dumps(key, ensure_ascii=False), f'"{escaped}"'])
    text = json.dumps(value, ensure_ascii=False)
    return spelt.map(lambda name: f"{space}{name}{space}:{space}{text}")


def has_repeats(pairs: list[tuple[str, Json]]) -> bool:
    return len({key for key, _ in pairs}) != len(pairs)


@given(objects())
@example('{"\\u0022\\u0022":1,"a":1,"a":2}')
@example('{"a\\"b":1}')
def test_members_are_those_that_another_parser_finds(text: str) -> None:
    decoder = json.JSONDecoder(object_pairs_hook=lambda pairs: pairs)
    pairs: list[tuple[str, Json]] = decoder.decode(text)
    members = jsonrpc.object_members(text.encode())
    if has_repeats(pairs):
        assert members is None
    elif members is None:
        assert "\\u0022" in text
    else:
        assert plain_members(members) == json.loads(text)


@pytest.mark.parametrize("text", [b"[]", b"1", b'"{}"', b"{", b"", b'{"\xff":1}', b'{"a":' + b"[" * 5000])
def test_values_that_are_no_objects_have_no_members(text: bytes) -> None:
    assert jsonrpc.object_members(Raw(text)) is None


@settings(max_examples=300)
@given(st.data())
def test_accepted_messages_are_read_alike_by_another_parser(data: st.DataObject) -> None:
    parts = {
        "jsonrpc": st.just('"2.0"'),
        "method": st.just('"m"') | texts.map(json.dumps),
        "params": objects(),
    }
    members = ["jsonrpc", "method", *data.draw(st.permutations(["id", "params"]))]
    members += data.draw(st.lists(st.sampled_from(["id", "method", "params", "Method", "x"]), max_size=1))
    number = (st.integers() | st.text(max_size=3)).map(json.dumps)
    fields = [(name, data.draw(parts.get(name, number))) for name in members]
    body = "{" + ",".join(f'"{name}": {text}' for name, text in fields) + "}"
    message = jsonrpc.decode(body.encode())
    if isinstance(message, Request):
        seen = json.loads(body)
        assert (plain(message.id), message.method) == (seen["id"], seen["method"])
        assert plain_members(message.params) == seen["params"]
        assert len({name.lower() for name in members}) == len(members)
    else:
        assert isinstance(message, Malformed)


@given(st.integers(), texts, st.dictionaries(texts, values, max_size=4))
def test_a_request_reads_back_as_it_was_rendered(id: int, method: str, params: dict[str, Json]) -> None:
    rendered = jsonrpc.render({key: json.dumps(value).encode() for key, value in params.items()})
    body = jsonrpc.request(id, method, rendered)
    assert json.loads(body) == {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def test_rendered_members_keep_their_order_and_text() -> None:
    assert jsonrpc.render({}) == b"{}"
    assert jsonrpc.render({"b": b"1.0", 'a"': Raw(b"[ ]")}) == b'{"b":1.0,"a\\"":[ ]}'


def test_a_newline_in_params_stays_inside_one_http_body() -> None:
    smuggled = b'{"text":1\n}\r\n\r\n{"jsonrpc":"2.0","id":8,"method":"rm"}'
    assert refused(CALL.replace(b'{"text":"hi"}', smuggled)) == (jsonrpc.PARSE_ERROR, None)
    message = jsonrpc.decode(CALL.replace(b'"hi"', b'\r\n"hi"\n'))
    assert isinstance(message, Request)
    body = jsonrpc.request(1, message.method, jsonrpc.render(message.params))
    assert json.loads(body)["params"] == {"name": "echo", "arguments": {"text": "hi"}}


def test_compacting_keeps_every_scalar_and_every_key() -> None:
    text = b'{"a":1.0,\r\n"a": 1e5,"b":\n[12345678901234567890, -0.0,"\\u006e\\/ \xc3\xa9\\n"]\r}'
    assert jsonrpc.compact(Raw(text)) == (b'{"a":1.0,"a":1e5,"b":[12345678901234567890,-0.0,"\\u006e\\/ \xc3\xa9\\n"]}')


def test_a_text_on_one_line_is_left_as_it_is() -> None:
    assert jsonrpc.compact(b'{"a": 1 }') == b'{"a": 1 }'


def test_invalid_json_is_never_compacted() -> None:
    with pytest.raises(msgspec.DecodeError):
        jsonrpc.compact(b'{"a":"raw\nnewline"}')


@pytest.mark.parametrize("body", [b"{}", b' {"a": [1.0]} ', '{"ä":"\\u00e4"}'.encode(), b'{"a":1,"A":2}'])
def test_an_object_that_is_no_message_keeps_its_text(body: bytes) -> None:
    read = jsonrpc.decode_object(body)
    assert isinstance(read, Raw)
    assert bytes(read) == body.strip()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", jsonrpc.PARSE_ERROR),
        (b"{} {}", jsonrpc.PARSE_ERROR),
        (b'{"a":"\xff"}', jsonrpc.PARSE_ERROR),
        (b"[]", jsonrpc.INVALID_REQUEST),
        (b"7", jsonrpc.INVALID_REQUEST),
        (b'{"a":1,"a":1}', jsonrpc.INVALID_REQUEST),
        (b'{"a":' * 4 + b"1" + b"}" * 4, jsonrpc.INVALID_REQUEST),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, jsonrpc.INVALID_REQUEST),
    ],
)
def test_an_invalid_object_is_refused(body: bytes, code: int) -> None:
    read = jsonrpc.decode_object(body, max_depth=3)
    assert isinstance(read, Malformed)
    assert read.code == code


@pytest.mark.parametrize(
    ("members", "kind"),
    [
        (b'"result":7,"error":null', Response),
        (b'"result":null,"error":{"code":5,"message":"no"}', ErrorReply),
        (b'"result":null', Response),
        (b'"result":7', Response),
        (b'"result":7,"error":{"code":5,"message":"no"}', Malformed),
        (b'"method":"m","result":7,"error":null', Malformed),
    ],
)
def test_a_reply_may_have_a_member_that_is_null_beside_the_other(members: bytes, kind: type) -> None:
    assert isinstance(jsonrpc.decode_reply(b'{"jsonrpc":"2.0","id":1,%b}' % members), kind)


def test_a_reply_that_is_no_json_is_malformed() -> None:
    assert isinstance(jsonrpc.decode_reply(b"[null"), Malformed)


# -- dense bodies --------------------------------------------------------------------------------------------------

SPARSE = {
    "text": b'"' + b"a" * 300_000 + b'"',
    "a table as text": b'"' + b"1,2,[3],{4}" * 30_000 + b'"',
    "escaped marks": b'"' + b'\\",' * 120_000 + b'"',
    "escaped backslashes": b'["' + b"\\\\" * 120_000 + b'",",,,,,"]',
    "digits in text": b'"' + b"9" * 300_000 + b'"',
    "many values, not too many": b"[" + b"1   ," * 99_000 + b"1]",
    "many strings with commas": b"[" + b'",,,",' * 90_000 + b"1]",
}
DENSE = {
    "numbers": b"[" + b"1," * 100_001 + b"1]",
    "objects": b"[" + b'{"b":1},' * 60_000 + b"1]",
    "members": b"{" + b'"a":"b",' * 110_000 + b'"a":1}',
    "strings with commas": b"[" + b'",",' * 250_000 + b"1]",
    "after a string that ends in a backslash": b'["\\\\",' + b"1," * 100_001 + b"1]",
    "long numbers": b"[" + b"9" * 4000 + b"," + b"1," * 99_000 + b"1]",
}


@pytest.mark.parametrize("label", SPARSE)
def test_long_text_is_one_value(label: str) -> None:
    body = b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"x":%b}}' % SPARSE[label]
    assert isinstance(jsonrpc.decode(body), Request)


@pytest.mark.parametrize("label", DENSE)
def test_a_body_of_very_many_values_is_refused_with_its_id(label: str) -> None:
    body = b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"x":%b}}' % DENSE[label]
    refused = jsonrpc.decode(body)
    assert isinstance(refused, Malformed)
    assert refused.code == jsonrpc.INVALID_REQUEST
    assert refused.id is not None
    assert bytes(refused.id) == b"7"
    assert "100000 values" in refused.message
    answer = b'{"jsonrpc":"2.0","id":7,"result":{"x":%b}}' % DENSE[label]
    assert isinstance(jsonrpc.decode(answer, max_values=None), Response)


# Long bodies are read with fewer passes; they must be judged as short ones are.

BIG = b'{"content":[{"type":"text","text":"%b"}]}' % (b"x" * 70_000)
SMALL = b'{"content":[]}'
ANSWERS = {
    "the id first": b'{"jsonrpc":"2.0","id":1,"result":%b}',
    "the id last": b'{"result":%b,"jsonrpc":"2.0","id":1}',
    "blanks": b' { "jsonrpc" : "2.0" , "id" : "a" , "result" : %b } \n',
    "another order": b'{"id":1,"jsonrpc":"2.0","result":%b}',
    "the id twice": b'{"jsonrpc":"2.0","id":1,"result":%b,"jsonrpc":"2.0","id":2}',
    "the result twice": b'{"jsonrpc":"2.0","id":1,"result":%b,"result":{}}',
    "the result twice, the first short": b'{"jsonrpc":"2.0","id":1,"result":{},"result":%b}',
    "the result twice, before the id": b'{"result":1,"result":%b,"jsonrpc":"2.0","id":1}',
    "another member": b'{"jsonrpc":"2.0","id":1,"result":%b,"x":1}',
    "another spelling": b'{"jsonrpc":"2.0","id":1,"result":%b,"Result":1}',
    "no id": b'{"jsonrpc":"2.0","result":%b}',
    "the tail inside of a text": b'{"result":%b,"x":",\\"jsonrpc\\":\\"2.0\\",\\"id\\":1}","jsonrpc":"2.0","id":1}',
    "an error too": b'{"jsonrpc":"2.0","id":1,"result":%b,"error":{"code":1,"message":""}}',
    "a request": b'{"jsonrpc":"2.0","id":1,"method":"m","params":%b}',
    "a request with a member twice": b'{"jsonrpc":"2.0","id":1,"method":"m","params":%b,"params":{}}',
    "not UTF-8": b'{"jsonrpc":"2.0","id":1,"result":%b,"x":"\xff"}',
    "cut": b'{"jsonrpc":"2.0","id":1,"result":%b',
}


def judged(body: bytes) -> object:
    message = jsonrpc.decode(body, max_values=None)
    match message:
        case Response(id, _):
            return "result", bytes(id)
        case Request(id, method, params):
            return "request", bytes(id), method, list(params)
        case _:
            return message if not isinstance(message, Malformed) else (message.code, message.message)


@pytest.mark.parametrize("name", ANSWERS)
def test_long_bodies_are_judged_as_short_ones_are(name: str) -> None:
    assert judged(ANSWERS[name] % BIG) == judged(ANSWERS[name] % SMALL)


@pytest.mark.parametrize(
    "inner", ["é" * 200_000, "中😀" * 100_000, "x" * 262_143 + "é" + "y" * 10, "x" * 300_000 + "é"]
)
def test_the_encoding_of_long_bodies_is_checked_in_pieces(inner: str) -> None:
    text = inner.encode()
    jsonrpc.check_encoding(text)
    for broken in (text + b"\xc3", text[:-1] + b"\xff", b"\x80" + text, text + b"\xed\xa0\x80"):
        with pytest.raises(UnicodeDecodeError):
            jsonrpc.check_encoding(broken)


@pytest.mark.parametrize(
    ("text", "is_unique"),
    [
        (b'{"a":"%b","b":1}', True),
        (b'{"a": "%b", "b": 1, "c": 2, "d": 3}', True),
        (b'{"a":"%b","a":1}', False),
        (b'{"a":1,"a":"%b"}', False),
        (b'{"\\u00e9":"%b","":0}', True),
        (b'{"":0,"":"%b"}', False),
        (b'{"a":"%b"  , "b":1,"b":0}', False),
    ],
)
def test_members_of_json_members_are_held_apart(text: bytes, *, is_unique: bool) -> None:
    assert (jsonrpc.object_members(text % (b"x" * 70_000)) is not None) == is_unique
    assert (jsonrpc.object_members(text % b"x") is not None) == is_unique
    assert (jsonrpc.object_members(text % b"x") is not None) == is_unique


@pytest.mark.parametrize(("levels", "is_deep"), [(64, False), (65, True)])
@pytest.mark.parametrize("pair", [b"[]", b"{}"])
def test_the_depth_of_long_bodies_is_bounded(pair: bytes, levels: int, *, is_deep: bool) -> None:
    opening = b"[" if pair == b"[]" else b'{"a":'
    inner = opening * (levels - 2) + b"1" + pair[1:] * (levels - 2)
    body = b'{"jsonrpc":"2.0","id":1,"result":{"b":%b,"t":"%b"}}' % (inner, b"x" * 70_000)
    assert isinstance(jsonrpc.decode(body, max_values=None), Malformed) == is_deep


@pytest.mark.parametrize(("digits", "is_dense"), [(399, False), (400, True), (440, True)])
@pytest.mark.parametrize("before", range(0, 41, 8))
def test_long_numbers_are_found_wherever_they_are(before: int, digits: int, *, is_dense: bool) -> None:
    text = b'["%b",%b,"%b"]' % (b"x" * before, b"7" * digits, b"x" * 300_000)
    assert jsonrpc.is_dense(text, 100_000) == is_dense


@pytest.mark.parametrize("extra", ["", '"x":1,', '"id":7,', '"params":{},', '"method":"b",'])
@pytest.mark.parametrize("space", ["", " "])
def test_a_long_message_is_read_in_passes_with_the_same_result(extra: str, space: str) -> None:
    text = "é,[{" * 300_000
    body = f'{{{extra}"jsonrpc":{space}"2.0","id":1,"method":"a","params":{{"name":"n","arguments":{{"t":"{text}"}}}}}}'
    passes, count, read = jsonrpc.decode_passes(body.encode()), 0, None
    while read is None:
        try:
            next(passes)
            count += 1
        except StopIteration as done:
            read = done.value
    assert count > 3
    assert read == jsonrpc.decode(body.encode())
    is_read = extra in ("", '"x":1,')
    assert isinstance(read, jsonrpc.Request if is_read else jsonrpc.Malformed), read


spaces = st.sampled_from(["", " ", "  "])
odd_texts = st.sampled_from(['"a"', r'"\\"', r'"\""', '"[[{"', '"]}"', r'"\u0022"', '"é"', '""'])


def nest(value: str, opening: str, levels: int, space: str) -> str:
    """A value inside arrays or objects."""
    closing = "]" if opening == "[" else "}"
    return opening * levels + space + value + closing * levels


nests = st.builds(
    nest, odd_texts | st.just("1"), st.sampled_from(["[", '{"a":', '{"b" : ']), st.integers(0, 66), spaces
)
odd_values = st.recursive(
    nests,
    lambda inner: (
        st.builds(lambda items, space: f"[{f',{space}'.join(items)}]", st.lists(inner, max_size=4), spaces)
        | st.builds(
            lambda members, space: "{" + f",{space}".join(f"{key}:{space}{value}" for key, value in members) + "}",
            st.lists(st.tuples(odd_texts, inner), max_size=4),
            spaces,
        )
    ),
    max_leaves=6,
)


@settings(max_examples=400)
@given(odd_values, odd_texts, spaces, st.sampled_from([5_000, 70_000, 210_000]), st.sampled_from(["request", "answer"]))
def test_a_long_body_is_judged_as_the_same_body_with_a_short_text(
    value: str, key: str, space: str, size: int, kind: str
) -> None:
    is_answer = kind == "answer"
    inner = f'{{"t":{space}"PAD",{space}{key}:{space}{value}}}'
    if is_answer:
        body = f'{{"jsonrpc":"2.0",{space}"id":1,"result":{inner}}}'
    else:
        body = f'{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"name":"n",{space}"arguments":{inner}}}}}'
    read: list[object] = []
    for pad in ("", "[x]" * (size // 3)):
        message = jsonrpc.decode(body.replace("PAD", pad).encode(), max_values=None if is_answer else 100_000)
        if isinstance(message, Request):
            read.append(
                (plain(message.id), message.method, bytes(message.params["arguments"]).replace(pad.encode(), b""))
            )
        elif isinstance(message, Response):
            read.append((plain(message.id), bytes(message.result).replace(pad.encode(), b"")))
        else:
            read.append(message)
    assert read[0] == read[1]


@pytest.mark.parametrize("size", [5, 5_000, 70_000])
def test_a_member_that_a_later_one_hides_counts_for_the_depth(size: int) -> None:
    deep = "[" * 70 + "]" * 70
    inner = f'{{"t":"{"x" * size}","a":{deep},"a":1}}'
    body = f'{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"name":"n","arguments":{inner}}}}}'
    assert refused(body.encode()) == (jsonrpc.INVALID_REQUEST, b"1")
