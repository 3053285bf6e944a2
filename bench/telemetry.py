"""`python -m bench.telemetry`: what it costs a call that it is counted, and that it is traced.

The core answers the same call again and again, with each kind of recorder in turn; a cost is the difference to a
recorder that does nothing. The encoding of spans is included, which the exporter does later. Only the POST to the
collector is left out: it is made once for 512 calls. Ends with 1 when something costs more than is promised.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import msgspec
import uvloop

from bench.sample import least_nanoseconds
from bench.scenarios import CALLER, SERVER, Silent, Work, hub_with_instant_server
from bench.steps import steps_of
from isthmus.core.ports import Recorder
from isthmus.model.calls import EVERYTHING, Call
from isthmus.telemetry.activity import RecentCalls
from isthmus.telemetry.call_metrics import CallMetrics, Exposition, write_calls
from isthmus.telemetry.otlp import Sampler, SpanEncoder, TracedCall, TracingRecorder, envelope, scope

CALLS = 256
ROUNDS = 250
PARENT = msgspec.Raw(b'"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"')
META = {"traceparent": PARENT}

Make = Callable[[list[TracedCall]], Recorder]


def _kept(recorder: Recorder) -> RecentCalls:
    """With the last calls, which every hub keeps."""
    return RecentCalls(recorder, lambda event, **about: None, lambda *_: "")


def _traced(metrics: CallMetrics, sampler: Sampler, ended: list[TracedCall]) -> Recorder:
    return _kept(TracingRecorder(metrics, sampler, ended.append, lambda _: "http"))


def _watched() -> Recorder:
    """As while a console is open: its figures are read, and a feed has every call."""
    metrics = CallMetrics()
    metrics.figures()
    recorder = _kept(metrics)
    recorder.follow(lambda _: None)
    return recorder


KINDS: dict[str, tuple[Make, dict[str, msgspec.Raw], float | None]] = {
    "nothing": (lambda _: Silent(), {}, None),
    "counts, which /metrics reads": (lambda _: CallMetrics(), {}, None),
    "off: counts and the last calls": (lambda _: _kept(CallMetrics()), {}, 1.0),
    "the same, and a console looks": (lambda _: _watched(), {}, 5.0),
    "and traces, caller does not sample": (
        lambda ended: _traced(CallMetrics(), Sampler(), ended),
        {"traceparent": msgspec.Raw(bytes(PARENT).replace(b"-01", b"-00"))},
        None,
    ),
    "and traces, 10 % sampled": (
        lambda ended: _traced(CallMetrics(), Sampler("traceidratio", 0.1), ended),
        {},
        15.0,
    ),
    "and traces, all sampled": (
        lambda ended: _traced(CallMetrics(measures_servers=True), Sampler(), ended),
        META,
        15.0,
    ),
}
"""By name: the recorder, the caller's `_meta`, and how many microseconds are promised at most. "Off" is what every hub
pays, with `metrics = "off"` and nobody looking: it counts for `isthmus status`, and keeps the last calls."""


@contextmanager
def working(make: Make, meta: dict[str, msgspec.Raw]) -> Iterator[Work]:
    """Some calls by a hub with this recorder, and the encoding of what they leave behind."""
    loop = uvloop.new_event_loop()
    ended: list[TracedCall] = []
    encoder, silent, about = SpanEncoder(), Silent(), scope("bench", "1")
    hub = loop.run_until_complete(hub_with_instant_server(recorder=make(ended)))
    call = Call(
        CALLER, EVERYTHING, "files.echo", msgspec.Raw(b'{"text":"a text of some length"}'), meta, frontend="mcp"
    )

    async def turns() -> None:
        for _ in range(CALLS // 16):
            for _ in range(16):
                hub.start(call, silent)
            await asyncio.sleep(0)
        if ended:
            envelope({"service.name": "bench"}, about, [span for each in ended for span in encoder.encode(each)])
            ended.clear()

    yield lambda: loop.run_until_complete(turns())
    loop.close()


def scrape(tools: int) -> tuple[Work, CallMetrics]:
    """One scrape of a hub that has called so many tools."""
    metrics = CallMetrics(tools * 4)
    for number in range(tools):
        metrics._series_of((SERVER, f"tool_{number}", "tool", "mcp", "ok", "yes")).durations.observe(0.003)

    def work() -> None:
        out = Exposition()
        for _ in write_calls(out, metrics):
            pass
        out.text()

    return work, metrics


def main() -> int:
    """Measure, print, and say whether the promises hold."""
    with ExitStack() as held:
        works = [held.enter_context(working(make, meta)) for make, meta, _ in KINDS.values()]
        costs = [cost / 1000 / CALLS for cost in least_nanoseconds(works, ROUNDS)]
    steps = [steps_of(lambda make=make, meta=meta: working(make, meta)) / CALLS for make, meta, _ in KINDS.values()]  # type: ignore[misc]
    broken = []
    print(f"{'a call, with':<44}{'CPU µs':>8}{'more':>8}{'steps':>8}{'more':>8}{'promised':>10}")
    for (name, (_, _, promised)), cost, count in zip(KINDS.items(), costs, steps, strict=True):
        more = cost - costs[0]
        limit = "" if promised is None else f"{promised:g}"
        print(f"{name:<44}{cost:>8.2f}{more:>+8.2f}{count:>8.0f}{count - steps[0]:>+8.0f}{limit:>10}")
        if promised is not None and more > promised:
            broken.append(f"{name}: {more:.2f} µs, and {promised:g} are promised")
    for tools in (100, 1000):
        (took,) = least_nanoseconds([scrape(tools)[0]], 20)
        print(f"{f'a scrape of {tools} tools':<44}{took / 1000:>8.0f}")
    for sentence in broken:
        print(f"telemetry: {sentence}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
