"""The table of the relay: three settings of one table, a key that is a secret, agents that cost only themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.config.codes import BAD_AGENT, WEAK_KEY
from isthmus.config.dialects.clients import CODEX
from isthmus.config.dialects.dialect import OWN
from isthmus.config.files import Document
from isthmus.config.findings import ConfigError, Finding
from isthmus.config.load import load
from isthmus.config.relay import read_relay
from isthmus.config.settings import RelayParts
from isthmus.config.variables import Variables
from isthmus.model.relay import AgentRules

FILE = Path("/etc/hub/isthmus.toml")
SECRET = "0123456789abcdef0123456789abcdef"


def read(table: object, folder: Path = Path("/etc/hub")) -> tuple[RelayParts, tuple[Finding, ...]]:
    variables = Variables({"RELAY_KEY": SECRET}, folder, folder)
    return read_relay(Document(FILE, {"relay": table}, OWN), variables)


def agents(**entries: object) -> tuple[dict[str, AgentRules], list[str]]:
    parts, findings = read({"agents": entries})
    assert parts.face.agents == parts.dialin.agents
    assert {finding.code for finding in findings} <= {BAD_AGENT}
    return dict(parts.face.agents), [str(finding) for finding in findings]


def test_without_a_file_or_a_table_there_are_the_defaults() -> None:
    variables = Variables({}, FILE.parent, FILE.parent)
    for document in (None, Document(FILE, {}, OWN), Document(FILE, {"relay": 5}, CODEX)):
        assert read_relay(document, variables) == (RelayParts(), ())


def test_each_value_reaches_the_part_that_goes_by_it() -> None:
    parts, findings = read(
        {
            "enabled": False, "key": SECRET, "compatible": False, "revoked": ["0a1b0a1b0a1b0a1b"],
            "aggregate": "first", "wait": 1, "timeout": 2, "frame_bytes": 5000, "grace": 3, "forget": 4,
            "max_servers": 5, "max_tools": 6,
            "max_agent_connections": 7, "max_connections": 8,
        }
    )  # fmt: skip
    assert findings == ()
    assert (parts.tokens.key, parts.tokens.compatible, parts.tokens.revoked) == (SECRET, False, ("0a1b0a1b0a1b0a1b",))
    face, dialin = parts.face, parts.dialin
    assert (face.enabled, face.aggregate, face.wait, face.timeout, face.frame_bytes) == (False, "first", 1, 2, 5000)
    assert (dialin.grace, dialin.forget, dialin.max_servers, dialin.max_tools) == (3, 4, 5, 6)
    assert (dialin.max_agent_connections, dialin.max_connections) == (7, 8)


@pytest.mark.parametrize("key", [SECRET, "env:RELAY_KEY", "${RELAY_KEY}", "file:key"])
def test_the_key_comes_from_where_secrets_come_from(key: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(SECRET + "\n")
    parts, findings = read({"key": key}, tmp_path)
    assert (parts.tokens.key, findings) == (SECRET, ())


def test_a_short_key_refuses_the_file_and_is_not_quoted() -> None:
    with pytest.raises(ConfigError, match=r"relay\.key must have 16 characters or more, not 8") as refused:
        read({"key": "hunter22"})
    assert [finding.code for finding in refused.value.findings] == [WEAK_KEY]
    assert "hunter22" not in str(refused.value)


def test_a_key_is_tried_for_its_length_and_nothing_else() -> None:
    parts, findings = read({"key": "changeme" * 2})
    assert (parts.tokens.key, findings) == ("changeme" * 2, ())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (5, "isthmus.toml: relay must be a table, not 5"),
        ({"enabled": "maybe"}, "isthmus.toml: relay.enabled must be true or false, not 'maybe'"),
        ({"key": 5}, "isthmus.toml: relay.key must be a text, not a number"),
        ({"key": ""}, "isthmus.toml: relay.key must be a text, not empty"),
        ({"key": "sha256:" + "0" * 64}, "isthmus.toml: relay.key must be the key itself, not its digest"),
        ({"key": "env:GONE"}, "isthmus.toml: relay.key must name a variable that is set, not env:GONE"),
        ({"key": "${GONE}"}, "isthmus.toml: relay.key must have only variables that are set, not ${GONE}"),
        ({"revoked": ["isr1.abc.def"]}, "isthmus.toml: relay.revoked.0 must be the id of a token, 16 to 18 digits"),
        ({"aggregate": "most"}, "isthmus.toml: relay.aggregate must be one of all, first, not 'most'"),
        ({"wait": 0}, "isthmus.toml: relay.wait must be a number of seconds above 0, not 0"),
        ({"frame_bytes": 1}, "isthmus.toml: relay.frame_bytes must be at least 4096, not 1"),
        ({"grace": -1}, "isthmus.toml: relay.grace must be a number of seconds, 0 or more, not -1"),
        ({"max_servers": 0}, "isthmus.toml: relay.max_servers must be at least 1, not 0"),
        ({"max_tools": 1.5}, "isthmus.toml: relay.max_tools must be a whole number, not 1.5"),
        ({"agents": []}, "isthmus.toml: relay.agents must be a table, not a list"),
    ],
)
def test_a_bad_value_refuses_the_file(table: object, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(table)
    assert str(refused.value).startswith(message)


def test_an_unknown_key_is_told_of() -> None:
    _, findings = read({"agent": {}})
    assert [str(finding) for finding in findings] == [
        "isthmus.toml: relay.agent is not known and has no effect (did you mean agents?)"
    ]


def test_what_is_said_of_an_agent() -> None:
    entry = {"name": "cook", "allow": ["builtin", "agent:cellar"], "deny": ["cook_knives.throw"], "grace": 30}
    assert agents(kitchen=entry, **{"acme/kitchen": {}}) == (
        {
            "kitchen": AgentRules("cook", ("builtin", "agent:cellar"), ("cook_knives.throw",), 30),
            "acme/kitchen": AgentRules(),
        },
        [],
    )


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"allow": "builtin"}, "kitchen.allow must be a list of texts, not 'builtin'"),
        (
            {"allow": ["a*"]},
            "kitchen.allow.0 must be *, server.*, server.tool, agent:KEY, tag:NAME or hint:NAME, not 'a*'",
        ),
        ({"alow": ["a"], "name": "b"}, "kitchen must have only name, allow, deny, grace, not 'alow'"),
        ({"name": "a.b", "allow": ["a"]}, "kitchen.name must be 1 to 50 of A-Z a-z 0-9 _ - (no dot), not 'a.b'"),
        ({"name": 5}, "kitchen.name must be a text, not 5"),
        ({"grace": -1}, "kitchen.grace must be a number of seconds, 0 or more, not -1"),
    ],
)
def test_an_agent_with_a_mistake_in_it_is_left_out_whole(entry: object, told: str) -> None:
    rules, findings = agents(kitchen=entry, cellar={"grace": 1})
    assert rules == {"cellar": AgentRules(grace=1)}
    (finding,) = findings
    assert finding.startswith(f"isthmus.toml: relay.agents.{told}")
    assert finding.endswith("(this entry is left out)")


@pytest.mark.parametrize(
    "entry", [{"deny": ["a*"]}, {"denny": ["a"]}, {"deny": ["a"], "grace": "soon"}, {"Deny": ["a"]}, ["deny"], "deny"]
)
def test_where_something_may_have_been_forbidden_a_mistake_forbids_everything(entry: object) -> None:
    rules, (finding,) = agents(kitchen=entry)
    assert rules == {"kitchen": AgentRules(deny=("*",))}
    assert finding.endswith("(until then its devices see nothing)")


@pytest.mark.parametrize("key", ["", " ", "a/b/c", "/a", "a/", "a" * 129])
def test_an_entry_under_a_name_that_no_agent_has_is_told_of(key: str) -> None:
    rules, (finding,) = agents(**{key: {"grace": 1}})
    assert rules == {}
    assert "must be under the name of an agent" in finding


def test_it_is_part_of_a_configuration(tmp_path: Path) -> None:
    text = '[relay]\nkey = "env:RELAY_KEY"\nwait = 2\n[relay.agents."acme/kitchen"]\nallow = ["builtin"]\nnme = 5\n'
    (tmp_path / "isthmus.toml").write_text(text)
    configuration = load(None, {"RELAY_KEY": SECRET}, tmp_path, tmp_path)
    assert (configuration.relay.face.wait, configuration.relay.tokens.key) == (2, SECRET)
    assert [finding.code for finding in configuration.warnings] == [BAD_AGENT]
    assert configuration.origins["relay.key"].borrowed == ("env:RELAY_KEY",)
    assert configuration.origins['relay.agents."acme/kitchen".allow'].path == 'relay.agents."acme/kitchen".allow'
    assert SECRET not in repr(configuration)
