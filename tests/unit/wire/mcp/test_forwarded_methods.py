"""Requests to a server: read strictly from callers, and written anew from the authorised call."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import pytest

from isthmus.model.calls import Kind
from isthmus.wire.mcp.forwarded_methods import (
    CALLS,
    METHODS,
    CallRequest,
    CallResultInfo,
    read_any_result,
    read_call_result,
    read_request,
    read_resource_result,
    request_params,
)

PROMPT_REF = {"type": "ref/prompt", "name": "p"}
URI_REF = {"type": "ref/resource", "uri": "x:{y}"}
ARGUMENT = {"name": "a", "value": "v"}


def members(received: dict[str, Any]) -> dict[str, msgspec.Raw]:
    return {key: msgspec.Raw(json.dumps(value).encode()) for key, value in received.items()}


def read(method: str, **received: Any) -> CallRequest:
    asked = read_request(method, members(received))
    assert isinstance(asked, CallRequest), asked
    return asked


def test_every_kind_but_method_has_a_method() -> None:
    assert METHODS.keys() == set(get_args(Kind)) - {"method"}
    about_tasks = {"tasks/get", "tasks/result", "tasks/cancel", "tasks/update"}
    assert {"tools/call", "prompts/get", "resources/read", "completion/complete", *about_tasks} == CALLS


@pytest.mark.parametrize(
    ("method", "received", "kind", "name", "arguments"),
    [
        ("tools/call", {"name": "t", "arguments": {"a": 1}}, "tool", "t", {"a": 1}),
        ("tools/call", {"name": "t"}, "tool", "t", {}),
        ("prompts/get", {"name": "p", "arguments": {"a": "1"}}, "prompt", "p", {"a": "1"}),
        ("resources/read", {"uri": "file:///x"}, "resource", "file:///x", {}),
        ("completion/complete", {"ref": PROMPT_REF, "argument": ARGUMENT}, "prompt_argument", "p", ARGUMENT),
        ("completion/complete", {"ref": URI_REF, "argument": ARGUMENT}, "uri_argument", "x:{y}", ARGUMENT),
        ("tasks/get", {"taskId": "t1"}, "task", "t1", {}),
        ("tasks/result", {"taskId": "t1"}, "task_result", "t1", {}),
        ("tasks/cancel", {"taskId": "t1"}, "task_cancel", "t1", {}),
        ("tasks/update", {"taskId": "t1"}, "task_update", "t1", {}),
    ],
)
def test_a_request_is_read_and_written_again_as_it_was(
    method: str, received: dict[str, Any], kind: Kind, name: str, arguments: dict[str, Any]
) -> None:
    asked = read(method, **received, _meta={"trace": 1}, context={"n": 1})
    assert (asked.kind, asked.name, json.loads(bytes(asked.arguments))) == (kind, name, arguments)
    assert (asked.meta, asked.extra) == (members({"trace": 1}), members({"context": {"n": 1}}))
    written = json.loads(request_params(kind, name, asked.arguments, b'{"trace":1}', asked.extra))
    bare = {key: value for key, value in written.items() if key != "arguments" or value}
    assert bare == {**received, "_meta": {"trace": 1}, "context": {"n": 1}}
    assert METHODS[kind] == method


@pytest.mark.parametrize(
    ("method", "received", "words"),
    [
        ("tools/call", {}, "needs a name"),
        ("tools/call", {"name": 7}, "needs a name"),
        ("tools/call", {"name": "t", "arguments": []}, "arguments must be an object"),
        ("tools/call", {"name": "t", "_meta": 7}, "_meta must be an object"),
        ("tools/call", {"name": "t", "Arguments": {}}, "did you mean 'arguments'"),
        ("prompts/get", {"name": None}, "needs a name"),
        ("resources/read", {}, "needs a uri"),
        ("resources/read", {"uri": ["x"]}, "needs a uri"),
        ("resources/read", {"uri": "x", "URI": "y"}, "did you mean 'uri'"),
        ("completion/complete", {"argument": ARGUMENT}, "needs a ref"),
        ("completion/complete", {"ref": "p", "argument": ARGUMENT}, "needs a ref"),
        ("completion/complete", {"ref": {"type": "ref/tool", "name": "t"}, "argument": ARGUMENT}, "needs a ref"),
        ("completion/complete", {"ref": {"type": "ref/prompt", "uri": "p"}, "argument": ARGUMENT}, "needs a name"),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": 7}, "argument": ARGUMENT}, "needs a uri"),
        ("completion/complete", {"ref": PROMPT_REF}, "needs an argument"),
        ("completion/complete", {"ref": PROMPT_REF, "argument": "a"}, "needs an argument"),
        ("completion/complete", {"ref": PROMPT_REF, "argument": ARGUMENT, "Ref": URI_REF}, "did you mean 'ref'"),
    ],
)
def test_the_problem_of_a_request_is_reported(method: str, received: dict[str, Any], words: str) -> None:
    asked = read_request(method, members(received))
    assert isinstance(asked, str)
    assert words in asked


def test_an_envelope_that_was_read_before_is_not_read_again() -> None:
    known = members({"trace": 1})
    asked = read_request("resources/read", members({"uri": "x", "_meta": 7}), known)
    assert isinstance(asked, CallRequest)
    assert asked.meta is known


@pytest.mark.parametrize(
    ("received", "answer"),
    [
        ({}, CallResultInfo(False, None)),
        ({"isError": True, "resultType": "complete"}, CallResultInfo(True, "complete", has_type=True)),
        ({"isError": None, "resultType": "task"}, CallResultInfo(False, "task", has_type=True)),
        ({"resultType": None}, CallResultInfo(False, None, has_type=True)),
        ({"ttlMs": 5000, "cacheScope": "public"}, CallResultInfo(False, None)),
        ([], None),
        ("x", None),
    ],
)
def test_only_relevant_members_of_a_result_are_read(received: object, answer: CallResultInfo | None) -> None:
    assert read_call_result(json.dumps(received).encode()) == answer


@pytest.mark.parametrize(
    ("received", "answer"),
    [
        ({}, CallResultInfo(False, None)),
        ({"isError": True}, CallResultInfo(False, None)),
        (
            {"ttlMs": 1500, "cacheScope": "public", "resultType": "complete"},
            CallResultInfo(False, "complete", 1.5, True),
        ),
        ({"ttlMs": 1500, "cacheScope": "whatever"}, CallResultInfo(False, None, 1.5)),
        ({"ttlMs": -5}, CallResultInfo(False, None)),
        ({"ttlMs": "soon", "cacheScope": ["public"]}, CallResultInfo(False, None)),
        ({"ttlMs": {}, "cacheScope": "public"}, CallResultInfo(False, None, 0.0, True)),
        ([], None),
    ],
)
def test_a_resource_says_how_long_it_may_be_kept(received: object, answer: CallResultInfo | None) -> None:
    assert read_resource_result(json.dumps(received).encode()) == answer


@pytest.mark.parametrize(
    ("params", "meta", "written"),
    [
        ({}, None, {}),
        ({"cursor": "a", "deep": {"x": [1]}}, None, {"cursor": "a", "deep": {"x": [1]}}),
        ({"a": 1, "_meta": {"progressToken": 7}}, None, {"a": 1}),
        ({"a": 1, "_meta": {"progressToken": 7}}, b'{"trace":1}', {"a": 1, "_meta": {"trace": 1}}),
    ],
)
def test_a_methods_parameters_are_unchanged_apart_from_metadata(
    params: dict[str, Any], meta: bytes | None, written: dict[str, Any]
) -> None:
    assert json.loads(request_params("method", "x/y", json.dumps(params).encode(), meta, {})) == written


def test_a_methods_result_must_be_an_object() -> None:
    assert read_any_result(msgspec.Raw(b'{"isError":"odd","resultType":7}')) == CallResultInfo(False, None)
    assert read_any_result(msgspec.Raw(b"[]")) is None
