"""Servers and limits that the environment itself gives: `MCP_SERVER_MAP` and `MCP_CALL_TIMEOUT`.

Both are other programs' variables, kept so that a deployment written for them goes on working; what a file
says wins over them. Called by `config.load`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import urlsplit

from isthmus.config import values
from isthmus.config.codes import BAD_VALUE, SERVER_MAP
from isthmus.config.dialects.dialect import STANDARD
from isthmus.config.entries import Entry
from isthmus.config.findings import Finding, Place

MAP_VARIABLE = "MCP_SERVER_MAP"
TIMEOUT_VARIABLE = "MCP_CALL_TIMEOUT"

RPC_PATH = "/rpc"
"""Where the servers of such a map are asked, below the address that the map has."""

_MCP_ENDINGS = ("/mcp", "/sse")


def mapped_servers(environment: Mapping[str, str]) -> tuple[list[Entry], list[Finding]]:
    """Return the servers of the map, by name to address."""
    text = environment.get(MAP_VARIABLE, "").strip()
    place = Place(None, MAP_VARIABLE)
    if not text:
        return [], []
    try:
        table = values.table(MAP_VARIABLE, json.loads(text))
    except (ValueError, RecursionError):
        # Not quoted: an address may hold a secret.
        return [], [place.finding("must be a JSON object of names and addresses, not another text", code=SERVER_MAP)]
    return [_entry(name, url, place.at(name)) for name, url in table.items()], []


def _entry(name: str, url: object, place: Place) -> Entry:
    if not isinstance(url, str):
        told = place.finding("must be an address, not another value", code=SERVER_MAP)
        return Entry(name, place, STANDARD, findings=(told,), is_table=False)
    key, address = _way(url)
    return Entry(name, place, STANDARD, {key: address}, spelt={key: ()})


def _way(url: str) -> tuple[str, str]:
    try:
        path = urlsplit(url).path.rstrip("/")
    except ValueError:
        return "rpc", url  # the settings refuse it, with a reason
    if path.endswith(_MCP_ENDINGS):
        return "url", url
    return "rpc", url if path.endswith(RPC_PATH) else _extended(url)


def _extended(url: str) -> str:
    """Return an address with the path made longer, and its query where it was."""
    end = min((at for at in map(url.find, "?#") if at >= 0), default=len(url))
    return url[:end].rstrip("/") + RPC_PATH + url[end:]


def call_seconds(environment: Mapping[str, str]) -> tuple[float | None, list[Finding]]:
    """Return how long a call may take where no file says it."""
    text = environment.get(TIMEOUT_VARIABLE, "").strip()
    if not text:
        return None, []
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if 0 < seconds < float("inf"):
        return seconds, []
    told = Place(None, TIMEOUT_VARIABLE).finding("must be a positive number of seconds", code=BAD_VALUE)
    return None, [told]
