"""The queueing model of `bench.simulate` keeps the laws of queues, and finds costs again that it was given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bench.__main__ import NotMeasured
from bench.cluster import CROSSING_MICROSECONDS, CROSSING_MILLISECONDS, broken_crossing, ceiling
from bench.queueing import Calls, Disk, Journal, Machine, Observed, Process, Simulation, Step, Write
from bench.simulate import (
    CHECKED,
    FEW,
    LEARNED,
    MANY,
    OTHERS_MAX,
    TAIL,
    Cost,
    Costs,
    Figures,
    Measurement,
    Shape,
    Turn,
    compare,
    fit,
    predict,
)

MS = 1e-3
COSTS = Costs(
    load=Cost(6.5, 6),
    asker=Cost(8, 20),
    server=Cost(8, 12),
    local=Cost(31, 33),
    entry=Cost(36, 60),
    owner=Cost(33, 60),
    broker=Cost(8, 75),
    task=Cost(45, 60),
    database=Cost(20, 80),
    sync_milliseconds=0.2,
    wake_microseconds=20.0,
    tail=TAIL,
)


def closed(steps: Sequence[Step], simulation: Simulation, connections: int) -> Observed:
    calls = Calls(simulation, lambda _: steps, settle=1.0)
    calls.closed(connections)
    simulation.run(11.0)
    return calls.observed()


def test_one_connection_takes_the_sum_of_its_steps() -> None:
    simulation = Simulation(1)
    machine = Machine(simulation, 4)
    steps = [Step(Process(machine), 2 * MS), Step(None, 5 * MS), Step(Process(machine), 3 * MS)]
    found = closed(steps, simulation, 1)
    assert found.calls_per_second == pytest.approx(100, rel=0.02)
    assert found.p50_milliseconds == pytest.approx(10, rel=0.05)


def test_an_idle_core_takes_a_while_to_wake_up_and_a_busy_one_does_not() -> None:
    for connections, expected in ((1, 3 * MS), (8, 2 * MS)):
        simulation = Simulation(1)
        process = Process(Machine(simulation, 1, wake_seconds=1 * MS))
        found = closed([Step(process, 2 * MS), Step(None, 0.5 * MS)], simulation, connections)
        assert found.calls_per_second == pytest.approx(1 / (expected + (0.5 * MS if connections == 1 else 0)), rel=0.02)


def test_a_process_that_waits_for_a_busy_core_stays_there_when_another_becomes_idle() -> None:
    simulation = Simulation(1, variation=0.0)
    machine = Machine(simulation, 2)
    first, second, third = Process(machine), Process(machine), Process(machine)
    ended: dict[str, float] = {}
    for name, process, seconds in (("long", first, 9 * MS), ("short", second, 1 * MS), ("waits", third, 2 * MS)):
        process.add(Step(process, seconds), lambda name=name: ended.update({name: simulation.now}))  # type: ignore[misc]
    simulation.run(1.0)
    assert third.core == first.core
    assert ended == pytest.approx({"short": 1 * MS, "long": 9 * MS, "waits": 11 * MS})
    third.add(Step(third, 2 * MS), lambda: None)
    first.add(Step(first, 2 * MS), lambda: None)
    assert {first.core, third.core} == {0, 1}


def test_the_next_process_begins_before_the_end_of_a_turn_that_has_sent_its_messages() -> None:
    simulation = Simulation(1)
    machine = Machine(simulation, 4)
    steps = [Step(Process(machine), 1 * MS, 2 * MS, tail=0.5), Step(Process(machine), 3 * MS)]
    found = closed(steps, simulation, 1)
    assert found.p50_milliseconds == pytest.approx(5, rel=0.05)


def test_a_disk_syncs_once_for_all_who_came_during_the_last_sync() -> None:
    simulation = Simulation(1)
    disk = Disk(simulation, 2 * MS)
    ended: list[float] = []
    for at in (0.0, 0.5 * MS, 1 * MS, 5 * MS):
        simulation.after(at, lambda: disk.sync(lambda: ended.append(simulation.now)))
    simulation.run(1.0)
    assert ended == pytest.approx([2 * MS, 4 * MS, 4 * MS, 7 * MS])


def test_a_journal_writes_one_transaction_at_a_time_with_all_that_has_come() -> None:
    simulation = Simulation(1)
    machine = Machine(simulation, 4)
    hub, database = Process(machine), Process(machine)
    journal = Journal(hub, database, Disk(simulation, 10 * MS), Step(hub, 0.0), Step(database, 0.0, 1e-9))
    ended: list[float] = []
    for at in (0.0, 1 * MS, 2 * MS, 3 * MS):
        simulation.after(at, lambda: journal.write("new", lambda: ended.append(simulation.now)))
    simulation.run(1.0)
    assert ended == pytest.approx([10 * MS, 20 * MS, 20 * MS, 20 * MS], rel=0.01)
    # A beginning, one statement for all rows of a kind, a commit: of two transactions.
    assert database.turns == 6


def test_nodes_that_write_at_the_same_time_share_a_sync_of_the_disk() -> None:
    simulation = Simulation(1)
    machine, disk = Machine(simulation, 16), Disk(simulation, 10 * MS)
    journals = []
    for _ in range(3):
        hub, database = Process(machine), Process(machine)
        journals.append(Journal(hub, database, disk, Step(hub, 1e-6), Step(database, 0.0, 1e-6)))
    calls = Calls(simulation, lambda number: [Write(journals[number % 3], "new")], settle=1.0)
    calls.closed(3)
    simulation.run(11.0)
    # The disk syncs a hundred times a second, and each node is in at least every second of them.
    assert 150 <= calls.observed().calls_per_second <= 300


@pytest.mark.parametrize(("cores", "expected"), [(1, 1 / (2 * MS + 3 * MS)), (2, 1 / (3 * MS))])
def test_many_connections_are_limited_by_the_cores_or_by_the_slowest_process(cores: int, expected: float) -> None:
    simulation = Simulation(1)
    machine = Machine(simulation, cores)
    steps = [Step(Process(machine), 2 * MS), Step(Process(machine), 3 * MS)]
    found = closed(steps, simulation, 8)
    assert found.calls_per_second == pytest.approx(expected, rel=0.02)
    # Little's law: the calls on the way are the rate times the time of each.
    assert found.calls_per_second * found.p50_milliseconds * MS == pytest.approx(8, rel=0.05)


def test_simultaneous_messages_share_the_cost_of_a_turn() -> None:
    for connections, expected in ((1, 6 * MS), (8, 2 * MS + 3 * MS / 7.5)):
        simulation = Simulation(1)
        process = Process(Machine(simulation, 1))
        found = closed([Step(None, 1 * MS), Step(process, 2 * MS, 3 * MS)], simulation, connections)
        assert found.calls_per_second == pytest.approx(1 / expected, rel=0.03)


def test_calls_that_arrive_at_random_wait_as_long_as_the_formula_says() -> None:
    simulation = Simulation(7, variation=0.0)
    process = Process(Machine(simulation, 1))
    calls = Calls(simulation, lambda _: [Step(process, 1 * MS)], settle=1.0)
    calls.arriving(500)
    simulation.run(101.0)
    found = calls.observed()
    assert found.calls_per_second == pytest.approx(500, rel=0.02)
    assert process.busy_seconds == pytest.approx(101 * 0.5, rel=0.02)
    # M/D/1 at a load of one half: half of the calls wait for nothing, and 99 of 100 for less than 3.2 times the work.
    assert found.p50_milliseconds == pytest.approx(1.0, abs=0.1)
    assert found.p99_milliseconds == pytest.approx(4.1, rel=0.1)


def test_a_seed_repeats_a_run() -> None:
    shape = Shape(4, crossing=0.75)
    first, again, other = (predict(shape, COSTS, per_second=5000, seconds=0.2, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_a_call_that_crosses_costs_both_nodes_and_the_broker() -> None:
    local = predict(Shape(2, owner=0, arrivals=(0,)), COSTS, connections=1, seconds=0.2)
    crossing = predict(Shape(2, owner=0, arrivals=(1,)), COSTS, connections=1, seconds=0.2)
    assert local.cpu["hub1"] == local.cpu["broker"] == 0
    assert local.hubs == pytest.approx(2 * (COSTS.local.work + COSTS.local.turn), rel=0.03)
    entry, owner, broker = (2 * (cost.work + cost.turn) for cost in (COSTS.entry, COSTS.owner, COSTS.broker))
    assert crossing.hubs == pytest.approx(entry + owner, rel=0.03)
    assert crossing.cpu["broker"] == pytest.approx(broker, rel=0.03)
    assert crossing.observed.p50_milliseconds > local.observed.p50_milliseconds


def test_costs_are_recovered_from_their_effects() -> None:
    given = replace(COSTS, local=Cost(40, 20), entry=Cost(50, 30), broker=Cost(20, 40), sync_milliseconds=1.5)
    measured = measurements(given)
    found = fit(measured, cores=2, rounds=10, seconds=0.1)
    assert found.sync_milliseconds == pytest.approx(1.5, rel=0.1)
    assert found.wake_microseconds == pytest.approx(20, abs=10)
    # Work and turn cannot be told apart for a process that gets one call in each turn, so what they cause is compared.
    for shape, connections in CHECKED.values():
        one, other = (
            predict(replace(shape, cores=2), costs, connections=connections, seconds=0.1) for costs in (given, found)
        )
        assert other.observed.calls_per_second == pytest.approx(one.observed.calls_per_second, rel=0.15)
        assert other.hubs == pytest.approx(one.hubs, rel=0.15)


def measurements(costs: Costs) -> dict[tuple[str, int], Figures]:
    """What loads that are for calibration would show, on two cores."""
    return {
        (row, load): predict(replace(shape, cores=2), costs, connections=load, seconds=0.2)
        for row, shape in LEARNED.items()
        for load in (FEW, MANY)
    }


def test_the_check_names_wrong_predictions_and_skips_disturbed_turns() -> None:
    turns = [Turn(row, load, figures, 0.0) for (row, load), figures in measurements(COSTS).items()]
    wrong = "tasks, 24 connections"
    for row, (shape, connections) in CHECKED.items():
        figures = predict(replace(shape, cores=2), COSTS, connections=connections, seconds=0.5)
        rate = figures.observed.calls_per_second
        slow = figures._replace(observed=figures.observed._replace(calls_per_second=rate * 0.7))
        turns += [Turn(row, 0, slow if row == wrong else figures, OTHERS_MAX), Turn(row, 0, slow, OTHERS_MAX + 0.01)]
    assert [sentence.split(" is")[0] for sentence in compare(Measurement(2, turns), seconds=0.2)[1]] == [
        f"{wrong}: calls/s"
    ]
    with pytest.raises(NotMeasured, match=wrong):
        compare(Measurement(2, [turn for turn in turns if turn.row != wrong or turn.others > OTHERS_MAX]))


def test_two_workers_can_reach_twice_one_only_where_the_load_has_cores_of_its_own() -> None:
    assert ceiling(40, 10, cores=2) == pytest.approx(1.6)
    assert ceiling(40, 10, cores=3) == pytest.approx(2.0)
    assert ceiling(10, 40, cores=4) == pytest.approx(3.2)  # the load alone limits one worker


def test_limits_of_a_crossing_call_are_checked() -> None:
    assert broken_crossing("x", CROSSING_MICROSECONDS, CROSSING_MILLISECONDS) == []
    assert len(broken_crossing("x", CROSSING_MICROSECONDS + 1, CROSSING_MILLISECONDS + 1)) == 2
