"""The processes below one of ours, as the system knows them, for `transport.process` to end them with it.

Those that left its group and whose parents still live are found here. One whose parent has ended belongs to the
system's first process by then, and nothing tells whose it was.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

MOST = 4096
"""Where there are more, they are born faster than they can be found."""


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, nearest first; none where the system does not tell."""
    found: list[int] = []
    waiting = [pid]
    while waiting and len(found) < MOST:
        children = _children(waiting.pop(0))
        found += children
        waiting += children
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found
