"""Every endpoint and every parser of servers' answers, with stored and generated inputs.

The targets are those of `make fuzz`, which gives them hours: what it finds is kept in `fuzz/corpus`, and tried here for
ever. Here each also has a few inputs of hypothesis: kept ones with something changed, and any bytes.
"""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.targets import CORPUS, NAMES, corpus_of, target_of

pytestmark = [pytest.mark.xdist_group("fuzz"), pytest.mark.timeout(600 if os.environ.get("ISTHMUS_SOAK") else 120)]

EXAMPLES = {"http": 10, "relay": 10, "mcp": 40, "agent": 40, "rest": 20, "answered": 20}
"""Of targets that speak to a whole hub; the others take microseconds."""
USUAL_EXAMPLES = 100
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SCALE = 100 if os.environ.get("ISTHMUS_SOAK") else 1

_BITS = (
    b"\x00",
    b"\xff",
    b'"',
    b"\\",
    b"\r\n",
    b"{",
    b"}",
    b"[",
    b"null",
    b"1e999",
    b"\\ud800",
    b"-1",
    b"\xef\xbb\xbf",
)


def inputs(name: str) -> st.SearchStrategy[bytes]:
    """Kept inputs with a piece cut out, doubled, or something put in its place; and bytes of any kind."""
    kept = st.sampled_from(corpus_of(name))

    @st.composite
    def changed(draw: st.DrawFn) -> bytes:
        data = draw(kept)
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 16)))
        between = draw(st.one_of(st.sampled_from(_BITS), st.binary(max_size=4), st.just(data[start:end] * 2)))
        return data[:start] + between + data[end:]

    return st.one_of(changed(), changed(), st.binary(max_size=64))


def test_every_target_has_a_corpus_and_every_corpus_a_target() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == set(NAMES)
    assert all(corpus_of(name) for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_stored_and_similar_inputs_are_harmless(name: str) -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    target = target_of(name)
    for data in corpus_of(name):
        target(data)

    @settings(
        max_examples=SCALE * EXAMPLES.get(name, USUAL_EXAMPLES),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs(name))
    def try_more(data: bytes) -> None:
        target(data)

    try_more()
    left = [signal.getsignal(number) for number in SIGNALS]
    usual = (signal.SIG_DFL, signal.default_int_handler)
    taken = [after for was, after in zip(before, left, strict=True) if after != was and after not in usual]
    assert not taken, "a hub that stays open must not take the signals of the next test"
