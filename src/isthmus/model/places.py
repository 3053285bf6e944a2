"""What callers are told of why a server is not there: the cause, without where the operator keeps things.

A reason may name an address that a host has in the operator's network, or a folder of this machine. Operators read it
whole, in the log and where the hub tells them more than callers; faults and lists have it without.
"""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"(?<![\w.])(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|\[[0-9A-Fa-f:.]+\])(?::[0-9]+)?(?![\w.])")
_UNKNOWN_HOST = re.compile(r"(no address for host) \S+")
_SLOW_HOST = re.compile(r"\S+ (was not resolved within)")
_FOLDERS = re.compile(r"(?<![\w.:/-])/(?:[^\s'\"/;,]+/)+")


def without_places(reason: str) -> str:
    """The same reason without addresses, hosts that could not be looked up, and folders."""
    if "." not in reason and "/" not in reason and "[" not in reason and "host" not in reason:
        return reason
    text = _UNKNOWN_HOST.sub(r"\1", _SLOW_HOST.sub(r"its host \1", reason))
    return _FOLDERS.sub("…/", _ADDRESS.sub("its address", text))
