"""What the hub holds in its memory stays there: keys, tokens, and what callers and servers say to each other.

Servers that the hub starts run as the same user, and without this could read its memory and its environment by
`/proc`. Called by the commands that start a hub, once, before it starts anything.
"""

from __future__ import annotations

import ctypes
import sys

if sys.platform != "win32":
    import resource

PR_SET_DUMPABLE = 4


def keep_private() -> None:
    """Leave no memory behind in a file after a crash; on Linux, let no other process of the same user look either.

    Who has root's rights still can. Where the system knows no such thing, nothing is changed.
    """
    if sys.platform == "win32":
        return
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
