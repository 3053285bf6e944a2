"""Server names are checked where they enter."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.model.names import legal_server_name, name_filter, parse_server_name


@given(st.from_regex(r"[A-Za-z0-9_-]{1,50}", fullmatch=True))
def test_a_name_within_the_rule_is_kept_as_it_is(text: str) -> None:
    assert parse_server_name(text) == text


@pytest.mark.parametrize("text", ["", "a.b", "a b", "a/b", "ä", "x" * 51, "a\n", "*"])
def test_any_other_name_is_refused_with_the_rule_and_the_value(text: str) -> None:
    with pytest.raises(ValueError, match="must be 1 to 50 of") as refused:
        parse_server_name(text)
    assert str(refused.value) == f"a server name must be 1 to 50 of A-Z a-z 0-9 _ - (no dot), not {text!r}"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("-as_it-is-", "-as_it-is-"),
        ("My files.v2", "My-files-v2"),
        ("Café", "Cafe"),
        ("Ａbc", "Abc"),
        ("天气", "server-44c909"),
        ("翻译", "server-339dcc"),
        ("天气-api", "api-5df0b0"),
        ("…", "server-f4c5f3"),
        ("x" * 60, "x" * 43 + "-16e22e"),
    ],
)
def test_a_name_is_made_legal_and_still_says_something(text: str, name: str) -> None:
    assert legal_server_name(text) == name


@given(st.text())
def test_every_text_becomes_a_legal_name(text: str) -> None:
    assert parse_server_name(legal_server_name(text)) == legal_server_name(legal_server_name(text))


@given(st.text("ab*", max_size=8), st.text("ab", max_size=8))
def test_a_star_stands_for_any_characters(pattern: str, text: str) -> None:
    meant = ".*".join(map(re.escape, pattern.split("*")))
    assert name_filter(pattern)(text) == (re.fullmatch(meant, text) is not None)
