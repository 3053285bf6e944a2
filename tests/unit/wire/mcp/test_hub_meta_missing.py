"""A hub's report of missing servers: written and read back; invalid ones are ignored."""

from __future__ import annotations

import msgspec
import pytest

from isthmus.wire.mcp.lists import TOOLS, ListPage, read_page
from isthmus.wire.mcp.messages import MISSING_MAX, REASON_LENGTH_MAX, UnavailableServer, read_missing, write_missing


def test_missing_servers_survive_writing_and_reading() -> None:
    received = {
        "web": UnavailableServer("retrying", "connection refused"),
        "files": UnavailableServer("starting", None),
    }
    assert read_missing(write_missing(received)) == {"web": "connection refused", "files": "it is away"}


def test_it_is_read_with_a_page_of_a_list() -> None:
    page = read_page(TOOLS, b'{"tools":[],"_meta":%b}' % write_missing({"web": UnavailableServer("retrying", "gone")}))
    assert isinstance(page, ListPage)
    assert page.missing == {"web": "gone"}


def test_reasons_are_cut_and_plain() -> None:
    received = read_missing(write_missing({"web": UnavailableServer("retrying", "\x1b[2J" + "x" * 1_000)}))
    assert received == {"web": ("[2J" + "x" * 1_000)[:REASON_LENGTH_MAX]}


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        {"isthmus/missing": None},
        {"isthmus/missing": ["web"]},
        {"isthmus/missing": {"web": "gone"}},
        {"isthmus/missing": {"web": {"state": 3, "reason": "gone"}}},
        {"isthmus/missing": {"": {"state": "retrying", "reason": "gone"}}},
        {"isthmus/missing": {"we\nb": {"state": "retrying", "reason": "gone"}}},
        {"isthmus/missing": {"w" * 200: {"state": "retrying", "reason": "gone"}}},
        {"isthmus/missing": {f"s{n}": {"state": "retrying", "reason": "gone"} for n in range(MISSING_MAX + 1)}},
        {"else": {}},
    ],
)
def test_nonsense_names_no_server_and_costs_no_list(said: object) -> None:
    meta = msgspec.json.encode(said)
    assert read_missing(meta) == {}
    page = read_page(TOOLS, b'{"tools":[{"name":"pay","inputSchema":{"type":"object"}}],"_meta":%b}' % meta)
    assert isinstance(page, ListPage)
    assert (len(page), dict(page.missing)) == (1, {})
