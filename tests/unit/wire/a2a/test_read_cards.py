"""Cards of other agents."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from isthmus.wire.a2a import cards
from isthmus.wire.a2a.cards import Card, Extension, Interface, Provider
from isthmus.wire.a2a.read_cards import SKILLS_MAX, read_card
from tests.unit.wire.a2a.samples import Json, steady, values
from tests.unit.wire.a2a.test_cards import CARD, REST, SCHEMA, URL

MINIMUM: dict[str, Any] = {"name": "x", "url": URL}


def read(card: object) -> Card:
    found = read_card(json.dumps(card).encode())
    assert isinstance(found, Card)
    return found


@pytest.mark.parametrize("write", [cards.write_strict, cards.write_merged])
def test_a_card_is_read_as_it_was_written(write: Any) -> None:
    card = read_card(write(CARD))
    assert isinstance(card, Card)
    assert (card.name, card.description, card.version) == (CARD.name, CARD.description, CARD.version)
    assert card.interfaces == CARD.interfaces
    assert card.provider == CARD.provider
    assert (card.can_stream, card.can_push, card.has_extended) == (True, True, True)
    assert [skill.id for skill in card.skills] == ["execute_mcp_command", "files.read"]
    assert card.skills[0].input_schema == SCHEMA
    assert not card.skills[1].input_schema


def test_a_card_of_0_3_says_its_places_otherwise() -> None:
    card = read_card(cards.write_0_3(CARD))
    assert isinstance(card, Card)
    assert card.interfaces == (Interface(URL, "JSONRPC", "0.3.0"), Interface(REST, "HTTP+JSON", "0.3.0"))
    assert card.has_extended


def test_the_least_that_is_a_card() -> None:
    card = read(MINIMUM)
    assert card.interfaces == (Interface(URL, "JSONRPC", "0.3"),)
    assert (card.skills, card.can_stream, card.provider) == ((), False, None)
    assert read({**MINIMUM, "provider": {"organization": "Org"}}).provider == Provider("Org", "")


def test_what_is_of_another_type_is_left_out() -> None:
    odd = read(
        {
            **MINIMUM,
            "description": 7,
            "skills": [7, {"id": 7}, {"id": "s", "tags": "t", "name": None}],
            "capabilities": [],
            "additionalInterfaces": [{"url": REST}, {"url": URL, "transport": "JSONRPC"}, None],
            "defaultInputModes": ["a", 7],
        }
    )
    assert (odd.description, odd.input_modes) == ("", ("a",))
    assert [(skill.id, skill.name, skill.tags) for skill in odd.skills] == [("s", "s", ())]
    assert odd.interfaces == (Interface(URL, "JSONRPC", "0.3"),)


@pytest.mark.parametrize(
    "extensions",
    [
        7,
        [7],
        [{"uri": cards.SCHEMAS}],
        [{"uri": cards.SCHEMAS, "params": {"skills": 7}}],
        [{"uri": "urn:other", "params": {}}],
    ],
)
def test_schemas_that_cannot_be_read_are_none(extensions: Json) -> None:
    card = read({**MINIMUM, "skills": [{"id": "s"}], "capabilities": {"extensions": extensions}})
    assert not card.skills[0].input_schema


def test_extensions_are_read_with_their_parameters_as_they_are() -> None:
    listed = b'[7,{"uri":7},{"description":"x"},{"uri":"urn:x","required":true,"params":{"n":1.50}},{"uri":"urn:y"}]'
    card = read_card(b'{"name":"x","url":"%b","capabilities":{"extensions":%b}}' % (URL.encode(), listed))
    assert isinstance(card, Card)
    assert card.extensions == (
        Extension("urn:x", is_required=True, params=Raw(b'{"n":1.50}')),
        Extension("urn:y"),
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"name":"x"}',
        b'{"url":"u"}',
        b'{"name":"\\ud800","url":"u"}',
        b'{"name":"x","url":"u","number":1e999}',
        b'{"name":"x","name":"y"}',
    ],
)
def test_what_is_no_card_is_said_to_be_none(body: bytes) -> None:
    assert isinstance(read_card(body), str)


def test_a_card_cannot_be_endless() -> None:
    card = read({**MINIMUM, "name": "x" * 100_000, "skills": [{"id": str(n)} for n in range(SKILLS_MAX + 5)]})
    assert (len(card.name), len(card.skills)) == (4096, SKILLS_MAX)


MEMBERS = ["name", "url", "skills", "capabilities", "supportedInterfaces", "provider", "additionalInterfaces"]


@given(st.dictionaries(st.sampled_from(MEMBERS), values))
@steady
def test_nothing_that_can_be_published_makes_it_raise(card: dict[str, Json]) -> None:
    assert isinstance(read_card(json.dumps(card).encode()), Card | str)
