"""Whose a call is, as our own client is told: the same for the same caller and conversation, and no more than that."""

from __future__ import annotations

import msgspec
import pytest

from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING, Call
from isthmus.upstream.dialin.marks import MarkingDialect, mark_of
from isthmus.wire.jsonrpc import object_members
from isthmus.wire.mcp.marks import MARK_KEY, Mark, read_mark
from isthmus.wire.mcp.messages import Implementation
from isthmus.wire.mcp.passing import passed_meta


def a_call(
    name: str = "alice", tenant: str = "home", session: str = "", client_caps: frozenset[str] = frozenset()
) -> Call:
    caller = Caller(name, tenant, Grants(("*",)))
    return Call(caller, EVERYTHING, "pay", msgspec.Raw(b"{}"), session=session, client_caps=client_caps)


def meta_of(call: Call) -> dict[str, msgspec.Raw]:
    params = object_members(MarkingDialect(Implementation("hub", "1"), "robot").call_params(call, "pay", 1)) or {}
    return object_members(params["_meta"]) or {}


def test_the_same_caller_has_the_same_mark_and_nobody_else_has_it() -> None:
    others = [a_call("berta"), a_call(tenant="work"), a_call("ali", "homece")]
    marks = {mark_of("robot", call).caller for call in (a_call(), a_call(session="s"), *others)}
    assert len(marks) == 4
    assert mark_of("another", a_call()).caller not in marks


def test_a_conversation_is_one_callers_and_a_call_of_none_has_none() -> None:
    assert mark_of("robot", a_call()).session == ""
    assert len({mark_of("robot", a_call(name, session=s)).session for name in ("alice", "berta") for s in "ab"}) == 4


def test_a_mark_says_whether_its_conversation_shares_links() -> None:
    contexts = msgspec.structs.replace(a_call(session="s"), shares_link=True)
    marks = [read_mark(meta_of(call)[MARK_KEY]) for call in (a_call(session="s"), contexts)]
    assert [mark is not None and mark.shares for mark in marks] == [False, True]


def test_a_call_carries_its_mark_and_neither_a_name_nor_that_a_caller_has_folders() -> None:
    call = a_call(session="s1", client_caps=frozenset({"elicitation", "roots"}))
    meta = meta_of(call)
    assert read_mark(meta[MARK_KEY]) == mark_of("robot", call)
    text = b"".join(bytes(value) for value in meta.values())
    assert not [word for word in (b"alice", b"home", b"s1", b"roots") if word in text]
    assert b"elicitation" in text


def test_no_caller_brings_its_own() -> None:
    given = {MARK_KEY: msgspec.Raw(b'{"caller":"x"}'), MARK_KEY.upper(): msgspec.Raw(b"1"), "own": msgspec.Raw(b"2")}
    assert passed_meta(given, lambda id: id) == {"own": msgspec.Raw(b"2")}


@pytest.mark.parametrize(
    "text", [b"5", b'"x"', b"{}", b'{"caller":""}', b'{"caller":1}', b'{"caller":"%b"}' % (b"x" * 99)]
)
def test_what_is_no_mark_is_none(text: bytes) -> None:
    assert read_mark(msgspec.Raw(text)) is None
    assert read_mark(None) is None
    assert read_mark(msgspec.Raw(b'{"caller":"x"}')) == Mark("x")
