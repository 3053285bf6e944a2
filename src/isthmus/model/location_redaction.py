"""Strips IP addresses, host names and folders from the reasons that callers see.

A reason may contain an address in the operator's network, or a folder of this machine. Operators read it whole, in the
log and in the hub's own views; faults and lists contain it without addresses, hosts and folders.
"""

from __future__ import annotations

import re

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
