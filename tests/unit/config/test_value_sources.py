"""Where values were written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.config.findings import Place
from isthmus.config.value_sources import line_numbers, split_path

TOML = """# mine
[hub]
port = 9000

[servers."my files"]
command = "npx"
env = { A = "b" }
args = [
    "-y",
]

[servers."my files".cache]  # kept
ttl = 5
"""
JSON = """{
  // mine
  "hub": {"port": 9000},
  "servers": {
    "my files": {
      "command"
        : "npx", "env": {"A": "b"},
      "args": ["{", "]", "-y"]
    }
  },
  "list": [
    {"name": "a"},
    {"name": "b",
     "x": [[1], {"y": 2}]}
  ],
}
"""
YAML = """# mine
hub:
  port: 9000
servers:
  my files:
    command: npx
    args:
      - x
      - y
"""


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        (
            "isthmus.toml",
            TOML,
            {
                "hub": 2,
                "hub.port": 3,
                'servers."my files"': 5,
                'servers."my files".command': 6,
                'servers."my files".env': 7,
                'servers."my files".cache': 12,
                'servers."my files".cache.ttl': 13,
                "gone": None,
            },
        ),
        (
            "mcp.json",
            JSON,
            {
                "hub.port": 3,
                'servers."my files"': 5,
                'servers."my files".command': 6,
                'servers."my files".env.A': 7,
                'servers."my files".args': 8,
                "list.0": 12,
                "list.1.x": 14,
                "list.1.x.1.y": 14,
                "list.2": None,
            },
        ),
        (
            "isthmus.yaml",
            YAML,
            {"hub.port": 3, 'servers."my files".command': 6, 'servers."my files".args.1': 9, "x": None},
        ),
    ],
)
def test_a_value_is_found_in_its_line(tmp_path: Path, name: str, text: str, lines: dict[str, int | None]) -> None:
    (tmp_path / name).write_text(text)
    found = line_numbers(tmp_path / name)
    assert {path: found.get(split_path(path)) for path in lines} == lines


def test_a_file_that_is_gone_or_of_another_kind_has_no_lines(tmp_path: Path) -> None:
    (tmp_path / "a.ini").write_text("a = 1")
    assert line_numbers(tmp_path / "gone.toml") == line_numbers(tmp_path / "a.ini") == {}


@pytest.mark.parametrize("text", ["]]]]", '{"a', "\xff[", "a: &a [*a]", '"a":', ","])
@pytest.mark.parametrize("suffix", [".json", ".toml", ".yaml"])
def test_a_text_that_is_broken_is_no_reason_to_fail(tmp_path: Path, text: str, suffix: str) -> None:
    (tmp_path / f"x{suffix}").write_text(text, encoding="latin-1")
    line_numbers(tmp_path / f"x{suffix}")


PRINTABLE = st.characters(exclude_categories=("C", "Z"), include_characters=" ")


@given(st.lists(st.text(PRINTABLE, min_size=1), min_size=1))
def test_a_path_is_taken_apart_as_it_was_put_together(keys: list[str]) -> None:
    assert split_path(Place(None).at(*keys).path) == tuple(keys)
