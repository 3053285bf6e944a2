"""`make bench-peers` in small: the hub and a FastMCP proxy before the echo server, called and measured."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from bench.peers import TABLE, read_peers, run


def test_the_hub_and_another_gateway_are_measured_in_both_eras() -> None:
    table = read_peers(TABLE.read_text())
    # The one that the tests use anyway, not the release that the comparison installs.
    program = str(Path(sys.executable).with_name("fastmcp"))
    proxy = msgspec.structs.replace(table["fastmcp"], registry="checkout", program=program)
    lost = msgspec.structs.replace(proxy, title="Lost", program="/bin/false")
    record = run({"hub": table["hub"], "fastmcp": proxy, "lost": lost}, ["calls"], rounds=1, seconds=0.2, before=None)
    (measured,) = record.parts["calls"].settings
    assert measured.failed == {}
    assert list(measured.figures) == ["direct", "relay", "hub", "hub, legacy", "fastmcp", "fastmcp, legacy"]
    assert list(record.absent) == ["Lost"]
    for name, figures in measured.figures.items():
        assert figures.calls_per_second > 0, name
        assert figures.times_relay is not None, name
        assert figures.memory_mib > 5, name
