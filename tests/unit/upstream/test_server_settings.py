"""Settings of servers refuse entries that cannot be started or dialled, and hide secrets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from isthmus.model.names import ServerName
from isthmus.upstream.server_settings import (
    HttpSettings,
    JsonRpcSettings,
    ServerKey,
    ServerSettings,
    StdioSettings,
    starts_the_same,
)

NAME = ServerName("search")
REACH = StdioSettings("npx")
ADDRESS = "https://search.example/mcp"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StdioSettings(" "), "command must be the name or path of a program, not ' '"),
        (lambda: StdioSettings("a\0b"), "command must be the name or path of a program, not 'a\\x00b'"),
        (
            lambda: StdioSettings("a", ("b", "\0")),
            "args.1 must be text without NUL, not a value that has one",
        ),
        (lambda: StdioSettings("a", env={"A=B": ""}), "env must have names without = and NUL, not 'A=B'"),
        (lambda: StdioSettings("a", env={"": ""}), "env must have names without = and NUL, not ''"),
        (
            lambda: StdioSettings("a", env={"A": "\0"}),
            "env.A must be text without NUL, not a value that has one",
        ),
        (lambda: StdioSettings("a", cwd=""), "cwd must be a folder, not ''"),
        (lambda: HttpSettings("ftp://a"), "url must start with http:// or https://, not 'ftp'"),
        (
            lambda: HttpSettings("search.example"),
            "url must start with http:// or https://, not 'search.example'",
        ),
        (lambda: HttpSettings("http:///mcp"), "url must name a host, not only http://"),
        (lambda: HttpSettings("http://a b"), "url must be an address without spaces, not one with them"),
        (lambda: HttpSettings("http://a\n"), "url must be an address without spaces, not one with them"),
        (
            lambda: HttpSettings("https://me:pw@a/"),
            "url must be without user and password, not with them: send them as headers.Authorization",
        ),
        (
            lambda: HttpSettings(ADDRESS, {"Bad Name": "x"}),
            "headers must have names that HTTP allows, not 'Bad Name'",
        ),
        (
            lambda: HttpSettings(ADDRESS, {"A": "x\r\nB: y"}),
            "headers.A must be one line of Latin-1 text, not what it is (hidden: it may be a secret)",
        ),
        (
            lambda: HttpSettings(ADDRESS, {"A": "€"}),
            "headers.A must be one line of Latin-1 text, not what it is (hidden: it may be a secret)",
        ),
        (
            lambda: HttpSettings(ADDRESS, user_headers=("X-User", "Bad Name")),
            "user_headers.1 must be a name that HTTP allows, not 'Bad Name'",
        ),
        (
            lambda: HttpSettings(ADDRESS, user_headers=("MCP-Session-Id",)),
            "user_headers.0 must be a header that the hub does not set itself, not 'MCP-Session-Id'",
        ),
        (
            lambda: JsonRpcSettings(ADDRESS, user_headers=("Mcp-Param-Region",)),
            "user_headers.0 must be a header that the hub does not set itself, not 'Mcp-Param-Region'",
        ),
        (
            lambda: HttpSettings(ADDRESS, {"x-team": "blue"}, user_headers=("X-Team",)),
            "user_headers.0 must differ from those in headers, not 'X-Team': keep one of the two",
        ),
        (
            lambda: ServerSettings(NAME, REACH, timeout=0),
            "timeout must be over 0 and at most 86400 seconds, not 0",
        ),
        (
            lambda: ServerSettings(NAME, REACH, timeout=float("nan")),
            "timeout must be over 0 and at most 86400 seconds, not nan",
        ),
        (
            lambda: ServerSettings(NAME, REACH, timeout=86400.5),
            "timeout must be over 0 and at most 86400 seconds, not 86400.5",
        ),
        (lambda: ServerSettings(NAME, REACH, max_calls=0), "max_calls must be at least 1, not 0"),
        (lambda: ServerSettings(NAME, REACH, max_queued=-1), "max_queued must be at least 0, not -1"),
    ],
)
def test_a_bad_value_is_refused_by_key_rule_and_value(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match="must") as refused:
        make()
    assert str(refused.value) == message


@pytest.mark.parametrize("url", ["http://a:99999/", "http://[::1", "http://a:port/"])
def test_an_address_that_cannot_be_split_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"^url must be an address, not a text that cannot be split"):
        HttpSettings(url)


@pytest.mark.parametrize("url", [ADDRESS, "http://127.0.0.1:9000/mcp", "http://[::1]:9000/mcp?team=a"])
def test_an_address_of_http_is_accepted(url: str) -> None:
    assert HttpSettings(url).url == url


def test_secrets_are_not_in_the_form_that_logs_show() -> None:
    server = ServerSettings(NAME, HttpSettings(ADDRESS, {"Authorization": "hunter22"}), secrets=frozenset({"hunter22"}))
    assert "hunter22" not in repr(server)
    assert "hunter22" not in repr(StdioSettings("npx", env={"TOKEN": "hunter22"}))


def test_redaction_blanks_every_secret_the_longest_first() -> None:
    server = ServerSettings(NAME, REACH, secrets=frozenset({"abcd", "abcdef", "1"}))
    assert server.redact("1: abcdef abcd abc") == "1: *** *** abc"


def test_equal_settings_are_equal_so_that_a_reload_can_compare_them() -> None:
    assert StdioSettings("npx", env={"A": "1"}) == StdioSettings("npx", env={"A": "1"})
    assert ServerSettings(NAME, REACH) != ServerSettings(NAME, REACH, timeout=5)


def test_a_reload_keeps_links_only_if_every_changed_key_says_so() -> None:
    server = ServerSettings(NAME, REACH)
    assert starts_the_same(server, replace(server, timeout=5, max_calls=3, max_queued=1, pin="off"))
    assert not starts_the_same(server, replace(server, timeout=5, isolation="call"))
    assert not starts_the_same(server, replace(server, reach=HttpSettings(ADDRESS)))


def test_a_range_counts_the_characters_of_a_text_and_lets_an_absent_one_pass() -> None:
    key = ServerKey("A note.", name="note", at_most=3, unit="characters")
    key.check("abc")
    key.check(None)
    with pytest.raises(ValueError, match=r"^note must be at most 3 characters, not 4$"):
        key.check("abcd")
