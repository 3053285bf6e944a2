"""The modern era: envelopes, headers, discovery and subscriptions, both ends of each."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.wire.jsonrpc import INVALID_PARAMS, Request
from isthmus.wire.mcp import modern
from isthmus.wire.mcp.messages import Implementation
from tests.choices import IS_FULL

ME = Implementation("isthmus", "1")
GOOD = {modern.VERSION_KEY: modern.VERSION, modern.CAPABILITIES_KEY: {}}

steady = settings(deadline=None, derandomize=True, max_examples=200 if IS_FULL else 66)


def raws(received: dict[str, Any]) -> dict[str, msgspec.Raw]:
    return {key: msgspec.Raw(json.dumps(value).encode()) for key, value in received.items()}


def request(method: str, meta: object = GOOD, **received: Any) -> Request:
    params = received if meta is None else {**received, "_meta": meta}
    return Request(msgspec.Raw(b"1"), method, raws(params))


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (b'{"supported":["2025-11-25","2026-07-28"]}', True),
        (b'{"supported":["2025-11-25"]}', False),
        (b'{"supported":"2026-07-28"}', False),
        (b"7", False),
        (None, False),
    ],
)
def test_a_refusal_of_the_version_may_name_it_as_spoken(data: bytes | None, names: bool) -> None:  # noqa: FBT001
    assert modern.is_version_supported(data) == names


# -- envelopes and headers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "meta", "answer"),
    [
        (None, None, False),
        (None, {"trace": 1}, False),
        (None, GOOD, True),
        ("2025-06-18", None, False),
        ("2026-07-28", None, True),
        ("1999-01-01", None, True),  # answered with the versions that are spoken
        (None, 7, False),
    ],
)
def test_a_request_is_modern_by_its_header_or_its_envelope(header: str | None, meta: object, *, answer: bool) -> None:
    assert modern.is_modern(request("ping", meta), header) is answer


@pytest.mark.parametrize(
    ("meta", "code"),
    [
        (None, INVALID_PARAMS),
        (7, INVALID_PARAMS),
        ({modern.VERSION_KEY: modern.VERSION}, INVALID_PARAMS),
        ({modern.CAPABILITIES_KEY: {}}, INVALID_PARAMS),
        ({**GOOD, modern.VERSION_KEY: 7}, INVALID_PARAMS),
        ({**GOOD, modern.VERSION_KEY: "1999-01-01"}, modern.UNSUPPORTED_VERSION),
    ],
)
def test_an_envelope_that_is_wrong_is_refused(meta: object, code: int) -> None:
    asked = request("tools/list", meta)
    headers = None if modern.is_modern(asked, None) else modern.RoutingHeaders(modern.VERSION, "tools/list", None)
    refused = modern.check(asked, headers)
    assert isinstance(refused, modern.Rejection)
    assert refused.code == code


@pytest.mark.parametrize("meta", [None, 7, {"trace": 1}, {modern.CAPABILITIES_KEY: {}}])
def test_a_header_with_an_unsupported_version_gets_an_error(meta: object) -> None:
    refused = modern.check(request("ping", meta), modern.RoutingHeaders("1999-01-01", None, None))
    assert isinstance(refused, modern.Rejection)
    assert refused.code == modern.UNSUPPORTED_VERSION
    assert all(version in refused.message for version in ("1999-01-01", *modern.SUPPORTED))
    known = modern.check(request("ping", meta), modern.RoutingHeaders("2026-07-28", None, None))
    assert isinstance(known, modern.Rejection)
    assert known.code == INVALID_PARAMS


@pytest.mark.parametrize(
    ("method", "received", "name"),
    [
        ("tools/call", {"name": "t"}, "t"),
        ("prompts/get", {"name": "p"}, "p"),
        ("resources/read", {"uri": "file:///x"}, "file:///x"),
        ("resources/read", {"uri": "file:///ä"}, modern.encode_header("file:///ä")),
        ("completion/complete", {"ref": {}}, None),
        ("tools/list", {}, None),
    ],
)
def test_headers_must_match_the_body(method: str, received: dict[str, Any], name: str | None) -> None:
    asked = request(method, **received)
    good = modern.RoutingHeaders(modern.VERSION, method, name)
    assert modern.check(asked, good) == raws(GOOD)
    wrong = [modern.RoutingHeaders(None, method, name), modern.RoutingHeaders(modern.VERSION, "other", name)]
    if name is not None:
        wrong += [
            modern.RoutingHeaders(modern.VERSION, method, None),
            modern.RoutingHeaders(modern.VERSION, method, name + "x"),
        ]
    for claims in wrong:
        refused = modern.check(asked, claims)
        assert isinstance(refused, modern.Rejection)
        assert refused.code == modern.HEADER_MISMATCH


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
def test_a_task_need_not_be_named_in_a_header_but_not_another_one(method: str) -> None:
    asked = request(method, taskId="t")
    for name in ("t", None):
        assert modern.check(asked, modern.RoutingHeaders(modern.VERSION, method, name)) == raws(GOOD)
    refused = modern.check(asked, modern.RoutingHeaders(modern.VERSION, method, "u"))
    assert isinstance(refused, modern.Rejection)
    assert refused.code == modern.HEADER_MISMATCH


@given(st.text(st.characters(exclude_categories=["Cs"])))
@steady
def test_any_text_survives_a_header(text: str) -> None:
    encoded = modern.encode_header(text)
    assert encoded.isascii()
    assert encoded == encoded.strip()
    assert modern.decode_header(encoded) == text


@pytest.mark.parametrize("value", ["=?base64?!!?=", "=?base64?/w==?=", "=?base64?eA?=", None])
def test_a_header_that_stands_for_nothing_matches_nothing(value: str | None) -> None:
    assert modern.decode_header(value) is None


def test_forwarded_requests_get_an_envelope() -> None:
    own = modern.envelope(ME)
    bare = json.loads(modern.request_meta(own, {}))
    assert bare[modern.VERSION_KEY] == modern.VERSION
    assert bare[modern.CAPABILITIES_KEY] == {}
    assert json.loads(modern.request_meta(own, {"trace": b"1"})) == {**bare, "trace": 1}


# -- discovery -----------------------------------------------------------------------------------------------------


def test_discovery_is_read_as_it_is_written() -> None:
    received = modern.discover_result(("2026-07-28", "2025-11-25"), ME, frozenset({"resources", "subscribe"}))
    discovery = modern.read_discover_result(received)
    assert discovery is not None
    assert discovery.capabilities.abilities() == {"resources", "subscribe"}
    plain = json.loads(received)
    assert (plain["resultType"], plain["ttlMs"]) == ("complete", 0)
    assert plain["_meta"][modern.SERVER_KEY]["name"] == "isthmus"


@pytest.mark.parametrize(
    "received", [{}, [], {"supportedVersions": ["2025-11-25"]}, {"supportedVersions": "2026-07-28"}]
)
def test_a_discover_result_without_a_modern_version_is_ignored(received: object) -> None:
    assert modern.read_discover_result(json.dumps(received).encode()) is None


# -- results of one era in another ---------------------------------------------------------------------------------


def test_a_legacy_result_becomes_complete_and_forbids_caching() -> None:
    assert json.loads(modern.as_modern(b'{"content":[]}') or b"") == {"resultType": "complete", "content": []}
    received = json.loads(modern.as_modern(b'{"contents":[]}', is_cacheable=True) or b"")
    assert received == {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "contents": []}
    kept = json.loads(modern.as_modern(b'{"ttlMs":5,"cacheScope":"public"}', is_cacheable=True) or b"")
    assert (kept["ttlMs"], kept["cacheScope"]) == (5, "public")
    assert modern.as_modern(b"[]") is None
    assert modern.as_modern(b"{}") == b'{"resultType":"complete"}'
    assert json.loads(modern.as_modern(b'{"resultType":null,"a":1}') or b"") == {"resultType": "complete", "a": 1}
    assert b"".join(modern.typed(b'{"a":1}')) == b'{"resultType":"complete","a":1}'


def test_a_modern_result_loses_its_type_in_the_earlier_era_and_nothing_else() -> None:
    assert modern.as_legacy(b'{"resultType":"complete","n":1.0e2}') == b'{"n":1.0e2}'
    assert modern.as_legacy(b'{"n": 1}') == b'{"n": 1}'
    assert modern.as_legacy(b"7") is None


def test_a_list_says_that_it_is_whole_and_not_to_be_kept() -> None:
    assert json.loads(modern.list_result("prompts", b"[]", b'{"m":1}')) == {
        "resultType": "complete",
        "prompts": [],
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {"m": 1},
    }


# -- subscriptions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("received", "topics", "uris"),
    [
        ({}, set(), ()),
        ({"toolsListChanged": True, "promptsListChanged": False, "new": 1}, {"tools"}, ()),
        ({"resourcesListChanged": True, "promptsListChanged": True}, {"resources", "prompts"}, ()),
        ({"resourceSubscriptions": ["b", "a", "b"]}, set(), ("b", "a")),
        ({"resourceSubscriptions": None, "toolsListChanged": None}, set(), ()),
    ],
)
def test_a_listen_filter_survives_reading_and_writing(
    received: dict[str, Any], topics: set[str], uris: tuple[str, ...]
) -> None:
    wanted = modern.read_listen_filter(raws({"notifications": received}))
    assert wanted is not None
    assert ({*wanted.topics}, wanted.uris) == ({*topics}, uris)
    assert modern.read_listen_filter({"notifications": msgspec.Raw(modern.write_listen_filter(wanted))}) == wanted


@pytest.mark.parametrize(
    "received",
    [{}, {"notifications": 7}, {"notifications": {"resourceSubscriptions": [7]}}, {"notifications": {"taskIds": "t"}}],
)
def test_an_unreadable_listen_filter_is_ignored(received: dict[str, Any]) -> None:
    assert modern.read_listen_filter(raws(received)) is None


def test_only_supported_notifications_are_acknowledged() -> None:
    assert json.loads(modern.write_listen_filter(modern.ListenFilter(frozenset({"tools"})))) == {
        "toolsListChanged": True
    }
    assert json.loads(modern.write_listen_filter(modern.ListenFilter(frozenset()))) == {}
    assert json.loads(modern.write_listen_filter(modern.ListenFilter(frozenset(), (), ("t",)))) == {"taskIds": ["t"]}


def test_tasks_are_followed_once_each() -> None:
    wanted = modern.read_listen_filter(raws({"notifications": {"taskIds": ["t", "u", "t"]}}))
    assert wanted == modern.ListenFilter(frozenset(), (), ("t", "u"))


def test_every_message_of_a_subscription_is_marked_with_its_id() -> None:
    wanted = modern.ListenFilter(frozenset({"prompts"}), ("x",))
    for text in (
        modern.acknowledged_params(b'"s"', wanted),
        modern.subscription_params(b'"s"'),
        modern.subscription_params(b'"s"', {"uri": b'"x"'}),
        modern.listen_result(b'"s"'),
    ):
        assert modern.read_subscription(raws(json.loads(text))) == b'"s"'
    assert modern.read_subscription({}) is None
    assert modern.read_subscription(raws({"_meta": 7})) is None
    assert json.loads(modern.acknowledged_params(b"1", wanted))["notifications"] == {
        "promptsListChanged": True,
        "resourceSubscriptions": ["x"],
    }


@pytest.mark.parametrize(
    ("received", "honoured"),
    [
        ({"notifications": {"resourceSubscriptions": ["a", "b"]}}, {"a", "b"}),
        ({"notifications": {"toolsListChanged": True, "resourceSubscriptions": []}}, set()),
        ({"notifications": {"toolsListChanged": True}}, set()),
        ({"notifications": {"resourceSubscriptions": []}}, set()),
        ({"notifications": {}}, None),
        ({"notifications": {"somethingNew": True}}, None),
        ({"notifications": {"resourceSubscriptions": "a"}}, None),
        ({"notifications": None}, None),
        ({}, None),
    ],
)
def test_an_acknowledgement_that_says_nothing_at_all_leaves_nothing_out(
    received: Any, honoured: set[str] | None
) -> None:
    assert modern.read_granted(raws(received)) == honoured
