"""Addresses that callers name, patterns that allow them, and the settings of `[targets]`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.transport.egress import HttpOrigin
from isthmus.upstream.targets.settings import LENGTH_MAX, TargetAddress, TargetSettings, read_address, read_pattern


@pytest.mark.parametrize(
    ("url", "path", "whole"),
    [
        ("http://tools.example", None, "http://tools.example"),
        ("http://tools.example/", None, "http://tools.example"),
        ("http://tools.example", "", "http://tools.example"),
        ("HTTPS://Tools.Example:443/mcp", None, "https://tools.example/mcp"),
        ("http://tools.example:8000", "/messages/", "http://tools.example:8000/messages/"),
        ("http://tools.example/", "mcp", "http://tools.example/mcp"),
        ("http://tools.example/v1/", "/mcp?x=1", "http://tools.example/v1/mcp?x=1"),
        ("http://tools.example", "/", "http://tools.example/"),
        ("http://tools.example/mcp?key=1", None, "http://tools.example/mcp?key=1"),
        ("http://[::1]:9000/mcp", None, "http://[::1]:9000/mcp"),
        ("ws://tools.example/mcp", None, "ws://tools.example/mcp"),
    ],
)
def test_an_address_is_read_and_joined_with_its_path(url: str, path: str | None, whole: str) -> None:
    assert read_address(url, path).url == whole


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("tools.example/mcp", None),
        ("file:///etc/passwd", None),
        ("gopher://tools.example", None),
        ("http://good.example@evil.example/", None),
        ("http://good.example:80@evil.example", None),
        ("http://evil.example\\@good.example", None),
        ("http://good.example\\.evil.example", None),
        ("http://good.example\t.evil.example", None),
        ("http://good.example /mcp", None),
        ("http://good.example./mcp", None),
        ("http://good。example/mcp", None),
        ("http://gооd.example/mcp", None),
        ("http://①②⑦.0.0.1/", None),
        ("http://127.1/", None),
        ("http://2130706433/", None),
        ("http://0x7f000001/", None),
        ("http://0177.0.0.1/", None),
        ("http://good.0x1/", None),
        ("http://[fe80::1%25lo]/", None),
        ("http://[::1", None),
        ("http://good.example:0/", None),
        ("http://good.example:99999/", None),
        ("http://good.example/mcp#x", None),
        ("http://good.example/a/../b", None),
        ("http://good.example/./b", None),
        ("http://good.example//b", None),
        ("http://good.example/a/%2e%2E/b", None),
        ("http://good.example/a%2Fb", None),
        ("http://good.example/a%5cb", None),
        ("http://good.example/a%252e", None),
        ("http://good.example/a%00", None),
        ("http://good.example/a%0d%0ab", None),
        ("http://good.example/a%zz", None),
        ("http://good.example/..;/b", None),
        ("http://good.example", "//evil.example/mcp"),
        ("http://good.example", "http://evil.example/mcp"),
        ("http://good.example", "../b"),
        ("http://good.example", "/a\r\nX: y"),
        ("http://good.example", "/.."),
        ("http://good.example?x=1", "/mcp"),
        ("http://good.example/" + "a" * LENGTH_MAX, None),
    ],
)
def test_ambiguous_addresses_are_rejected(url: str, path: str | None) -> None:
    with pytest.raises(ValueError, match=r"http|host|path|fragment|ASCII|longer|query"):
        read_address(url, path)


def test_a_path_does_not_leave_its_host() -> None:
    for path in ("@evil.example", ":80@evil.example/x", ".evil.example", "?x@evil.example"):
        assert read_address("http://good.example", path).origin == HttpOrigin("http", "good.example", 80)


def test_errors_about_an_address_hide_password_and_query() -> None:
    with pytest.raises(ValueError, match="user name") as refused:
        read_address("http://me:hunter22@good.example/?token=hunter22")
    assert "hunter22" not in str(refused.value)


def test_paths_are_compared_step_by_step_however_they_are_spelt() -> None:
    spelt = ("http://h.example/a%62/c", "http://h.example/ab/c/", "http://h.example/ab/c")
    assert {read_address(url).steps for url in spelt} == {("ab", "c")}


ODD = st.text(st.sampled_from("abz.:/\\@?#%25eE2f[]*-_;~&= \t\u3002\u0430"), max_size=30)


@given(st.sampled_from(["http://", "HTTPS://", "ws://", "", "//"]), ODD | st.text(max_size=30), st.none() | ODD)
def test_any_text_is_one_address_or_a_reason(scheme: str, rest: str, path: str | None) -> None:
    try:
        address = read_address(scheme + rest, path)
    except ValueError:
        return
    again = read_address(address.url)
    assert (again.origin, again.steps, again.query) == (address.origin, address.steps, address.query)


@given(ODD | st.text(max_size=40))
def test_no_path_leads_to_another_host(path: str) -> None:
    try:
        address = read_address("http://good.example:8000/base", path)
    except ValueError:
        return
    assert address.origin == HttpOrigin("http", "good.example", 8000)
    assert address.steps[:1] == ("base",)


@pytest.mark.parametrize(
    ("pattern", "url"),
    [
        ("https://tools.example", "https://tools.example/any/path?x=1"),
        ("https://Tools.Example:443/", "https://tools.example"),
        ("https://*.example.com", "https://a.example.com/mcp"),
        ("https://*.example.com", "https://a.b.EXAMPLE.com"),
        ("https://*.example.com:8443/v1", "https://a.example.com:8443/v1/mcp"),
        ("http://127.0.0.1:9000", "http://127.0.0.1:9000/mcp"),
        ("http://[0:0::1]:9000", "http://[::1]:9000/mcp"),
        ("https://*", "https://anything.example"),
        ("https://*:8443", "https://anything.example:8443"),
        ("http://h.example/a/b", "http://h.example/a/b"),
        ("http://h.example/a/b/", "http://h.example/a/b/c"),
        ("http://h.example/%61", "http://h.example/a"),
    ],
)
def test_a_pattern_covers_its_host_and_paths_below_its_own(pattern: str, url: str) -> None:
    assert read_pattern(pattern).covers(read_address(url))


@pytest.mark.parametrize(
    ("pattern", "url"),
    [
        ("https://tools.example", "http://tools.example"),
        ("https://tools.example", "https://tools.example:8443"),
        ("https://tools.example", "https://a.tools.example"),
        ("https://*.example.com", "https://example.com"),
        ("https://*.example.com", "https://evilexample.com"),
        ("https://*.example.com", "https://example.com.evil.io"),
        ("https://*.example.com", "http://a.example.com"),
        ("http://127.0.0.1:9000", "http://127.0.0.1:9001"),
        ("http://127.0.0.1:9000", "http://localhost:9000"),
        ("http://127.0.0.1:9000", "http://[::ffff:127.0.0.1]:9000"),
        ("https://*", "http://anything.example"),
        ("http://h.example/a", "http://h.example/ab"),
        ("http://h.example/a/b", "http://h.example/a"),
        ("http://h.example/a", "http://h.example"),
    ],
)
def test_it_covers_nothing_else(pattern: str, url: str) -> None:
    assert not read_pattern(pattern).covers(read_address(url))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "*",
        "tools.example",
        "ftp://tools.example",
        "ws://tools.example",
        "https://",
        "https://*example.com",
        "https://a.*.com",
        "https://*.*.com",
        "https://*.127.0.0.1",
        "https://*.",
        "https://a.example/*",
        "https://a.example?x",
        "https://a.example#x",
        "https://me@a.example",
        "https://a.example:*",
        "https://a.example/../b",
        "https://127.1",
    ],
)
def test_an_invalid_pattern_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be like https://host"):
        read_pattern(text)


def test_a_pattern_knows_whether_it_has_a_star() -> None:
    assert [read_pattern(text).is_wild for text in ("http://a", "http://*.a", "http://*")] == [False, True, True]
    assert read_pattern("http://a/b").address == TargetAddress(HttpOrigin("http", "a", 80), "/b")


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
def test_listed_targets_are_allowed_and_literal_hosts_are_trusted(
    url: str, *, is_allowed: bool, is_trusted: bool
) -> None:
    assert SOME.allows(read_address(url)) is is_allowed
    assert SOME.trusts(read_address(url)) is SOME.trusts_url(url) is is_trusted


def test_an_invalid_address_is_not_trusted() -> None:
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
            "its path has a character that programs read differently",
        ),
        ({"headers": ("x y",)}, "headers.0 must be a name that HTTP allows, not 'x y'"),
        ({"headers": ("x", "Host")}, "headers.1 must not be one that the hub writes itself, not 'Host'"),
        (
            {"headers": ("Mcp-Session-Id",)},
            "headers.0 must not be one that the hub writes itself, not 'Mcp-Session-Id'",
        ),
        ({"idle": 0.0}, "idle must be a number of seconds above 0, not 0"),
        ({"max": 0}, "max must be at least 1, not 0"),
    ],
)
def test_a_bad_value_is_refused_with_the_value(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="must") as refused:
        TargetSettings(**given)
    assert str(refused.value) == message
