"""A login in a browser: the request, and the validation of the answer."""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qs, urlsplit

import pytest

from isthmus.credentials.client_registration import OAuthClient
from isthmus.credentials.discovery import ServerMetadata
from isthmus.credentials.interactive_login import Authorization, Callback, LoginRefused

SERVER = ServerMetadata(
    issuer="https://login.example",
    token_endpoint="https://login.example/token",
    authorization_endpoint="https://login.example/authorize?a=b",
    code_challenge_methods_supported=["S256"],
)
CLIENT = OAuthClient("me", redirect="http://127.0.0.1:5/callback")


def test_the_address_requests_a_code_that_only_the_requester_can_use() -> None:
    attempt = Authorization()
    parts = urlsplit(attempt.address(SERVER, CLIENT, "https://s.example/mcp", "read"))
    asked = {name: value[0] for name, value in parse_qs(parts.query).items()}
    assert asked == {
        "a": "b",
        "response_type": "code",
        "client_id": "me",
        "redirect_uri": "http://127.0.0.1:5/callback",
        "state": attempt.state,
        "code_challenge": attempt.challenge,
        "code_challenge_method": "S256",
        "resource": "https://s.example/mcp",
        "scope": "read",
    }
    assert attempt.verifier not in parts.query
    assert attempt.verifier not in repr(attempt)
    assert Authorization().state != attempt.state
    assert "scope=" not in attempt.address(SERVER, CLIENT, "r", "")


def test_the_challenge_is_that_of_the_specification() -> None:
    attempt = Authorization("s", "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk")
    assert attempt.challenge == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"authorization_endpoint": ""}, "no page to log in at"),
        ({"code_challenge_methods_supported": []}, "does not say that it supports PKCE"),
        ({"code_challenge_methods_supported": ["plain"]}, "does not say that it supports PKCE"),
    ],
)
def test_a_server_without_a_page_or_without_pkce_is_not_gone_to(change: dict[str, object], expected: str) -> None:
    server = ServerMetadata(**{**{name: getattr(SERVER, name) for name in SERVER.__struct_fields__}, **change})
    with pytest.raises(LoginRefused, match=expected):
        Authorization().address(server, CLIENT, "r", "")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({}, "does not belong to this login"),
        ({"code": "c", "state": "other"}, "does not belong to this login"),
        ({"code": "c", "state": "é"}, "does not belong to this login"),
        ({"code": "c", "state": "mine", "iss": "https://evil.example"}, "from another authorization server"),
        ({"code": "c", "state": "mine", "iss": "https://login.example/"}, "from another authorization server"),
        ({"code": "c", "state": "mine", "iss": ""}, "from another authorization server"),
        ({"error": "access_denied\x1b", "state": "mine"}, "says access_denied$"),
        ({"state": "mine"}, "has no code"),
    ],
)
def test_an_answer_to_another_login_is_refused(answer: dict[str, str], expected: str) -> None:
    with pytest.raises(LoginRefused, match=expected):
        Authorization("mine", "v").code_in(answer, SERVER)


def test_an_issuer_that_was_promised_must_be_named() -> None:
    promising = ServerMetadata(issuer="https://login.example", authorization_response_iss_parameter_supported=True)
    attempt = Authorization("mine", "v")
    with pytest.raises(LoginRefused, match="does not name its"):
        attempt.code_in({"code": "c", "state": "mine"}, promising)
    named = {"code": "c", "state": "mine", "iss": "https://login.example"}
    assert attempt.code_in(named, promising) == attempt.code_in({"code": "c", "state": "mine"}, SERVER) == "c"


async def sent(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET /favicon.ico HTTP/1.1",
        b"GET /callback HTTP/1.1",
        b"POST /callback?state=a HTTP/1.1",
        b"GET /callback?state=a&state=b HTTP/1.1",
        b"GET /callback?state=a HTTP/2",
        b"GET /callback?state=another&code=evil HTTP/1.1",
        b"nonsense",
    ],
)
async def test_only_a_browser_that_comes_back_is_taken_for_one(request_line: bytes) -> None:
    callback = Callback("s")
    await callback.open(0)
    try:
        async with asyncio.timeout(5):
            assert (await sent(callback.port, request_line + b"\r\n\r\n")).startswith(b"HTTP/1.1 404")
            said = await sent(callback.port, b"GET /callback?state=s&code=c%2Fd HTTP/1.1\r\nhost: x\r\n\r\n")
            assert said.startswith(b"HTTP/1.1 200")
            assert await callback.answer(1.0) == {"state": "s", "code": "c/d"}
    finally:
        callback.close()


async def test_the_wait_for_a_login_has_a_deadline() -> None:
    callback = Callback("s")
    await callback.open(0)
    assert callback.address == f"http://127.0.0.1:{callback.port}/callback"
    with pytest.raises(TimeoutError):
        await callback.answer(0.01)
    other = Callback("s")
    with pytest.raises(OSError, match="in use"):
        await other.open(callback.port)
    callback.close()
