"""Finding out where one logs in: which documents are looked for, and which of them are believed."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.credentials.discovery import (
    Challenge,
    DiscoveryFailed,
    ResourceMetadata,
    ServerMetadata,
    _covers,
    _decoded,
    joined,
    metadata_urls,
    read_challenge,
)
from isthmus.credentials.fetch import FetchFailed
from isthmus.credentials.interactive_login import LoginRefused
from isthmus.credentials.interactive_login import read_callback as read_request
from isthmus.credentials.interactive_login import read_device_login as read_device
from isthmus.credentials.token_endpoint import GrantRefused, read_refusal
from isthmus.credentials.token_endpoint import read_token_response as read_token
from isthmus.transport.http_client import HttpResponse


@pytest.mark.parametrize(
    ("issuer", "places"),
    [
        (
            "https://a.example",
            [
                "https://a.example/.well-known/oauth-authorization-server",
                "https://a.example/.well-known/openid-configuration",
            ],
        ),
        (
            "https://a.example:8443/t/1/",
            [
                "https://a.example:8443/.well-known/oauth-authorization-server/t/1",
                "https://a.example:8443/.well-known/openid-configuration/t/1",
                "https://a.example:8443/t/1/.well-known/openid-configuration",
            ],
        ),
    ],
)
def test_an_issuers_metadata_is_looked_for_where_it_may_be(issuer: str, places: list[str]) -> None:
    assert metadata_urls(issuer) == places


@pytest.mark.parametrize(
    ("resource", "is_about"),
    [
        ("https://s.example/mcp", True),
        ("https://s.example/mcp/", True),
        ("https://S.example:443/mcp", True),
        ("https://s.example", True),
        ("https://s.example/", True),
        ("https://s.example/mc", False),
        ("https://s.example/mcp/other", False),
        ("https://s.example:444/mcp", False),
        ("http://s.example/mcp", False),
        ("https://s.example.evil/mcp", False),
        ("https://evil.example/mcp", False),
        ("", False),
        ("https://[", False),
        ("https://s.example:99999/mcp", False),
    ],
)
def test_metadata_is_about_a_server_or_it_is_not(resource: str, is_about: bool) -> None:  # noqa: FBT001
    assert _covers(resource, "https://s.example/mcp") is is_about


def document_response(document: Any) -> HttpResponse:
    return HttpResponse(200, {}, document if isinstance(document, bytes) else json.dumps(document).encode())


@pytest.mark.parametrize(
    "document",
    [b"", b"<html>", b"\xff", b"[]", b"null", {"resource": 1}, {"resource": "r", "authorization_servers": "x"}, {}],
)
def test_an_invalid_metadata_document_is_rejected(document: Any) -> None:
    with pytest.raises(DiscoveryFailed, match="cannot be read"):
        _decoded(document_response(document), ResourceMetadata, "its metadata")


def test_null_and_unknown_members_of_a_document_are_ignored() -> None:
    found = _decoded(document_response({"issuer": "i", "scopes_supported": None, "jwks_uri": 5}), ServerMetadata, "it")
    assert found == ServerMetadata(issuer="i")


DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["issuer", "resource", "token_endpoint", "access_token", "expires_in", "error", "device_code", "x"]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(document=DOCUMENTS.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60), header=st.text())
def test_no_answer_of_a_stranger_breaks_the_reader(document: bytes, header: str) -> None:
    """Each reader returns something of its type, or says in its own way that it cannot."""
    answer = HttpResponse(200, {}, document)
    with suppress(DiscoveryFailed):
        assert isinstance(_decoded(answer, ResourceMetadata, "it").resource, str)
    with suppress(DiscoveryFailed):
        assert isinstance(_decoded(answer, ServerMetadata, "it").issuer, str)
    with suppress(FetchFailed, GrantRefused):
        assert read_token(answer).access
    with suppress(LoginRefused):
        assert read_device(answer).user_code
    assert isinstance(read_refusal(HttpResponse(400, {}, document), ["a-secret"]), GrantRefused)
    assert read_challenge(header) is not None
    assert read_challenge(f"Bearer {header}").scope == read_challenge(f"Bearer {header}").scope.strip()
    found = read_request(b"GET /callback?" + document + b" HTTP/1.1\r\n\r\n")
    assert found is None or "state" in found


# -- challenges -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "challenge"),
    [
        ("", Challenge()),
        ("Basic realm=x", Challenge()),
        ("Bearer", Challenge()),
        ('Bearer resource_metadata="https://a/x"', Challenge("https://a/x")),
        ("bearer resource_metadata=https://a/x, scope=read", Challenge("https://a/x", "read")),
        ('Bearer error="insufficient_scope", scope="a b:c"', Challenge("", "a b:c", "insufficient_scope")),
        ('Basic scope="no", Bearer scope="yes"', Challenge("", "yes")),
        ('Bearer scope="first", scope="second"', Challenge("", "first")),
        ('Bearer scope="a\x1b[31m"', Challenge()),
        ('Bearer scope=" a"', Challenge()),
        (f'Bearer scope="{"x" * 1001}"', Challenge()),
        ('Bearer error="<script>"', Challenge()),
    ],
)
def test_a_challenge_is_parsed(header: str, challenge: Challenge) -> None:
    assert read_challenge(header) == challenge


def test_scopes_are_joined_without_saying_anything_twice() -> None:
    assert joined("a b", "", "b c", "a") == "a b c"
