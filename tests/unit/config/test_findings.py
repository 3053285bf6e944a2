"""Findings name the place, the problem and the fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.config.findings import ConfigError, Finding, Place, closest_match

FILE = Path("/etc/isthmus/isthmus.toml")
PLACE = Place(FILE, "servers.search")


def test_a_finding_reads_as_a_sentence_with_file_path_and_value() -> None:
    finding = Finding(FILE, "servers.search.timeout", "0", "must be positive")
    assert str(finding) == "isthmus.toml: servers.search.timeout must be positive, not 0"


def test_a_finding_without_file_path_or_value_leaves_them_out() -> None:
    assert str(Place(None).finding("must not be", advice="fix it")) == "must not be (fix it)"


def test_an_error_holds_all_its_findings() -> None:
    error = ConfigError(PLACE.finding("is bad"), PLACE.at("url").finding("is worse"))
    assert str(error) == "isthmus.toml: servers.search is bad\nisthmus.toml: servers.search.url is worse"
    assert [finding.path for finding in error.findings] == ["servers.search", "servers.search.url"]


def test_odd_keys_are_quoted_in_a_path() -> None:
    assert PLACE.at("env", "A B", 0).path == 'servers.search.env."A B".0'


@pytest.mark.parametrize(
    ("error", "path", "message", "value"),
    [
        ("timeout must be positive, not 0", "servers.search.timeout", "must be positive", "0"),
        ("must be a table, not null", "servers.search", "must be a table", "null"),
        ("url must be short, not a, not b", "servers.search.url", "must be short", "a, not b"),
        ("key must be given", "servers.search.key", "must be given", ""),
    ],
)
def test_a_refused_value_becomes_a_finding(error: str, path: str, message: str, value: str) -> None:
    assert PLACE.mistake(ValueError(error)) == Finding(FILE, path, value, message)
    assert Place(FILE).mistake(ValueError(error)).path == path.removeprefix("servers.search").removeprefix(".")


def test_a_mistyped_key_gets_the_nearest_known_one_as_advice() -> None:
    assert str(PLACE.unknown("tiemout", ["timeout", "url"])) == (
        "isthmus.toml: servers.search.tiemout is not known and has no effect (did you mean timeout?)"
    )
    assert PLACE.unknown("colour", ["timeout", "url"]).advice == ""
    assert closest_match("Headers", ["headers"]) == "headers"
