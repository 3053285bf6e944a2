"""The tokens that a model pays before its first word: the table of the documentation, for its smallest hub."""

from __future__ import annotations

from pathlib import Path

from bench.context import MODES, TOOLS_OF_SET, costs_of, read_definitions

PAGE = Path(__file__).parent.parent.parent / "docs" / "performance.md"


async def test_the_documentation_has_the_bytes_that_each_mode_lists() -> None:
    costs, answers = await costs_of(3, read_definitions(), 1)
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| 3 | {costs['plain'].tools} | "))
    assert [f"({costs[mode].bytes:,} B)" for mode in MODES] == [cell.split(maxsplit=1)[1] for cell in cells(row)]
    assert costs["set"].tools == len(TOOLS_OF_SET)
    assert all(answers)


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")[2:]]
