"""How wrong keys are counted: per address, in little room, and forgotten in time."""

from __future__ import annotations

import pytest

from isthmus.frontends.http.auth import (
    ADDRESSES_MAX,
    COMING_FROM,
    PLAIN_DENIAL,
    REPORT_SECONDS,
    Authenticator,
    Denied,
    FailedAuthLimit,
    OriginGuard,
)

ONE = ("192.0.2.1", 50_000)


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_so_many_at_once_and_then_so_many_a_minute(clock: Clock) -> None:
    limit = FailedAuthLimit(6, clock)
    assert [limit.failed(ONE) for _ in range(8)] == [0] * 6 + [10, 10]
    clock.now += 9.5
    assert limit.failed(ONE) == 1
    clock.now += 0.5
    assert [limit.failed(ONE), limit.failed(ONE)] == [0, 10]
    for quiet_seconds in (60, 3600):  # who kept quiet for longer has saved up nothing
        clock.now += quiet_seconds
        assert [limit.failed(ONE) for _ in range(7)] == [0] * 6 + [10]
    assert limit.refused == 6


@pytest.mark.parametrize("per_minute", [1, 7, 60])
def test_none_is_refused_for_the_way_in_which_times_are_rounded(clock: Clock, per_minute: int) -> None:
    limit = FailedAuthLimit(per_minute, clock)
    for number in range(500):
        clock.now = number * 97.326235239371
        assert [limit.failed(ONE) for _ in range(per_minute)] == [0] * per_minute
        assert limit.failed(ONE)


def test_each_address_for_itself_of_ipv6_each_network(clock: Clock) -> None:
    limit = FailedAuthLimit(1, clock)
    assert [limit.failed(each) for each in (ONE, ("192.0.2.2", 1), "2001:db8::1", None)] == [0] * 4
    assert all(limit.failed(each) for each in (ONE, ("192.0.2.1", 2), "2001:db8::2", "::ffff:192.0.2.1", None))
    assert limit.failed("2001:db8:0:1::1") == 0


def test_the_addresses_that_are_silent_for_longest_are_forgotten_first(clock: Clock) -> None:
    limit = FailedAuthLimit(1, clock)
    addresses = [f"10.0.{number >> 8}.{number & 255}" for number in range(ADDRESSES_MAX + 1)]
    for address in addresses[:-1]:
        limit.failed(address)
    assert limit.failed(addresses[0])  # and comes last by that
    assert limit.failed(addresses[-1]) == 0
    assert limit.failed(addresses[0])
    assert limit.failed(addresses[1]) == 0


def test_the_operator_gets_one_report_a_minute(clock: Clock) -> None:
    limit = FailedAuthLimit(1, clock)
    received: list[tuple[str, int]] = []
    limit.on_refused = lambda address, count: received.append((address, count))
    for _ in range(5):
        limit.failed(ONE)
    clock.now += REPORT_SECONDS
    limit.failed(ONE)
    limit.failed(ONE)
    assert received == [("192.0.2.1", 1), ("192.0.2.1", 4)]


def test_guesses_are_limited_by_the_address_they_come_from() -> None:
    auth = Authenticator(OriginGuard(bind_host="127.0.0.1"), lambda _: None)
    auth.failed_auth_limit.per_minute = 1
    guess = Denied(401, "no", is_guess=True)
    auth.refuse = lambda fields, _frontend: guess if fields else PLAIN_DENIAL
    shown = {b"x-api-key": b"wrong"}
    assert [auth.identify(shown, "mcp") for _ in range(3)] == [guess] * 3
    before = COMING_FROM.set(ONE)
    try:
        assert auth.identify(shown, "mcp") == guess
        limited = auth.identify(shown, "mcp")
        assert isinstance(limited, Denied)
        assert (limited.status, limited.headers) == (429, ((b"retry-after", b"60"),))
        assert auth.identify({}, "mcp") == PLAIN_DENIAL
    finally:
        COMING_FROM.reset(before)
