"""Files edited as text: the intended entry changes, and everything else stays byte for byte."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from isthmus.config.formats import strict_json
from isthmus.config.text_editing import CannotEdit, edit

JSON, TOML, YAML = Path("x.json"), Path("x.toml"), Path("x.yaml")
HUB = {"url": "http://127.0.0.1:8765/mcp"}

COMMENTED = """// settings of the editor
{
    "theme": "dark", // not light
    /* servers
       of all projects */
    "mcpServers": {
        "files": {"command": "npx", "args": ["-y", "x"]}, // mine
        // "old": {"command": "y"},
    },
    "last": [1, 2,],
}
"""


def test_a_member_is_added_after_the_comment_of_the_last_one() -> None:
    made = edit(JSON, COMMENTED, ("mcpServers", "hub"), HUB)
    added = '        "hub": {\n            "url": "http://127.0.0.1:8765/mcp"\n        },\n'
    at = COMMENTED.index('        // "old"')
    assert made == COMMENTED[:at] + added + COMMENTED[at:]
    assert edit(JSON, made, ("mcpServers", "hub"), None) == COMMENTED


def test_a_member_is_replaced_in_its_place() -> None:
    made = edit(JSON, COMMENTED, ("mcpServers", "files"), HUB)
    start, end = COMMENTED.index('{"command": "npx"'), COMMENTED.index(", // mine")
    assert made.startswith(COMMENTED[:start])
    assert made.endswith(COMMENTED[end:])


def test_missing_parents_are_made() -> None:
    assert json.loads(edit(JSON, "", ("a", "b"), HUB)) == {"a": {"b": HUB}}
    assert json.loads(edit(JSON, "{}", ("a", "b"), HUB)) == {"a": {"b": HUB}}
    assert json.loads(edit(JSON, '{"mcpServers": {}}', ("mcpServers", "b"), HUB)) == {"mcpServers": {"b": HUB}}
    assert edit(JSON, '{"a": {"x": 1}}', ("a", "y"), 2) == '{"a": {"x": 1, "y": 2}}'
    assert edit(JSON, '{"a": {"x": 1, "y": 2}}', ("a", "y"), None) == '{"a": {"x": 1}}'
    assert edit(JSON, '{"a": {"x": 1, "y": 2}}', ("a", "x"), None) == '{"a": {"y": 2}}'
    assert edit(JSON, "{\n  // nothing yet\n}\n", ("a",), 1) == '{\n  // nothing yet\n  "a": 1\n}\n'


def test_a_comment_of_several_lines_is_not_cut() -> None:
    text = '{\n  "a": {\n    "x": 1 /* one\n two */\n  }\n}\n'
    made = edit(JSON, text, ("a", "y"), 2)
    assert "/* one\n two */" in made
    assert json.loads(strict_json(made)) == {"a": {"x": 1, "y": 2}}


def test_line_ends_tabs_and_the_byte_order_mark_stay() -> None:
    text = '\ufeff{\r\n\t"a": {\r\n\t\t"x": 1\r\n\t}\r\n}\r\n'
    made = edit(JSON, text, ("a", "y"), {"z": 2})
    assert made == '\ufeff{\r\n\t"a": {\r\n\t\t"x": 1,\r\n\t\t"y": {\r\n\t\t\t"z": 2\r\n\t\t}\r\n\t}\r\n}\r\n'
    assert edit(JSON, made, ("a", "y"), None) == text


@pytest.mark.parametrize(
    ("file", "text", "path"),
    [
        (JSON, "[1]", ("a", "b")),
        (JSON, '{"a": 1}', ("a", "b")),
        (JSON, "{nonsense", ("a", "b")),
        (YAML, "a: [1]\n", ("a", "b")),
        (TOML, 'servers = { a = { command = "x" } }\n', ("servers", "b")),
    ],
)
def test_a_text_that_cannot_be_edited_is_refused(file: Path, text: str, path: tuple[str, ...]) -> None:
    with pytest.raises(CannotEdit):
        edit(file, text, path, HUB)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(min_size=1, max_size=8), values, max_size=4),
    st.sampled_from([None, 2, 4, "\t"]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["", "//"]),
)
def test_any_json_can_be_extended_and_restored(
    others: dict[str, Any], indent: int | str | None, line_end: str, comments: str
) -> None:
    text = json.dumps({"top": True, "servers": others}, indent=indent, ensure_ascii=False)
    if comments and indent is not None:
        text = "// first\n" + "\n".join(f"{line} {comments} {at}" for at, line in enumerate(text.split("\n")))
    text = text.replace("\n", line_end)
    if "hub" in others:
        return
    made = edit(JSON, text, ("servers", "hub"), HUB)
    assert json.loads(strict_json(made)) == {"top": True, "servers": {**others, "hub": HUB}}
    back = edit(JSON, made, ("servers", "hub"), None)
    assert json.loads(strict_json(back)) == {"top": True, "servers": others}
    if others and not comments:
        assert back == text


GOOSE = """# Goose
GOOSE_MODEL: x
extensions:
  developer:   # the usual one
    enabled: true
    args:
      - a
      - b   # last
  # end of extensions

other: 1
"""


def test_yaml_is_extended_at_the_end_of_its_mapping() -> None:
    made = edit(YAML, GOOSE, ("extensions", "hub"), {"uri": "u", "list": []})
    added = "  hub:\n    uri: u\n    list: []\n"
    at = GOOSE.index("  # end of")
    assert made == GOOSE[:at] + added + GOOSE[at:]
    assert edit(YAML, made, ("extensions", "hub"), None) == GOOSE
    again = edit(YAML, made, ("extensions", "hub"), {"uri": "v"})
    assert yaml.safe_load(again)["extensions"]["hub"] == {"uri": "v"}
    assert edit(YAML, again, ("extensions", "hub"), None) == GOOSE


@pytest.mark.parametrize("text", ["", "a: 1\n", "a: 1", "extensions:\n", "extensions: {}\n", "extensions: {x: {}}\n"])
def test_yaml_without_extensions_gets_them(text: str) -> None:
    made = yaml.safe_load(edit(YAML, text, ("extensions", "hub"), {"uri": "u"}))
    assert made["extensions"]["hub"] == {"uri": "u"}


CONFIG = """# ours
[hub]
port = 1

# the files
[servers.files]   # local
command = "npx"
args = [
    "-y",  # yes
]

[servers.files.env]
A = "b"

# at the end
[callers.a]
key = "env:K"
"""


def test_toml_keys_are_set_and_removed() -> None:
    made = edit(TOML, CONFIG, ("servers", "files", "disabled"), value=True)
    assert made == CONFIG.replace("# local\n", "# local\ndisabled = true\n")
    assert edit(TOML, made, ("servers", "files", "disabled"), None) == CONFIG
    inline = '[servers]\na = { command = "x" }\nb = { url = "http://x" }\n'
    made = edit(TOML, inline, ("servers", "a", "disabled"), value=True)
    assert tomllib.loads(made)["servers"]["a"] == {"command": "x", "disabled": True}
    assert tomllib.loads(edit(TOML, made, ("servers", "a", "disabled"), None)) == tomllib.loads(inline)
    assert edit(TOML, inline, ("servers", "a"), None) == '[servers]\nb = { url = "http://x" }\n'


def test_toml_tables_are_added_and_removed() -> None:
    made = edit(TOML, CONFIG, ("mcp_servers", "hub"), HUB)
    assert made == CONFIG + '\n[mcp_servers.hub]\nurl = "http://127.0.0.1:8765/mcp"\n'
    without = edit(TOML, CONFIG, ("servers", "files"), None)
    assert tomllib.loads(without) == {"hub": {"port": 1}, "callers": {"a": {"key": "env:K"}}}
    assert [line for line in CONFIG.splitlines() if line.startswith("#")] == [
        line for line in without.splitlines() if line.startswith("#")
    ]
