"""Cards in every generation's form."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from isthmus.wire.a2a import cards
from isthmus.wire.a2a.cards import (
    SKILLS_MAX,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentSkill,
    ApiKey,
    Http,
    OAuth,
    Scheme,
    read_card,
)
from tests.unit.wire.a2a.samples import Json, steady, values

URL = "https://hub.example/a2a"
REST = "https://hub.example/a2a/rest"
TOKENS = "https://as.example/token"
SCHEMA = Raw(b'{"type":"object","maximum":12345678901234567890}')

CARD = AgentCard(
    "Hub",
    "Runs tools",
    "1.2.3",
    (
        AgentInterface(URL),
        AgentInterface(REST, "HTTP+JSON"),
        AgentInterface(URL, version="0.3"),
        AgentInterface(REST, "HTTP+JSON", "0.3"),
    ),
    (
        AgentSkill("execute_mcp_command", "Execute MCP Command", "Runs one", ("mcp",), ("x",), SCHEMA),
        AgentSkill("files.read", "read", ""),
    ),
    ("text/plain", "application/json"),
    can_push=True,
    has_extended=True,
    extensions=(AgentExtension("urn:other", "more", True, Raw(b'{"a":1}')),),
    schemes={"bearer": Http("Bearer"), "key": ApiKey("X-Api-Key")},
)
BARE = AgentCard("Hub", "Runs tools", "1", (AgentInterface(URL),), (AgentSkill("s", "s", "d"),), ("a/b",))

STRICT = {
    "name",
    "description",
    "version",
    "supportedInterfaces",
    "capabilities",
    "defaultInputModes",
    "defaultOutputModes",
    "skills",
}


def written(payload: bytes) -> Any:
    return json.loads(payload)


def with_schemes(**schemes: Scheme) -> AgentCard:
    return msgspec.structs.replace(BARE, schemes=schemes)


def test_a_strict_card_has_the_members_of_1_0_and_no_others() -> None:
    assert written(cards.write_strict(BARE)).keys() == STRICT
    card = written(cards.write_strict(CARD))
    assert card.keys() - STRICT == {"securitySchemes", "securityRequirements"}
    assert card["supportedInterfaces"][0] == {"url": URL, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    assert card["capabilities"]["streaming"] is True
    assert card["capabilities"]["extendedAgentCard"] is True
    assert card["securityRequirements"] == [
        {"schemes": {"bearer": {"list": []}}},
        {"schemes": {"key": {"list": []}}},
    ]


def test_required_members_are_never_empty() -> None:
    skill = written(cards.write_strict(CARD))["skills"][1]
    assert skill == {"id": "files.read", "name": "read", "description": "read", "tags": ["mcp"]}


def test_schemas_of_skills_travel_by_an_extension_and_exactly() -> None:
    card = cards.write_strict(CARD)
    other, schemas = written(card)["capabilities"]["extensions"]
    assert other == {"uri": "urn:other", "description": "more", "params": {"a": 1}, "required": True}
    assert (schemas["uri"], schemas["required"]) == (cards.SCHEMAS, False)
    assert schemas["params"]["skills"].keys() == {"execute_mcp_command"}
    assert bytes(SCHEMA) in card
    assert "extensions" not in written(cards.write_strict(BARE))["capabilities"]


def test_a_card_of_0_3_says_where_it_is_spoken() -> None:
    card = written(cards.write_0_3(CARD))
    assert (card["protocolVersion"], card["url"], card["preferredTransport"]) == ("0.3.0", URL, "JSONRPC")
    assert card["additionalInterfaces"] == [{"url": REST, "transport": "HTTP+JSON"}]
    assert card["supportsAuthenticatedExtendedCard"] is True
    assert card["security"] == [{"bearer": []}, {"key": []}]
    assert card["securitySchemes"]["key"] == {
        "type": "apiKey",
        "in": "header",
        "name": "X-Api-Key",
    }
    assert "supportedInterfaces" not in card


def test_a_merged_card_is_both() -> None:
    strict, merged, earlier = (
        written(write(CARD)) for write in (cards.write_strict, cards.write_merged, cards.write_0_3)
    )
    assert merged.keys() == strict.keys() | earlier.keys()
    for one in strict, earlier:
        assert {key: merged[key] for key in one if key not in ("capabilities", "securitySchemes")} == {
            key: one[key] for key in one if key not in ("capabilities", "securitySchemes")
        }
        assert one["capabilities"].items() <= merged["capabilities"].items()
        for name, scheme in one["securitySchemes"].items():
            assert scheme.items() <= merged["securitySchemes"][name].items()


@pytest.mark.parametrize(
    ("scheme", "latest", "earlier"),
    [
        (
            ApiKey("X-Api-Key"),
            {"apiKeySecurityScheme": {"location": "header", "name": "X-Api-Key"}},
            {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
        ),
        (Http("Bearer"), {"httpAuthSecurityScheme": {"scheme": "Bearer"}}, {"type": "http", "scheme": "Bearer"}),
        (
            OAuth(TOKENS),
            {"oauth2SecurityScheme": {"flows": {"clientCredentials": {"tokenUrl": TOKENS, "scopes": {}}}}},
            {"type": "oauth2", "flows": {"clientCredentials": {"tokenUrl": TOKENS, "scopes": {}}}},
        ),
    ],
)
def test_a_scheme_has_a_form_in_each_generation(scheme: Scheme, latest: Any, earlier: Any) -> None:
    card = with_schemes(s=scheme)
    assert written(cards.write_strict(card))["securitySchemes"]["s"] == latest
    assert written(cards.write_0_3(card))["securitySchemes"]["s"] == earlier


def test_the_card_of_0_1_has_the_members_of_a_gateway() -> None:
    card = written(cards.write_0_1(CARD))
    assert (card["name"], card["url"], card["version"]) == ("MCP Gateway Agent", URL, "1.2.3")
    assert card["defaultInputModes"] == card["defaultOutputModes"] == ["data"]
    assert card["skills"][0]["name"] == "Execute MCP Command"
    assert card["skills"][0]["inputModes"] == ["data"]
    assert card["authentication"] == {"schemes": ["Bearer", "apiKey"]}
    assert card["capabilities"] == {"streaming": True, "pushNotifications": True, "stateTransitionHistory": False}
    assert "authentication" not in written(cards.write_0_1(BARE))


def test_agentvaults_card_has_the_members_that_its_clients_require() -> None:
    card = written(cards.write_agentvault(CARD, "org/hub"))
    assert (card["schemaVersion"], card["humanReadableId"], card["agentVersion"]) == ("1.0", "org/hub", "1.2.3")
    assert card["provider"] == {"name": "Hub"}
    assert card["capabilities"]["a2aVersion"] == "1.0"
    key = {"scheme": "apiKey", "service_identifier": "org"}
    assert card["authSchemes"] == [{"scheme": "bearer"}, key]
    assert card["skills"][0]["input_schema"] == json.loads(bytes(SCHEMA))
    assert "output_schema" not in card["skills"][0]


def test_agentvaults_card_says_that_no_key_is_needed_where_none_is() -> None:
    card = written(cards.write_agentvault(BARE, "org/hub"))
    assert card["authSchemes"] == [{"scheme": "none"}]
    assert card["provider"] == {"name": "Hub"}


def test_agentvaults_clients_learn_where_tokens_are() -> None:
    card = with_schemes(o=OAuth(TOKENS), b=Http("Bearer"))
    assert written(cards.write_agentvault(card, "org/hub"))["authSchemes"] == [
        {"scheme": "oauth2", "service_identifier": "org", "tokenUrl": TOKENS},
        {"scheme": "bearer"},
    ]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8765/a2a", "http://localhost:8765/a2a"),
        ("http://[::1]/a2a", "http://localhost/a2a"),
        ("http://127.0.0.1", "http://localhost"),
        ("http://127.0.0.11:8080/a2a", "http://127.0.0.11:8080/a2a"),
        ("http://127.0.0.1.example:8080/a2a", "http://127.0.0.1.example:8080/a2a"),
        ("https://127.0.0.1:8443/a2a", "https://127.0.0.1:8443/a2a"),
        ("https://hub.example/a2a", "https://hub.example/a2a"),
    ],
)
def test_an_address_of_this_machine_is_called_localhost_as_agentvaults_clients_refuse_others(
    url: str, shown: str
) -> None:
    card = msgspec.structs.replace(BARE, interfaces=(AgentInterface(url),))
    assert written(cards.write_agentvault(card, "org/hub"))["url"] == shown


def test_an_agent_that_is_not_spoken_to_by_json_rpc_has_no_address_for_earlier_clients() -> None:
    card = msgspec.structs.replace(BARE, interfaces=(AgentInterface(REST, "HTTP+JSON"),))
    assert written(cards.write_0_1(card))["url"] == ""


MINIMUM: dict[str, Any] = {"name": "x", "url": URL}


def read(card: object) -> AgentCard:
    found = read_card(json.dumps(card).encode())
    assert isinstance(found, AgentCard)
    return found


@pytest.mark.parametrize("write", [cards.write_strict, cards.write_merged])
def test_a_card_is_read_as_it_was_written(write: Any) -> None:
    card = read_card(write(CARD))
    assert isinstance(card, AgentCard)
    assert (card.name, card.description, card.version) == (CARD.name, CARD.description, CARD.version)
    assert card.interfaces == CARD.interfaces
    assert (card.can_stream, card.can_push, card.has_extended) == (True, True, True)
    assert [skill.id for skill in card.skills] == ["execute_mcp_command", "files.read"]
    assert card.skills[0].input_schema == SCHEMA
    assert not card.skills[1].input_schema


def test_a_card_of_0_3_says_its_places_otherwise() -> None:
    card = read_card(cards.write_0_3(CARD))
    assert isinstance(card, AgentCard)
    assert card.interfaces == (AgentInterface(URL, "JSONRPC", "0.3.0"), AgentInterface(REST, "HTTP+JSON", "0.3.0"))
    assert card.has_extended


def test_the_least_that_is_a_card() -> None:
    card = read(MINIMUM)
    assert card.interfaces == (AgentInterface(URL, "JSONRPC", "0.3"),)
    assert (card.skills, card.can_stream) == ((), False)


def test_members_of_a_wrong_type_are_left_out() -> None:
    odd = read(
        {
            **MINIMUM,
            "description": 7,
            "skills": [7, {"id": 7}, {"id": "s", "tags": "t", "examples": ["a", 7], "name": None}],
            "capabilities": [],
            "additionalInterfaces": [{"url": REST}, {"url": URL, "transport": "JSONRPC"}, None],
        }
    )
    assert odd.description == ""
    assert odd.skills == (AgentSkill("s", "s", "", (), ("a",)),)
    assert odd.interfaces == (AgentInterface(URL, "JSONRPC", "0.3"),)


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
def test_unreadable_schemas_are_ignored(extensions: Json) -> None:
    card = read({**MINIMUM, "skills": [{"id": "s"}], "capabilities": {"extensions": extensions}})
    assert not card.skills[0].input_schema


def test_extensions_are_read_with_their_parameters_as_they_are() -> None:
    listed = b'[7,{"uri":7},{"description":"x"},{"uri":"urn:x","required":true,"params":{"n":1.50}},{"uri":"urn:y"}]'
    card = read_card(b'{"name":"x","url":"%b","capabilities":{"extensions":%b}}' % (URL.encode(), listed))
    assert isinstance(card, AgentCard)
    assert card.extensions == (
        AgentExtension("urn:x", is_required=True, params=Raw(b'{"n":1.50}')),
        AgentExtension("urn:y"),
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
def test_a_body_that_is_no_card_is_reported(body: bytes) -> None:
    assert isinstance(read_card(body), str)


def test_a_card_cannot_be_endless() -> None:
    card = read({**MINIMUM, "name": "x" * 100_000, "skills": [{"id": str(n)} for n in range(SKILLS_MAX + 5)]})
    assert (len(card.name), len(card.skills)) == (4096, SKILLS_MAX)


MEMBERS = ["name", "url", "skills", "capabilities", "supportedInterfaces", "provider", "additionalInterfaces"]


@given(st.dictionaries(st.sampled_from(MEMBERS), values))
@steady
def test_nothing_that_can_be_published_makes_it_raise(card: dict[str, Json]) -> None:
    assert isinstance(read_card(json.dumps(card).encode()), AgentCard | str)
