"""Conclusions of the relay's bench from its rounds."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import uvloop

from bench.__main__ import Round
from bench.devices import Line, drive
from bench.load import WrongAnswer
from bench.processes import PORT_PRINTED, Program, resident_bytes
from bench.relayed import Load, broken_promises, loads, ratios, times


def a_round(*, per_second: float = 2_000.0, p50: float = 0.5) -> Round:
    return Round(1_000, 100.0, per_second, p50, 1.0)


@pytest.fixture
def made() -> list[Load]:
    nobody: Program = object.__new__(Program)
    return loads(nobody, 1, nobody, 2)


def test_every_load_over_the_relay_has_its_like_without(made: list[Load]) -> None:
    by_name = {load.name: load for load in made}
    for load in made:
        if load.base is not None:
            base = by_name[load.base]
            assert (len(load.lines), load.window) == (len(base.lines), base.window)
    assert [load.is_promised for load in made if load.base] == [True, True, False]


def test_too_few_calls_a_second_break_the_promise(made: list[Load]) -> None:
    taken = {load.name: [a_round()] for load in made}
    assert broken_promises(made, taken) == []
    taken["relay, 20 agents"] = [a_round(per_second=1_000.0)]
    (sentence,) = broken_promises(made, taken)
    assert "20 agents: 1000 calls" in sentence


def test_ratios_are_taken_within_a_round() -> None:
    turns, others = [a_round(p50=2.0), a_round(p50=8.0)], [a_round(p50=1.0), a_round(p50=4.0)]
    assert times(turns, others, lambda turn: turn.p50_milliseconds) == 2.0
    assert ratios(turns, others) == ["1.00", "2.00", "1.00"]


def test_memory_is_read_in_bytes() -> None:
    assert resident_bytes("Name:\tpython\nVmRSS:\t   1024 kB\nThreads:\t1\n") == 1024 * 1024


def test_devices_get_answers_and_detect_a_port_without_servers() -> None:
    with ExitStack() as held:
        servers = held.enter_context(Program("bench.diallers", "--listen"))
        port = servers.port(PORT_PRINTED)
        served = uvloop.run(drive([Line(port, "/")] * 3, 4, 0.05))
        plain = held.enter_context(Program("bench.direct")).port(PORT_PRINTED)
        with pytest.raises(WrongAnswer, match="405"):
            uvloop.run(drive([Line(plain, "/")], 1, 0.05))
    assert served.calls >= 3 * 4
    assert served.latencies == sorted(served.latencies)
