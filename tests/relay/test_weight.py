"""The benches' cast on a real hub, with a crowd that is small enough for a test."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import uvloop

from bench import crowd
from bench.devices import drive, line_of
from bench.dialled import start_diallers, start_relay, statistics
from bench.diallers import agent_name
from bench.load import WrongAnswer
from bench.processes import PORT_PRINTED, NotStarted, Program


def test_a_small_crowd_is_measured_and_each_of_it_weighs_no_more_than_is_promised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("REST_SECONDS", "WARM_UP_SECONDS", "TURN_SECONDS"):
        monkeypatch.setattr(crowd, name, 0.1)
    with ExitStack() as held:
        found = crowd.measure(held, connections=500, seconds=0.1, rounds=1)
    assert 1.0 < found.kib_each < crowd.PROMISED_KIB
    assert found.idle_cpu_seconds < found.joining_cpu_seconds
    assert found.times_alone > 0
    assert min(found.worst_joining, found.worst_leaving) > 0


def test_rejected_connections_are_not_measured(tmp_path: Path) -> None:
    with ExitStack() as held:
        _, port = start_relay(held, tmp_path / "hub")
        start_diallers(held, [f"{port}:0:2"])
        assert statistics(port).mcp_server_connections == 2
        served = uvloop.run(drive([line_of(port, agent_name(number)) for number in range(2)], 2, 0.05))
        assert served.calls >= 4
        with pytest.raises(WrongAnswer):
            uvloop.run(drive([line_of(port, "agent-without-servers")], 1, 0.05))
        with pytest.raises(NotStarted, match="405"):
            start_diallers(held, [f"{held.enter_context(Program('bench.direct')).port(PORT_PRINTED)}:0:1"])
