"""What servers and agents answer, given to what reads it: framing, lists, results, cards, tasks.

These read or refuse; none of them may raise, and none may depend on how the bytes were cut on their way. Called by
`fuzz.targets`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from isthmus.model.names import ServerName
from isthmus.wire import jsonrpc
from isthmus.wire.a2a.client import client_of, read_status
from isthmus.wire.a2a.client_bindings import PlainBinding, RpcBinding
from isthmus.wire.a2a.client_v0_3_rest import EarlierPlainClient
from isthmus.wire.a2a.operations import Get
from isthmus.wire.a2a.read_cards import read_card
from isthmus.wire.lines import LineDecoder
from isthmus.wire.mcp import inputs, legacy, lists, marks, messages, modern, params, results, tasks
from isthmus.wire.mcp.hubs import read_hubs
from isthmus.wire.relay import answers, mux
from isthmus.wire.sse import SseDecoder, SseEvent

LIMIT_BYTES = 64
"""Short, so that what is too long is met often."""

SHAPES = (lists.TOOLS, lists.PROMPTS, lists.RESOURCES, lists.TEMPLATES)


class Disagreement(AssertionError):
    """The same bytes came to two different things."""


def check_same(one: object, other: object, what: str) -> None:
    """Raises: Disagreement."""
    if one != other:
        raise Disagreement(f"{what}: {one!r} is not {other!r}")


def cuts(data: bytes, size: int) -> Iterator[bytes]:
    """The bytes in pieces."""
    return (data[at : at + size] for at in range(0, len(data), size))


def _fed(feed: Callable[[bytes], Sequence[Any]], pieces: Iterator[bytes]) -> list[Any]:
    return [found for piece in pieces for found in feed(piece)]


def events(data: bytes) -> None:
    """Server-sent events come to the same however they are cut, and what is too long is never kept."""
    whole = SseDecoder(LIMIT_BYTES).feed(data)
    for size in (1, 3, 7):
        check_same(whole, _fed(SseDecoder(LIMIT_BYTES).feed, cuts(data, size)), f"events cut by {size}")
    for found in whole:
        if isinstance(found, SseEvent) and len(found.data) > LIMIT_BYTES:
            raise Disagreement(f"an event of {len(found.data)} bytes is over the limit")


def lines(data: bytes) -> None:
    """The same of lines."""
    whole = LineDecoder(LIMIT_BYTES).feed(data)
    for size in (1, 3, 7):
        check_same(whole, _fed(LineDecoder(LIMIT_BYTES).feed, cuts(data, size)), f"lines cut by {size}")


def envelopes(data: bytes) -> None:
    """JSON-RPC is read or refused, and what was read can be written down and read again."""
    for decode in (jsonrpc.decode, jsonrpc.decode_reply):
        message = decode(data)
        match message:
            case jsonrpc.Response(id=id, result=result):
                again = jsonrpc.decode_reply(jsonrpc.result(id, result))
                if not isinstance(again, jsonrpc.Response):
                    raise Disagreement(f"an answer that was read cannot be read again: {again!r}")
            case jsonrpc.Request(method=method, params=given):
                again = jsonrpc.decode(jsonrpc.request(1, method, jsonrpc.render(given)))
                if not isinstance(again, jsonrpc.Request) or again.method != method:
                    raise Disagreement(f"a request that was read cannot be read again: {again!r}")
            case _:
                pass
    jsonrpc.decode_object(data)
    if isinstance(jsonrpc.decode(data), jsonrpc.Batch):
        jsonrpc.elements(data, 10)


def of_server(data: bytes) -> None:
    """What an MCP server answers: its greeting, its lists, results, questions, tasks and news."""
    checked = jsonrpc.decode_object(data)
    if not isinstance(checked, msgspec.Raw):
        return  # the link refuses it before anybody reads on
    for shape in SHAPES:
        lists.read_list(shape, checked)
    legacy.read_welcome(checked)
    legacy.read_server_info(checked)
    modern.read_discovery(checked)
    modern.names_version(checked)
    modern.as_modern(checked)
    modern.as_legacy(checked)
    inputs.read_inputs(checked)
    inputs.read_elsewhere(checked)
    results.result_of(checked)
    tasks.read_state(checked)
    tasks.read_poll_seconds(checked)
    tasks.with_ids(checked, str.upper)
    marks.read_mark(checked)
    read_hubs(checked)
    for places in (params.annotated(checked), params.demanded(checked)):
        params.param_headers(places, checked)
    members = jsonrpc.object_members(checked)
    if members is not None:
        messages.read_log(members)
        messages.token_of(members)
        messages.read_progress(members, ServerName("s"))


def of_agent(data: bytes) -> None:
    """What an A2A agent answers, in each generation and binding: its card, tasks, messages and events."""
    checked = jsonrpc.decode_object(data)
    if isinstance(checked, msgspec.Raw):
        read_card(checked)
    read_status(data)
    asked = Get("t")
    for binding in _bindings():
        for status in (200, 400, 503):
            binding.read(1, asked, status, data)
            binding.read_card(1, status, data)
        binding.read_event(1, SseEvent(data=data))


def _bindings() -> list[RpcBinding | PlainBinding]:
    clients = [client for version in ("1.0", "0.3") if (client := client_of(version)) is not None]
    return [*map(RpcBinding, clients), PlainBinding(clients[0]), PlainBinding(EarlierPlainClient())]  # type: ignore[arg-type]


def of_dialled_in(data: bytes) -> None:
    """Frames of a socket that many servers share, and what servers behind it answer."""
    frame = mux.read(data)
    match frame:
        case mux.Said(channel=channel, message=message):
            check_same(mux.read(mux.said(channel, message)), frame, "a frame again")
        case mux.Open():
            check_same(mux.read(mux.opening(frame)), frame, "an opening again")
        case _:
            pass
    checked = jsonrpc.decode_object(data)
    if isinstance(checked, msgspec.Raw):
        answers.tagged(checked, "id")
        answers.with_error_text(checked)
        answers.read_entries(checked, "tools")
