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
from isthmus.transport.egress import parse_url
from isthmus.upstream.a2a.card_to_tools import (
    EXAMPLES_MAX,
    TALK,
    AgentEndpoint,
    card_targets,
    choose_endpoint,
    listing_of,
    tools_of,
)
from isthmus.wire.a2a.cards import AgentCard, AgentInterface, AgentSkill
from isthmus.wire.a2a.client import RestClientBinding, RpcClientBinding
from isthmus.wire.a2a.operations import GetTask
from tests.unit.wire.a2a.samples import steady

SERVER = ServerName("far")
OBJECT = Raw(b'{"type":"object","properties":{"n":{"maximum":9223372036854775807}}}')


def card(*skills: AgentSkill) -> AgentCard:
    return AgentCard("Agent", "Does things.", "1", (AgentInterface("http://a"),), skills)


def members(tool: Tool) -> dict[str, Any]:
    return {key: json.loads(bytes(value)) for key, value in tool.definition.items()}


def test_a_skills_description_has_examples_and_tags() -> None:
    examples = tuple(f"try {number}" for number in range(EXAMPLES_MAX + 5))
    (offered,) = tools_of(card(AgentSkill("s", "S", "Does.", ("a", "b"), examples)), SERVER).values()
    shown = members(offered.tool)
    assert (shown["name"], shown["title"]) == ("s", "S")
    assert shown["description"].startswith("Does.\n\nFor example:\n- try 0\n")
    assert shown["description"].endswith("\n- try 9\n\nTags: a, b")
    assert shown["inputSchema"]["required"] == ["message"]
    assert (offered.skill, offered.takes_text) == ("s", True)


def test_a_skill_with_schemas_keeps_them_exactly() -> None:
    skill = AgentSkill("s", "S", "Does.", input_schema=OBJECT, output_schema=OBJECT)
    (offered,) = tools_of(card(skill), SERVER).values()
    assert offered.tool.definition["inputSchema"] == offered.tool.definition["outputSchema"] == OBJECT
    assert not offered.takes_text


@pytest.mark.parametrize("schema", [b"7", b"{}", b'{"type":"string"}', b'{"type":["object"]}', b"true"])
def test_a_schema_that_is_not_of_an_object_is_ignored(schema: bytes) -> None:
    (offered,) = tools_of(
        card(AgentSkill("s", "S", "", input_schema=Raw(schema), output_schema=OBJECT)), SERVER
    ).values()
    assert offered.takes_text
    assert "outputSchema" not in offered.tool.definition


def test_an_agent_without_skills_can_still_be_spoken_to() -> None:
    ((name, offered),) = tools_of(card(), SERVER).items()
    assert (name, offered.skill) == (TALK, "")
    assert members(offered.tool)["description"] == "Does things."


@steady
@given(st.lists(st.text(min_size=1), min_size=1, max_size=20))
def test_every_skill_has_a_name_of_its_own_that_mcp_allows(ids: list[str]) -> None:
    skills = [AgentSkill(id, id, "") for id in ids]
    offers = tools_of(card(*skills), SERVER)
    assert len(offers) == len(ids)
    assert [offered.skill for offered in offers.values()] == ids
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", name) for name in offers)


def test_names_that_need_no_change_stay_as_they_are() -> None:
    assert list(tools_of(card(AgentSkill("a.b-c_D", "", ""), AgentSkill("a b", "", "")), SERVER)) == ["a.b-c_D", "a_b"]


def test_a_list_is_cut_where_it_is_too_long_or_a_tool_too_large() -> None:
    skills = [AgentSkill("large", "L", "x" * 2000), *(AgentSkill(str(number), "S", "") for number in range(5))]
    offers = tools_of(card(*skills), SERVER).values()
    listing = listing_of(offers, Limits(tools_per_server=3, schema_bytes=1024), 5.0)
    assert [tool.name for tool in listing.tools] == ["0", "1", "2"]
    large, cut = listing.notes["tools"]
    assert large.startswith("'large' left out")
    assert cut.startswith("its list of tools has over 3 entries and was cut; ")
    assert listing.ttl_seconds == {"tools": 5.0}
    assert listing_of((), Limits(), None).ttl_seconds == {}


HOME = "https://agents.example"


def endpoint_card(*interfaces: AgentInterface) -> AgentCard:
    return AgentCard("Agent", "", "1", interfaces, ())


def chosen(*interfaces: AgentInterface, home: str = HOME, origins: tuple[str, ...] = ()) -> AgentEndpoint | str:
    return choose_endpoint(endpoint_card(*interfaces), parse_url(home)[0], origins, 64)


@pytest.mark.parametrize(
    ("target", "targets"),
    [
        ("/", ("/.well-known/agent-card.json", "/.well-known/agent.json")),
        ("/a/", ("/a/.well-known/agent-card.json", "/a/.well-known/agent.json")),
        ("/a?x=1", ("/a/.well-known/agent-card.json", "/a/.well-known/agent.json")),
        ("/cards/me.json?x=1", ("/cards/me.json?x=1",)),
    ],
)
def test_a_card_is_below_the_address_or_is_the_address(target: str, targets: tuple[str, ...]) -> None:
    assert card_targets(target) == targets


@pytest.mark.parametrize(
    ("home", "url"),
    [
        (HOME, "https://agents.example/a2a"),
        (HOME, "https://agents.example:8443/"),
        ("http://agents.example", "https://agents.example/"),
        ("http://127.0.0.1:9000", "http://localhost:9001/"),
        ("http://localhost:9000", "http://0.0.0.0:9000/"),
        ("http://[::1]:9000", "http://127.0.0.2:9000/"),
        (HOME, "https://other.example/x"),
    ],
)
def test_the_same_host_and_listed_origins_are_trusted(home: str, url: str) -> None:
    contact = chosen(AgentInterface(url), home=home, origins=("https://other.example",))
    assert isinstance(contact, AgentEndpoint)
    assert contact.origin == parse_url(url)[0]


@pytest.mark.parametrize(
    ("home", "url"),
    [
        (HOME, "https://other.example/"),
        (HOME, "https://agents.example.evil.example/"),
        (HOME, "https://evil.agents.example/"),
        (HOME, "http://agents.example/"),
        (HOME, "https://127.0.0.1/"),
        ("http://10.0.0.1", "http://10.0.0.2/"),
        ("http://10.0.0.1", "http://127.0.0.1/"),
    ],
)
def test_a_card_cannot_send_the_credentials_elsewhere(home: str, url: str) -> None:
    refusal = chosen(AgentInterface(url), home=home)
    assert isinstance(refusal, str)
    assert "is not where its card is" in refusal


@pytest.mark.parametrize(
    "url", ["https://user:secret@agents.example/", "ftp://agents.example/", "https://a\\@b/", "nonsense", "https://"]
)
def test_an_invalid_address_is_refused_and_no_secret_revealed(url: str) -> None:
    refusal = chosen(AgentInterface(url))
    assert isinstance(refusal, str)
    assert "secret" not in refusal


def test_the_first_place_that_can_be_spoken_to_is_taken() -> None:
    grpc = AgentInterface(HOME, "GRPC", "1.0")
    other = AgentInterface("https://other.example", "JSONRPC", "1.0")
    later = AgentInterface(HOME, "JSONRPC", "2.0")
    contact = chosen(grpc, other, later, AgentInterface(f"{HOME}/rest", "http+json", "1.0.1"), AgentInterface(HOME))
    assert isinstance(contact, AgentEndpoint)
    assert isinstance(contact.binding, RestClientBinding)
    refusal = chosen(grpc, grpc, later)
    assert (
        refusal
        == "its card names no interface that the hub can use: GRPC 1.0 is not supported; JSONRPC 2.0 is not supported"
    )


@pytest.mark.parametrize(
    ("binding", "version", "kind"),
    [
        ("JSONRPC", "1.0", RpcClientBinding),
        ("JSONRPC", "0.3.0", RpcClientBinding),
        ("HTTP+JSON", "1.0", RestClientBinding),
        ("HTTP+JSON", "0.3", RestClientBinding),
    ],
)
def test_each_generation_is_spoken_in_both_bindings(binding: str, version: str, kind: type) -> None:
    contact = chosen(AgentInterface(HOME, binding, version))
    assert isinstance(contact, AgentEndpoint)
    assert isinstance(contact.binding, kind)
    assert version.startswith(contact.binding.version)


def test_paths_go_behind_the_places_own_and_its_query_stays() -> None:
    contact = chosen(AgentInterface(f"{HOME}/a/?key=1", "HTTP+JSON", "1.0", tenant="t e"))
    assert isinstance(contact, AgentEndpoint)
    assert contact.target("") == "/a/?key=1"
    assert contact.target("/x") == "/a/x?key=1"
    assert contact.target("/x?y=2") == "/a/x?y=2"
    assert contact.binding.write(1, GetTask("i/d", 3)).path == "/t%20e/tasks/i%2Fd?historyLength=3"
