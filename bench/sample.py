"""One measurement of every scenario, in this process, against a fixed piece of work.

`python -m bench.sample` prints one JSON object: for each scenario its CPU time in calibrations, that is,
divided by the CPU time of `calibration` in the same process. That quotient moves little between machines
and under load, where seconds do not. It decides nothing; `bench.gate` runs it several times and does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from time import thread_time_ns

import msgspec

from bench.collecting import no_collection
from bench.messages import call_body
from bench.scenarios import SCENARIOS, Scenario, Work
from isthmus.app.process_setup import keep_memory

SAMPLE_NANOSECONDS = 1_000_000
"""Length of one sample: far above the clock's error and below a scheduler's slice, so that some samples go
undisturbed in every process."""

ROUNDS = 100
"""Samples of each scenario, of which the least disturbed counts; three times as many gave the same spread."""


class Envelope(msgspec.Struct):
    """What the calibration decodes."""

    id: int
    method: str
    params: dict[str, msgspec.Raw]


class Entry:
    """What the calibration keeps in its table, as a call in flight would be kept."""

    __slots__ = ("answer", "callback", "is_done")

    def __init__(self, callback: Work) -> None:
        self.callback = callback
        self.is_done = False
        self.answer = b""

    def finish(self, answer: bytes) -> None:
        """Take the first answer and tell whoever waits."""
        if not self.is_done:
            self.is_done = True
            self.answer = answer
            self.callback()


@contextmanager
def calibration() -> Iterator[Work]:
    """The yardstick: decode, a table, a callback and encode, in about the hub's own mixture.

    Changing anything here changes every figure: save the baseline anew afterwards.
    """
    body = call_body(7, "server.echo", "a text of some length", "modern")
    decoder = msgspec.json.Decoder(Envelope)
    encoder = msgspec.json.Encoder()
    table: dict[int, Entry] = {}
    finished: list[int] = []

    def work() -> None:
        for number in range(10):
            envelope = decoder.decode(body)
            table[number] = Entry(lambda: finished.append(1))
            params = {**envelope.params, "name": msgspec.Raw(b'"echo"')}
            sent = encoder.encode({"jsonrpc": "2.0", "id": number, "method": envelope.method, "params": params})
            table.pop(number).finish(b"%d\r\n%b" % (len(sent), sent))
        finished.clear()

    yield work


def sample(scenarios: Mapping[str, Scenario], rounds: int = ROUNDS) -> dict[str, float]:
    """Return each scenario's cost in calibrations."""
    with ExitStack() as held:
        works = {name: held.enter_context(made()) for name, made in scenarios.items()}
        yardstick = held.enter_context(calibration())
        least = least_nanoseconds([yardstick, *works.values()], rounds)
    return {name: cost / least[0] for name, cost in zip(works, least[1:], strict=True)}


def least_nanoseconds(works: list[Work], rounds: int) -> list[float]:
    """Return the CPU time of one repetition of each work: the least over rounds in which they take turns."""
    repeats = [repeats_for(work) for work in works]
    least = [float("inf")] * len(works)
    with no_collection():
        for _ in range(rounds):
            for index, work in enumerate(works):
                least[index] = min(least[index], nanoseconds(work, repeats[index]) / repeats[index])
    return least


def nanoseconds(work: Work, repeats: int) -> int:
    """Return the CPU time of `repeats` repetitions."""
    start = thread_time_ns()
    for _ in range(repeats):
        work()
    return thread_time_ns() - start


def repeats_for(work: Work) -> int:
    """Return how many repetitions fill one sample."""
    repeats = 1
    while (spent := nanoseconds(work, repeats)) < SAMPLE_NANOSECONDS:
        repeats *= 2
    return max(1, repeats * SAMPLE_NANOSECONDS // spent)


if __name__ == "__main__":
    keep_memory()  # as a hub does: otherwise the place of a table at the end of the heap decides about page faults
    print(json.dumps(sample(SCENARIOS)))
