"""What servers and tools are called inside the hub.

A tool's identity is the pair (server, tool), never one string. How a pair is shown on a face (dotted,
flattened for a language model, bare) is not decided here but in the catalog's tables. Whoever reads a
server's name from outside, chiefly `config`, parses it once here and passes the checked type on.
"""

from __future__ import annotations

import re
from typing import NewType

ServerName = NewType("ServerName", str)
"""A server's name, checked by `parse_server_name`."""

FeatureName = NewType("FeatureName", str)
"""What a server itself calls something it offers: a tool's or prompt's name (which may contain dots), a resource's
URI, a template of URIs."""

_SERVER_NAME = re.compile(r"[A-Za-z0-9_-]{1,50}")


def parse_server_name(text: str) -> ServerName:
    """Return `text` as a server's name.

    Raises:
        ValueError: it breaks the rule; no dot in a server's name is what lets `server.tool` split at the
            first dot.
    """
    if _SERVER_NAME.fullmatch(text) is None:
        raise ValueError(f"a server name must be 1 to 50 of A-Z a-z 0-9 _ - (no dot), not {text!r}")
    return ServerName(text)
