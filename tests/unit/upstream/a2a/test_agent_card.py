"""Skills as tools."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from isthmus.core.settings import Limits
from isthmus.model.features import Tool
from isthmus.model.names import ServerName
from isthmus.upstream.agent.skills import EXAMPLES_MAX, TALK, listing_of, offers_of
from isthmus.wire.a2a.cards import Card, Interface, Skill
from tests.unit.wire.a2a.samples import steady

SERVER = ServerName("far")
OBJECT = Raw(b'{"type":"object","properties":{"n":{"maximum":9223372036854775807}}}')


def card(*skills: Skill) -> Card:
    return Card("Agent", "Does things.", "1", (Interface("http://a"),), skills, (), ())


def members(tool: Tool) -> dict[str, Any]:
    return {key: json.loads(bytes(value)) for key, value in tool.definition.items()}


def test_a_skill_says_what_it_does_with_examples_and_tags() -> None:
    examples = tuple(f"try {number}" for number in range(EXAMPLES_MAX + 5))
    (offered,) = offers_of(card(Skill("s", "S", "Does.", ("a", "b"), examples)), SERVER).values()
    shown = members(offered.tool)
    assert (shown["name"], shown["title"]) == ("s", "S")
    assert shown["description"].startswith("Does.\n\nFor example:\n- try 0\n")
    assert shown["description"].endswith("\n- try 9\n\nTags: a, b")
    assert shown["inputSchema"]["required"] == ["message"]
    assert (offered.skill, offered.is_worded) == ("s", True)


def test_a_skill_with_schemas_takes_and_gives_what_they_say_exactly() -> None:
    skill = Skill("s", "S", "Does.", input_schema=OBJECT, output_schema=OBJECT)
    (offered,) = offers_of(card(skill), SERVER).values()
    assert offered.tool.definition["inputSchema"] == offered.tool.definition["outputSchema"] == OBJECT
    assert not offered.is_worded


@pytest.mark.parametrize("schema", [b"7", b"{}", b'{"type":"string"}', b'{"type":["object"]}', b"true"])
def test_a_schema_that_is_not_of_an_object_is_none(schema: bytes) -> None:
    (offered,) = offers_of(card(Skill("s", "S", "", input_schema=Raw(schema), output_schema=OBJECT)), SERVER).values()
    assert offered.is_worded
    assert "outputSchema" not in offered.tool.definition


def test_an_agent_without_skills_can_still_be_spoken_to() -> None:
    ((name, offered),) = offers_of(card(), SERVER).items()
    assert (name, offered.skill) == (TALK, "")
    assert members(offered.tool)["description"] == "Does things."


@steady
@given(st.lists(st.text(min_size=1), min_size=1, max_size=20))
def test_every_skill_has_a_name_of_its_own_that_mcp_allows(ids: list[str]) -> None:
    skills = [Skill(id, id, "") for id in ids]
    offers = offers_of(card(*skills), SERVER)
    assert len(offers) == len(ids)
    assert [offered.skill for offered in offers.values()] == ids
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", name) for name in offers)


def test_names_that_need_no_change_stay_as_they_are() -> None:
    assert list(offers_of(card(Skill("a.b-c_D", "", ""), Skill("a b", "", "")), SERVER)) == ["a.b-c_D", "a_b"]


def test_a_list_is_cut_where_it_is_too_long_or_a_tool_too_large() -> None:
    skills = [Skill("large", "L", "x" * 2000), *(Skill(str(number), "S", "") for number in range(5))]
    offers = offers_of(card(*skills), SERVER).values()
    listing = listing_of(offers, Limits(tools_per_server=3, schema_bytes=1024), 5.0)
    assert [tool.name for tool in listing.tools] == ["0", "1", "2"]
    large, cut = listing.notes["tools"]
    assert large.startswith("'large' left out")
    assert cut == "its list of tools has over 3 entries and was cut"
    assert listing.ttl_seconds == {"tools": 5.0}
    assert listing_of((), Limits(), None).ttl_seconds == {}
