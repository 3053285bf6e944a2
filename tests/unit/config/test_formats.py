"""Parsing of file formats: no value differs from the one that its author wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.config import values
from isthmus.config.formats import REPEATED_MAX, parse

GOOSE = """
extensions:
  a:
    type: stdio
    cmd: docker
    args: [-p, 22:22, -e, NO, 010, 0x1F, 1e3, TRUE, 2026-01-01, =, 7]
    envs: {COUNTRY: NO, V: 1.10, PORT: 0777, T: 12:30:45, DAY: 2026-01-01, SIGN: =, Y: yes, B: True}
"""


def table_of(name: str, text: str) -> dict[str, Any]:
    table, findings = parse(Path(name), text)
    assert findings == ()
    return table


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NO", "NO"),
        ("off", "off"),
        ("y", "y"),
        ("22:22", "22:22"),
        ("12:30:45", "12:30:45"),
        ("2026-01-01", "2026-01-01"),
        ("=", "="),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("8080", 8080),
        ("-5", -5),
        ("0777", 777),
        ("0o17", 15),
        ("0x1F", 31),
        ("1.10", 1.1),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-.INF", float("-inf")),
        ('"5"', "5"),
        ("!!str 5", "5"),
    ],
)
def test_yaml_has_the_values_of_its_second_version(text: str, value: object) -> None:
    found = values.plain(table_of("a.yaml", f"x: {text}")["x"])
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("text", ["010", "0x1F", "1.10", "1e3", "+5", "TRUE", "-.inf", ".NaN"])
def test_a_number_or_a_boolean_in_yaml_keeps_its_letters_where_a_text_is_wanted(text: str) -> None:
    assert values.words("args", table_of("a.yaml", f"x: [{text}]")["x"]) == (text,)


@pytest.mark.parametrize(("name", "text"), [("a.json", '{"x": 1.10}'), ("a.toml", "x = 1.10")])
def test_a_number_keeps_its_letters_in_every_format(name: str, text: str) -> None:
    found = table_of(name, text)["x"]
    assert (values.word("x", found), values.number("x", found), values.plain(found)) == ("1.10", 1.1, 1.1)


def test_arguments_and_variables_of_yaml_keep_their_text() -> None:
    entry = table_of("config.yaml", GOOSE)["extensions"]["a"]
    assert values.words("args", entry["args"]) == (
        *("-p", "22:22", "-e", "NO", "010", "0x1F", "1e3", "TRUE", "2026-01-01", "=", "7"),
    )
    assert values.table_of_words("env", entry["envs"]) == {
        "COUNTRY": "NO",
        "V": "1.10",
        "PORT": "0777",
        "T": "12:30:45",
        "DAY": "2026-01-01",
        "SIGN": "=",
        "Y": "yes",
        "B": "True",
    }


@pytest.mark.parametrize(
    ("name", "text", "path"),
    [
        ("a.json", '{"mcpServers": {"dup": 1, "dup": 2}}', "mcpServers.dup"),
        ("a.json", '{"list": [{}, {"a b": {"x": 1, "x": 1}}]}', 'list.1."a b".x'),
        ("a.yaml", "mcpServers:\n  dup: 1\n  dup: 2\n", "mcpServers.dup"),
        ("a.yaml", "list: [{}, {a: {x: 1, x: 2}}]\n", "list.1.a.x"),
    ],
)
def test_a_key_written_twice_is_named_by_its_whole_path(name: str, text: str, path: str) -> None:
    _, [finding] = parse(Path(name), text)
    assert finding.path == path


def test_of_very_many_duplicate_keys_only_some_are_reported() -> None:
    text = '{"' + "k" * 10_000 + '": {' + ",".join(f'"{n}": 1, "{n}": 2' for n in range(1000)) + "}}"
    _, findings = parse(Path("a.json"), text)
    assert len(findings) == REPEATED_MAX
