"""Metrics: bounded labels, and a text that every scraper reads."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.core.calls.running_call import InFlight
from isthmus.core.catalog.view import Route
from isthmus.core.histograms import Histogram
from isthmus.model.calls import Call, Result
from isthmus.model.fault_table import TimedOut, UnknownTool
from isthmus.model.names import ServerName
from isthmus.telemetry import call_metrics as module
from isthmus.telemetry.call_metrics import (
    CallMetrics,
    Exposition,
    GroupedCounters,
    TelemetrySettings,
    labels,
    write_calls,
)
from tests.unit.core.doubles import DONE, SERVER, HeldLink, Listener, Stage, call, tool

SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (\S+)')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\[\\"n])*)"')


def begun(asked: Call | None = None) -> InFlight:
    """A call in flight; only its data matters."""
    return InFlight(asked or call(), Listener(), CallMetrics(), asyncio.get_running_loop())


def read(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The samples of an exposition; a line that is no sample fails the test."""
    found = {}
    for line in text.decode().splitlines():
        if line.startswith("#"):
            continue
        match = SAMPLE.fullmatch(line)
        assert match is not None, line
        pairs = tuple((name, unescaped(value)) for name, value in LABEL.findall(match[2] or ""))
        assert (match[1], pairs) not in found, f"twice: {line}"
        found[match[1], pairs] = float(match[3])
    return found


def unescaped(value: str) -> str:
    return re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), value)


def text_of(metrics: CallMetrics, *, is_open_metrics: bool = False) -> bytes:
    out = Exposition(is_open_metrics=is_open_metrics)
    for _ in write_calls(out, metrics):
        pass
    return out.text()


def calls_in(metrics: CallMetrics) -> dict[tuple[str, ...], float]:
    names = ("server", "tool", "frontend", "outcome", "executed")
    samples = read(text_of(metrics))
    return {
        tuple(dict(pairs).get(each, "") for each in names): value
        for (name, pairs), value in samples.items()
        if name == "isthmus_calls_total"
    }


async def ended(
    metrics: CallMetrics, asked: Call, server: ServerName | None = SERVER, *, is_error: bool = False
) -> None:
    inflight = begun(asked)
    inflight.link = HeldLink()
    inflight.name = asked.name.partition(".")[2]
    metrics.call_ended(inflight, server, Result(msgspec.Raw(b"{}"), is_error), 0.25)


async def test_calls_are_counted_by_server_tool_frontend_outcome_and_whether_they_ran() -> None:
    metrics = CallMetrics()
    stage = Stage(tool("read"))
    from_a2a = msgspec.structs.replace(call(), frontend="a2a")
    await ended(metrics, call())
    await ended(metrics, call(), is_error=True)
    await ended(metrics, from_a2a)
    metrics.call_ended(begun(call()), SERVER, TimedOut(SERVER, 1.0, executed="unknown"), 2.0)
    metrics.call_ended(begun(call("made.up")), None, UnknownTool("made.up"), 0.0)
    assert calls_in(metrics) == {
        (SERVER, "read", "hub", "ok", "yes"): 1,
        (SERVER, "read", "hub", "tool_error", "yes"): 1,
        (SERVER, "read", "a2a", "ok", "yes"): 1,
        (SERVER, "files.read", "hub", "timed_out", "unknown"): 1,
        ("", "", "hub", "unknown_tool", "no"): 1,
    }
    assert stage.notes.ends == []


async def test_a_histogram_is_cumulative_and_its_count_is_the_number_of_calls() -> None:
    metrics = CallMetrics()
    await ended(metrics, call())
    await ended(metrics, call())
    samples = read(text_of(metrics))
    buckets = {
        dict(pairs)["le"]: value
        for (name, pairs), value in samples.items()
        if name == "isthmus_call_duration_seconds_bucket"
    }
    assert buckets["0.2"] == 0
    assert buckets["0.5"] == buckets["300.0"] == buckets["+Inf"] == 2
    assert [value for (name, _), value in samples.items() if name.endswith("duration_seconds_sum")] == [0.5]
    assert [value for (name, _), value in samples.items() if name == "isthmus_server_received_bytes_total"] == [4]


async def test_tools_beyond_the_limit_are_other_and_one_server_has_a_quarter_at_most() -> None:
    metrics = CallMetrics(tools_max=8)
    for number in range(100):
        await ended(metrics, call(f"files.tool{number}"))
    for server in ("a", "b", "c", "d", "e"):
        for number in range(3):
            await ended(metrics, call(f"{server}.tool{number}"), ServerName(server))
    counted = calls_in(metrics)
    assert counted[SERVER, "other", "hub", "ok", "yes"] == 98
    assert len([key for key in counted if key[1] != "other"]) == 8
    assert sum(counted.values()) == 115


async def test_servers_beyond_the_limit_are_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERVERS_MAX", 2)
    metrics = CallMetrics()
    for name in ("a", "b", "c", "d"):
        await ended(metrics, call(f"{name}.read"), ServerName(name))
        waiting = begun(call(f"{name}.read"))
        waiting.route = Route(tool("read", name), f"{name}.read")
        metrics.waited(waiting, 0.1)
    assert {key[0] for key in calls_in(metrics)} == {"a", "b", "other"} == {*metrics.waits}


async def test_combinations_of_labels_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERIES_MAX", 10)
    metrics = CallMetrics()
    for number in range(50):
        asked = msgspec.structs.replace(call(f"files.tool{number}"), frontend="mcp" if number % 2 else "rest")
        await ended(metrics, asked)
    counted = calls_in(metrics)
    assert len(counted) == 12
    assert counted["other", "other", "mcp", "ok", "yes"] == 20
    assert sum(counted.values()) == 50


async def test_uris_of_resources_and_invented_names_are_no_labels() -> None:
    metrics = CallMetrics()
    inflight = begun(call("file:///secret?key=1", kind="resource"))
    metrics.call_ended(inflight, SERVER, DONE, 0.1)
    metrics.call_ended(begun(call("nobody.knows")), None, UnknownTool("nobody.knows"), 0.1)
    text = text_of(metrics).decode()
    assert 'method="resources/read"' in text
    assert "secret" not in text
    assert "nobody" not in text


async def test_calls_that_wait_in_a_queue_are_timed() -> None:
    metrics = CallMetrics(measures_servers=True)
    counters = metrics
    inflight = Stage(tool("read")).hub.start(call(), begun().exchange)
    inflight.wait_seconds = 3.0
    counters.waited(inflight, 3.0)
    counters.call_ended(inflight, SERVER, DONE, 4.0)
    assert metrics.waits[SERVER].sum == 3.0
    [series] = metrics.series.values()
    assert series.at_server is not None
    assert (series.durations.sum, series.at_server.sum) == (4.0, 1.0)


async def test_a_call_that_had_to_wait_says_so_when_it_is_sent() -> None:
    stage = Stage(tool("read"))
    stage.server_queue.adjust(1, 10, 60.0)
    first, _ = (stage.hub.start(call(), begun().exchange) for _ in range(2))
    assert stage.notes.waits == []
    first.finish(DONE)
    assert len(stage.notes.waits) == 1


@given(st.lists(st.text(max_size=300), min_size=1, unique=True))
def test_any_text_is_a_label_that_is_read_back(values: list[str]) -> None:
    out = Exposition()
    given_values = [value for value in values if value and len(value) <= module.LABEL_LENGTH_MAX]
    out.gauge("odd", "Odd values.", [(labels(value=value), 1) for value in given_values])
    found = {pairs[0][1] for _, pairs in read_lines(out.text())}
    assert found == {value.encode("utf-8", "backslashreplace").decode() for value in given_values}


def read_lines(text: bytes) -> Iterable[tuple[str, tuple[tuple[str, str], ...]]]:
    # Not `splitlines`, which also splits at characters that the format does not know.
    for line in text.decode().split("\n"):
        if line and not line.startswith("#"):
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            yield match[1], tuple((name, unescaped(value)) for name, value in LABEL.findall(match[2]))


def test_long_names_that_begin_alike_stay_apart() -> None:
    one, other = labels(tool="x" * 1000 + "a"), labels(tool="x" * 1000 + "b")
    assert one != other
    assert len(one) < 140


def test_empty_histograms_and_odd_numbers_are_written() -> None:
    out = Exposition(is_open_metrics=True)
    for _ in out.histogram("h", "A histogram.", [("", Histogram((1.0,)))]):
        pass
    out.gauge("g", "A gauge.", [("", 7), ('a="b"', 1e-9)])
    assert out.text().decode().splitlines() == [
        "# HELP h A histogram.",
        "# TYPE h histogram",
        'h_bucket{le="1.0"} 0',
        'h_bucket{le="+Inf"} 0',
        "h_sum 0.0",
        "h_count 0",
        "# HELP g A gauge.",
        "# TYPE g gauge",
        "g 7",
        'g{a="b"} 1e-09',
        "# EOF",
    ]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"metrics": "everybody"}, "metrics must be one of operators, open, off, not 'everybody'"),
        ({"metrics_tools": -1}, "metrics_tools must be between 0 and 100000, not -1"),
        ({"otlp_endpoint": "collector:4317"}, "otlp_endpoint must be a URL such as http://localhost:4318"),
        ({"sample_ratio": 1.5}, "sample_ratio must be between 0 and 1, not 1.5"),
    ],
)
def test_settings_out_of_range_are_refused(values: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        TelemetrySettings(**values)  # type: ignore[arg-type]


async def test_calls_are_counted_by_server_and_by_how_they_ended() -> None:
    counters = CallMetrics()
    said_no = Result(msgspec.Raw(b"{}"), is_error=True)
    for outcome in (DONE, DONE, said_no, TimedOut(SERVER, 1.0, executed="unknown")):
        counters.call_ended(begun(), SERVER, outcome, 0.5)
    counters.call_ended(begun(call("nobody.knows")), None, UnknownTool("nobody.knows"), 0.0)
    counters.late(SERVER)
    counts = counters.servers[SERVER]
    assert (counts.calls, counts.seconds, counts.late) == (4, 2.0, 1)
    assert counts.outcomes == {"result": 2, "tool_error": 1, "timed_out": 1}
    assert counters.servers[None].outcomes == {"unknown_tool": 1}


async def test_servers_that_come_and_go_can_be_counted_as_one() -> None:
    counters = CallMetrics()
    grouped = GroupedCounters(counters, ServerName("#"))
    for name in ("a#1", "b#2"):
        grouped.call_ended(begun(), ServerName(name), DONE, 0.5)
        grouped.waited(begun(), 0.5)
        grouped.late(ServerName(name))
    grouped.call_ended(begun(), None, UnknownTool("x"), 0.0)
    assert {*counters.servers} == {"#", None}
    counts = counters.servers[ServerName("#")]
    assert (counts.seconds, counts.late, counts.outcomes) == (1.0, 2, {"result": 2})


async def test_ever_new_names_are_counted_as_others_from_some_number_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COUNTED_SERVERS_MAX", 2)
    counters = CallMetrics()
    for name in ("a", "b", "c", "d", "a"):
        counters.call_ended(begun(), ServerName(name), DONE, 0.5)
    assert {name: counts.calls for name, counts in counters.servers.items()} == {"a": 2, "b": 1, module.OTHERS: 2}


async def test_the_time_that_a_person_takes_is_not_the_servers() -> None:
    metrics = CallMetrics()
    inflight = begun()
    inflight.steps = [("held", 1.0), ("decided", 7.0)]
    metrics.call_ended(inflight, SERVER, DONE, 8.0)
    inflight.steps = [("held", 2.0)]
    metrics.call_ended(inflight, SERVER, TimedOut(SERVER, 1.0, executed="no"), 9.0)
    assert [series.durations.sum for series in metrics.series.values()] == [2.0, 2.0]
    assert metrics.servers[SERVER].seconds == 4.0
