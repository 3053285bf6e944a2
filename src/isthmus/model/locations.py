"""What callers are told of why a server is not there: the cause, without where the operator keeps things.

A reason may name an address that a host has in the operator's network, or a folder of this machine. Operators read it
whole, in the log and where the hub tells them more than callers; faults and lists have it without.
"""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"(?<![\w.])(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|\[[0-9A-Fa-f:.]+\])(?::[0-9]+)?(?![\w.])")
# Words are taken whole (`++`): a server may say megabytes without a blank, which must be gone through only once.
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
"""What is taken out, and the words that are put there."""
_SIGNS = (".", "/", "[", "host", "certificate", "resolved")
"""One of these is in every reason that says a place: a host may be called by one word, without any dot."""


def without_locations(reason: str) -> str:
    """The same reason without addresses, names of hosts, and folders; where to log in is for callers to know."""
    if not any(sign in reason for sign in _SIGNS):
        return reason
    for place, words in _PLACES:
        reason = place.sub(words, reason)
    return reason
