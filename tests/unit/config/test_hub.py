"""The hub's tables."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from isthmus.config.dialects.clients import CODEX
from isthmus.config.dialects.dialect import OWN, STANDARD
from isthmus.config.entries import KEYS
from isthmus.config.files import Document
from isthmus.config.findings import ConfigError
from isthmus.config.hub import read_hub
from isthmus.config.settings import HubSettings
from isthmus.core.settings import Limits

FILE = Path("/etc/hub/isthmus.toml")
HOME = Path("/home/me")
PAGE = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text(encoding="utf-8")


def document(**table: object) -> Document:
    return Document(FILE, dict(table), OWN)


def test_with_no_file_the_defaults_hold_and_the_state_is_at_home() -> None:
    hub, findings = read_hub(None, HOME, {})
    assert (hub.host, hub.port, hub.state, findings) == (
        "127.0.0.1",
        8765,
        "/home/me/.local/state/isthmus",
        (),
    )


def test_the_tables_fill_the_settings() -> None:
    hub, findings = read_hub(
        document(
            hub={
                "host": "0.0.0.0",
                "port": 9000,
                "state": "state",
                "hosts": ["hub.example"],
                "names": "llm",
            },
            limits={"call_seconds": 5, "max_calls": 2},
        ),
        HOME,
        {},
    )
    assert (hub.host, hub.port, hub.state, hub.names) == ("0.0.0.0", 9000, "/etc/hub/state", "llm")
    assert hub.hosts == ("hub.example",)
    assert (hub.limits.call_seconds, hub.limits.max_calls, hub.limits.max_queued) == (5, 2, 256)
    assert findings == ()


def test_settings_are_known_by_their_earlier_names_too() -> None:
    hub, findings = read_hub(document(hub={"allowed_hosts": ["a.example"], "allowed_origins": ["https://a"]}), HOME, {})
    assert (hub.hosts, hub.origins) == (("a.example",), ("https://a",))
    assert findings == ()


def test_what_the_command_line_gives_wins() -> None:
    hub, _ = read_hub(document(hub={"host": "0.0.0.0", "port": 9000}), HOME, {"host": "::1"})
    assert (hub.host, hub.port) == ("::1", 9000)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"log": {"level": "loud"}}, "isthmus.toml: log.level must be one of debug, info, warning, error, not 'loud'"),
        ({"log": {"file": 5}}, "isthmus.toml: log.file must be a text, not 5"),
        ({"log": {"file": ""}}, "isthmus.toml: log.file must be the path of a file, not ''"),
        ({"hub": {"port": "high"}}, "isthmus.toml: hub.port must be a whole number, not 'high'"),
        ({"hub": {"port": 70000}}, "isthmus.toml: hub.port must be 0 to 65535, not 70000"),
        ({"hub": {"host": 5}}, "isthmus.toml: hub.host must be a text, not 5"),
        ({"hub": {"allowed_hosts": "a"}}, "isthmus.toml: hub.allowed_hosts must be a list of texts, not 'a'"),
        (
            {"hub": {"allowed_hosts": [], "hosts": []}},
            "isthmus.toml: hub.allowed_hosts must be left out where hosts is given, not be beside it",
        ),
        ({"hub": []}, "isthmus.toml: hub must be a table, not a list"),
        ({"limits": {"depth": 4}}, "isthmus.toml: limits.depth must be at least 8, not 4"),
        ({"limits": {"depth": 9.5}}, "isthmus.toml: limits.depth must be a whole number, not 9.5"),
        ({"limits": {"call_seconds": "x"}}, "isthmus.toml: limits.call_seconds must be a number, not 'x'"),
        ({"limits": 5}, "isthmus.toml: limits must be a table, not 5"),
    ],
)
def test_a_bad_value_refuses_the_file(table: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_hub(document(**table), HOME, {})
    assert str(refused.value) == message


def test_a_bad_value_of_the_command_line_names_the_option() -> None:
    with pytest.raises(ConfigError, match=r"^--port must be 0 to 65535, not 70000$"):
        read_hub(document(), HOME, {"port": 70000})


def test_logging_has_a_table_of_its_own_that_wins_over_the_hub_s() -> None:
    hub, findings = read_hub(
        document(hub={"log_level": "error", "log_format": "json"}, log={"file": "logs/hub.log", "level": "debug"}),
        HOME,
        {},
    )
    assert findings == ()
    assert (hub.log_level, hub.log_format, hub.log_file) == ("debug", "json", "/etc/hub/logs/hub.log")


def test_a_limit_of_the_environment_stands_in_where_the_file_has_none() -> None:
    assert read_hub(None, HOME, {}, 61)[0].limits.call_seconds == 61
    assert read_hub(document(limits={"depth": 9}), HOME, {}, 61)[0].limits.call_seconds == 61
    assert read_hub(document(limits={"call_seconds": 5}), HOME, {}, 61)[0].limits.call_seconds == 5
    assert read_hub(document(limits={"hard_seconds": 20}), HOME, {}, 61)[0].limits.call_seconds == 20
    assert read_hub(document(limits={"hard_seconds": 20}), HOME, {})[0].limits.call_seconds == 20


def test_a_log_in_a_file_that_is_not_ours_alone_is_somebody_else_s() -> None:
    hub, findings = read_hub(Document(FILE, {"hub": {"port": 1}, "log": "verbose"}, STANDARD), HOME, {})
    assert (hub.port, hub.log_level, findings) == (1, "info", ())


def test_another_client_s_settings_are_not_the_hub_s() -> None:
    hub, findings = read_hub(Document(FILE, {"hub": {"port": 1}, "limits": 5}, CODEX), HOME, {})
    assert (hub.port, findings) == (8765, ())


def test_unknown_keys_are_told_of() -> None:
    _, findings = read_hub(document(hub={"prot": 1}, limits={"call_second": 1}), HOME, {})
    assert [str(finding) for finding in findings] == [
        "isthmus.toml: hub.prot is not known and has no effect (did you mean port?)",
        "isthmus.toml: limits.call_second is not known and has no effect (did you mean call_seconds?)",
    ]


@pytest.mark.parametrize("settings", [HubSettings, Limits])
def test_every_key_is_documented(settings: type) -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    keys = {field.name.removeprefix("log_") for field in fields(settings)} - {"limits", "file", "format", "level"}
    assert {key for key in keys if not any(f"`{key}`" in row.split("|")[1] for row in rows)} == set()


def test_every_key_of_a_server_is_documented() -> None:
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("|")]
    spelt_otherwise = {"transport", "transportType"}  # as other clients do
    assert {key for key in KEYS - spelt_otherwise if not any(f"`{key}`" in row for row in rows)} == set()
