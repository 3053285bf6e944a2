"""The address of a hub for `dial`: pasted forms are understood, and the token is never shown."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest

from isthmus.app.dial import BadAddress, read_address

OURS = "isr1.eyJhIjoiciJ9.c2lnbmVk"


@pytest.mark.parametrize(
    ("pasted", "shown"),
    [
        ("ws://hub:8765/mcp_endpoint/mcp/?token=abc", "ws://hub:8765/mcp_endpoint/mcp/"),
        ("ws://hub:8765/mcp_endpoint/mcp?token=abc", "ws://hub:8765/mcp_endpoint/mcp/"),
        ("ws://hub:8765?token=abc", "ws://hub:8765/mcp_endpoint/mcp/"),
        ("http://hub:8765/?token=abc", "ws://hub:8765/mcp_endpoint/mcp/"),
        ("https://hub.example?token=abc", "wss://hub.example/mcp_endpoint/mcp/"),
        ("https://hub.example/behind/a/proxy?token=abc", "wss://hub.example/behind/a/proxy/mcp_endpoint/mcp/"),
        ("wss://hub.example/some/other/path?token=abc", "wss://hub.example/some/other/path"),
        ("WSS://Hub.Example?token=abc", "wss://hub.example/mcp_endpoint/mcp/"),
        ("  ws://[::1]:8765?token=abc\n", "ws://[::1]:8765/mcp_endpoint/mcp/"),
    ],
)
def test_every_way_in_which_people_write_it_leads_to_the_same_place(pasted: str, shown: str) -> None:
    address = read_address(pasted)
    assert str(address) == shown
    assert address.token == "abc"


def query_of(target: str) -> dict[str, list[str]]:
    return parse_qs(urlsplit(target).query)


@pytest.mark.parametrize("written", ["a%2Bb/c%3D%3D", "a+b/c=="])
def test_a_token_of_the_original_is_sent_as_it_is_meant(written: str) -> None:
    endpoint = read_address(f"ws://hub/mcp_endpoint/mcp/?token={written}&lang=zh").endpoint("calc", (), 1000)
    assert query_of(endpoint.target) == {"token": ["a+b/c=="], "server_id": ["calc"], "lang": ["zh"]}
    assert endpoint.headers == {}


def test_a_token_of_ours_is_shown_in_a_header_and_not_in_the_address() -> None:
    endpoint = read_address(f"http://hub?token={OURS}").endpoint(None, ("x",), 1000)
    assert endpoint.headers == {"Authorization": f"Bearer {OURS}"}
    assert endpoint.target == "/mcp_endpoint/mcp/"
    assert endpoint.subprotocols == ("x",)


def test_a_token_that_is_given_apart_wins() -> None:
    address = read_address("ws://hub?token=old&server_id=%E8%AE%A1", " new \n")
    assert (address.token, address.server_id) == ("new", "计")
    assert query_of(address.endpoint("计", (), 1000).target) == {"token": ["new"], "server_id": ["计"]}


def test_nothing_that_is_printed_of_it_has_the_token() -> None:
    address = read_address("ws://hub?token=s3cret&more=s3cret")
    assert "s3cret" not in f"{address} {address!r}"
    ours = read_address(f"ws://hub?token={OURS}")
    assert OURS not in f"{ours!r} {ours.endpoint(None, (), 1)!r}"


@pytest.mark.parametrize(
    ("pasted", "why"),
    [
        ("hub:8765", "must begin with"),
        ("ftp://hub?token=s3cret", "must begin with"),
        ("ws://?token=s3cret", "names no host"),
        ("ws://a b?token=s3cret", "space"),
        ("ws://me:pw@hub?token=s3cret", "user name"),
        ("ws://hub:0?token=s3cret", "port 0"),
        ("ws://hub/mcp_endpoint/call/?token=s3cret", "where devices call"),
        ("ws://hub/mcp_endpoint/mcp/", "no token"),
        ("ws://hub?token=", "no token"),
        ("ws://hub?token=a%20s3cret", "one line of plain text"),
    ],
)
def test_an_impossible_address_is_reported_without_its_token(pasted: str, why: str) -> None:
    with pytest.raises(BadAddress, match=why) as refused:
        read_address(pasted)
    assert "s3cret" not in str(refused.value)
