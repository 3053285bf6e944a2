"""Control characters and invisible ones in text that servers and programs wrote.

They are escaped in what people read (the command line, the log, questions about approvals) and flagged in what models
read (`core.catalog.definition_review`).
"""

from __future__ import annotations

import re
from typing import Final

CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""Everything that can control a terminal, and lone surrogates; except line ends and tabs."""

INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u206f\u2800"
    "\u3164\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Invisible characters that may change the reading direction, break a line, or spell words to a program (the tags
block). The joiners U+200C and U+200D are left out: emoji and several scripts need them."""

_JOINING = "\u180b-\u180d\u180f\u200c\u200d"

MISJOINED: Final = re.compile(rf"(?<![^\x00-\x7f])[{_JOINING}\ufe00-\ufe0e]+|[{_JOINING}\ufe00-\ufe0f]{{3,}}")
"""Joiners and variation selectors where no script and no emoji has them: after an ASCII letter, or many in a row. They
can encode any text."""


def escaped_misjoined(text: str) -> str:
    """The text with such characters escaped."""
    return MISJOINED.sub(lambda found: "".join(map(escaped, found[0])), text)


def escaped(character: str) -> str:
    """A character as both JSON and Python read it; beyond U+FFFF as two surrogates."""
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{int.from_bytes(units[at : at + 2]):04x}" for at in range(0, len(units), 2))


def all_escaped(text: str) -> str:
    """The text with all such characters escaped: JSON stays the same value."""
    return INVISIBLE.sub(_escaped, CONTROL.sub(_escaped, escaped_misjoined(text)))


def _escaped(match: re.Match[str]) -> str:
    return escaped(match[0])
