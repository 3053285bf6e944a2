"""The paths of the OAuth documents, and their callers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

import pytest

from isthmus.frontends.http.auth import Authenticator, OriginGuard
from isthmus.frontends.http.request_cycle import PEER, Message
from isthmus.frontends.oauth.discovery import RESOURCE_PATH, SERVER_PATH, TOKEN_PATH, TrustedIssuer
from isthmus.frontends.oauth.http import BODY_BYTES_MAX, OauthHttp
from isthmus.wire.jsonrpc import Text
from tests.unit.frontends.mcp.doubles import Client

BASE = "https://hub.example"
FORM = (b"content-type", b"application/x-www-form-urlencoded")
MINE = urlencode({"grant_type": "client_credentials", "client_id": "planner", "client_secret": "k3y"}).encode()


TURNED_AWAY: list[tuple[str, int]] = []
"""Of whom book was kept."""


@pytest.fixture(autouse=True)
def no_caller_yet() -> None:
    TURNED_AWAY.clear()


class Giver:
    """Has one key to give tokens for."""

    def __init__(self, *, has_keys: bool = True) -> None:
        self.has_keys = has_keys

    def token_for(self, name: str | None, key: str) -> str | None:
        return "a-token" if (name, key) == ("planner", "k3y") else None

    def issues_tokens(self) -> bool:
        return self.has_keys


class Reader(Client):
    """A peer that keeps what it is answered, and whose body comes in pieces if it has any."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        super().__init__()
        self.response: tuple[int, bytes, bytes] = (0, b"", b"")
        self._pieces = list(pieces)

    def answer(self, status: int, lines: bytes, body: Text) -> None:
        self.response = (status, lines.lower(), body if isinstance(body, bytes) else b"".join(body))

    def take_body(self) -> bytes | None:
        return self._pieces.pop() if len(self._pieces) == 1 else None

    async def receive(self) -> Message:
        piece = self._pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}


async def ask(
    path: str,
    *headers: tuple[bytes, bytes],
    method: str = "GET",
    body: Sequence[bytes] = (b"",),
    base: str | None = BASE,
    has_keys: bool = True,
) -> tuple[int, bytes, Any]:
    auth = Authenticator(OriginGuard(bind_host="127.0.0.1"), lambda _: None)
    auth.on_turned_away = lambda frontend, status: TURNED_AWAY.append((frontend, status))
    corp = TrustedIssuer("https://login.example", (BASE,), ())
    frontend = OauthHttp(auth, Giver(has_keys=has_keys), lambda _: base, lambda: (corp,))
    assert frontend.is_at(path)
    client = Reader(body)
    given = [(b"host", b"localhost"), *headers]
    scope = {"method": method, "path": path, "headers": given, "extensions": {PEER: client}}
    await frontend.serve(scope, client.receive, _silent)
    status, lines, said = client.response
    return status, lines, json.loads(said) if said else None


async def _silent(_: Message) -> None:
    raise AssertionError("the peer is answered directly")


async def test_documents_are_for_everybody() -> None:
    status, lines, received = await ask(f"{RESOURCE_PATH}/mcp", (b"origin", b"https://page.example"))
    assert status == 200
    assert b"access-control-allow-origin: *" in lines
    assert received["authorization_servers"] == ["https://login.example", BASE]
    assert (await ask(SERVER_PATH))[2]["issuer"] == BASE
    assert (await ask(SERVER_PATH, method="OPTIONS"))[0] == 204
    assert (await ask(SERVER_PATH, method="POST"))[0] == 405


@pytest.mark.parametrize("path", [RESOURCE_PATH, SERVER_PATH, TOKEN_PATH, "/oauth/authorize"])
async def test_none_of_it_is_there_while_the_hub_is_open(path: str) -> None:
    assert (await ask(path, base=None))[0] == 404


async def test_without_keys_there_are_only_issuers() -> None:
    assert (await ask(RESOURCE_PATH, has_keys=False))[2]["authorization_servers"] == ["https://login.example"]
    assert (await ask(SERVER_PATH, has_keys=False))[0] == 404
    assert (await ask(TOKEN_PATH, FORM, method="POST", body=[MINE], has_keys=False))[0] == 404


@pytest.mark.parametrize("body", [[MINE], [MINE[:9], MINE[9:]]])
async def test_a_name_and_its_key_are_worth_a_token(body: list[bytes]) -> None:
    status, lines, received = await ask(TOKEN_PATH, FORM, method="POST", body=body)
    assert status == 200
    assert received == {"access_token": "a-token", "token_type": "Bearer", "expires_in": 3600}
    assert b"cache-control: no-store" in lines


async def test_another_name_or_key_is_not() -> None:
    status, lines, received = await ask(TOKEN_PATH, FORM, method="POST", body=[MINE.replace(b"k3y", b"key")])
    assert (status, received["error"]) == (401, "invalid_client")
    assert b'www-authenticate: basic realm="isthmus"' in lines
    assert b"cache-control: no-store" in lines
    assert TURNED_AWAY == [("rest", 401)]


async def test_a_token_for_another_caller_is_not_issued() -> None:
    status, _, received = await ask(
        TOKEN_PATH, FORM, method="POST", body=[MINE + b"&resource=https%3A%2F%2Fbank.example"]
    )
    assert (status, received["error"]) == (400, "invalid_target")
    status, _, received = await ask(TOKEN_PATH, FORM, method="POST", body=[MINE + b"&resource=http%3A%2F%2F%5B"])
    assert (status, received["error"]) == (400, "invalid_target"), "what is no address is nobody's"
    assert (await ask(TOKEN_PATH, method="POST", body=[MINE]))[0] == 415
    assert (await ask(TOKEN_PATH, FORM, method="POST", body=[MINE + b"&resource=https%3A%2F%2Fhub.example%2Fmcp"]))[
        0
    ] == 200


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ([(b"content-length", str(BODY_BYTES_MAX + 1).encode())], [b""]),
        ([(b"content-length", b"-1")], [b""]),
        ([], [b"a" * (BODY_BYTES_MAX + 1)]),
        ([], [b"a" * BODY_BYTES_MAX, b"a", b"a"]),
    ],
)
async def test_a_body_has_its_bound(headers: list[tuple[bytes, bytes]], body: list[bytes]) -> None:
    status, _, received = await ask(TOKEN_PATH, FORM, *headers, method="POST", body=body)
    assert (status, received["error"]) == (413, "invalid_request")


async def test_a_page_of_another_origin_gets_no_token() -> None:
    status, _, received = await ask(TOKEN_PATH, FORM, (b"origin", b"https://evil.example"), method="POST", body=[MINE])
    assert status == 403
    assert "access_token" not in received


async def test_tokens_are_posted_for_and_there_is_no_other_way() -> None:
    assert (await ask(TOKEN_PATH))[0] == 405
    status, _, received = await ask("/oauth/authorize")
    assert (status, received["error"]) == (400, "unsupported_response_type")
