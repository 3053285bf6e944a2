"""Callers of a file: a mistake never widens access."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.config.callers import read_callers
from isthmus.config.dialects.dialect import OWN
from isthmus.config.files import Document
from isthmus.config.findings import ConfigError
from isthmus.config.variables import Variables
from isthmus.identity.keys import digest_of
from isthmus.model.callers import Caller, Grants

FILE = Path("/etc/hub/isthmus.toml")
KEY, OTHER_KEY = "k3y-of-the-planner-0123", "an0ther-key-of-someone"
VARIABLES = Variables({"PLANNER_KEY": KEY, "SHORT": "abc"}, FILE.parent, Path("/home/me"))
GOOD = {"key": OTHER_KEY, "allow": ["*"]}


def read(callers: object, *, is_loopback: bool = True) -> tuple[tuple[tuple[bytes, Caller], ...], list[str]]:
    document = Document(FILE, {"callers": callers}, OWN)
    found, findings = read_callers(document, VARIABLES, is_loopback=is_loopback)
    return found, [str(finding) for finding in findings]


@pytest.mark.parametrize(
    "key",
    [KEY, "env:PLANNER_KEY", "${PLANNER_KEY}", f"sha256:{digest_of(KEY).hex()}"],
    ids=lambda key: key[:8],
)
def test_a_caller_has_a_key_and_grants(key: str) -> None:
    entry = {"key": key, "allow": ["files.*", "search.query"], "deny": ["files.delete"], "tenant": "blue"}
    callers, findings = read({"planner": entry}, is_loopback=False)
    grants = Grants(("files.*", "search.query"), ("files.delete",))
    assert callers == ((digest_of(KEY), Caller("planner", "blue", grants)),)
    assert findings == []


def test_no_callers_are_no_mistake() -> None:
    assert read({}) == ((), [])


def test_a_caller_without_grants_may_call_nothing() -> None:
    callers, findings = read({"planner": {"key": KEY}})
    assert callers == ((digest_of(KEY), Caller("planner", "default", Grants(()))),)
    assert findings == ['isthmus.toml: callers.planner may call nothing (allow = ["*"] would allow everything)']


def test_a_caller_may_be_let_name_addresses() -> None:
    callers, findings = read(
        {"planner": {**GOOD, "targets": True}, "guest": {"key": KEY, "targets": "false", "allow": ["a"]}}
    )
    assert [caller.may_name_targets for _, caller in callers] == [True, False]
    assert findings == []


def test_who_may_name_addresses_can_call_something() -> None:
    assert read({"planner": {"key": KEY, "targets": True}})[1] == []


def test_whether_it_may_is_a_truth_or_the_caller_is_left_out() -> None:
    callers, findings = read({"good": GOOD, "planner": {"key": KEY, "targets": "https://a.example"}})
    assert [caller.name for _, caller in callers] == ["good"]
    (finding,) = findings
    assert "targets must be true or false, not 'https://a.example'" in finding


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("secret", " must be a table, not another value"),
        ({"allow": ["*"]}, ".key must be given, not left out"),
        ({"key": None}, ".key must be given, not left out"),
        ({"key": 12345}, ".key must be a text, not a number"),
        ({"key": ""}, ".key must be a text, not empty"),
        (
            {"key": "two words of a secret"},
            ".key must be printable ASCII without spaces, not what it is (hidden)",
        ),
        ({"key": "env:GONE"}, ".key must name a variable that is set, not env:GONE"),
        ({"key": "${GONE}"}, ".key must have only variables that are set, not ${GONE}"),
        (
            {"key": "keyring:a"},
            ".key must be literal, env:NAME or file:PATH, not keyring:, which comes later",
        ),
        ({**GOOD, "denny": ["*"]}, " must have only key, allow, deny, tenant, targets, not 'denny'"),
        ({**GOOD, "allow": "*"}, ".allow must be a list of texts, not '*'"),
        ({**GOOD, "deny": "*"}, ".deny must be a list of texts, not '*'"),
        (
            {**GOOD, "deny": ["a", "f*"]},
            ".deny.1 must be *, server.*, server.tool or agent:KEY, not 'f*': a star cannot stand for a part of a name",
        ),
        ({**GOOD, "tenant": ""}, ".tenant must be a printable text, not ''"),
        ({**GOOD, "tenant": 5}, ".tenant must be a text, not 5"),
    ],
)
def test_a_broken_caller_is_left_out_and_costs_only_itself(entry: object, message: str) -> None:
    callers, findings = read({"good": {"key": KEY, "allow": ["*"]}, "bad": entry})
    assert [caller.name for _, caller in callers] == ["good"]
    assert findings == [f"isthmus.toml: callers.bad{message} (this caller is left out)"]


def test_a_caller_needs_a_name_that_can_be_logged() -> None:
    callers, findings = read({"good": GOOD, "two\nlines": {"key": KEY}})
    assert [caller.name for _, caller in callers] == ["good"]
    assert findings == [
        r'isthmus.toml: callers."two\nlines" must have a printable name, '
        r"not 'two\nlines' (this caller is left out)"
    ]


def test_a_weak_key_will_do_on_loopback_only() -> None:
    entries = {"good": GOOD, "weak": {"key": "env:SHORT", "allow": ["*"]}}
    callers, findings = read(entries)
    assert [caller.name for _, caller in callers] == ["good", "weak"]
    assert findings == [
        "isthmus.toml: callers.weak.key is shorter than 16 characters; it will do only on loopback "
        "(make one with: openssl rand -hex 32)"
    ]
    callers, findings = read(entries, is_loopback=False)
    assert [caller.name for _, caller in callers] == ["good"]
    assert findings == [
        "isthmus.toml: callers.weak.key must be strong where others can reach the hub, not weak: "
        "it is shorter than 16 characters; make one with: openssl rand -hex 32 (this caller is left out)"
    ]


def test_callers_who_share_a_key_are_all_left_out() -> None:
    callers, findings = read(
        {
            "good": GOOD,
            "admin": {"key": KEY, "allow": ["*"]},
            "guest": {"key": "env:PLANNER_KEY", "allow": ["a"]},
        }
    )
    assert [caller.name for _, caller in callers] == ["good"]
    assert findings == ["isthmus.toml: callers have the same key: admin, guest (these callers are left out)"]


def test_a_hub_whose_callers_are_all_broken_is_refused_not_open() -> None:
    with pytest.raises(ConfigError) as refused:
        read({"a": {"key": "env:GONE"}, "b": 5})
    assert [finding.path for finding in refused.value.findings] == ["callers.a.key", "callers.b", "callers"]
    assert str(refused.value).endswith("callers are configured but none is usable, and the hub must not be open")


def test_something_else_in_place_of_the_callers_refuses_the_file() -> None:
    with pytest.raises(ConfigError, match=r"^isthmus.toml: callers must be a table, not a list$"):
        read([])


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.just("file:\0"))
SHAPES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)
KEYS = st.sampled_from(["key", "allow", "deny", "tenant", "targets", "other"])


@given(st.text(), st.one_of(SHAPES, st.dictionaries(KEYS, SHAPES)), st.booleans())
def test_no_entry_raises_or_touches_another_caller(name: str, entry: object, is_loopback: bool) -> None:  # noqa: FBT001
    callers, _ = read({name: entry, "good caller": GOOD}, is_loopback=is_loopback)
    assert "good caller" in [caller.name for _, caller in callers]
