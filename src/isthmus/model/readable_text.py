"""Text that servers and programs wrote, made fit for people: without locations, without hidden characters."""

from __future__ import annotations

import re
from typing import Final

# -- locations ---------------------------------------------------------------------------------------------------------
#
# A reason may contain an address in the operator's network, or a folder of this machine. Operators read it whole, in
# the log and in the hub's own views; faults and lists contain it without addresses, hosts and folders.

_ADDRESS = re.compile(r"(?<![\w.])(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|\[[0-9A-Fa-f:.]+\])(?::[0-9]+)?(?![\w.])")
# Words match possessively (`++`): a server may send megabytes without a space, which must be scanned only once.
_REDIRECTED = re.compile(r"(?<!\S)[^\s:]++://[^\s,]++, which is not [^\s:]++://[^\s;]++")
_OTHER_CARD = re.compile(r"(?<!\S)[^\s:]++://\S++ (is not where its card is)")
_WRONG_NAME = re.compile(r"(certificate is not valid for) '[^']*'")
_UNKNOWN_HOST = re.compile(r"(no address for host) \S+")
_SLOW_HOST = re.compile(r"(?<!\S)\S++ (was not resolved within)")
_FOLDERS = re.compile(r"(?<![\w.:/-])/(?:[^\s'\"/;,]+/)+")
_PLACES = (
    (_REDIRECTED, "another address than its own"),
    (_OTHER_CARD, r"another address \1"),
    (_WRONG_NAME, r"\1 its host"),
    (_SLOW_HOST, r"its host \1"),
    (_UNKNOWN_HOST, r"\1"),
    (_ADDRESS, "its address"),
    (_FOLDERS, "…/"),
)
"""The patterns that are replaced, and the replacements."""
_SIGNS = (".", "/", "[", "host", "certificate", "resolved")
"""Every reason with a location contains one of these; a host may be a single word without a dot."""


def without_locations(reason: str) -> str:
    """The reason without addresses, hosts and folders; a login URL stays."""
    if not any(sign in reason for sign in _SIGNS):
        return reason
    for place, words in _PLACES:
        reason = place.sub(words, reason)
    return reason


# -- control characters and invisible ones -----------------------------------------------------------------------------
#
# They are escaped in what people read (the command line, the log) and flagged in what models read
# (`core.catalog.definition_review`).

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
