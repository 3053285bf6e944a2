"""Which dialect a request is in."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from isthmus.wire.a2a import negotiate, v0_3_rest
from isthmus.wire.a2a.negotiate import AmbiguousDialect, recognize_dialect
from isthmus.wire.a2a.operations import A2aProblem, DialectName
from isthmus.wire.a2a.v1_0 import Dialect
from tests.unit.wire.a2a import captured
from tests.unit.wire.a2a.samples import Json, raws, some_json, steady

OLD: dict[str, Json] = {"role": "user", "parts": [{"type": "data", "data": {}}]}
VAULT: dict[str, Json] = {"role": "user", "parts": [{"type": "text", "content": "hi"}]}
SHARED: tuple[DialectName, ...] = ("0.3", "0.1", "agentvault")


def distinguished_methods(package: str) -> set[str]:
    found = set()
    for request in captured.requests(package).values():
        seen = recognize_dialect(request.method, request.params)
        found.add("shared" if isinstance(seen, AmbiguousDialect) else str(seen))
    return found


@pytest.mark.parametrize(
    ("package", "dialects"),
    [
        ("sdk-1.3.0", {"1.0"}),
        ("sdk-0.3.26", {"0.3", "shared"}),
        ("samples-0.1", {"0.1", "shared"}),
        ("agentvault-0.2.1", {"agentvault", "shared"}),
        ("agentvault-1.0.0", {"agentvault", "shared"}),
    ],
)
def test_real_clients_are_distinguished_on_one_address(package: str, dialects: set[str]) -> None:
    assert distinguished_methods(package) == dialects


@pytest.mark.parametrize(
    ("method", "params", "dialect"),
    [
        ("tasks/send", {"id": "t", "message": OLD}, "0.1"),
        ("tasks/send", {"id": "t", "message": VAULT}, "agentvault"),
        ("tasks/send", {"message": OLD}, "agentvault"),
        ("tasks/send", {"id": None, "message": OLD}, "agentvault"),
        ("tasks/send", {"id": "t"}, "0.1"),
        ("tasks/send", {"id": "t", "message": 7}, "0.1"),
        ("tasks/send", {"id": "t", "message": {"role": "user", "parts": [{"type": "file", "url": "u"}]}}, "agentvault"),
        ("tasks/sendSubscribe", {"id": "t"}, "agentvault"),
        ("tasks/sendSubscribe", {"id": "t", "message": None}, "agentvault"),
        ("tasks/sendSubscribe", {"id": "t", "message": OLD}, "0.1"),
        ("tasks/pushNotification/set", {}, "0.1"),
        ("tasks/pushNotificationConfig/set", {}, "0.3"),
        ("GetTask", {}, "1.0"),
    ],
)
def test_the_method_and_the_shape_decide(method: str, params: dict[str, Json], dialect: str) -> None:
    assert recognize_dialect(method, raws(params)) == dialect


def test_an_ambiguous_request_is_settled_by_its_task() -> None:
    seen = recognize_dialect("tasks/get", raws({"id": "t"}))
    assert seen == AmbiguousDialect("t", SHARED)
    assert [seen.resolve(name) for name in SHARED] == list(SHARED)
    assert seen.resolve("1.0") == "0.3"
    assert seen.resolve(None) == "0.3"
    assert recognize_dialect("tasks/resubscribe", raws({"id": "t"})) == AmbiguousDialect("t", ("0.3", "0.1"))
    assert recognize_dialect("tasks/cancel", raws({"id": 7})) == AmbiguousDialect(None, SHARED)


@pytest.mark.parametrize(
    ("method", "version", "dialect"),
    [
        ("SendMessage", "1.0", "1.0"),
        ("SendMessage", "1.0.1", "1.0"),
        ("message/send", "0.3", "0.3"),
        ("message/send", "0.2.6", "0.3"),
        ("tasks/get", "0.3", "0.3"),
        ("tasks/get", "0.1", "0.1"),
        ("tasks/send", "0.3", "agentvault"),
    ],
)
def test_a_supported_version_is_accepted_with_any_patch_number(method: str, version: str, dialect: str) -> None:
    assert recognize_dialect(method, {}, version) == dialect


@pytest.mark.parametrize(
    ("method", "version"),
    [
        ("SendMessage", "99.0"),
        ("SendMessage", "1.1"),
        ("SendMessage", "1"),
        ("SendMessage", "0.3"),
        ("message/send", "1.0"),
        ("tasks/get", "1.0"),
        ("tasks/get", "x" * 10_000),
    ],
)
def test_a_version_that_is_not_spoken_is_refused(method: str, version: str) -> None:
    refused = recognize_dialect(method, {}, version)
    assert isinstance(refused, A2aProblem)
    assert refused.kind == "version_not_supported"
    assert refused.details == {"supportedVersions": "1.0, 0.3, 0.2, 0.1"}
    assert len(refused.message) < 200


def test_a_method_of_no_generation_is_unknown() -> None:
    for method in ("", "send", "message/sent", "tasks/list"):
        refused = recognize_dialect(method, {}, "1.0")
        assert isinstance(refused, A2aProblem)
        assert refused.kind == "unknown_method"
    assert [negotiate.error_dialect(method) for method in ("message/sent", "Foo")] == ["0.3", "1.0"]


@pytest.mark.parametrize(
    ("header", "parameter", "version"),
    [(None, None, None), ("", " ", None), (" 1.0 ", None, "1.0"), (None, "0.3", "0.3"), ("1.0", "0.3", "1.0")],
)
def test_a_version_comes_by_header_or_by_query(header: str | None, parameter: str | None, version: str | None) -> None:
    assert negotiate.version_of(header, parameter) == version


def test_every_dialect_is_known_by_its_name() -> None:
    assert {name: dialect.name for name, dialect in negotiate.DIALECTS.items()} == {
        "1.0": "1.0",
        "0.3": "0.3",
        "0.1": "0.1",
        "agentvault": "agentvault",
    }


METHODS = ("tasks/send", "tasks/sendSubscribe", "tasks/get", "SendMessage", "message/send", "x")


@given(st.sampled_from(METHODS), st.dictionaries(st.sampled_from(["id", "message"]), some_json), st.none() | st.text())
@steady
def test_nothing_that_can_be_sent_makes_it_raise(method: str, params: dict[str, Raw], version: str | None) -> None:
    seen = recognize_dialect(method, params, version)
    names: tuple[DialectName, ...] = ("1.0", "0.3", "0.1", "agentvault")
    assert isinstance(seen, AmbiguousDialect | A2aProblem) or seen in names


@pytest.mark.parametrize("dialect", [*negotiate.DIALECTS.values(), v0_3_rest.DIALECT], ids=lambda each: each.name)
def test_a_dialect_can_be_named_to_the_process_that_reads_long_messages(dialect: Dialect) -> None:
    assert pickle.loads(pickle.dumps(dialect)) is dialect
