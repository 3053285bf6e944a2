"""Arguments as messages."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw
from msgspec.structs import replace

from isthmus.model.calls import Event, LogMessage, Progress
from isthmus.model.features import Tool
from isthmus.model.names import FeatureName, ServerName
from isthmus.model.tasks import ABSENT, DataPart, Part, TaskStatus, TextPart
from isthmus.upstream.a2a.card_to_tools import SkillTool
from isthmus.upstream.a2a.mcp_conversion import (
    DEFAULT_QUESTION,
    WORDS_LENGTH_MAX,
    AgentQuestion,
    ProgressReports,
    TaskMessage,
    answer_parts,
    fault_in,
    message_for,
    question_in,
)
from tests.unit.core.doubles import Stage, call
from tests.unit.upstream.a2a.scripted import says

TOOL = Tool.of(ServerName("far"), FeatureName("t"), {})
WORDED = SkillTool(TOOL, 'a "b"', takes_text=True)


def test_words_and_data_are_parts_and_the_rest_says_where_they_belong() -> None:
    received = message_for(WORDED, Raw(b'{"message":"hi","data":{"n":1.0},"task_id":"t","context_id":"c","more":1}'))
    parts = (TextPart("hi"), DataPart(Raw(b'{"n":1.0}'), "application/json"))
    assert received == TaskMessage(parts, Raw(b'{"skill":"a \\"b\\""}'), "t", "c")


def test_null_arguments_count_as_omitted() -> None:
    received = message_for(WORDED, Raw(b'{"message":"hi","data":null,"task_id":null,"context_id":null}'))
    assert isinstance(received, TaskMessage)
    assert (received.parts, received.task, received.context) == ((TextPart("hi"),), "", "")


def test_arguments_of_a_schema_are_one_part_as_they_are() -> None:
    received = message_for(SkillTool(TOOL, "s", takes_text=False), Raw(b'{ "n": 1.50 }'))
    assert isinstance(received, TaskMessage)
    assert (received.parts, received.takes_text) == ((DataPart(Raw(b'{ "n": 1.50 }'), "application/json"),), False)


def test_an_agent_as_a_whole_gets_no_skill() -> None:
    received = message_for(SkillTool(TOOL, "", takes_text=True), Raw(b'{"message":"hi"}'))
    assert isinstance(received, TaskMessage)
    assert received.metadata == ABSENT


@pytest.mark.parametrize("arguments", [b"{}", b'{"message":7}', b'{"message":"","task_id":7}'])
def test_invalid_arguments_give_an_error_message(arguments: bytes) -> None:
    assert isinstance(message_for(WORDED, Raw(arguments)), str)


FAR = ServerName("far")


def failed(metadata: bytes, *words: str) -> TaskStatus:
    return TaskStatus("failed", 1.0, replace(says(*map(TextPart, words)), metadata=Raw(metadata)))


@pytest.mark.parametrize(
    ("metadata", "code", "executed"),
    [
        (b'{"executed":"unknown","reason":"lost","server":"x"}', -32012, "unknown"),
        (b'{"executed":"no","reason":"not_connected"}', -32011, "no"),
        (b'{"executed":"no","reason":"unknown_tool"}', -32602, "no"),
        (b'{"executed":"no","reason":"bad_instruction"}', -32602, "no"),
        (b'{"executed":"no","reason":"overloaded"}', -32010, "no"),
        (b'{"executed":"no","reason":"lost"}', -32011, "no"),
        (b'{"executed":"no","reason":"anything"}', -32011, "no"),
        (b'{"executed":"yes"}', -32012, "yes"),
    ],
)
def test_a_fault_over_there_is_one_here_and_says_whether_the_tool_ran(
    metadata: bytes, code: int, executed: str
) -> None:
    fault = fault_in(failed(metadata, "It", "broke"), FAR)
    assert fault is not None
    assert (fault.code, fault.executed, fault.server, fault.message) == (code, executed, FAR, "It\nbroke")
    assert fault.data == Raw(metadata)


def test_secrets_are_redacted_in_the_message_and_data_of_a_remote_hub() -> None:
    received = failed(b'{"executed":"no","reason":"not with secret"}', "not with secret")
    fault = fault_in(received, FAR, lambda text: text.replace("secret", "***"))
    assert fault is not None
    assert (fault.message, fault.data) == ("not with ***", Raw(b'{"executed":"no","reason":"not with ***"}'))


def test_a_fault_without_words_has_some() -> None:
    fault = fault_in(failed(b'{"executed":"no"}'), FAR)
    assert fault is not None
    assert fault.message == "It failed"


@pytest.mark.parametrize("metadata", [b"", b"{}", b"7", b'{"executed":"perhaps"}'])
def test_a_failure_without_executed_is_no_fault(metadata: bytes) -> None:
    assert fault_in(failed(metadata, "It broke"), FAR) is None
    assert fault_in(TaskStatus("failed", 1.0), FAR) is None


FORM = b'{"type":"object","properties":{"n":{"type":"integer","maximum":9223372036854775807}}}'
NESTED = b'{"type":"object","properties":{"o":{"type":"object"}}}'


def data(text: bytes) -> DataPart:
    return DataPart(Raw(text))


def json_part(text: bytes) -> DataPart:
    return DataPart(Raw(text), "application/json")


def schema_of(agent_question: AgentQuestion) -> bytes:
    params = bytes(agent_question.question.params)
    return params.partition(b'"requestedSchema":')[2].removesuffix(b"}")


def test_words_are_asked_for_in_one_field() -> None:
    agent_question = question_in((TextPart("Which"), TextPart("one?"), data(b"[1]"), data(b"7")))
    assert agent_question.takes_text
    params = json.loads(bytes(agent_question.question.params))
    assert params["message"] == "Which\none?"
    assert params["requestedSchema"]["required"] == ["message"]
    assert json.loads(bytes(question_in(()).question.params))["message"] == DEFAULT_QUESTION


@pytest.mark.parametrize(
    "part", [FORM, b'{"schema":%b}' % FORM, b'{"inputSchema":%b}' % FORM, b'{"x":1,"requestedSchema":%b}' % FORM]
)
def test_a_schema_is_asked_for_exactly(part: bytes) -> None:
    agent_question = question_in((data(part),))
    assert not agent_question.takes_text
    assert schema_of(agent_question) == FORM


@pytest.mark.parametrize("part", [NESTED, b'{"schema":%b}' % NESTED, b'{"type":"object"}', b'{"schema":"x"}', b"{}"])
def test_a_question_without_a_usable_form_takes_text(part: bytes) -> None:
    assert question_in((data(part),)).takes_text


@pytest.mark.parametrize("method", ["elicitation/create", "sampling/createMessage", "roots/list"])
def test_another_hubs_question_is_passed_on(method: str) -> None:
    agent_question = question_in((TextPart("Who?"), data(b'{"method":"%b","params":{"a":1.0}}' % method.encode())))
    assert agent_question.is_hubs_own
    assert (agent_question.question.method, bytes(agent_question.question.params)) == (method, b'{"a":1.0}')


@pytest.mark.parametrize("part", [b'{"method":"tools/call","params":{}}', b'{"method":"roots/list","params":7}'])
def test_data_that_is_no_question_is_not_forwarded(part: bytes) -> None:
    assert not question_in((data(part),)).is_hubs_own


@pytest.mark.parametrize(
    ("agent_question", "result", "parts"),
    [
        (question_in(()), b'{"action":"accept","content":{"message":"red"}}', (TextPart("red"),)),
        (question_in(()), b'{"action":"accept","content":{"message":7}}', (json_part(b'{"message":7}'),)),
        (question_in(()), b'{"action":"accept"}', (json_part(b"{}"),)),
        (question_in((data(FORM),)), b'{"action":"accept","content":{"n":1.0}}', (json_part(b'{"n":1.0}'),)),
        (question_in(()), b'{"action":"decline"}', None),
        (question_in(()), b'{"action":"cancel"}', None),
        (question_in(()), b"7", None),
    ],
)  # fmt: skip
def test_an_answer_has_the_requested_form(
    agent_question: AgentQuestion, result: bytes, parts: tuple[Part, ...] | None
) -> None:
    assert answer_parts(agent_question, Raw(result)) == parts


def test_the_answer_to_another_hub_is_passed_on() -> None:
    agent_question = question_in((data(b'{"method":"sampling/createMessage","params":{}}'),))
    assert answer_parts(agent_question, Raw(b'{"role":"assistant"}')) == (
        DataPart(Raw(b'{"role":"assistant"}'), "application/json"),
    )


class Telling:
    """Reports of a call, and what its caller heard."""

    def __init__(self, *, wants_progress: bool = True) -> None:
        operation = replace(call(), wants_progress=wants_progress)
        inflight, self.listener = Stage().start(operation)
        self.reports = ProgressReports(inflight)

    def add(self, *parts: Part, id: str = "m") -> None:
        self.reports.report(TaskStatus("working", 1.0, says(*parts, id=id)))

    @property
    def on_update(self) -> list[Event]:
        return self.listener.events


async def test_each_new_word_is_one_step() -> None:
    telling = Telling()
    telling.add(TextPart("one"), TextPart("more"))
    telling.add(TextPart("one"), TextPart("more"))
    telling.add(TextPart("x" * (WORDS_LENGTH_MAX + 1)), id="n")
    first, second = telling.on_update
    assert isinstance(first, Progress)
    assert isinstance(second, Progress)
    assert {key: bytes(value) for key, value in first.members.items()} == {"progress": b"1", "message": b'"one\\nmore"'}
    assert len(second.members["message"]) == WORDS_LENGTH_MAX + 2


async def test_a_caller_without_progress_gets_a_log_line() -> None:
    telling = Telling(wants_progress=False)
    telling.add(TextPart("one"))
    telling.add(DataPart(Raw(b'{"progress":1}')), id="n")
    (line,) = telling.on_update
    assert isinstance(line, LogMessage)


@pytest.mark.parametrize(
    "part", [DataPart(Raw(b"[1]")), DataPart(Raw(b'{"progress":"x"}')), DataPart(Raw(b'{"level":"x"}'))]
)
async def test_empty_updates_are_not_passed_on(part: Part) -> None:
    telling = Telling()
    telling.add(part)
    telling.reports.report(TaskStatus("working", 1.0))
    assert telling.on_update == []


async def test_a_question_is_no_report() -> None:
    telling = Telling()
    telling.reports.report(TaskStatus("input_required", 1.0, says(TextPart("Which?"))))
    assert telling.on_update == []


async def test_a_hubs_progress_is_forwarded_without_hop_members() -> None:
    telling = Telling()
    telling.add(DataPart(Raw(b'{"progress":0.50,"total":1,"progressToken":7,"_meta":{}}')))
    (report,) = telling.on_update
    assert isinstance(report, Progress)
    assert {key: bytes(value) for key, value in report.members.items()} == {"progress": b"0.50", "total": b"1"}
