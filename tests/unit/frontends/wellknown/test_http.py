"""Public documents by path and caller."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.frontends.http.auth import Authenticator, Fields, OriginGuard
from isthmus.frontends.http.request_cycle import PEER, Message
from isthmus.frontends.wellknown.http import CATALOG_PATH, ServerCards, WellKnown
from isthmus.model.callers import Caller
from isthmus.wire.jsonrpc import Text
from isthmus.wire.mcp.messages import Implementation
from tests.unit.core.doubles import ANYONE, SERVER, Stage
from tests.unit.frontends.mcp.doubles import OFFER, Client


def identify(fields: Fields) -> Caller | None:
    return ANYONE if fields.get(b"x-api-key") == b"k" else None


def frontend() -> WellKnown:
    cards = ServerCards(Implementation("isthmus", "1"), "https://hub.example", ("2026-07-28",))
    auth = Authenticator(OriginGuard(bind_host="127.0.0.1"), identify)
    return WellKnown(Stage.of(OFFER).hub, auth, cards, lambda: True, lambda: "Helper")


async def nothing_more() -> Message:
    raise AssertionError("no body is read here")


async def silent(_: Message) -> None:
    raise AssertionError("the peer is answered directly")


class Reader(Client):
    """A peer that takes documents of any type."""

    def answer(self, status: int, lines: bytes, body: Text) -> None:
        self.answers.append((status, body if isinstance(body, bytes) else b"".join(body)))


async def ask(path: str, *headers: tuple[bytes, bytes], method: str = "GET") -> Reader:
    client = Reader()
    scope = {
        "method": method,
        "path": path,
        "headers": [(b"host", b"localhost"), *headers],
        "extensions": {PEER: client},
    }
    await frontend().serve(scope, nothing_more, silent)
    return client


KEY = (b"x-api-key", b"k")


@pytest.mark.parametrize(
    ("path", "method", "is_ours"),
    [
        (CATALOG_PATH, "POST", True),
        ("/mcp/server-card", "GET", True),
        ("/mcp/server-card", "POST", False),
        ("/mcp/files/server-card", "OPTIONS", True),
        ("/mcp/files", "GET", False),
        ("/mcp", "GET", False),
        ("/server-card", "GET", False),
        ("/.well-known/other", "GET", False),
    ],
)
async def test_only_its_own_paths_are_taken(path: str, method: str, *, is_ours: bool) -> None:
    assert frontend().is_at(path, method) is is_ours


async def entries(*headers: tuple[bytes, bytes]) -> list[Any]:
    return [entry["url"] for entry in (await ask(CATALOG_PATH, *headers)).json["entries"]]


async def test_a_key_opens_more_of_the_catalog() -> None:
    own, agent = "https://hub.example/mcp/server-card", "https://hub.example/.well-known/agent-card.json"
    assert await entries() == [own, agent]
    assert await entries(KEY) == [own, f"https://hub.example/mcp/{SERVER}/server-card", agent]
    assert await entries(KEY, (b"origin", b"https://evil.test")) == [own, agent]


@pytest.mark.parametrize(
    ("path", "headers", "method", "status"),
    [
        ("/mcp/server-card", (), "GET", 200),
        (f"/mcp/{SERVER}/server-card", (KEY,), "HEAD", 200),
        (f"/mcp/{SERVER}/server-card", (), "GET", 401),
        ("/mcp/none/server-card", (), "GET", 401),
        ("/mcp/none/server-card", (KEY,), "GET", 404),
        ("/mcp//server-card", (KEY,), "GET", 404),
        ("/mcp/a/b/server-card", (KEY,), "GET", 404),
        (CATALOG_PATH, (), "OPTIONS", 204),
        (CATALOG_PATH, (), "DELETE", 405),
    ],
)
async def test_every_request_is_answered_as_it_deserves(path: str, headers: Any, method: str, status: int) -> None:
    assert (await ask(path, *headers, method=method)).status == status
