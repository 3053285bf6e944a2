"""Server cards and their catalog, as documents."""

from __future__ import annotations

import re

import pytest

from isthmus.frontends.wellknown.http import CARD_TYPE, SCHEMA, ServerCards
from isthmus.model.names import ServerName
from isthmus.wire.mcp.messages import Implementation

ME = Implementation("isthmus", "1.2.3", "Isthmus")
FILES = ServerName("files")


@pytest.mark.parametrize(
    ("public_url", "name", "urn"),
    [
        ("https://hub.example", "example.hub/isthmus", "urn:air:hub.example:mcp:isthmus"),
        ("https://hub.example:8443/under/", "example.hub/isthmus", "urn:air:hub.example:mcp:isthmus"),
        ("http://192.0.2.7:8765", "192.0.2.7/isthmus", "urn:air:192.0.2.7:mcp:isthmus"),
        ("http://[2001:db8::1]", "2001-db8--1/isthmus", "urn:air:2001-db8--1:mcp:isthmus"),
    ],
)
def test_names_are_those_of_the_public_address(public_url: str, name: str, urn: str) -> None:
    cards = ServerCards(ME, public_url, ("2026-07-28",))
    card = cards.card(None, needs_key=False)
    assert card["name"] == name
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", name)
    (entry,) = cards.catalog([])["entries"]
    assert (entry["identifier"], entry["url"]) == (urn, public_url.rstrip("/") + "/mcp/server-card")


def test_a_card_contains_everything_that_clients_need_to_connect() -> None:
    card = ServerCards(ME, "https://hub.example/", ("2026-07-28", "2025-11-25")).card(FILES, needs_key=True)
    assert (card["$schema"], card["version"], card["title"]) == (SCHEMA, "1.2.3", "files")
    assert 0 < len(card["description"]) <= 100
    (remote,) = card["remotes"]
    assert remote["url"] == "https://hub.example/mcp/files"
    assert remote["supportedProtocolVersions"] == ("2026-07-28", "2025-11-25")
    assert [(header["name"], header["isSecret"]) for header in remote["headers"]] == [("Authorization", True)]


def test_no_server_can_be_taken_for_the_hub() -> None:
    named_like_it = ServerName("isthmus")
    entries = ServerCards(ME, "https://hub.example", ()).catalog([FILES, named_like_it])["entries"]
    assert [entry["identifier"].rpartition(":")[2] for entry in entries] == [
        "isthmus",
        "isthmus.files",
        "isthmus.isthmus",
    ]
    assert {entry["type"] for entry in entries} == {CARD_TYPE}


def test_the_agent_is_one_more_entry_that_points_to_its_card() -> None:
    *_, entry = ServerCards(ME, "https://hub.example/under", ()).catalog([FILES], "Helper")["entries"]
    assert entry == {
        "identifier": "urn:air:hub.example:a2a:isthmus",
        "displayName": "Helper",
        "type": "application/a2a-agent-card+json",
        "mediaType": "application/a2a-agent-card+json",
        "url": "https://hub.example/under/.well-known/agent-card.json",
    }


def test_a_hub_without_a_title_is_shown_by_its_name() -> None:
    card = ServerCards(Implementation("isthmus", "1"), "https://hub.example", ()).card(None, needs_key=False)
    assert card["title"] == "isthmus"
    assert "headers" not in card["remotes"][0]
