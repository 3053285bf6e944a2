"""How many files and sockets this process may have open. `app.serve` asks for more before it listens."""

from __future__ import annotations

import sys

if sys.platform != "win32":
    import resource


def raise_limit(wanted: int) -> int:
    """Lift the limit on open files to `wanted`, or as far as the system lets us; return what holds then.

    It is never lowered. Where there is no such limit to be asked for, `wanted` is returned.
    """
    if sys.platform == "win32":
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    goal = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (goal, hard))
    except (OSError, ValueError):  # macOS has a lower limit of its own that it does not show here
        return soft
    return goal
