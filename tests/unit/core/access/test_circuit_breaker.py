"""When a failing server is left alone, by a clock that the test holds."""

from __future__ import annotations

import pytest

from isthmus.core.access.circuit_breaker import CircuitBreaker
from isthmus.core.settings import Limits

LIMITS = Limits()


def opened(at: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker(LIMITS)
    for _ in range(5):
        breaker.failed(at)
    return breaker


def test_it_opens_after_five_failures_in_a_row_and_not_before() -> None:
    breaker = CircuitBreaker(LIMITS)
    for _ in range(4):
        breaker.failed(1.0)
        assert breaker.wait(1.0) == 0
    breaker.failed(1.0)
    assert breaker.wait(1.0) == 3.0
    assert breaker.wait(3.5) == pytest.approx(0.5)


def test_a_success_between_failures_starts_the_row_anew() -> None:
    breaker = CircuitBreaker(LIMITS)
    for _ in range(3):
        for _ in range(2):
            breaker.failed(1.0)
        for _ in range(3):
            breaker.succeeded(1.0)
    assert breaker.wait(1.0) == 0


def test_it_opens_when_half_of_at_least_ten_calls_failed() -> None:
    breaker = CircuitBreaker(LIMITS)
    for _ in range(4):
        breaker.succeeded(1.0)
        breaker.failed(1.0)
    breaker.succeeded(1.0)
    assert breaker.wait(1.0) == 0
    breaker.failed(1.0)
    assert breaker.wait(1.0) == 3.0


def test_failures_of_another_window_do_not_count_towards_the_share() -> None:
    breaker = CircuitBreaker(LIMITS)
    for _ in range(4):
        breaker.succeeded(1.0)
        breaker.failed(1.0)
    breaker.succeeded(1.0)
    breaker.failed(1.0 + LIMITS.breaker_window_seconds)
    assert breaker.wait(31.0) == 0


def test_after_the_pause_one_call_may_probe_and_the_others_wait() -> None:
    breaker = opened()
    assert breaker.wait(3.0) == 0
    assert breaker.wait(3.0) == 3.0
    assert breaker.wait(3.1) == 3.0


def test_a_probe_that_succeeds_closes_it() -> None:
    breaker = opened()
    breaker.wait(3.0)
    breaker.succeeded(3.1)
    assert [breaker.wait(3.1) for _ in range(3)] == [0, 0, 0]


def test_each_failed_probe_doubles_the_pause_up_to_a_minute() -> None:
    breaker = opened()
    now, pauses = 0.0, []
    for _ in range(7):
        pauses.append(breaker.wait(now))
        now += pauses[-1]
        assert breaker.wait(now) == 0
        breaker.failed(now)
    assert pauses == [3.0, 6.0, 12.0, 24.0, 48.0, 60.0, 60.0]


def test_a_success_forgets_how_long_the_pauses_had_become() -> None:
    breaker = opened()
    breaker.wait(3.0)
    breaker.failed(3.0)
    breaker.wait(9.0)
    breaker.succeeded(9.0)
    for _ in range(5):
        breaker.failed(10.0)
    assert breaker.wait(10.0) == 3.0


def test_a_probe_that_was_withdrawn_may_be_made_again() -> None:
    breaker = opened()
    assert breaker.wait(3.0) == 0
    breaker.gave_up()
    assert breaker.wait(3.0) == 0


def test_a_new_link_that_came_up_wipes_it_clean() -> None:
    breaker = opened()
    breaker.reset()
    assert breaker.wait(0.0) == 0
