"""The table that says which addresses callers may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.config.dialects.clients import CODEX, OWN
from isthmus.config.files import Document
from isthmus.config.findings import ConfigError
from isthmus.config.tables import read_targets
from isthmus.upstream.targets.settings import TargetSettings

FILE = Path("/etc/hub/isthmus.toml")


def document(targets: object) -> Document:
    return Document(FILE, {"targets": targets}, OWN)


def test_without_a_file_or_a_table_nothing_may_be_named() -> None:
    assert read_targets(None) == (TargetSettings(), ())
    assert read_targets(Document(FILE, {}, OWN)) == (TargetSettings(), ())


def test_the_table_fills_the_settings() -> None:
    table = {"allow": ["https://*.example.com"], "headers": ["Authorization"], "idle": "60", "max": 8, "open": True}
    assert read_targets(document(table)) == (
        TargetSettings(("https://*.example.com",), ("Authorization",), 60.0, 8, open=True),
        (),
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"allow": "https://a"}, "isthmus.toml: targets.allow must be a list of texts, not 'https://a'"),
        (
            {"allow": ["a.example"]},
            "isthmus.toml: targets.allow.0 must be like https://host, https://*.domain or http://127.0.0.1:9000/path, "
            "not 'a.example'",
        ),
        ({"headers": ["Host"]}, "isthmus.toml: targets.headers.0 must be none that the hub writes itself, not 'Host'"),
        ({"idle": "long"}, "isthmus.toml: targets.idle must be a number, not 'long'"),
        ({"max": 0}, "isthmus.toml: targets.max must be at least 1, not 0"),
        (5, "isthmus.toml: targets must be a table, not 5"),
    ],
)
def test_a_bad_value_refuses_the_file(table: object, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_targets(document(table))
    assert str(refused.value) == message


def test_an_unknown_key_is_told_of() -> None:
    settings, (finding,) = read_targets(document({"allows": []}))
    assert settings == TargetSettings()
    assert "allow" in str(finding)


def test_it_is_read_where_the_hub_has_a_place_and_nowhere_else() -> None:
    assert read_targets(Document(FILE, {"targets": 5}, CODEX)) == (TargetSettings(), ())
