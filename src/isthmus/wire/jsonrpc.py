"""JSON-RPC 2.0 envelopes around payloads that stay raw text.

`decode` is the one place where a peer's bytes are checked: UTF-8, JSON syntax, depth, too many or repeated members.
Its result can be forwarded without parsing it again. This module knows no methods and no framing. The MCP dialects and
every frontend and link that speaks JSON-RPC use it.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Collection, Generator, Iterator, KeysView, Mapping
from functools import cache
from itertools import accumulate
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, defstruct

from isthmus.model.json_members import KNOWN, known_members, with_members

Payload: TypeAlias = bytes | Raw
"""The text of exactly one JSON value: a part of a decoded body, or rendered by us."""

MAX_DEPTH = 64
"""Far above any real schema or argument, far below what overflows a recursive parser behind us."""

MEMBERS_MAX = 1_000
"""Members of a message, of its `params` and of their `_meta`: they are read one by one, and a megabyte has room for a
hundred thousand. Raw values, such as arguments, may have any number."""

SHORTEST_CROWD_BYTES = MEMBERS_MAX * len('"":0')
"""A shorter text cannot have more members than that."""

LONG_BYTES = 64 * 1024
"""For longer texts each pass is worth avoiding: `count` takes 350 µs per megabyte, a copy 80 to 500 µs."""

KNOWN_BYTES = 16 * 1024
"""Objects above this know their members: several readers ask for them, and each would parse the text again."""

VALUES_MAX = 100_000
"""Values in a caller's message. Decoding a value takes fifty times as long as forwarding its bytes, and no message may
block the event loop for long. A text or image of megabytes is one value."""

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

MEMBERS = frozenset({"jsonrpc", "id", "method", "params", "result", "error"})
"""The members of a message; others are dropped, other spellings of these are refused."""


class Request(Struct, frozen=True):
    """A request; `id` is the JSON text of a string or number, to be echoed verbatim."""

    id: Raw
    method: str
    params: dict[str, Raw]


class Notification(Struct, frozen=True):
    """A message without a response."""

    method: str
    params: dict[str, Raw]


class Response(Struct, frozen=True):
    """A successful response."""

    id: Raw
    result: Raw


class ErrorReply(Struct, frozen=True):
    """An error response; `id` is None if the peer could not read the request's id."""

    id: Raw | None
    code: int
    message: str
    data: Raw | None


class Malformed(Struct, frozen=True):
    """A body that is not a message, with the error to respond; `id` if it could be read reliably."""

    code: int
    message: str
    id: Raw | None


class Batch(Struct, frozen=True):
    """A JSON array. Its elements were not read; there may be millions."""


Message: TypeAlias = Request | Notification | Response | ErrorReply | Malformed | Batch

_ANSWERS = (Response, ErrorReply)
_ABSENT = Raw()
_ID_STARTS = frozenset(bytes([start]) for start in b'"-0123456789')


class _Envelope(Struct):
    """All members of any kind of message, with raw payloads."""

    jsonrpc: str
    id: Raw = _ABSENT
    method: str | UnsetType = UNSET
    params: dict[str, Raw] | UnsetType = UNSET
    result: Raw = _ABSENT
    error: Raw = _ABSENT


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_value = msgspec.json.Decoder(Raw).decode
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_any = msgspec.json.Decoder().decode
_STRING = msgspec.json.Decoder(str)
_CODE = msgspec.json.Decoder(Annotated[int, Meta(ge=-(2**53), le=2**53)])
_encode = msgspec.json.Encoder().encode

_ANSWER = re.compile(rb'\s*\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*([0-9]{1,18})\s*,\s*"(?:result|error)"\s*:')
"""The start of a response, as most peers write it."""

_T = TypeVar("_T")
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError)


def decode(body: bytes, *, max_depth: int = MAX_DEPTH, max_values: int | None = VALUES_MAX) -> Message:
    """Read one message; never raises.

    `max_values` is for callers' messages, parts of which are decoded. Responses of servers stay raw.
    """
    if len(body) > SHORTEST_CROWD_BYTES:
        return finish(decode_passes(body, max_depth=max_depth, max_values=max_values))
    try:
        # msgspec does not look inside strings that stay raw, so their encoding is checked here.
        _ = body.isascii() or body.decode()
        envelope = _decode_envelope(body)
    except (*_NOT_JSON, RecursionError):
        return _decode_carefully(body, max_depth)
    if _holds_more(envelope, body):
        return _decode_carefully(body, max_depth)
    # Most bodies have too few brackets to be too deep.
    if body.count(b"[") + body.count(b"{") > max_depth and finish(_depth_passes(body)) > max_depth:
        return _too_deep(max_depth, envelope.id)
    return _message(envelope)


# Long texts are read in passes, each of which takes well under a millisecond a megabyte. What reads a long text is a
# generator that yields between passes, so that the event loop can serve others meanwhile.

Passes: TypeAlias = Generator[None, None, _T]

PASS_BYTES = 256 * 1024
"""What one pass reads, where a pass can be cut."""


def finish(passes: Passes[_T]) -> _T:
    """Do all passes at once."""
    while True:
        try:
            next(passes)
        except StopIteration as done:
            value: _T = done.value
            return value


def decode_long(body: bytes | memoryview, *, max_depth: int, max_values: int | None = VALUES_MAX) -> Message:
    """The same for a long message, which may be a view of what was collected."""
    return finish(decode_passes(body, max_depth=max_depth, max_values=max_values))


def decode_passes(
    body: bytes | memoryview, *, max_depth: int = MAX_DEPTH, max_values: int | None = VALUES_MAX
) -> Passes[Message]:
    """The passes of `decode` over a long message."""
    body = bytes(body)
    around = None if max_values is not None else _around_result(body)
    usual = _plain_request(body, max_depth, max_values) if around is None else _plain_answer(body, around, max_depth)
    if (message := (yield from usual)) is not None:
        return message
    if (refused := _refused_early(body, max_depth)) is not None:
        return refused
    yield
    if max_values is not None and (yield from _dense_passes(body, max_values)):
        return _too_dense(body, max_values)
    yield
    try:
        yield from _encoding_passes(body)
        envelope = _decode_envelope(body)
    except (*_NOT_JSON, RecursionError):
        return _decode_carefully(body, max_depth)
    yield
    if not _fills(envelope, body) and _holds_more(envelope, body):
        yield
        return _decode_carefully(body, max_depth)
    is_deeper = yield from _is_deeper_long(body, max_depth)
    if is_deeper:
        return _too_deep(max_depth, envelope.id)
    yield
    if envelope.params is not UNSET and "arguments" in envelope.params:
        envelope.params["arguments"] = ready_to_forward(envelope.params["arguments"])
    elif envelope.result is not _ABSENT:
        envelope.result = ready_to_forward(envelope.result)
    return _message(envelope)


def ready_to_forward(raw: Raw) -> Raw:
    """A long value without line breaks; an object knows its members, if they are unique and not too many."""
    size = len(memoryview(raw))
    if size <= KNOWN_BYTES or bytes(memoryview(raw)[:1]) != b"{":
        return raw
    if size > PASS_BYTES and (b"\n" in (text := bytes(raw)) or b"\r" in text):
        raw = Raw(msgspec.json.format(text, indent=-1))
        size = len(memoryview(raw))
    members = {str(key): value for key, value in (_first_members(raw) or {}).items()}
    return with_members(raw, members) if members and _fill(members, size) else raw


class _Key(str):
    __slots__ = ()


class _PlainRequest(Struct):
    """A request or notification; other members are ignored."""

    jsonrpc: str
    method: str
    params: dict[_Key, Raw]
    id: Raw = _ABSENT


class _PlainAnswer(Struct):
    """A response with a result; other members are ignored."""

    jsonrpc: str
    id: Raw
    result: Raw


class _ObjectAnswer(Struct):
    """A response whose result is an object."""

    jsonrpc: str
    id: Raw
    result: dict[_Key, Raw]


_decode_plain_answer = msgspec.json.Decoder(_PlainAnswer).decode


# The usual form. Most of a long message is strings, and a decoder skips those faster than any search. So a message is
# taken apart with few decodings, and only objects and arrays that are left are searched for depth and number of values.


def _plain_request(body: bytes, max_depth: int, max_values: int | None) -> Passes[Message | None]:
    """Read a long request or notification of the usual form; None if it needs the careful way."""
    try:
        yield from _encoding_passes(body)
        read = _few_members(_PlainRequest).decode(body)
    except (*_NOT_JSON, RecursionError):
        return None
    params = {str(key): value for key, value in read.params.items()}
    envelope = _Envelope(read.jsonrpc, read.id, read.method, params)
    yield
    if (not _fills(envelope, body) and _holds_more(envelope, body)) or is_crowded(params.get("_meta", _ABSENT)):
        return None
    if max_values is not None and len(body) <= 2 * max_values:
        max_values = None
    if "arguments" in params:
        params["arguments"] = ready_to_forward(params["arguments"])
        if len(body) > PASS_BYTES:
            yield
    return None if (yield from _may_exceed(body, params.values(), 2, max_depth, max_values)) else _message(envelope)


def _plain_answer(body: bytes, around: tuple[int, int], max_depth: int) -> Passes[Message | None]:
    """Read a long response of the usual form; None if it needs the careful way."""
    begin, end = around
    try:
        yield from _encoding_passes(body)
        try:
            read: _ObjectAnswer | _PlainAnswer = _few_members(_ObjectAnswer).decode(body)
        except msgspec.ValidationError:  # the result has another type, or too many members
            yield
            read = _decode_plain_answer(body)
    except (*_NOT_JSON, RecursionError):
        return None
    if read.jsonrpc != "2.0" or not _is_id(read.id):
        return None
    # A member that the decoder dropped would stand between head and tail, too, and leave room there.
    if isinstance(read, _PlainAnswer):
        if len(memoryview(read.result)) != end - begin:
            return None
        values: Collection[Raw] = (read.result,)
        answer = Response(read.id, read.result)
    else:
        members = {str(key): value for key, value in read.result.items()}
        if not _fill(members, end - begin):
            return None
        text = memoryview(body)[begin:end]
        values = members.values()
        answer = Response(read.id, with_members(text, members) if len(text) > KNOWN_BYTES else Raw(text))
    yield
    level = 1 if isinstance(read, _PlainAnswer) else 2
    return None if (yield from _may_exceed(body, values, level, max_depth, None)) else answer


_TAKEN_APART_MOST = 64
"""Objects and arrays of a message that are taken apart; each may have a thousand members."""
_LEVELS_MOST = 6


def _may_exceed(
    body: bytes, values: Collection[Raw], level: int, max_depth: int, max_values: int | None
) -> Passes[bool]:
    """Whether values inside so many levels of a body may be nested too deep, or be too many. False is proven."""
    few = max_depth // 2
    if max_values is None and not any(_has_over(body, mark, few) for mark in (b"[", b"{")):
        return False
    left = _TAKEN_APART_MOST
    count = 0
    for depth in range(level, level + _LEVELS_MOST):
        texts: list[Raw] = []
        inside: list[Raw] = []
        count += len(values)
        for value in values:
            start = memoryview(value)[0]
            if start not in _OPENING:
                if max_values is not None and start != _QUOTE and len(memoryview(value)) >= DIGITS_MAX:
                    return True
            elif len(memoryview(value)) <= SHORTEST_CROWD_BYTES or not left or depth == level + _LEVELS_MOST - 1:
                texts.append(value)
            else:
                left -= 1
                is_long = len(memoryview(value)) > PASS_BYTES and known_members(value) is None
                if (found := _values_inside(value)) is None:
                    texts.append(value)
                else:
                    inside.extend(found)
                if is_long:
                    yield
        if texts:
            text = b"".join(texts)
            if max_values is not None:
                count += yield from _separators(text, max_values)
                if (yield from _has_long_number(text)):
                    return True
            if (yield from _is_deeper_long(text, max_depth - depth)):
                return True
            if len(text) > PASS_BYTES:
                yield
        if max_values is not None and count > max_values:
            return True
        values = inside
    return False


_OPENING = frozenset(b"{[")
_QUOTE = ord('"')


def _values_inside(value: Raw) -> Collection[Raw] | None:
    """The values directly inside an object or array; None if they are many, or if a member may be missing."""
    if memoryview(value)[0] == ord("["):
        try:
            found = _elements_decoder(_TAKEN_APART_MOST).decode(value)
            return [element for element in msgspec.structs.astuple(found) if element]
        except (*_NOT_JSON, RecursionError):
            return None
    if (known := known_members(value)) is not None:
        return known.values()
    found_members = _first_members(value)
    if found_members is None:
        return None
    members = {str(key): each for key, each in found_members.items()}
    is_whole = _fill(members, len(memoryview(value))) or _are_unique(members, bytes(value))
    return members.values() if is_whole else None


def decode_reply(body: bytes, *, max_depth: int = MAX_DEPTH) -> Message:
    """Read a response of a plain JSON-RPC server: many write `"error": null` beside a result, or the reverse."""
    if len(body) <= LONG_BYTES:
        message = decode(body, max_depth=max_depth, max_values=None)
        return message if isinstance(message, _ANSWERS) else _without_idle_member(body, message, max_depth)
    return finish(reply_passes(body, max_depth=max_depth))


def reply_passes(body: bytes | memoryview, *, max_depth: int = MAX_DEPTH) -> Passes[Message]:
    """The passes of `decode_reply`."""
    body = bytes(body)
    if len(body) <= LONG_BYTES:
        return decode_reply(body, max_depth=max_depth)
    message = yield from decode_passes(body, max_depth=max_depth, max_values=None)
    return message if isinstance(message, _ANSWERS) else _without_idle_member(body, message, max_depth)


def _without_idle_member(body: bytes, message: Message, max_depth: int) -> Message:
    """Read a response again without the one of `error` and `result` that is null beside the other."""
    members = {} if is_crowded(body) else object_members(body) or {}
    idle = next((name for name in ("error", "result") if bytes(members.get(name, b"")) == b"null"), None)
    if idle is None or len(members.keys() & {"error", "result"}) != 2:
        return message
    return decode(
        render({name: value for name, value in members.items() if name != idle}), max_depth=max_depth, max_values=None
    )


def unreadable(why: str) -> Malformed:
    """The result for a message that could not be read, through no fault of its sender."""
    return Malformed(INTERNAL_ERROR, f"the message could not be read: {why}", None)


def answer_start(body: bytes | memoryview) -> Raw | None:
    """The request id at the start or the end of a response as most peers write it; it may turn out to be malformed."""
    if (begins := _ANSWER.match(body)) is not None:
        return Raw(begins[1])
    head = _PLAIN_HEAD.match(body)
    tail = None if head is None or head[1] is not None else _PLAIN_TAIL.search(body, max(0, len(body) - _TAIL_BYTES))
    return None if tail is None or tail[2] is None else Raw(tail[2])


def answered_in(body: bytes) -> Raw | None:
    """The request id in a response that could not be decoded, because it nests too deep, say; None if unreadable."""
    try:
        members = _decode_members(body)
    except _NOT_JSON:
        return None
    except RecursionError:
        begins = _ANSWER.match(body)
        return None if begins is None else Raw(begins[1])
    id = members.get("id", _ABSENT)
    is_answer = "method" not in members and not members.keys().isdisjoint({"result", "error"})
    return id if is_answer and _is_id(id) else None


def decode_object(body: bytes, *, max_depth: int = MAX_DEPTH, max_values: int | None = VALUES_MAX) -> Raw | Malformed:
    """Read a body that is one JSON object but not a message, with the checks of `decode`."""
    return finish(object_passes(body, max_depth=max_depth, max_values=max_values))


def object_passes(
    body: bytes, *, max_depth: int = MAX_DEPTH, max_values: int | None = VALUES_MAX
) -> Passes[Raw | Malformed]:
    """The passes of `decode_object`."""
    if max_values is not None and (yield from _dense_passes(body, max_values)):
        return _too_dense(b"", max_values)
    try:
        yield from _encoding_passes(body)
        members = _members_or_none(body)
        if members is None:
            return _invalid(_NO_OBJECT, _ABSENT)
    except _NOT_JSON:
        return Malformed(PARSE_ERROR, "the body is not one JSON value in UTF-8", None)
    except RecursionError:
        return _too_deep(max_depth, _ABSENT)
    yield
    text = memoryview(body)[len(body) - len(body.lstrip()) : len(body.rstrip())]
    if not _fill(members, len(text)) and not _are_unique(members, bytes(text)):
        return _invalid(_NO_OBJECT, _ABSENT)
    yield
    if (yield from _is_deeper_long(body, max_depth)):
        return _too_deep(max_depth, _ABSENT)
    return with_members(text, members) if len(text) > LONG_BYTES and len(members) <= MEMBERS_MAX else Raw(text)


def _members_or_none(body: bytes) -> dict[str, Raw] | None:
    """The members of an object; None for other JSON."""
    try:
        return _decode_members(body)
    except msgspec.ValidationError:  # raised before the rest was read
        _decode_value(body)
        return None


_NO_OBJECT = "the body must be an object that has no member twice"


def elements(body: bytes, most: int) -> list[bytes] | None:
    """The elements of a `Batch` body, unchecked; None if there are more than `most`."""
    try:
        found = _elements_decoder(most).decode(body)
    except msgspec.ValidationError:
        return None
    return [bytes(element) for element in msgspec.structs.astuple(found) if element]


def only_members(raw: Payload, *names: str) -> Payload:
    """The same object without its other members, if it knows them; otherwise unchanged."""
    members = known_members(raw) if KNOWN else None
    return raw if members is None else render({name: members[name] for name in names if name in members})


def object_members(raw: Payload) -> dict[str, Raw] | None:
    r"""Split an object of a decoded body one level deep; None if it is no object or has a key twice.

    An object with a quotation mark inside a key may be refused too, when a mark somewhere is spelt `\u0022`:
    telling them apart would cost too much. UTF-8 is not checked again.
    """
    if KNOWN and (known := known_members(raw)) is not None:
        return dict(known)
    try:
        members = _decode_members(raw)
    except (*_NOT_JSON, RecursionError):
        return None
    size = len(memoryview(raw))
    if size > LONG_BYTES and _fill(members, size):  # counting quotes would take longer
        return members
    return members if _are_unique(members, bytes(raw)) else None


def repeats_a_member(raw: Payload) -> bool:
    """Whether an object anywhere in a value of a decoded body has a key twice."""
    text = bytes(raw)
    if b"\\u0022" not in text:
        try:
            # What a decoder drops leaves its quotation marks behind.
            return _encode(_decode_any(text)).count(b'"') != text.count(b'"')
        except (*_NOT_JSON, RecursionError):
            pass  # a number that the decoder cannot hold
    try:
        json.loads(text, object_pairs_hook=_unrepeated)
    except _RepeatedMember:
        return True
    except (ValueError, RecursionError):
        return False  # other checks report invalid JSON
    return False


class _RepeatedMember(Exception):
    pass


def _unrepeated(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _RepeatedMember
    return members


def is_crowded(raw: Payload) -> bool:
    """Whether an object has too many members to read one by one; reading stops at the limit."""
    if known_members(raw) is not None:
        return False
    text = bytes(raw)
    return _has_over(text, b":", MEMBERS_MAX) and _first_members(text) is None


def request(id: int, method: str, params: Payload) -> bytes:
    """Render a request of ours; ids towards peers are always our own integers."""
    return b"".join((b'{"jsonrpc":"2.0","id":%d,"method":' % id, _encode(method), b',"params":', params, b"}"))


def request_as(id: bytes, method: str, params: Payload) -> bytes:
    """Render a request under an id that a caller chose."""
    return b"".join((b'{"jsonrpc":"2.0","id":', id, b',"method":', _encode(method), b',"params":', params, b"}"))


def same_id(answered: Payload, sent: bytes) -> bool:
    """Whether an answer has the id of a request; a text may be spelt with other escapes."""
    text = bytes(answered)
    if text == sent or text[:1] != b'"' or sent[:1] != b'"':
        return text == sent
    return bool(msgspec.json.decode(text) == msgspec.json.decode(sent))


def notification(method: str, params: Payload | None = None) -> bytes:
    """Render a notification, without `params` if they are empty."""
    if params is None:
        return b'{"jsonrpc":"2.0","method":%b}' % _encode(method)
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (_encode(method), bytes(params))


def result(id: Payload, result: Payload) -> bytes:
    """Render the answer to the request whose id text was `id`."""
    # Joined, here and above: `%` grows its buffer step by step, which costs 600 µs a megabyte instead of 25.
    return b"".join((b'{"jsonrpc":"2.0","id":', id, b',"result":', result, b"}"))


Text: TypeAlias = bytes | tuple[bytes | memoryview, ...]
"""A text in one piece, or a long one in parts that nobody has joined: each copy of megabytes takes a millisecond."""


def joined(text: Text) -> bytes:
    """A text in one piece."""
    return text if isinstance(text, bytes) else b"".join(text)


def text_size(text: Text) -> int:
    """The length of a text."""
    return len(text) if isinstance(text, bytes) else sum(map(len, text))


def result_of_parts(id: Payload, *parts: Payload | memoryview) -> Text:
    """The same with a result in parts, which are not copied if they are long."""
    pieces = (b'{"jsonrpc":"2.0","id":', id, b',"result":', *parts, b"}")
    if len(memoryview(parts[-1])) <= LONG_BYTES:
        return b"".join(pieces)
    return tuple(piece if isinstance(piece, bytes) else memoryview(piece) for piece in pieces)


def error(id: Payload | None, code: int, message: str, data: Payload | None = None) -> bytes:
    """Render a failure; without an id it is `null`, as the specification wants for unreadable requests."""
    tail = b"" if data is None else b',"data":%b' % bytes(data)
    head = b"null" if id is None else bytes(id)
    fault = b'{"code":%d,"message":%b%b}' % (code, _encode(message), tail)
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (head, fault)


def render(members: Mapping[str, Payload]) -> bytes:
    """Join members into one object, in their order."""
    return b"".join((b"{", b",".join([b"".join((_encode(key), b":", value)) for key, value in members.items()]), b"}"))


def compact(payload: Payload) -> bytes:
    """The same JSON without raw CR or LF, so that it can stand on one line; scalars keep their exact text.

    Raises:
        msgspec.DecodeError: the payload holds a line break and is not JSON, so no safe form of it exists.
    """
    text = bytes(payload)
    if b"\n" in text or b"\r" in text:
        # Strings cannot contain line breaks, so blanks can replace them. Formatting takes five times as long.
        return text.translate(_BLANKS) if len(text) > LONG_BYTES else msgspec.json.format(text, indent=-1)
    return text


_BLANKS = bytes.maketrans(b"\r\n", b"  ")


# Duplicates. JSON parsers disagree on which of two equal keys counts, so a body with both could be authorized
# as one call and executed as another. Finding them needs no second parser: every member that a decoder drops
# leaves at least the two quotation marks of its key behind, so equal counts prove that nothing was dropped.


def _holds_more(envelope: _Envelope, body: bytes) -> bool:
    """Whether the body may hold a member twice, or one that the envelope does not have."""
    # Keys and values of "jsonrpc" and "method", and three keys; any other spelling of theirs only has more marks.
    marks = 10 if envelope.method is UNSET else 14
    kept: tuple[Raw, ...] = (envelope.id, envelope.result, envelope.error)
    marks -= 2 * kept.count(_ABSENT)
    if (params := envelope.params) is not UNSET:
        marks += 2 + 2 * len(params)
        kept += (*params.values(),)
    return body.count(b'"') != marks + b"".join(kept).count(b'"')


def _fills(envelope: _Envelope, body: bytes) -> bool:
    """Whether the members of a message leave no room in its text for a dropped member. False proves nothing."""
    written = 1 + len('"jsonrpc":"2.0",')
    for name in ("id", "result", "error"):
        value = getattr(envelope, name)
        written += 0 if value is _ABSENT else len(name) + len(memoryview(value)) + 4
    if envelope.method is not UNSET:
        written += len("method") + len(envelope.method.encode()) + 6
    if envelope.params is not UNSET:
        inner = sum(len(key.encode()) + len(memoryview(value)) + 4 for key, value in envelope.params.items())
        written += len("params") + 4 + 1 + max(inner, 1)
    return len(body) - written < _SHORTEST_MEMBER


_OTHERS = rb'"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*(?:([0-9]{1,18})|"[^"\\]{0,200}")\s*'
_PLAIN_HEAD = re.compile(rb"\s*\{\s*(" + _OTHERS + rb',\s*)?"result"\s*:\s*')
_PLAIN_TAIL = re.compile(rb"\s*(,\s*" + _OTHERS + rb")?\}\s*\Z")
_TAIL_BYTES = 300


def _around_result(body: bytes) -> tuple[int, int] | None:
    """Where the result of a response of the usual form begins and ends: between a head and a tail of known form."""
    if (head := _PLAIN_HEAD.match(body)) is None:
        return None
    tail = _PLAIN_TAIL.search(body, max(head.end(), len(body) - _TAIL_BYTES))
    if tail is None or (head[1] is None) == (tail[1] is None):
        return None
    return head.end(), tail.start()


_SHORTEST_MEMBER = len(',"":0')


def _fill(members: Mapping[str, Raw], size: int) -> bool:
    """Whether the members leave no room in the object's text for a dropped member. False proves nothing."""
    # A key takes at least its own bytes and two quotes, and each member a colon and a comma or brace.
    written = 1 + sum(len(key.encode()) + len(memoryview(value)) + 4 for key, value in members.items())
    return size - written < _SHORTEST_MEMBER


_BYTES_PER_FIND = 500
"""Finding one occurrence takes as long as counting in so many bytes; `find` skips other bytes ten times as fast."""


def _has_over(text: bytes, mark: bytes, most: int) -> bool:
    """Whether a byte occurs more than `most` times."""
    at, finds = -1, min(most, len(text) // _BYTES_PER_FIND) + 1
    for _ in range(finds):
        if (at := text.find(mark, at + 1)) < 0:
            return False
    return finds > most or finds + text.count(mark, at + 1) > most


PIECE_BYTES = 256 * 1024


def check_encoding(text: bytes) -> None:
    """Check that a text is UTF-8, piece by piece, without a string of its size.

    Raises:
        UnicodeDecodeError: it is not UTF-8.
    """
    finish(_encoding_passes(text))


def _encoding_passes(text: bytes) -> Passes[None]:
    """The passes of `check_encoding`."""
    at = len(text) if text.isascii() else 0  # 15 µs a megabyte
    while at < len(text):
        piece = text[at : at + PIECE_BYTES]
        at += codecs.utf_8_decode(piece, "strict", at + PIECE_BYTES >= len(text))[1]
        if at < len(text):
            yield


def _are_unique(members: Mapping[str, Raw], text: bytes) -> bool:
    """Whether `members` is all that the object's text holds."""
    left = text.count(b'"') - 2 * len(members) - b"".join(members.values()).count(b'"')
    if left == 0:
        return True
    return b"\\u0022" not in text and left == sum(key.count('"') for key in members)


_USUAL = frozenset({"name", "arguments", "_meta", "uri", "cursor", "task"})
"""Members of `params` that nearly all requests consist of. They differ in more than case."""


def _has_twins(keys: KeysView[str]) -> bool:
    """Whether two keys differ only in case, which servers that ignore case would take for duplicates."""
    text = "".join(keys)
    if text.isascii() and text.islower():
        return False
    folded = [key.casefold() for key in keys]
    return len(set(folded)) != len(folded)


# Too many members. A decoder creates all members before they can be counted; a key type that counts stops it early.
# Elements of an array are read into a struct with a limited number of fields.


@cache
def _elements_decoder(most: int) -> msgspec.json.Decoder[Struct]:
    places = [(f"place{number}", Raw, _ABSENT) for number in range(most)]
    return msgspec.json.Decoder(defstruct("_Elements", places, array_like=True, forbid_unknown_fields=True))


def _few_members(type: type[_T]) -> msgspec.json.Decoder[_T]:
    """A decoder that stops with a `ValidationError` at too many keys of the type `_Key`."""
    seen = 0

    def count(_: object, key: str) -> _Key:
        nonlocal seen
        seen += 1
        if seen > MEMBERS_MAX:
            raise ValueError(_TOO_MANY)
        return _Key(key)

    return msgspec.json.Decoder(type, dec_hook=count)


_TOO_MANY = "too many members"


def _first_members(text: Payload) -> dict[_Key, Raw] | None:
    """The members of an object, empty if it is not an object; None if there are too many, which is detected early."""
    try:
        return _few_members(dict[_Key, Raw]).decode(text)
    except msgspec.ValidationError as error:
        return None if _TOO_MANY in str(error) else {}
    except (*_NOT_JSON, RecursionError):
        return {}


def _refused_early(body: bytes, max_depth: int) -> Message | None:
    """Refuse a body that has too many members or is not an object, before it is decoded."""
    if not _has_over(body, b":", MEMBERS_MAX):
        return None
    text: Payload = body
    for place, inner in (("the message", "params"), ('"params"', "_meta"), ('"_meta"', "")):
        members = _first_members(text)
        if members is None:
            outer = {} if text is body else object_members(body) or {}
            return _invalid(f"{place} has over {MEMBERS_MAX} members", outer.get("id", _ABSENT))
        if text is body and not members:
            return _decode_carefully(body, max_depth)
        text = members.get(_Key(inner), _ABSENT)
    return None


# Values, counted by what separates them, and numbers of many digits, whose time to decode grows with their square. Only
# a long body can have enough of either.

DIGITS_MAX = 400
"""No number that a double can hold has more before or after its point; Python's own limit is ten times that."""

_DIGITS_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * DIGITS_MAX
_STRIDE = 40
_NEITHER_SEPARATOR_NOR_MARK = bytes(set(range(256)) - set(b',[{"'))
_NEITHER_COMMA_MARK_NOR_DIGIT = bytes(set(range(256)) - set(b',"0'))


def is_dense(text: bytes, most: int) -> bool:
    """Whether a body has more values in it than `most`, or numbers that take long to read; members count once."""
    return finish(_dense_passes(text, most))


def _dense_passes(text: bytes, most: int) -> Passes[bool]:
    """The passes of `is_dense`."""
    if len(text) <= 2 * most:
        return False
    if (yield from _separators(text, most)) > most:
        return True
    yield
    return (yield from _has_long_number(text))


def _separators(text: bytes, most: int) -> Passes[int]:
    """How many commas and opening brackets stand outside of strings; exact only if there are not more than `most`."""
    separators = 0
    for at in range(0, len(text), PASS_BYTES):
        separators += sum(text.count(mark, at, at + PASS_BYTES) for mark in (b",", b"[", b"{"))
        if at + PASS_BYTES < len(text):
            yield
    if separators <= most:
        return separators
    marks, quotes = [], 0
    for piece in _pieces_without_escapes(text):
        found = piece.translate(None, _NEITHER_SEPARATOR_NOR_MARK)
        quotes += found.count(b'"')
        if quotes > 4 * most:  # a member has two strings at most
            return most + 1
        marks.append(_fewer_marks(found))
        yield
    return len(_outside_strings(b"".join(marks)))


def _has_long_number(text: bytes) -> Passes[bool]:
    """Whether a number outside of strings has more than `DIGITS_MAX` digits in a row."""
    # Every fortieth byte is enough to find a run of so many digits.
    if _LONG_NUMBER[::_STRIDE] not in text[::_STRIDE].translate(_DIGITS_AS_ZEROS):
        return False
    yield
    zeros = text.translate(_DIGITS_AS_ZEROS)
    yield
    if _LONG_NUMBER not in zeros:
        return False
    yield
    digits: list[bytes] = []
    for piece in _pieces_without_escapes(zeros):
        digits.append(_fewer_marks(piece.translate(None, _NEITHER_COMMA_MARK_NOR_DIGIT)))
        yield
    return _LONG_NUMBER in _outside_strings(b"".join(digits))


def _pieces_without_escapes(text: bytes) -> Iterator[bytes]:
    """The pieces of a text, without escaped quotes and backslashes: each quote that is left begins or ends a string."""
    at = 0
    while at < len(text):
        piece = text[at : at + PASS_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # it ends within an escape
            piece = text[at : at + PASS_BYTES + 1]
        at += len(piece)
        yield piece.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in piece else piece


_FEW_STRINGS = 1_000


def _without_few_strings(text: bytes) -> bytes:
    """Cut the strings out of a long text, if it has few of them and no escapes: `find` is the fastest pass of all."""
    if len(text) <= LONG_BYTES or b"\\" in text or _has_over(text, b'"', 2 * _FEW_STRINGS):
        return text
    outside: list[bytes] = []
    at = 0
    while (begin := text.find(b'"', at)) >= 0:
        outside.append(text[at:begin])
        at = text.index(b'"', begin + 1) + 1
    outside.append(text[at:])
    return b"".join(outside)


def _outside_strings(text: bytes) -> bytes:
    """What stands outside of strings; adjacent marks are an empty string."""
    return b"".join(_fewer_marks(text).split(b'"')[::2])


def _too_dense(body: bytes, most: int) -> Malformed:
    text = f"the body has over {most} values, or numbers of over {DIGITS_MAX} digits: send less at once, or one text"
    try:
        id = _decode_envelope(body).id
    except (*_NOT_JSON, RecursionError):
        id = _ABSENT
    return _invalid(text, id)


# Depth, by passes at C speed over ever less text.

_SQUARE = bytes.maketrans(b"{}", b"[]")
_NEITHER_BRACKET_NOR_MARK = bytes(set(range(256)) - set(b'[]{}"'))
_SHALLOW = 3
"""Levels taken off by replacement before counting; it shrinks wide texts at least fourfold."""
_WIDE = 16
"""A text with at least one innermost pair in so many brackets is wide."""


def _is_deeper_long(text: bytes, max_depth: int) -> Passes[bool]:
    """The same for a long text, which nearly always has very few or very many brackets."""
    half = max_depth // 2
    if not _has_over(text, b"[", half) and not _has_over(text, b"{", half):
        return False
    yield
    return (yield from _depth_passes(text)) > max_depth


def _is_deeper(text: bytes, max_depth: int) -> bool:
    if text.count(b"[") + text.count(b"{") <= max_depth:
        return False
    return finish(_depth_passes(text)) > max_depth


def _depth_passes(text: bytes) -> Passes[int]:
    """How deep valid JSON is nested, in time linear in its length."""
    text = _without_few_strings(text)
    yield
    # The brackets outside strings, all of them square.
    pieces: list[bytes] = []
    for piece in _pieces_without_escapes(text):
        # Two adjacent marks are a string without brackets or the seam of two strings: dropping them moves no
        # bracket into or out of a string, and leaves few strings to cut out.
        pieces.append(_fewer_marks(piece.translate(_SQUARE, _NEITHER_BRACKET_NOR_MARK)))
        yield
    shape = _outside_strings(b"".join(pieces))
    yield
    removed = 0
    if shape.count(b"[]") * _WIDE > len(shape):
        for removed in range(_SHALLOW):
            if not shape:
                return removed
            shape = shape.replace(b"[]", b"")
            yield
        removed = _SHALLOW
    # Between two innermost pairs the text only closes and then opens: the deepest points are at the splits.
    steps = (2 * piece.count(b"[") - len(piece) for piece in shape.split(b"[]"))
    return removed + bool(shape) + max(accumulate(steps))


def _fewer_marks(text: bytes) -> bytes:
    """Remove adjacent pairs of quotes, long runs first, because each find costs time."""
    if b'"' not in text:
        return text
    for run in (b'""""""""', b'""""', b'""'):
        text = text.replace(run, b"")
    return text


# From envelope to message.


def _message(envelope: _Envelope) -> Message:
    if envelope.jsonrpc != "2.0":
        return _invalid('"jsonrpc" must be "2.0"', envelope.id)
    if envelope.method is not UNSET:
        params = {} if envelope.params is UNSET else envelope.params
        if envelope.result or envelope.error:
            return _invalid("a message is either a request or an answer", envelope.id)
        if not params.keys() <= _USUAL and _has_twins(params.keys()):
            return _invalid('two members of "params" differ only in case', envelope.id)
        if not envelope.id:
            return Notification(envelope.method, params)
        if not _is_id(envelope.id):
            return _invalid('"id" must be a string or a number', envelope.id)
        return Request(envelope.id, envelope.method, params)
    if bool(envelope.result) == bool(envelope.error):
        return _invalid('a message has a "method", a "result" or an "error"', envelope.id)
    if envelope.error:
        return _error_reply(envelope)
    if not _is_id(envelope.id):
        return _invalid('"id" must be a string or a number', envelope.id)
    return Response(envelope.id, envelope.result)


def _error_reply(envelope: _Envelope) -> ErrorReply:
    """Read what there is: a sloppy error still ends the call it answers."""
    members = {} if is_crowded(envelope.error) else object_members(envelope.error) or {}
    code = _read(_CODE, members.get("code"))
    message = _read(_STRING, members.get("message"))
    return ErrorReply(
        id=envelope.id if _is_id(envelope.id) else None,
        code=INTERNAL_ERROR if code is None else code,
        message=message or "",
        data=members.get("data"),
    )


def _is_id(raw: Raw) -> bool:
    return bytes(raw)[:1] in _ID_STARTS


def _read(decoder: msgspec.json.Decoder[_T], raw: Raw | None) -> _T | None:
    """The value of a member, None if it is absent or of another type."""
    try:
        return None if raw is None else decoder.decode(raw)
    except _NOT_JSON:
        return None


def _invalid(message: str, id: Raw) -> Malformed:
    return Malformed(INVALID_REQUEST, message, id if _is_id(id) else None)


# The careful path: bodies with unknown members, and everything that must be refused with a reason.


def _decode_carefully(body: bytes, max_depth: int) -> Message:
    try:
        check_encoding(body)
        start = bytes(_decode_value(body))[:1]
    except _NOT_JSON:
        return Malformed(PARSE_ERROR, "the body is not one JSON value in UTF-8", None)
    except RecursionError:
        return _too_deep(max_depth, _ABSENT)
    if start == b"[":
        return Batch()
    members = object_members(body)
    if members is None:
        return _invalid(_NO_OBJECT, _ABSENT)
    if _is_deeper(body, max_depth):
        return _too_deep(max_depth, members.get("id", _ABSENT))
    return _misspelt(members) or _message_of(members)


def _misspelt(members: Mapping[str, Raw]) -> Malformed | None:
    """Refuse `Method` for `method`: a server that ignores case would obey what we did not read."""
    folded = {key.casefold(): key for key in members if key not in MEMBERS}
    strays = sorted(folded.keys() & MEMBERS)
    if not strays:
        return None
    id = _ABSENT if "id" in strays else members.get("id", _ABSENT)
    return _invalid(f"{folded[strays[0]]!r} must be spelt {strays[0]!r}", id)


def _message_of(members: Mapping[str, Raw]) -> Message:
    """Judge members that are known to be unique; those that mean nothing here are dropped."""
    id = members.get("id", _ABSENT)
    method = _read(_STRING, members.get("method"))
    if method is None and "method" in members:
        return _invalid('"method" must be a string', id)
    params = object_members(members["params"]) if "params" in members else {}
    if params is None:
        if bytes(members["params"]).startswith(b"{"):
            return _invalid('a member of "params" appears twice', id)
        return Malformed(INVALID_PARAMS, '"params" must be an object', id if _is_id(id) else None)
    envelope = _Envelope(
        jsonrpc=_read(_STRING, members.get("jsonrpc")) or "",
        id=id,
        method=UNSET if method is None else method,
        params=params,
        result=members.get("result", _ABSENT),
        error=members.get("error", _ABSENT),
    )
    return _message(envelope)


def _too_deep(max_depth: int, id: Raw) -> Malformed:
    return _invalid(f"the body is nested deeper than {max_depth}", id)
