"""Pauses between attempts."""

from __future__ import annotations

from isthmus.upstream.backoff import Backoff


def test_the_bound_doubles_up_to_half_a_minute_and_chance_chooses_below_it() -> None:
    backoff = Backoff()
    assert [backoff.next(1.0) for _ in range(8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert backoff.next(0.0) == 0.0
    assert backoff.next(0.5) == 15.0


def test_a_server_that_was_well_is_tried_again_soon() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.next(1.0)
    backoff.reset()
    assert backoff.next(1.0) == 0.5
