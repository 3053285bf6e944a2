"""Kinds of findings have numbers that stay, and the documentation knows them all."""

from __future__ import annotations

import re
from pathlib import Path

from isthmus.config.finding_codes import CODES

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "reference" / "configuration.md"


def test_every_code_has_a_number_and_a_name_of_its_own() -> None:
    assert len({code.number for code in CODES}) == len({code.name for code in CODES}) == len(CODES)
    assert [code.number for code in CODES] == sorted(code.number for code in CODES)
    for code in CODES:
        assert re.fullmatch(r"ISC-[1-5]\d\d [a-z-]+", str(code))
        assert code.fix


def test_every_code_is_documented() -> None:
    text = DOCUMENTATION.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (ISC-\d+) \| `([a-z-]+)` \|", text, re.MULTILINE))
    assert rows == {code.number: code.name for code in CODES}
