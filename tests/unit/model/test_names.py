"""Server names are checked where they enter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.model.names import parse_server_name


@given(st.from_regex(r"[A-Za-z0-9_-]{1,50}", fullmatch=True))
def test_a_name_within_the_rule_is_kept_as_it_is(text: str) -> None:
    assert parse_server_name(text) == text


@pytest.mark.parametrize("text", ["", "a.b", "a b", "a/b", "ä", "x" * 51, "a\n", "*"])
def test_any_other_name_is_refused_with_the_rule_and_the_value(text: str) -> None:
    with pytest.raises(ValueError, match="must be 1 to 50 of") as refused:
        parse_server_name(text)
    assert str(refused.value) == f"a server name must be 1 to 50 of A-Z a-z 0-9 _ - (no dot), not {text!r}"
