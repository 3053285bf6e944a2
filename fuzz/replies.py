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
from isthmus.wire.a2a.cards import read_card
from isthmus.wire.a2a.client import RestClientBinding, RestClientV03, RpcClientBinding, client_of, read_http_error
from isthmus.wire.a2a.operations import GetTask
from isthmus.wire.lines import LineDecoder
from isthmus.wire.mcp import forwarded_methods, legacy, lists, messages, modern, tasks
from isthmus.wire.relay import device_messages as relay_messages
from isthmus.wire.relay import mux
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
        page = lists.read_page(shape, checked)
        for raw in () if isinstance(page, str) else page:
            lists.read_entry(shape, raw)
    legacy.read_initialize_result(checked)
    legacy.read_server_info(checked)
    modern.read_discover_result(checked)
    modern.is_version_supported(checked)
    modern.as_modern(checked)
    modern.as_legacy(checked)
    forwarded_methods.read_input_required(checked)
    forwarded_methods.read_url_elicitations(checked)
    forwarded_methods.tool_result(checked)
    tasks.read_state(checked)
    tasks.read_poll_seconds(checked)
    tasks.rename_ids(checked, str.upper)
    messages.read_mark(checked)
    messages.read_hubs(checked)
    for places in (modern.annotated_params(checked), modern.required_params(checked)):
        modern.param_headers(places, checked)
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
    read_http_error(data)
    asked = GetTask("t")
    for binding in _bindings():
        for status in (200, 400, 503):
            binding.read(1, asked, status, data)
            binding.read_card(1, status, data)
        binding.read_event(1, SseEvent(data=data))


def _bindings() -> list[RpcClientBinding | RestClientBinding]:
    clients = [client for version in ("1.0", "0.3") if (client := client_of(version)) is not None]
    return [*map(RpcClientBinding, clients), RestClientBinding(clients[0]), RestClientBinding(RestClientV03())]


def of_dialled_in(data: bytes) -> None:
    """Frames of a socket that many servers share, and what servers behind it answer."""
    frame = mux.read(data)
    match frame:
        case mux.ChannelMessage(channel=channel, message=message):
            check_same(mux.read(mux.write_message(channel, message)), frame, "a frame again")
        case mux.OpenChannel():
            check_same(mux.read(mux.write_open(frame)), frame, "an opening again")
        case _:
            pass
    checked = jsonrpc.decode_object(data)
    if isinstance(checked, msgspec.Raw):
        relay_messages.add_server_id(checked, "id")
        relay_messages.with_error_text(checked)
        relay_messages.read_entries(checked, "tools")
