"""A task as its caller is shown it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from isthmus.core.tasks.live_task import Report
from isthmus.core.tasks.record import StoredOutcome, StoredQuestion, TaskOwner, TaskRecord, stored_outcome
from isthmus.frontends.a2a.task_view import (
    StoredInstruction,
    answer_parts,
    direct_answer,
    facts_of,
    kind_of,
    parts_of,
    reported,
    summary,
    whole_task,
)
from isthmus.model.calls import LogMessage, Progress
from isthmus.model.fault_table import (
    FAULTS,
    Fault,
    Lost,
    ServerError,
    TimedOut,
)
from isthmus.model.names import ServerName
from isthmus.model.tasks import DataPart, FilePart, Message, Part, TaskState, TextPart
from isthmus.wire.a2a.agentvault import conversation
from tests.unit.core.doubles import SERVER, raw
from tests.unit.model.fault_examples import EVERY_FAULT

SAID = Message("m1", "user", (TextPart("go"),))
DONE = StoredOutcome(raw({"content": [{"type": "text", "text": "hi"}]}))


def record(
    state: TaskState = "completed",
    *,
    origin: str = "1.0",
    brief: StoredInstruction | None = None,
    ending: StoredOutcome | None = DONE,
    asked: StoredQuestion | None = None,
) -> TaskRecord:
    kept = Raw(msgspec.json.encode(brief or StoredInstruction("tool", "files.read")))
    return TaskRecord(
        "t", TaskOwner("a", "b"), "c", origin, state, 1.0, 2.0, said=(SAID,), ending=ending, brief=kept, asked=asked
    )


def test_an_answer_is_an_artifact() -> None:
    task = whole_task(record())
    assert (task.id, task.context, task.status.state, task.status.at, task.created) == ("t", "c", "completed", 2.0, 1.0)
    assert task.artifacts[0].parts == (TextPart("hi"),)
    assert task.artifacts[0].name == "files.read"
    assert task.status.message is None
    assert task.history == (SAID,)


def test_a_tool_can_have_its_answer_said_without_a_task() -> None:
    content = [{"type": "text", "text": "hi"}]
    said = StoredOutcome(raw({"content": content, "_meta": {"isthmus/answer": "message"}}))
    message = direct_answer(record(ending=said))
    assert message == Message("t-result", "agent", (TextPart("hi"),), context="c")
    assert direct_answer(record("failed", ending=said)) is None
    assert direct_answer(record(ending=said, brief=StoredInstruction("command", "tools/call"))) is None


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"isthmus/answer": "message"},
        {"_meta": {"isthmus/answer": "task"}},
        {"_meta": ["isthmus/answer", "message"]},
    ],
)
def test_other_answers_are_tasks(result: dict[str, object]) -> None:
    assert direct_answer(record(ending=StoredOutcome(raw(result)))) is None
    assert direct_answer(record(ending=None)) is None


def test_to_agentvault_an_answer_is_a_message() -> None:
    task = whole_task(record(origin="agentvault"))
    assert task.artifacts == ()
    assert [message.role for message in task.history] == ["user", "agent"]
    assert task.history[1].parts == (TextPart("hi"),)


def test_a_failure_says_why_and_has_its_data_where_its_form_has_a_place_for_it() -> None:
    lost = StoredOutcome(reason="lost", message="gone", executed="unknown")
    task = whole_task(record("failed", ending=lost))
    assert task.artifacts == ()
    assert task.status.message is not None
    assert task.status.message.parts == (TextPart("gone"),)
    assert msgspec.json.decode(task.status.message.metadata) == {"executed": "unknown", "reason": "lost"}
    executed = whole_task(record("failed", ending=lost, brief=StoredInstruction("execute", "read")))
    assert isinstance(executed.artifacts[0].parts[0], DataPart)


def test_an_error_of_the_server_keeps_its_code_and_its_data() -> None:
    error = StoredOutcome(reason="server_error", message="no", code=-32050, data=raw({"x": [1]}))
    message = whole_task(record("failed", ending=error)).status.message
    assert message is not None
    received = {"executed": "yes", "reason": "server_error", "code": -32050, "data": {"x": [1]}}
    assert msgspec.json.decode(message.metadata) == received


def test_an_error_of_the_tool_says_that_it_ran() -> None:
    bad = StoredOutcome(raw({"content": [], "isError": True}), is_error=True)
    message = whole_task(record("failed", ending=bad)).status.message
    assert message is not None
    assert msgspec.json.decode(message.metadata) == {"executed": "yes"}
    refused = StoredOutcome(reason="overloaded", message="busy", executed="no", server=ServerName("files"))
    message = whole_task(record("rejected", ending=refused)).status.message
    assert message is not None
    assert msgspec.json.decode(message.metadata) == {"executed": "no", "reason": "overloaded", "server": "files"}


@pytest.mark.parametrize("params", [{"message": "Which?"}, {}])
def test_a_question_is_said_to_people_and_to_programs(params: dict[str, str]) -> None:
    asked = StoredQuestion("elicitation/create", raw(params))
    status = whole_task(record("input_required", ending=None, asked=asked)).status
    assert status.message is not None
    *words, whole = status.message.parts
    assert words == [TextPart(text) for text in params.values()]
    assert isinstance(whole, DataPart)
    assert msgspec.json.decode(whole.data) == {"method": "elicitation/create", "params": params}


def test_a_caller_that_is_offered_tools_gets_them_with_the_state() -> None:
    offer = Message("m2", "agent", (TextPart("Which tool shall be run?"),))
    waiting = replace(record("input_required", ending=None), said=(SAID, offer))
    assert whole_task(waiting).status.message == offer
    assert whole_task(replace(waiting, state="working")).status.message is None
    assert conversation(whole_task(replace(waiting, origin="agentvault"))) == (SAID, offer)


def test_rendering_a_task_is_deterministic() -> None:
    failed = record("failed", ending=StoredOutcome(reason="lost", message="gone"))
    assert whole_task(failed) == whole_task(failed)


def test_reports_have_their_words_first() -> None:
    working = record("working", ending=None)
    received = reported(working, Report(1, 3.0, Progress({"progress": raw(1), "message": raw("step")})))
    assert received.status.message is not None
    assert received.status.message.parts[0] == TextPart("step")
    other = reported(working, Report(2, 3.0, LogMessage("info", {"data": raw("x")})))
    assert other.status.message is not None
    assert len(other.status.message.parts) == 1
    assert other.status.message.id != received.status.message.id
    assert not received.is_last


RESULT = {"content": [{"type": "text", "text": "hi"}]}
GOOD, BAD = StoredOutcome(raw(RESULT)), StoredOutcome(raw({**RESULT, "isError": True}), is_error=True)
EXECUTE, COMMAND = StoredInstruction("execute", "read"), StoredInstruction("command", "read", Raw(b"17"))


def rendered(ending: StoredOutcome, brief: StoredInstruction) -> Any:
    (part,) = answer_parts(ending, brief)
    assert isinstance(part, DataPart)
    return json.loads(bytes(part.data))


def test_our_own_form_is_answered_with_the_content_itself() -> None:
    assert answer_parts(GOOD, StoredInstruction()) == (TextPart("hi"),)
    assert answer_parts(StoredOutcome(message="no", reason="lost"), StoredInstruction()) == (TextPart("no"),)
    assert summary(GOOD, StoredInstruction()) is None
    assert summary(BAD, StoredInstruction("tool", "read")) == "read reported an error"


def test_an_execution_is_answered_with_success_or_the_party_at_fault() -> None:
    assert rendered(GOOD, EXECUTE) == {"success": True, "mcp_result": RESULT}
    assert rendered(BAD, EXECUTE)["error"] == {
        "source": "MCP_TOOL",
        "code": "TOOL_EXECUTION_FAILED",
        "message": "Execution failed for tool 'read'",
        "details": {"mcp_tool_error_content": RESULT["content"]},
    }
    assert summary(BAD, EXECUTE) == "[MCP_TOOL/TOOL_EXECUTION_FAILED] Execution failed for tool 'read'"


FAULT_CASES = pytest.mark.parametrize("fault", EVERY_FAULT, ids=lambda fault: fault.reason)


@FAULT_CASES
def test_a_failed_execution_has_agentvault_s_code_and_its_data(fault: Fault) -> None:
    error = rendered(stored_outcome(fault), EXECUTE)["error"]
    if isinstance(fault, ServerError):
        assert (error["source"], error["code"]) == ("MCP_PROTOCOL", str(fault.code))
    else:
        assert (error["source"], error["code"]) == ("A2A_PROXY", FAULTS[fault.reason].agentvault)
    details = error["details"]
    assert (details["executed"], details["reason"]) == (fault.executed, fault.reason)
    assert details.get("retryAfter") == fault.retry_after


def test_a_failed_execution_has_the_data_of_the_server_s_error() -> None:
    error = rendered(stored_outcome(ServerError(SERVER, -32050, "no", raw({"x": 1}))), EXECUTE)["error"]
    assert (error["code"], error["details"]["mcp_protocol_error_data"]) == ("-32050", {"x": 1})


def test_a_failure_outside_the_table_has_a_code_too() -> None:
    error = rendered(StoredOutcome(reason="of another version", message="?"), EXECUTE)["error"]
    assert (error["source"], error["code"]) == ("A2A_PROXY", "PROXY_INTERNAL_ERROR")


@FAULT_CASES
def test_the_metadata_of_a_failure_says_when_to_try_again(fault: Fault) -> None:
    facts = msgspec.json.decode(facts_of(stored_outcome(fault)))
    assert (facts["executed"], facts["reason"], facts.get("server")) == (fault.executed, fault.reason, fault.server)
    assert facts.get("retryAfter") == fault.retry_after


def test_a_command_repeats_its_id_with_its_type() -> None:
    assert rendered(GOOD, COMMAND) == {"mcp_request_id_echo": 17, "mcp_response_id": 17, "mcp_result": RESULT}
    assert rendered(BAD, COMMAND)["mcp_result"]["isError"] is True
    error = rendered(stored_outcome(Lost(SERVER, "gone", executed="unknown")), COMMAND)["mcp_error"]
    assert (error["code"], error["data"]["kind"], error["data"]["executed"]) == (-32012, "network", "unknown")
    own = rendered(stored_outcome(ServerError(SERVER, -32050, "no", raw([1]))), COMMAND)["mcp_error"]
    assert (own["code"], own["data"]["kind"], own["data"]["mcp_data"]) == (-32050, "mcp", [1])


@FAULT_CASES
def test_a_command_s_error_has_the_code_that_it_has_everywhere(fault: Fault) -> None:
    error = rendered(stored_outcome(fault), COMMAND)["mcp_error"]
    code = fault.code if isinstance(fault, ServerError) else FAULTS[fault.reason].mcp
    assert (error["code"], error["data"]["reason"]) == (code, fault.reason)
    assert (error["data"]["kind"], error["data"]["executed"]) == (FAULTS[fault.reason].a2a_kind, fault.executed)
    assert (error["data"].get("server"), error["data"].get("retryAfter")) == (fault.server, fault.retry_after)


@pytest.mark.parametrize(
    "fault", [Lost(SERVER, "gone", executed="no"), TimedOut(SERVER, 1.0, executed="no")], ids=lambda each: each.reason
)
def test_a_command_that_was_never_sent_has_the_code_of_a_server_that_is_away(fault: Fault) -> None:
    assert rendered(stored_outcome(fault), COMMAND)["mcp_error"]["code"] == -32011


@pytest.mark.parametrize("reason", ["bad_instruction", "unknown_tool", "bad_arguments"])
def test_errors_of_instructions_in_our_own_form_are_data(reason: str) -> None:
    error = rendered(StoredOutcome(reason=reason, message="no", executed="no"), StoredInstruction())["error"]
    assert error == {"kind": "request", "message": "no", "reason": reason, "executed": "no"}


def test_a_refused_instruction_is_the_fault_of_the_request() -> None:
    assert kind_of(StoredOutcome(reason="bad_instruction")) == "request"


JSON_TYPE = "application/json"


@pytest.mark.parametrize(
    ("block", "part"),
    [
        ({"type": "text", "text": "hi"}, TextPart("hi")),
        ({"type": "image", "data": "aGk=", "mimeType": "image/png"}, FilePart("aGk=", media_type="image/png")),
        ({"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}, FilePart("aGk=", media_type="audio/wav")),
        (
            {"type": "resource_link", "uri": "https://a/b", "name": "b", "mimeType": "text/plain"},
            FilePart(url="https://a/b", name="b", media_type="text/plain"),
        ),
        (
            {"type": "resource", "resource": {"uri": "file:///a/b%20c.txt", "text": "x", "mimeType": "text/plain"}},
            TextPart("x", "text/plain", Raw(b'{"uri":"file:///a/b%20c.txt","mimeType":"text/plain"}')),
        ),
        (
            {"type": "resource", "resource": {"uri": "file:///a/b%20c.bin", "blob": "aGk="}},
            FilePart("aGk=", name="b c.bin", metadata=Raw(b'{"uri":"file:///a/b%20c.bin"}')),
        ),
    ],
)
def test_a_block_is_the_part_that_it_is(block: Any, part: Part) -> None:
    assert parts_of(raw({"content": [block]})) == (part,)


FOR_PEOPLE = {"annotations": {"audience": ["user"], "priority": 0.5}}


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ({"type": "text", "text": "hi", **FOR_PEOPLE}, FOR_PEOPLE),
        ({"type": "text", "text": "hi", "annotations": None, "_meta": {"a": 1}}, {"_meta": {"a": 1}}),
        ({"type": "image", "data": "aGk=", **FOR_PEOPLE}, FOR_PEOPLE),
        (
            {"type": "resource_link", "uri": "x:y", "title": "Y", "description": "d", "size": 5, **FOR_PEOPLE},
            {**FOR_PEOPLE, "title": "Y", "description": "d", "size": 5},
        ),
        (
            {"type": "resource", "resource": {"uri": "x:y", "blob": "aGk=", "_meta": {"b": 2}}, **FOR_PEOPLE},
            {**FOR_PEOPLE, "_meta": {"b": 2}, "uri": "x:y"},
        ),
        (
            {
                "type": "resource",
                "resource": {"uri": "x:y", "text": "hi", "_meta": {"b": 2, "c": 3}},
                "_meta": {"a": 1, "b": 9},
            },
            {"_meta": {"a": 1, "b": 2, "c": 3}, "uri": "x:y"},
        ),
        (
            {"type": "resource", "resource": {"uri": "x:y", "text": "hi", "_meta": None}, "_meta": {"a": 1}},
            {"_meta": {"a": 1}, "uri": "x:y"},
        ),
    ],
)
def test_annotations_of_a_block_are_the_parts_metadata(block: Any, told: Any) -> None:
    (part,) = parts_of(raw({"content": [block]}))
    assert json.loads(bytes(part.metadata)) == told


@pytest.mark.parametrize("block", [{"type": "text"}, {"type": "odd"}, {"type": "image"}, {"type": "resource"}, 5, None])
def test_a_block_that_cannot_be_read_is_there_as_it_is(block: Any) -> None:
    assert parts_of(raw({"content": [block]})) == (DataPart(raw(block), JSON_TYPE),)


def test_structured_content_comes_first_and_is_not_said_twice() -> None:
    received = raw({"content": [{"type": "text", "text": '{"a": 1}'}], "structuredContent": {"a": 1}})
    assert parts_of(received) == (DataPart(raw({"a": 1}), JSON_TYPE),)
    both = raw({"content": [{"type": "text", "text": "one"}], "structuredContent": {"a": 1}})
    assert parts_of(both) == (DataPart(raw({"a": 1}), JSON_TYPE), TextPart("one"))


@pytest.mark.parametrize(
    ("text", "structured"),
    [
        ('{"on":1}', '{"on":true}'),
        ('{"on":0}', '{"on":false}'),
        ('{"n":1}', '{"n":1.0}'),
        ('{"n":1.0000000000000001}', '{"n":1.0000000000000002}'),
        ('{"n":1234567890123456789013}', '{"n":1234567890123456789012}'),
        ('{"n":"1.5"}', '{"n":1.5}'),
    ],
)
def test_a_text_that_only_looks_like_the_structured_content_is_kept(text: str, structured: str) -> None:
    content = json.dumps([{"type": "text", "text": text}])
    parts = parts_of(Raw(f'{{"content":{content},"structuredContent":{structured}}}'.encode()))
    assert parts == (DataPart(Raw(structured.encode()), JSON_TYPE), TextPart(text))


def test_a_text_that_repeats_the_structured_content_in_other_words_is_not_kept() -> None:
    content = json.dumps([{"type": "text", "text": '{ "b": [true, null], "a": 1.50 }'}])
    received = Raw(f'{{"content":{content},"structuredContent":{{"a":1.50,"b":[true,null]}}}}'.encode())
    assert parts_of(received) == (DataPart(Raw(b'{"a":1.50,"b":[true,null]}'), JSON_TYPE),)


@pytest.mark.parametrize("said", [FOR_PEOPLE, {"_meta": {"a": 1}}])
def test_a_repeated_text_with_metadata_is_kept(said: Any) -> None:
    received = raw({"content": [{"type": "text", "text": '{"a":1}', **said}], "structuredContent": {"a": 1}})
    data, text = parts_of(received)
    assert data == DataPart(raw({"a": 1}), JSON_TYPE)
    assert isinstance(text, TextPart)
    assert json.loads(bytes(text.metadata)) == said


def test_null_structured_content_is_left_out() -> None:
    received = raw({"content": [{"type": "text", "text": "one"}], "structuredContent": None})
    assert parts_of(received) == (TextPart("one"),)


def test_structured_content_keeps_its_numbers() -> None:
    (part,) = parts_of(Raw(b'{"content":[],"structuredContent":{"n":1234567890123456789012,"f":1.0}}'))
    assert part == DataPart(Raw(b'{"n":1234567890123456789012,"f":1.0}'), JSON_TYPE)


@pytest.mark.parametrize(
    "result", [{}, {"content": []}, {"tools": []}, {"content": 5}, {"messages": [{"role": "user"}]}]
)
def test_a_result_without_content_is_there_whole(result: Any) -> None:
    assert parts_of(raw(result)) == (DataPart(raw(result), JSON_TYPE),)


@pytest.mark.parametrize("depth", [500, 990, 5_000])
def test_deeply_nested_results_are_no_failure(depth: int) -> None:
    deep = "[" * depth + "]" * depth
    received = f'{{"content":[{{"type":"text","text":"[{deep}]"}}],"structuredContent":{deep}}}'.encode()
    first = parts_of(Raw(received))[0]
    assert first in (DataPart(Raw(deep.encode()), JSON_TYPE), DataPart(Raw(received), JSON_TYPE))


@given(
    st.dictionaries(
        st.sampled_from(["content", "structuredContent", "isError"]),
        st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)),
    )
)
def test_every_result_of_a_server_has_parts(result: Any) -> None:
    assert parts_of(raw(result))


@pytest.mark.parametrize("value", [7, None, [1], {"sum": 3}, {"content": "none"}])
def test_a_value_that_is_no_result_of_mcp_is_there_as_it_is(value: Any) -> None:
    assert parts_of(raw(value)) == (DataPart(raw(value), JSON_TYPE),)


def test_a_bare_text_is_text() -> None:
    assert parts_of(raw("hi")) == (TextPart("hi"),)


def test_members_that_mcp_does_not_have_are_there_beside_the_blocks() -> None:
    block = Raw(b'{"type":"code_output","stdout":"2"}')
    result = b'{"exit":1,"content":[{"type":"text","text":"hi"},%b],"isError":false,"ms":1.50}' % bytes(block)
    rest = Raw(b'{"exit":1,"ms":1.50}')
    assert parts_of(Raw(result)) == (TextPart("hi"), DataPart(block, JSON_TYPE), DataPart(rest, JSON_TYPE))
