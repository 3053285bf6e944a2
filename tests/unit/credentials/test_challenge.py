"""Reading what a server says when it turns somebody away."""

from __future__ import annotations

import pytest

from isthmus.credentials.challenge import Challenge, joined, read_challenge


@pytest.mark.parametrize(
    ("header", "challenge"),
    [
        ("", Challenge()),
        ("Basic realm=x", Challenge()),
        ("Bearer", Challenge()),
        ('Bearer resource_metadata="https://a/x"', Challenge("https://a/x")),
        ("bearer resource_metadata=https://a/x, scope=read", Challenge("https://a/x", "read")),
        ('Bearer error="insufficient_scope", scope="a b:c"', Challenge("", "a b:c", "insufficient_scope")),
        ('Basic scope="no", Bearer scope="yes"', Challenge("", "yes")),
        ('Bearer scope="first", scope="second"', Challenge("", "first")),
        ('Bearer scope="a\x1b[31m"', Challenge()),
        ('Bearer scope=" a"', Challenge()),
        (f'Bearer scope="{"x" * 1001}"', Challenge()),
        ('Bearer error="<script>"', Challenge()),
    ],
)
def test_what_is_understood_of_a_challenge(header: str, challenge: Challenge) -> None:
    assert read_challenge(header) == challenge


def test_scopes_are_joined_without_saying_anything_twice() -> None:
    assert joined("a b", "", "b c", "a") == "a b c"
