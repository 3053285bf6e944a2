"""Requests for tokens are read as RFC 6749 has them, and nothing else."""

from __future__ import annotations

import base64
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.frontends.oauth.http import FORM, PARAMETERS_MAX, TokenError, TokenRequest, read_token_request

GRANT = {"grant_type": "client_credentials"}
MINE = {**GRANT, "client_id": "planner", "client_secret": "k3y"}


def _basic(text: str) -> bytes:
    return b"Basic " + base64.b64encode(text.encode())


def _form(*pairs: tuple[str, str], **more: str) -> bytes:
    return urlencode([*pairs, *more.items()]).encode()


def test_a_form_names_the_client_and_its_secret() -> None:
    assert read_token_request(FORM, None, _form(**MINE)) == TokenRequest((("planner", "k3y"),), ())
    assert isinstance(read_token_request(FORM + b"; charset=UTF-8", None, _form(**MINE)), TokenRequest)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("planner:k3y", (("planner", "k3y"),)),
        (
            f"{quote('a b:ü', safe='')}:{quote('k+y/%', safe='')}",
            (("a b:ü", "k+y/%"), ("a%20b%3A%C3%BC", "k%2By%2F%25")),
        ),
        ("planner:k+y", (("planner", "k y"), ("planner", "k+y"))),
        ("planner:k:y", (("planner", "k:y"),)),
    ],
)
def test_a_header_does_encoded_or_plain(header: str, expected: tuple[tuple[str, str], ...]) -> None:
    assert read_token_request(FORM, _basic(header), _form(**GRANT)) == TokenRequest(expected, ())


def test_a_secret_alone_will_do() -> None:
    assert read_token_request(FORM, None, _form(**GRANT, client_secret="k3y")) == TokenRequest(((None, "k3y"),), ())


def test_resources_may_be_several() -> None:
    asked = read_token_request(FORM, None, _form(("resource", "a"), ("resource", "b"), **MINE))
    assert isinstance(asked, TokenRequest)
    assert asked.resources == ("a", "b")


@pytest.mark.parametrize(
    ("kind", "authorization", "body", "code", "status"),
    [
        (b"application/json", None, b"{}", "invalid_request", 415),
        (b"", None, _form(**MINE), "invalid_request", 415),
        (FORM + b"-evil", None, _form(**MINE), "invalid_request", 415),
        (b"multipart/form-data", None, _form(**MINE), "invalid_request", 415),
        (FORM, None, b"", "invalid_request", 400),
        (FORM, None, b"nonsense", "invalid_request", 400),
        (FORM, None, b"grant_type=\xff", "invalid_request", 400),
        (FORM, None, b"grant_type=%ff", "invalid_request", 400),
        (FORM, None, b"&".join([b"a=b"] * (PARAMETERS_MAX + 1)), "invalid_request", 400),
        (FORM, None, _form(("client_id", "other"), **MINE), "invalid_request", 400),
        (FORM, None, _form(client_id="planner", client_secret="k3y"), "invalid_request", 400),
        (FORM, None, _form(grant_type="password"), "unsupported_grant_type", 400),
        (FORM, None, _form(grant_type="authorization_code"), "unsupported_grant_type", 400),
        (FORM, None, _form(grant_type=""), "invalid_request", 400),
        (FORM, None, _form(**GRANT), "invalid_client", 401),
        (FORM, None, _form(**{**MINE, "client_secret": ""}), "invalid_client", 401),
        (FORM, _basic("planner:k3y"), _form(**MINE), "invalid_request", 400),
        (FORM, _basic("planner:k3y"), _form(client_id="other", **GRANT), "invalid_request", 400),
        (FORM, b"Bearer k3y", _form(**GRANT), "invalid_client", 401),
        (FORM, b"Basic !", _form(**GRANT), "invalid_client", 401),
        (FORM, b"Basic", _form(**GRANT), "invalid_client", 401),
        (FORM, _basic("planner"), _form(**GRANT), "invalid_client", 401),
        (FORM, _basic(":k3y"), _form(**GRANT), "invalid_client", 401),
        (FORM, b"Basic " + base64.b64encode(b"\xff:\xff"), _form(**GRANT), "invalid_client", 401),
    ],
)
def test_an_unreadable_token_request_gets_the_error_of_the_rfc(
    kind: bytes, authorization: bytes | None, body: bytes, code: str, status: int
) -> None:
    refused = read_token_request(kind, authorization, body)
    assert isinstance(refused, TokenError)
    assert (refused.code, refused.status) == (code, status)
    assert "k3y" not in refused.description


@given(st.binary(max_size=200), st.none() | st.binary(max_size=60))
def test_no_request_makes_it_raise(body: bytes, authorization: bytes | None) -> None:
    assert isinstance(read_token_request(FORM, authorization, body), TokenRequest | TokenError)
