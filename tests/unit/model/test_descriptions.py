"""Descriptions in less room."""

from __future__ import annotations

import pytest

from isthmus.model.descriptions import on_one_line, shortened


@pytest.mark.parametrize(
    ("text", "length", "short"),
    [
        ("Short.", 20, "Short."),
        ("One sentence. Another one. And a third.", 30, "One sentence. Another one."),
        ("Version 1.2.3 of something long. More.", 34, "Version 1.2.3 of something long."),
        ("A heading\nand then a long explanation of it", 20, "A heading"),
        ("No sentence ends here at all, not even late.", 20, "No sentence ends…"),
        ("x" * 30, 20, "x" * 19 + "…"),
    ],
)
def test_a_description_is_cut_at_the_end_of_a_sentence(text: str, length: int, short: str) -> None:
    assert shortened(text, length) == short
    assert len(short) <= length


def test_a_description_of_several_lines_becomes_one() -> None:
    assert on_one_line("  Search the\n  manual.\n\n  Args: query\n", 100) == "Search the manual. Args: query"
    assert on_one_line("Search the\nmanual. Args: query", 20) == "Search the manual."
    assert on_one_line("x " * 10_000, 20) == "x x x x x x x x x…"
