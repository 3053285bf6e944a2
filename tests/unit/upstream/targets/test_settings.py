"""What an operator can say of addresses that callers name."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.upstream.targets.addresses import read_address
from isthmus.upstream.targets.settings import TargetSettings

SOME = TargetSettings(("https://*.example.com", "http://10.0.0.5:9000/mcp", "http://tools.corp"), ("Authorization",))


def test_nothing_is_allowed_by_default() -> None:
    assert not TargetSettings().allows(read_address("https://a.example.com"))
    assert not TargetSettings().passes("authorization")


@pytest.mark.parametrize(
    ("url", "is_allowed", "is_trusted"),
    [
        ("https://a.example.com/mcp", True, False),
        ("http://10.0.0.5:9000/mcp", True, True),
        ("http://10.0.0.5:9000/other", False, False),
        ("http://tools.corp", True, True),
        ("http://10.0.0.6:9000/mcp", False, False),
    ],
)
def test_what_is_listed_is_allowed_and_trusted_only_where_its_host_is_written_out(
    url: str, *, is_allowed: bool, is_trusted: bool
) -> None:
    assert SOME.allows(read_address(url)) is is_allowed
    assert SOME.trusts(read_address(url)) is SOME.trusts_url(url) is is_trusted


def test_what_is_no_address_is_not_trusted() -> None:
    assert not SOME.trusts_url("http://tools.corp\\@evil.example")


def test_headers_are_compared_without_case() -> None:
    assert SOME.passes("AUTHORIZATION")
    assert not SOME.passes("cookie")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"allow": ("https://a", "b")},
            "allow.1 must be like https://host, https://*.domain or http://127.0.0.1:9000/path, not 'b'",
        ),
        (
            {"allow": ("http://a/%2e",)},
            "allow.0 must be like https://host, https://*.domain or http://127.0.0.1:9000/path, not 'http://a/%2e': "
            "its path has a character that not everybody reads alike",
        ),
        ({"headers": ("x y",)}, "headers.0 must be a name that HTTP allows, not 'x y'"),
        ({"headers": ("x", "Host")}, "headers.1 must be none that the hub writes itself, not 'Host'"),
        ({"headers": ("Mcp-Session-Id",)}, "headers.0 must be none that the hub writes itself, not 'Mcp-Session-Id'"),
        ({"idle": 0.0}, "idle must be a number of seconds above 0, not 0"),
        ({"max": 0}, "max must be at least 1, not 0"),
    ],
)
def test_a_bad_value_is_refused_with_the_value(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="must") as refused:
        TargetSettings(**given)
    assert str(refused.value) == message
