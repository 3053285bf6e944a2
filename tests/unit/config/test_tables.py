"""Tables of plain values: types, unknown keys, ranges."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.config import values
from isthmus.config.dialects.dialect import OWN
from isthmus.config.files import Document
from isthmus.config.findings import ConfigError
from isthmus.config.tables import accepted, read_table

HERE = Document(Path("/etc/hub/isthmus.toml"), {"t": {"a": 1, "b": 2}}, OWN)


def test_known_values_are_read_and_unknown_keys_told_of() -> None:
    read, (finding,) = read_table(HERE, "t", {"a": values.integer})
    assert read == {"a": 1}
    assert "t.b" in str(finding)
    assert read_table(HERE, "other", {"a": values.integer}) == ({}, ())


def test_a_value_of_another_type_names_its_place() -> None:
    with pytest.raises(ConfigError, match=r"isthmus\.toml: t\.a must be a text, not 1"):
        read_table(HERE, "t", {"a": values.text})


def test_what_the_settings_do_not_accept_names_its_place() -> None:
    def refuse() -> None:
        raise ValueError("a must be even, not 1")

    assert accepted(HERE, "t", lambda: 5) == 5
    with pytest.raises(ConfigError, match=r"isthmus\.toml: t\.a must be even, not 1"):
        accepted(HERE, "t", refuse)
