"""Where a server points to, and that the hub goes there only within its origin."""

from __future__ import annotations

import pytest

from isthmus.transport.egress import Origin
from isthmus.upstream.address import target_within
from isthmus.upstream.link import ConnectFailed

ORIGIN = Origin("https", "tools.example", 443)


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        ("/messages?s=1", "/messages?s=1"),
        ("messages", "/v1/messages"),
        ("?s=1", "/v1/sse?s=1"),
        ("", "/v1/sse"),
        ("https://tools.example/x", "/x"),
        ("https://TOOLS.example:443/x", "/x"),
        ("//tools.example/x", "/x"),
        ("../../../x", "/x"),
        ("/x#part", "/x"),
    ],
)
def test_within_the_origin_it_is_followed(reference: str, target: str) -> None:
    assert target_within(ORIGIN, "/v1/sse", reference, "redirects to") == target


@pytest.mark.parametrize(
    "reference",
    ["https://other.example/x", "http://tools.example/x", "https://tools.example:8443/x", "//tools.example.evil.io/x"],
)
def test_elsewhere_it_is_not_and_both_places_are_named(reference: str) -> None:
    with pytest.raises(ConnectFailed, match=r"^it redirects to http.*, which is not https://tools.example; configure"):
        target_within(ORIGIN, "/v1/sse", reference, "redirects to")


@pytest.mark.parametrize(
    "reference", ["javascript:alert(1)", "/a b", "/a\r\nb", "https://u:p@tools.example/x", "https://[::1", "/a\\b"]
)
def test_what_is_no_address_is_refused(reference: str) -> None:
    with pytest.raises(ConnectFailed, match="no address"):
        target_within(ORIGIN, "/v1/sse", reference, "redirects to")


@pytest.mark.parametrize("reference", ["/v1/sse/", "/v1/sse", "https://tools.example/v1/sse/"])
def test_who_must_stay_may_be_sent_to_the_same_place_behind_a_slash(reference: str) -> None:
    assert target_within(ORIGIN, "/v1/sse", reference, "redirects to", stays=True).rstrip("/") == "/v1/sse"


@pytest.mark.parametrize("reference", ["/v1/other", "/", "/v1/sse/x", "/v1/sse?x=1", "/V1/sse"])
def test_who_must_stay_is_sent_nowhere_else(reference: str) -> None:
    with pytest.raises(ConnectFailed, match="another path"):
        target_within(ORIGIN, "/v1/sse", reference, "redirects to", stays=True)
