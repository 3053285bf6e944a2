"""Where agents are spoken to, and where not."""

from __future__ import annotations

import pytest

from isthmus.transport.egress import parse_url
from isthmus.upstream.agent.contacts import Contact, card_targets, choose
from isthmus.wire.a2a.cards import Card, Interface
from isthmus.wire.a2a.client_bindings import PlainBinding, RpcBinding
from isthmus.wire.a2a.operations import Get

HOME = "https://agents.example"


def card(*interfaces: Interface) -> Card:
    return Card("Agent", "", "1", interfaces, (), (), ())


def chosen(*interfaces: Interface, home: str = HOME, origins: tuple[str, ...] = ()) -> Contact | str:
    return choose(card(*interfaces), parse_url(home)[0], origins, 64)


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
    contact = chosen(Interface(url), home=home, origins=("https://other.example",))
    assert isinstance(contact, Contact)
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
    refusal = chosen(Interface(url), home=home)
    assert isinstance(refusal, str)
    assert "is not where its card is" in refusal


@pytest.mark.parametrize(
    "url", ["https://user:secret@agents.example/", "ftp://agents.example/", "https://a\\@b/", "nonsense", "https://"]
)
def test_an_address_that_is_none_is_refused_and_no_secret_told(url: str) -> None:
    refusal = chosen(Interface(url))
    assert isinstance(refusal, str)
    assert "secret" not in refusal


def test_the_first_place_that_can_be_spoken_to_is_taken() -> None:
    grpc = Interface(HOME, "GRPC", "1.0")
    other = Interface("https://other.example", "JSONRPC", "1.0")
    later = Interface(HOME, "JSONRPC", "2.0")
    contact = chosen(grpc, other, later, Interface(f"{HOME}/rest", "http+json", "1.0.1"), Interface(HOME))
    assert isinstance(contact, Contact)
    assert isinstance(contact.binding, PlainBinding)
    refusal = chosen(grpc, grpc, later)
    assert refusal == "its card names no place that can be spoken to: GRPC 1.0 is not spoken; JSONRPC 2.0 is not spoken"


@pytest.mark.parametrize(
    ("binding", "version", "kind"),
    [
        ("JSONRPC", "1.0", RpcBinding),
        ("JSONRPC", "0.3.0", RpcBinding),
        ("HTTP+JSON", "1.0", PlainBinding),
        ("HTTP+JSON", "0.3", PlainBinding),
    ],
)
def test_each_generation_is_spoken_in_both_bindings(binding: str, version: str, kind: type) -> None:
    contact = chosen(Interface(HOME, binding, version))
    assert isinstance(contact, Contact)
    assert isinstance(contact.binding, kind)
    assert version.startswith(contact.binding.version)


def test_paths_go_behind_the_places_own_and_its_query_stays() -> None:
    contact = chosen(Interface(f"{HOME}/a/?key=1", "HTTP+JSON", "1.0", tenant="t e"))
    assert isinstance(contact, Contact)
    assert contact.target("") == "/a/?key=1"
    assert contact.target("/x") == "/a/x?key=1"
    assert contact.target("/x?y=2") == "/a/x?y=2"
    assert contact.binding.write(1, Get("i/d", 3)).path == "/t%20e/tasks/i%2Fd?historyLength=3"
