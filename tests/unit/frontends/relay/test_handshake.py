"""What an address and its headers say: a token, a server's id, a subprotocol."""

from __future__ import annotations

import pytest

from isthmus.frontends.relay.handshake import Query, Refused, choose, read_query, read_server_id, read_token


def query(text: bytes) -> Query:
    read = read_query(text)
    assert not isinstance(read, Refused)
    return read


@pytest.mark.parametrize(
    ("headers", "address", "token"),
    [
        ({}, b"", ""),
        ({}, b"token=", ""),
        ({}, b"token=abc%2Bd%3D", "abc+d="),
        ({}, b"token=abc+d/e", "abc d/e"),
        ({b"authorization": b"Bearer isr1.x.y"}, b"", "isr1.x.y"),
        ({b"authorization": b"bearer isr1.x.y"}, b"token=isr1.x.y", "isr1.x.y"),
        ({b"authorization": b"Basic eDp5"}, b"token=t", "t"),
        ({b"sec-websocket-protocol": b"isthmus.relay.v1, isthmus.bearer.isr1.x.y"}, b"", "isr1.x.y"),
        ({b"authorization": b"Bearer a+b"}, b"token=a+b", "a+b"),
        ({}, b"token=t&token=t", "t"),
    ],
)
def test_a_token_is_in_a_header_a_subprotocol_or_the_address(
    headers: dict[bytes, bytes], address: bytes, token: str
) -> None:
    assert read_token(headers, query(address)) == token


@pytest.mark.parametrize(
    ("headers", "address"),
    [
        ({b"authorization": b"Bearer one"}, b"token=two"),
        ({b"authorization": b"Bearer one", b"sec-websocket-protocol": b"isthmus.bearer.two"}, b""),
        ({b"sec-websocket-protocol": b"isthmus.bearer.one,isthmus.bearer.two"}, b""),
        ({}, b"token=one&token=two"),
        ({}, b"token=one&token="),
    ],
)
def test_two_different_tokens_are_refused(headers: dict[bytes, bytes], address: bytes) -> None:
    refused = read_token(headers, query(address))
    assert isinstance(refused, Refused)
    assert (refused.code, "one" in refused.reason, "two" in refused.reason) == (1008, False, False)


@pytest.mark.parametrize(
    ("address", "server_id"),
    [
        (b"token=t", None),
        (b"server_id=calculator", "calculator"),
        (b"server_id=%E5%8E%A8%E6%88%BF", "厨房"),
        ("server_id=厨房".encode(), "厨房"),
        (b"server_id=a+b", "a b"),
        (b"server_id=" + b"x" * 64, "x" * 64),
    ],
)
def test_a_server_may_say_what_it_is_called(address: bytes, server_id: str | None) -> None:
    assert read_server_id(query(address)) == server_id


@pytest.mark.parametrize(
    "address",
    [b"server_id=", b"server_id=%00", b"server_id=a%0Ab", b"server_id=" + b"x" * 65, b"server_id=a&server_id=b"],
)
def test_an_id_that_cannot_be_shown_is_refused(address: bytes) -> None:
    assert isinstance(read_server_id(query(address)), Refused)


@pytest.mark.parametrize("address", [b"server_id=%ff", b"server_id=\xff", b"server_id=%ed%a0%80", b"token=%fe"])
def test_what_is_no_text_is_refused_since_two_of_it_would_look_alike(address: bytes) -> None:
    assert isinstance(read_query(address), Refused)


def test_a_query_of_endless_parameters_is_refused() -> None:
    assert isinstance(read_query(b"&".join(b"a=1" for _ in range(17))), Refused)


@pytest.mark.parametrize(
    ("offered", "for_servers", "for_devices"),
    [
        (b"", None, None),
        (b"mcp", "mcp", "mcp"),
        (b"mcp, isthmus.relay.v1", "isthmus.relay.v1", "isthmus.relay.v1"),
        (b"isthmus.relay.v1,isthmus.mux.v1", "isthmus.mux.v1", "isthmus.relay.v1"),
        (b"isthmus.mux.v1", "isthmus.mux.v1", None),
        (b"isthmus.bearer.t", None, None),
        (b"graphql-ws", None, None),
    ],
)
def test_the_best_known_subprotocol_is_chosen_and_never_a_token(
    offered: bytes, for_servers: str | None, for_devices: str | None
) -> None:
    fields = {b"sec-websocket-protocol": offered}
    assert choose(fields, can_mux=True) == for_servers
    assert choose(fields, can_mux=False) == for_devices
