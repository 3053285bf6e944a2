"""Authentication on every frontend, and the answers to rejected requests."""

from __future__ import annotations

import pytest

from isthmus.frontends.http.auth import Authenticator, Denied, Fields
from isthmus.frontends.http.origins import OriginGuard
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
