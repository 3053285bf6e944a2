"""Characters that do something to a text, or hide in it, instead of being read.

What a person reads has them escaped (the command line, the log), what a model reads is marked if it has them
(`core.catalog.definition_lint`).
"""

from __future__ import annotations

import re
from typing import Final

CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""Whatever can drive a terminal, and halves of characters. Ends of lines and tabs are none of these."""

INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u206f\u2800"
    "\u3164\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""What nobody sees, though it may turn the reading direction, break a line, or spell out words to a program (the block
of tags). The two joiners U+200C and U+200D are left out: emoji and several scripts fall apart without them."""

_JOINING = "\u180b-\u180d\u180f\u200c\u200d"

MISJOINED: Final = re.compile(rf"(?<![^\x00-\x7f])[{_JOINING}\ufe00-\ufe0e]+|[{_JOINING}\ufe00-\ufe0f]{{3,}}")
"""Joiners and variation selectors where no script and no emoji has them: after a letter of ASCII, or many in a row. A
text of any length can be spelt out in these."""


def escaped_misjoined(text: str) -> str:
    """A text with such ones escaped."""
    return MISJOINED.sub(lambda found: "".join(map(escaped, found[0])), text)


def escaped(character: str) -> str:
    """A character as JSON and Python both read it; those beyond U+FFFF as JSON does, by two halves."""
    return "".join(f"\\u{int.from_bytes(half):04x}" for half in _halves(character))


def _halves(character: str) -> list[bytes]:
    units = character.encode("utf-16-be", "surrogatepass")
    return [units[at : at + 2] for at in range(0, len(units), 2)]
