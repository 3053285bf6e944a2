"""Authentication on every frontend, and the answers to rejected requests."""

from __future__ import annotations

import pytest

from isthmus.frontends.http.auth import CACHED_PAIRS, Authenticator, Denied, Fields, OriginGuard, is_loopback
from isthmus.frontends.http.request_cycle import join_headers
from isthmus.model.callers import Caller, Grants, Unprovable

PLANNER = Caller("planner", "default", Grants(("*",)), frontends=(("rest", Grants(("files",))),))
KNOWN: dict[bytes, Caller | Unprovable] = {b"mine": PLANNER, b"later": Unprovable("Ask again later.")}


def identify(fields: Fields) -> Caller | Unprovable | None:
    return KNOWN.get(fields.get(b"x-api-key", b""))


@pytest.fixture
def auth() -> Authenticator:
    return Authenticator(OriginGuard(bind_host="127.0.0.1"), identify)


def fields(key: bytes, host: bytes = b"127.0.0.1") -> Fields:
    return {b"host": host, b"x-api-key": key}


def test_a_caller_comes_in_as_the_frontend_has_it(auth: Authenticator) -> None:
    assert auth.admit(fields(b"mine"), "mcp") == PLANNER.on("mcp")
    assert auth.admit(fields(b"mine"), "rest") == PLANNER.on("rest") != PLANNER


def test_a_caller_with_an_unknown_credential_is_asked_for_a_key(auth: Authenticator) -> None:
    denied = auth.admit(fields(b"other"), "mcp")
    assert isinstance(denied, Denied)
    assert denied.status == 401
    assert dict(denied.headers)[b"www-authenticate"].startswith(b"Bearer ")


def test_a_caller_that_cannot_be_verified_now_gets_retry_after(auth: Authenticator) -> None:
    assert auth.admit(fields(b"later"), "mcp") == Denied(503, "Ask again later.", ((b"retry-after", b"5"),))


def test_the_place_comes_before_the_person(auth: Authenticator) -> None:
    denied = auth.admit(fields(b"mine", b"evil.test"), "mcp")
    assert isinstance(denied, Denied)
    assert denied.status == 421
    assert auth.place(fields(b"", b"evil.test")) == denied
    assert auth.place(fields(b"")) is None
    assert isinstance(auth.identify(fields(b"mine", b"evil.test"), "a2a"), Caller)


def status(guard: OriginGuard, host: str | None, *origins: str) -> int | None:
    headers = [(b"accept", b"*/*")]
    if host is not None:
        headers.append((b"host", host.encode("latin-1")))
    headers.extend((b"origin", origin.encode("latin-1")) for origin in origins)
    refusal = guard.check(join_headers(headers))
    return None if refusal is None else refusal.status


LOCAL = OriginGuard(bind_host="127.0.0.1")
PUBLISHED = OriginGuard(bind_host="127.0.0.1", public_url="https://hub.example/base")
WIDE = OriginGuard(bind_host="0.0.0.0", allowed_origins=["https://app.example", "vscode-webview://panel"])
NARROW = OriginGuard(bind_host="10.1.2.3", allowed_hosts=["hub.example", "[2001:DB8::1]:9000"])


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8765",
        "LocalHost",
        "localhost.",
        "127.0.0.1:1",
        "[::1]",
        "[::1]:8765",
        "[0:0::1]",
    ],
)
def test_a_loopback_hub_answers_to_every_name_of_this_machine(host: str) -> None:
    assert status(LOCAL, host) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.test",
        "localhost.evil.test",
        "evil.test:8765",
        "127.0.0.1.evil.test",
        "127.0.0.2",
        "[::2]",
        "hub.example",
    ],
)
def test_a_loopback_hub_does_not_answer_to_other_names(host: str) -> None:
    assert status(LOCAL, host) == 421


@pytest.mark.parametrize(
    "host",
    [
        "a#",
        "x/admin?",
        "[",
        "[::1",
        "::1",
        "[evil]",
        "[::g]",
        "[1:2]",
        "a b",
        "user@localhost",
        "localhost:",
        "",
        ".",
        "a:b",
        "localhost:99999",
        "localhost:-1",
        "localhost,evil.test",
        "localhost\t",
        "löcal",
    ],
)
@pytest.mark.parametrize("guard", [LOCAL, WIDE], ids=["local", "wide"])
def test_a_malformed_host_is_refused_everywhere(guard: OriginGuard, host: str) -> None:
    assert status(guard, host) == 400


def test_no_host_and_two_hosts_are_refused() -> None:
    assert status(WIDE, None) == 400
    refusal = LOCAL.check(join_headers([(b"host", b"localhost"), (b"host", b"localhost")]))
    assert refusal is not None
    assert refusal.status == 400


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost",
        "http://localhost:3000",
        "https://127.0.0.1:8765",
        "http://[::1]:8765",
        "HTTP://LOCALHOST",
    ],
)
def test_a_loopback_hub_serves_pages_of_this_machine(origin: str) -> None:
    assert status(LOCAL, "127.0.0.1:8765", origin) is None


HOSTILE_ORIGINS = [
    "null",
    "",
    "http://evil.test",
    "http://localhost.evil.test",
    "http://localhost:80@evil",
    "http://localhost@evil.test",
    "http://evil.test#localhost",
    "http://evil.test/localhost",
    "http://evil.test?localhost",
    "http://localhost/",
    "http://localhost http://evil.test",
    "http://localhost, http://evil.test",
    "localhost",
    "//localhost",
    "file://",
    "file:///etc",
    "ftp://localhost",
    "chrome-extension://localhost",
    "http://",
    "http://[",
    "http://localhost:port",
    "http://ⅼocalhost".encode().decode("latin-1"),
]


@pytest.mark.parametrize("origin", HOSTILE_ORIGINS)
def test_pages_from_elsewhere_and_tricks_are_refused(origin: str) -> None:
    assert status(LOCAL, "localhost:8765", origin) == 403


def test_two_origins_are_refused_even_if_each_would_pass() -> None:
    assert status(LOCAL, "localhost", "http://localhost", "http://localhost") == 403


def test_a_bad_host_is_named_before_a_bad_origin() -> None:
    assert status(LOCAL, "evil.test", "http://evil.test") == 421


def test_the_public_url_adds_its_host_and_its_origin() -> None:
    assert status(PUBLISHED, "hub.example", "https://hub.example") is None
    assert status(PUBLISHED, "127.0.0.1:8765", "https://hub.example") is None
    assert status(PUBLISHED, "127.0.0.1:8765", "http://hub.example") == 403
    assert status(PUBLISHED, "evil.test") == 421


@pytest.mark.parametrize("origin", ["http://hub.example", "https://hub.example:8443", "http://hub.example:8765"])
@pytest.mark.parametrize("host", ["hub.example", "hub.example:8443", "hub.example:8765"])
def test_of_the_public_urls_host_only_that_urls_own_pages_are_ours(host: str, origin: str) -> None:
    assert status(PUBLISHED, host, origin) == 403
    assert status(PUBLISHED, host, "https://hub.example:443") is None


@pytest.mark.parametrize(
    ("host", "origin", "expected"),
    [
        ("hub.example:9000", "http://hub.example:9000", None),
        ("hub.example:9000", "http://hub.example:9001", 403),
        ("hub.example:9000", "https://hub.example", 403),
        ("hub.example", "https://hub.example:9001", 403),
        ("hub.example:80", "http://hub.example", None),
        ("[2001:db8::1]:9000", "http://[2001:db8::1]:9001", 403),
    ],
)
def test_pages_of_another_port_of_the_same_host_are_foreign(host: str, origin: str, expected: int) -> None:
    assert status(NARROW, host, origin) == expected


def test_pages_of_another_port_of_the_same_address_are_foreign() -> None:
    assert status(WIDE, "10.0.0.1:8765", "http://10.0.0.1:3000") == 403


def test_a_name_that_was_made_to_lead_here_is_no_page_of_ours() -> None:
    assert status(WIDE, "evil.test:8765") is None
    assert status(WIDE, "evil.test:8765", "http://evil.test:8765") == 403


def test_the_public_url_of_a_hub_on_the_network_adds_its_origin() -> None:
    guard = OriginGuard(bind_host="0.0.0.0", public_url="https://hub.example")
    assert status(guard, "10.0.0.1:8765", "https://hub.example") is None
    assert status(guard, "10.0.0.1:8765", "https://other.example") == 403


def test_a_hub_on_the_network_answers_to_any_host_but_only_to_its_own_and_listed_pages() -> None:
    assert status(WIDE, "anything.example:8765") is None
    assert status(WIDE, "10.0.0.1:8765", "http://10.0.0.1:8765") is None
    assert status(WIDE, "[2001:db8::1]:8765", "http://[2001:db8::1]:8765") is None
    assert status(NARROW, "hub.example", "https://hub.example") is None
    assert status(WIDE, "hub.lan:8765", "https://app.example:443") is None
    assert status(WIDE, "hub.lan:8765", "vscode-webview://panel") is None
    assert status(WIDE, "hub.lan:8765", "http://app.example") == 403
    assert status(WIDE, "hub.lan:8765", "http://localhost") == 403


def test_allowed_hosts_narrow_a_hub_on_the_network() -> None:
    assert status(NARROW, "hub.example:80") is None
    assert status(NARROW, "[2001:db8:0::1]") is None
    assert status(NARROW, "localhost") == 421


def test_allowed_hosts_widen_a_loopback_hub() -> None:
    guard = OriginGuard(bind_host="::1", allowed_hosts=["tunnel.example"])
    assert status(guard, "tunnel.example") is None
    assert status(guard, "[::1]:8765") is None
    assert status(guard, "other.example") == 421


@pytest.mark.parametrize(
    "bad",
    [
        {"allowed_hosts": ["http://hub.example"]},
        {"allowed_origins": ["hub.example"]},
        {"allowed_origins": ["https://hub.example/path"]},
        {"public_url": "hub.example"},
    ],
)
def test_a_bad_setting_is_named(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"hub\.example"):
        OriginGuard(bind_host="127.0.0.1", **bad)  # type: ignore[arg-type]


def test_verdicts_stay_right_when_the_cache_overflows_or_values_are_long() -> None:
    guard = OriginGuard(bind_host="localhost")
    for number in range(CACHED_PAIRS + 10):
        assert status(guard, f"host{number}.test") == 421
    assert status(guard, "a" * 10_000) == 421
    assert status(guard, "localhost") is None
    assert status(guard, "localhost") is None
    assert status(guard, "host1.test") == 421


def test_a_refusal_shows_the_value_cut_and_without_control_characters() -> None:
    refusal = LOCAL.check({b"host": b"evil.test\x1b[2J" + b"x" * 500})
    assert refusal is not None
    assert "evil.test\\x1b" in refusal.message
    assert len(refusal.message) < 200


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("hub.example", False),
        ("", False),
    ],
)
def test_loopback_hosts_are_recognised(host: str, expected: bool) -> None:  # noqa: FBT001 - a table's column
    assert is_loopback(host) is expected
