"""What tools are called towards devices: each its own name, as long as nobody came with it before.

Pure; `faces.relay.table` calls it. Names are looked up in the table that is made of these, never parsed back.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

_ILLEGAL = re.compile(r"[^a-zA-Z0-9_\-\u4e00-\u9fff]")


def sanitised(name: str) -> str:
    """What a device makes of a name before it shows it to its language model."""
    return _ILLEGAL.sub("_", name)


def exposed_names(tools: Iterable[tuple[str, str]]) -> list[str]:
    """The names of these tools, each given with the id of its server, in the order in which their servers came.

    The first keeps its bare name, a later one of the same name is `server_id.tool`, and one that is still the same
    to a device ends in six hex digits. No two are equal, not even after the device's own sanitising.
    """
    taken: set[str] = set()
    names: list[str] = []
    for server_id, tool in tools:
        name = _free_name(server_id, tool, taken)
        taken.add(sanitised(name))
        names.append(name)
    return names


def _free_name(server_id: str, tool: str, taken: set[str]) -> str:
    for name in (tool, f"{server_id}.{tool}"):
        if sanitised(name) not in taken:
            return name
    digest = hashlib.blake2b(f"{server_id}\0{tool}".encode()).hexdigest()
    digits = (digest[start : start + 6] for start in range(len(digest) - 6))
    return next(name for six in digits if sanitised(name := f"{server_id}.{tool}_{six}") not in taken)
