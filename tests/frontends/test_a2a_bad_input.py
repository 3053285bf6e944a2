"""Whatever is wrong with a request to the agent, it gets the specified error, and its connection lives on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import count

import pytest
import pytest_asyncio

from tests.frontends.a2a_cases import (
    CONTENT,
    DEEP,
    INVALID,
    LINES,
    NO_CARD,
    NOT_FOUND,
    PARAMS,
    PARSE,
    PLAIN,
    UNKNOWN_METHOD,
    UNSUPPORTED,
    V0_1,
    V0_3,
    V1_0,
    VALID,
    VAULT,
    VERSION,
    Valid,
    envelopes,
    mutations,
)
from tests.frontends.wire import BASE, Headers, Reply, Wire, connected, encoded, legacy
from tests.hubs import HubProcess, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

RPC, REST = "/a2a", "/a2a/rest/"
LIGHT = encoded(legacy("tasks/get", {"id": "still there?"}, id="light"))
LIT = b'{"jsonrpc":"2.0","id":"light","error":{"code":-32001,"message":"Task not found: still there?"}}'
BODY_BYTES = 4 << 20
NUMBERS = count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    async with serving(tmp_path_factory.mktemp("hub"), limits={"request_bytes": BODY_BYTES}) as running:
        yield running
    assert not [line for line in running.said if "Traceback" in line or json.loads(line).get("level") == "error"]


async def lives_on(wire: Wire) -> None:
    """The next request on the same connection is answered as if nothing had been."""
    reply = await wire.request(LIGHT, path=RPC)
    assert (reply.status, reply.body) == (200, LIT)


def fresh(body: bytes) -> bytes:
    """The same with names of tasks that nobody has used: where callers choose them, each may be begun once."""
    number = next(NUMBERS)
    return body.replace(b'"mine"', b'"mine%d"' % number).replace(b'"x"', b'"x%d"' % number)


def rpc(method: str, params: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":41,"method":"%b","params":%b}' % (method.encode(), params)


# -- JSON-RPC ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("valid", VALID, ids=lambda valid: valid.method)
async def test_a_valid_request_is_understood(hub: HubProcess, valid: Valid) -> None:
    async with connected(hub.port) as wire:
        reply = await wire.request(fresh(rpc(valid.method, encoded(valid.params))), path=RPC)
        assert (reply.status, reply.code) == (200, valid.code), reply.body


@pytest.mark.parametrize("dialect", [V1_0, V0_3, V0_1, VAULT], ids=["1.0", "0.3", "0.1", "agentvault"])
async def test_every_change_of_every_parameter_gets_the_specified_error(
    hub: HubProcess, dialect: tuple[Valid, ...]
) -> None:
    cases = [case for valid in dialect for case in mutations(valid)]
    assert len(cases) > 200
    async with connected(hub.port) as wire:
        for case in cases:
            reply = await wire.request(fresh(rpc(case.valid.method, case.params)), path=RPC)
            assert (reply.status, reply.code) == (200, case.code), f"{case.label}: {reply.body!r}"
            await lives_on(wire)


async def test_every_change_of_the_request_itself_gets_the_specified_error(hub: HubProcess) -> None:
    cases = [case for valid in (*V1_0[:4], *V0_3[:3], V0_1[0], VAULT[0]) for case in envelopes(valid)]
    assert len(cases) > 500
    async with connected(hub.port) as wire:
        for label, body, code in cases:
            reply = await wire.request(fresh(body), path=RPC)
            assert (reply.status, reply.code) == (200, code), f"{label}: {reply.body!r}"
            await lives_on(wire)


SEND = rpc("SendMessage", encoded(V1_0[0].params))
SEND_PLAIN = encoded(V1_0[0].params)


def holding(body: bytes, text: bytes) -> bytes:
    """The same with something else where the arguments have a text."""
    return body.replace(b'"hi"', text)


def texts(body: bytes) -> dict[str, tuple[bytes, int | None]]:
    """Bodies that are no message at all, or hardly, with the expected error codes."""
    return {
        "nothing": (b"", PARSE),
        "a space": (b" ", PARSE),
        "null": (b"null", INVALID),
        "a number": (b"7", INVALID),
        "a text": (b'"x"', INVALID),
        "an array": (b"[]", INVALID),
        "a batch": (b"[%b]" % body, INVALID),
        "a batch of two": (b"[%b,%b]" % (body, body), INVALID),
        "words": (b"hello", PARSE),
        "two objects": (body + body, PARSE),
        "an object and a brace": (body + b"}", PARSE),
        "a trailing comma": (body[:-1] + b",}", PARSE),
        "single quotes": (body.replace(b'"', b"'"), PARSE),
        "a comment": (b"/* hi */" + body, PARSE),
        "NaN": (holding(body, b"NaN"), PARSE),
        "Infinity": (holding(body, b"-Infinity"), PARSE),
        "a leading zero": (holding(body, b"01"), PARSE),
        "a byte order mark": (b"\xef\xbb\xbf" + body, PARSE),
        "UTF-16": (body.decode().encode("utf-16"), PARSE),
        "UTF-32": (body.decode().encode("utf-32"), PARSE),
        "Latin-1": (holding(body, '"ä"'.encode("latin-1")), PARSE),
        "an encoded surrogate": (holding(body, b'"\xed\xa0\x80"'), PARSE),
        "an overlong character": (holding(body, b'"\xc0\xaf"'), PARSE),
        "a raw control character": (holding(body, b'"\x01"'), PARSE),
        "NUL bytes": (b"\0" * 40, PARSE),
        "a lone surrogate": (holding(body, b'"\\ud800"'), PARSE),
        "a lone surrogate in a key": (body.replace(b'"text"', b'"\\udfff"'), PARSE),
        "100 levels": (holding(body, DEEP.encode()), INVALID),
        "100,000 levels": (b"[" * 100_000 + b"]" * 100_000, INVALID),
        "100,000 levels that do not end": (b'{"a":' * 100_000, INVALID),
        "a number out of range": (holding(body, b"1e999"), None),
        "a number of 5,000 digits": (holding(body, b"9" * 5000), None),
        "a NUL in a text": (holding(body, b'"\\u0000"'), None),
        "20,000 keys": (holding(body, json.dumps({str(at): at for at in range(20_000)}).encode()), None),
        "an unknown member": (body[:-1] + b',"more":{}}', None),
    }


async def test_invalid_messages_get_specific_errors(hub: HubProcess) -> None:
    async with connected(hub.port) as wire:
        for label, (body, code) in texts(SEND).items():
            reply = await wire.request(body, path=RPC)
            assert (reply.status, reply.code) == (200, code), f"{label}: {reply.body[:300]!r}"
            await lives_on(wire)


@pytest.mark.parametrize("valid", [V1_0[0], V0_3[0], V0_1[0], VAULT[0]], ids=["1.0", "0.3", "0.1", "agentvault"])
async def test_a_body_that_ends_early_is_not_json_wherever_it_ends(hub: HubProcess, valid: Valid) -> None:
    body = rpc(valid.method, encoded(valid.params))
    async with connected(hub.port) as wire:
        for end in range(0, len(body), 1 if valid in V1_0 else 7):
            reply = await wire.request(body[:end], path=RPC)
            assert (reply.status, reply.code, reply.id_text) == (200, PARSE, "null"), end
        await lives_on(wire)


@pytest.mark.parametrize("id", ["4" * 5000, "-0", "1.50e1", "9007199254740993", '""', '"\\u0041\\n"'])
async def test_an_id_comes_back_as_it_was_written(hub: HubProcess, id: str) -> None:
    async with connected(hub.port) as wire:
        for body in (LIGHT.replace(b'"light"', id.encode()), SEND.replace(b"41", id.encode())):
            assert (await wire.request(body, path=RPC)).id_text == id


@pytest.mark.parametrize("method", ["GetTask", "tasks/get", "tasks/pushNotification/get"])
async def test_a_request_that_accepts_only_events_gets_its_refusal_as_an_event(hub: HubProcess, method: str) -> None:
    """Clients before 1.0 that opened a stream look for nothing else."""
    headers = [*(pair for pair in BASE if pair[0] != "accept"), ("accept", "text/event-stream")]
    async with connected(hub.port) as wire:
        reply = await wire.request(rpc(method, b'{"id":"none"}'), headers, path=RPC)
        is_event = reply.headers["content-type"] == "text/event-stream"
        assert (is_event, reply.json["error"]["code"]) == (method != "GetTask", NOT_FOUND)


# -- HTTP ----------------------------------------------------------------------------------------------------------

TYPES: dict[tuple[str, ...], bool] = {
    ("application/json",): True,
    ("Application/JSON; charset=utf-8",): True,
    ("application/a2a+json",): True,
    (): False,
    ("",): False,
    ("text/plain",): False,
    ("text/plain; application/json",): False,
    ("application/jsonx",): False,
    ("application/json, text/plain",): False,
    ("application/x-www-form-urlencoded",): False,
    ("multipart/form-data; boundary=x",): False,
    ("application/json", "text/plain"): False,
    ("application/grpc",): False,
}


@pytest.mark.parametrize("values", TYPES)
async def test_only_json_is_taken(hub: HubProcess, values: tuple[str, ...]) -> None:
    headers = [*(pair for pair in BASE if pair[0] != "content-type"), *(("content-type", value) for value in values)]
    fits = TYPES[values]
    async with connected(hub.port) as wire:
        reply = await wire.request(SEND, headers, path=RPC)
        assert (reply.status, reply.code) == (200, None if fits else CONTENT)
        for path, body in (("message:send", SEND_PLAIN), ("v1/message:send", encoded(PLAIN[6].params))):
            assert (await wire.request(body, headers, path=REST + path)).status == (200 if fits else 415)
        await lives_on(wire)


@pytest.mark.parametrize("path", [RPC, "/", f"{REST}message:send", f"{REST}v1/message:send"])
async def test_a_body_over_the_limit_is_refused_and_the_next_connection_works(hub: HubProcess, path: str) -> None:
    body = SEND[:-1].ljust(5 << 20) + b"}"
    async with connected(hub.port) as wire:
        assert (await wire.request(body, path=path)).status == 413
    async with connected(hub.port) as wire:
        await lives_on(wire)


async def test_a_body_of_nearly_the_limit_is_read(hub: HubProcess) -> None:
    async with connected(hub.port) as wire:
        reply = await wire.request(holding(SEND, b'"%b"' % (b"x" * (BODY_BYTES - 1_000))), path=RPC)
        assert (reply.status, reply.code) == (200, None)
        await lives_on(wire)


@pytest.mark.parametrize("version", ["9.0", "2", "1", "x", "1.0, 1.0", "1.1", "0.4", "-1.0", "1.0\xe4"])
async def test_a_version_that_is_not_spoken_is_refused(hub: HubProcess, version: str) -> None:
    headers = [*BASE, ("a2a-version", version)]
    async with connected(hub.port) as wire:
        assert (await wire.request(SEND, headers, path=RPC)).code == VERSION
        reply = await wire.request(SEND_PLAIN, headers, path=f"{REST}message:send")
        assert status_and_code(reply, "message:send") == (400, VERSION)
        await lives_on(wire)


# -- plain HTTP ----------------------------------------------------------------------------------------------------

REASONS = {
    "PARSE_ERROR": PARSE,
    "INVALID_REQUEST": INVALID,
    "METHOD_NOT_FOUND": UNKNOWN_METHOD,
    "INVALID_PARAMS": PARAMS,
    "TASK_NOT_FOUND": NOT_FOUND,
    "UNSUPPORTED_OPERATION": UNSUPPORTED,
    "VERSION_NOT_SUPPORTED": VERSION,
}
STATUS_1_0 = {None: 200, UNKNOWN_METHOD: 404, NOT_FOUND: 404}
STATUS_0_3 = {None: 200, UNKNOWN_METHOD: 404, NOT_FOUND: 404, NO_CARD: 404, PARAMS: 422}
"""HTTP's words for what went wrong, where they are not 400."""


def status_and_code(reply: Reply, path: str) -> tuple[int, int | None]:
    """The status of an answer and the code of its error, which 1.0 says by a reason."""
    if reply.status == 200:
        return 200, None
    if path.startswith("v1/"):
        return reply.status, reply.json["code"]
    error = reply.json["error"]
    assert error["code"] == reply.status
    return reply.status, REASONS[error["details"][0]["reason"]]


def expected(path: str, code: int | None) -> tuple[int, int | None]:
    statuses = STATUS_0_3 if path.startswith("v1/") else STATUS_1_0
    return statuses.get(code, 400), code


async def test_in_the_plain_binding_every_change_of_every_member_gets_the_specified_error(hub: HubProcess) -> None:
    cases = [case for valid in PLAIN for case in mutations(valid)]
    assert len(cases) > 1_000
    async with connected(hub.port) as wire:
        for case in cases:
            verb, path = case.valid.method.split(" ")
            reply = await wire.request(fresh(case.params), method=verb, path=REST + path)
            assert status_and_code(reply, path) == expected(path, case.code), f"{case.label}: {reply.body!r}"
            await lives_on(wire)


@pytest.mark.parametrize("at", [0, 6], ids=["1.0", "0.3"])
async def test_invalid_messages_in_the_plain_binding_get_specific_errors(hub: HubProcess, at: int) -> None:
    path = PLAIN[at].method.removeprefix("POST ")
    async with connected(hub.port) as wire:
        for label, (body, code) in texts(encoded(PLAIN[at].params)).items():
            reply = await wire.request(body, path=REST + path)
            # Without a body there is no message, which is no fault of the JSON.
            assert status_and_code(reply, path) == expected(path, code if body else PARAMS), (
                f"{label}: {reply.body[:300]!r}"
            )
            await lives_on(wire)


async def test_in_the_plain_binding_every_line_gets_its_own_answer(hub: HubProcess) -> None:
    headers: Headers = [("host", "localhost")]
    async with connected(hub.port) as wire:
        for line, code in LINES.items():
            verb, path = line.split(" ")
            reply = await wire.request(b"", headers, method=verb, path=REST + path)
            assert status_and_code(reply, path) == expected(path, code), f"{line}: {reply.body!r}"
            await lives_on(wire)
