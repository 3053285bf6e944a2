"""The agent's table."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.config.a2a import read_a2a
from isthmus.config.dialects.clients import CODEX
from isthmus.config.dialects.dialect import OWN, STANDARD
from isthmus.config.files import Document
from isthmus.config.findings import ConfigError
from isthmus.frontends.a2a.settings import A2aSettings

FILE = Path("/etc/hub/isthmus.toml")


def document(a2a: object) -> Document:
    return Document(FILE, {"a2a": a2a}, OWN)


def test_without_a_file_or_a_table_the_defaults_hold() -> None:
    assert read_a2a(None) == (A2aSettings(), ())
    assert read_a2a(Document(FILE, {}, OWN)) == (A2aSettings(), ())


def test_the_table_fills_the_settings() -> None:
    table = {"name": "Hub", "description": "Does it", "text_tool": "a.b", "card": "strict", "keep": "60"}
    assert read_a2a(document(table)) == (A2aSettings("Hub", "Does it", "a.b", "strict", 60.0), ())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": 5}, "isthmus.toml: a2a.name must be a text, not 5"),
        ({"name": ""}, "isthmus.toml: a2a.name must not be empty"),
        ({"card": "loose"}, "isthmus.toml: a2a.card must be one of merged, strict, not 'loose'"),
        ({"keep": "long"}, "isthmus.toml: a2a.keep must be a number, not 'long'"),
        ({"keep": 0}, "isthmus.toml: a2a.keep must be a number of seconds above 0, not 0"),
        ({"grpc_port": "x"}, "isthmus.toml: a2a.grpc_port must be a whole number, not 'x'"),
        ({"grpc_port": 65536}, "isthmus.toml: a2a.grpc_port must be 0 to 65535, not 65536"),
        ({"grpc_url": " "}, "isthmus.toml: a2a.grpc_url must not be empty"),
        (5, "isthmus.toml: a2a must be a table, not 5"),
    ],
)
def test_a_bad_value_refuses_the_file(table: object, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_a2a(document(table))
    assert str(refused.value) == message


def test_grpc_has_a_port_and_an_address() -> None:
    settings, told = read_a2a(document({"grpc_port": 0, "grpc_url": "grpc.example:443"}))
    assert (settings.grpc_port, settings.grpc_url, told) == (0, "grpc.example:443", ())


def test_an_unknown_key_is_told_of() -> None:
    settings, (finding,) = read_a2a(document({"text_tools": "a.b"}))
    assert settings == A2aSettings()
    assert "text_tool" in str(finding)


def test_it_is_read_where_the_hub_has_a_place_and_nowhere_else() -> None:
    assert read_a2a(Document(FILE, {"a2a": {"name": "Hub"}}, STANDARD))[0].name == "Hub"
    assert read_a2a(Document(FILE, {"a2a": {"name": 5}}, CODEX)) == (A2aSettings(), ())
