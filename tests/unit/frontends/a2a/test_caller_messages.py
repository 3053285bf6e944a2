"""Instructions in a message to the agent, in each of their forms."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from isthmus.core.tasks.record import StoredQuestion
from isthmus.frontends.a2a.caller_messages import (
    BadInstruction,
    CommandInstruction,
    Instruction,
    Saying,
    ToolInstruction,
    read_instruction,
    read_reply,
    without_headers,
)
from isthmus.model.calls import Answered, Declined
from isthmus.model.tasks import DataPart, FilePart, Message, Part, TextPart
from tests.unit.core.doubles import raw

COMMAND = {"mcp_target_url": "files", "mcp_method": "tools/call"}
EXECUTE = {"target_mcp_server_id": "files", "tool_name": "read", "arguments": {"path": "x"}}


def read(*parts: Part, metadata: Any = None) -> Instruction:
    received = Raw() if metadata is None else raw(metadata)
    return read_instruction(Message("m", "user", parts, metadata=received))


def data(value: Any) -> DataPart:
    return DataPart(raw(value))


@pytest.mark.parametrize("is_text", [False, True])
def test_an_instruction_is_data_or_text_that_is_json(*, is_text: bool) -> None:
    def part(value: Any) -> Part:
        return TextPart(f" {json.dumps(value)}\n") if is_text else data(value)

    assert read(part({"tool": "a.b"})) == ToolInstruction("a.b", raw({}))
    received = read(part({"tool": "b", "server": "a", "arguments": {"x": 1}}))
    assert received == ToolInstruction("b", raw({"x": 1}), "a")
    assert read(part(EXECUTE)) == ToolInstruction("read", raw({"path": "x"}), "files", "execute")
    assert read(part(COMMAND)) == CommandInstruction("files", "tools/call")


def test_the_first_data_object_counts() -> None:
    parts = (
        TextPart("please"),
        FilePart(url="https://example.com"),
        data([1]),
        data({"tool": "a"}),
        data({"tool": "b"}),
    )
    assert read(*parts) == ToolInstruction("a", raw({}))


def test_a_command_has_all_that_it_can_have() -> None:
    whole = {
        **COMMAND,
        "mcp_params": {"name": "x"},
        "mcp_request_path": "/mcp",
        "mcp_request_id": 12,
        "mcp_headers": {"x-a": "b"},
    }
    received = CommandInstruction("files", "tools/call", raw({"name": "x"}), "/mcp", Raw(b"12"), {"x-a": "b"})
    assert read(data(whole)) == received
    assert read(data({**COMMAND, "mcp_params": None, "mcp_headers": None})) == CommandInstruction("files", "tools/call")


def test_null_members_count_as_omitted() -> None:
    nothing = dict.fromkeys(("mcp_params", "mcp_request_path", "mcp_request_id", "mcp_headers"))
    assert read(data({**COMMAND, **nothing})) == CommandInstruction("files", "tools/call")


def test_of_headers_only_the_names_are_kept() -> None:
    part = DataPart(
        Raw(b'{"mcp_target_url":"a://b","n":1.50,"mcp_headers":{"X-A":"hunter22","X-B":5}}'), "application/json"
    )
    kept = without_headers(Message("m", "user", (part, TextPart("mcp_headers"), FilePart(url="https://example.com"))))
    assert kept.parts[1:] == (TextPart("mcp_headers"), FilePart(url="https://example.com"))
    first = kept.parts[0]
    assert isinstance(first, DataPart)
    assert bytes(first.data) == b'{"mcp_target_url":"a://b","n":1.50,"mcp_headers":{"X-A":null,"X-B":null}}'
    assert first.media_type == "application/json"


@pytest.mark.parametrize(
    "written",
    [
        '{"mcp_headers":{"X-A":"hunter22"}}',
        ' {"mcp\\u005fheaders":{"X-A":"hunter22"}}',
        '{"mcp_headers":"hunter22"}',
        '{"mcp_headers":["hunter22"]}',
        '{"mcp_headers":{"X-A":{"X-B":"hunter22"}}}',
        '{"mcp_method":"a","mcp_headers":{"X-A":"hunter22"},"mcp_method":"b"}',
        '{"mcp_headers":{},"mcp_headers":{"X-A":"hunter22"}}',
        '{"a":1,"a":2,"mcp\\u005fheaders":{"X-A":"hunter22"}}',
    ],
)
def test_headers_are_not_kept_however_they_are_written(written: str) -> None:
    for part in (TextPart(written), DataPart(Raw(written.strip().encode()))):
        assert b"hunter22" not in msgspec.json.encode(without_headers(Message("m", "user", (part,))))


def test_headers_are_not_kept_of_an_instruction_that_was_cut_short() -> None:
    said = Message("m", "user", (TextPart('{"mcp_target_url":"files","mcp_headers":{"X-A":"hunter22"}'),))
    assert b"hunter22" not in msgspec.json.encode(without_headers(said))


def test_an_instruction_stored_without_its_headers_cannot_run_again() -> None:
    said = Message("m", "user", (data({**COMMAND, "mcp_headers": {"X-A": "b"}}),))
    received = read_instruction(without_headers(said))
    assert isinstance(received, BadInstruction)
    assert received.message == "mcp_headers are not kept: give the whole instruction again"


@given(st.recursive(st.none() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_a_message_without_headers_is_kept_as_it_is(value: Any) -> None:
    said = Message("m", "user", (data(value), data({"a": value}), TextPart(json.dumps(value))))
    assert without_headers(said) is said


def test_arguments_keep_their_text() -> None:
    part = DataPart(Raw(b'{"tool":"a","arguments":{"z":1.50,"a":12345678901234567890123}}'))
    received = read(part)
    assert isinstance(received, ToolInstruction)
    assert bytes(received.arguments) == b'{"z":1.50,"a":12345678901234567890123}'


@pytest.mark.parametrize("key", ["skill", "skillId", "skill_id"])
def test_a_skill_takes_the_data_as_its_arguments(key: str) -> None:
    assert read(data({"tool": 1}), metadata={key: "files.read"}) == ToolInstruction("files.read", raw({"tool": 1}))
    assert read(TextPart("go"), metadata={key: "files.read"}) == ToolInstruction("files.read", raw({}), words="go")
    assert read(TextPart("go"), metadata={key: "mcp.execute_tool"}) == Saying("go", "execute")
    assert read(TextPart("go"), metadata={key: "execute_mcp_command"}) == Saying("go", "command")
    assert read(data(EXECUTE), metadata={key: "mcp.execute_tool"}) == read(data(EXECUTE))
    assert read(data(COMMAND), metadata={key: "execute_mcp_command"}) == read(data(COMMAND))
    assert isinstance(read(data({}), metadata={key: "mcp.execute_tool"}), BadInstruction)


TWICE = DataPart(Raw(b'{"tool":"files.read","tool":"files.delete"}'))


@pytest.mark.parametrize(
    "text",
    [
        '{"tool":"files.read","arguments":{"path":"/a","path":"/b"}}',
        '{"tool":"files.read","arguments":{"in":[{"path":"/a","p\\u0061th":"/b"}]}}',
        '{"tool":"files.read","arguments":{"big":1e400,"path":"\\u0022","path":"/b"}}',
        '{"tool":"files.read","arguments":{"big":1e400,"path":"/a","path":"/b"}}',
        '{"target_mcp_server_id":"files","tool_name":"read","arguments":{"a":{"b":1,"b":2}}}',
        '{"mcp_target_url":"files","mcp_method":"tools/call","mcp_params":{"name":"read","name":"delete"}}',
    ],
)
def test_arguments_that_have_a_member_twice_are_refused_like_an_instruction_that_has(text: str) -> None:
    for part in (DataPart(Raw(text.encode())), TextPart(text)):
        received = read(part)
        assert isinstance(received, BadInstruction)
        assert "twice" in received.message


@pytest.mark.parametrize("arguments", ['{"a":{"b":1},"c":{"b":1}}', '{"\\u0022":1,"\\"x":"\\u0022"}', '{"n":1e400}'])
def test_the_same_name_in_several_objects_is_no_repetition(arguments: str) -> None:
    received = read(DataPart(Raw(f'{{"tool":"files.read","arguments":{arguments}}}'.encode())))
    assert isinstance(received, ToolInstruction)
    assert bytes(received.arguments).decode() == arguments


@pytest.mark.parametrize("skill", [None, "files.wipe", "mcp.execute_tool", "execute_mcp_command"])
def test_data_with_duplicate_keys_is_no_instruction(skill: str | None) -> None:
    received = read(TWICE, data({"tool": "files.delete"}), metadata=None if skill is None else {"skill": skill})
    assert isinstance(received, BadInstruction)
    assert "twice" in received.message


@pytest.mark.parametrize("part", [TWICE, data(["x"]), data("x"), data(0)])
def test_a_skill_is_not_run_without_the_arguments_that_were_meant_for_it(part: DataPart) -> None:
    assert isinstance(read(part, metadata={"skill": "files.wipe"}), BadInstruction)


def test_a_skill_takes_data_that_is_nothing_for_nothing() -> None:
    assert read(data(None), metadata={"skill": "files.wipe"}) == ToolInstruction("files.wipe", raw({}))


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ({"tool": 1}, "tool"),
        ({"tool": ""}, "tool"),
        ({"tool": "a", "arguments": []}, "tool"),
        ({"tool_name": "read", "arguments": {}}, "execute"),
        ({"target_mcp_server_id": "files", "arguments": {}}, "execute"),
        ({"target_mcp_server_id": "files", "tool_name": "read"}, "execute"),
        ({"target_mcp_server_id": "files", "tool_name": "read", "arguments": 1}, "execute"),
        ({"mcp_method": "x"}, "command"),
        ({"mcp_target_url": "files"}, "command"),
        ({**COMMAND, "mcp_params": []}, "command"),
        ({**COMMAND, "mcp_headers": {"a": 1}}, "command"),
        ({**COMMAND, "mcp_request_id": {}}, "command"),
        ({**COMMAND, "mcp_request_id": True}, "command"),
        ({**COMMAND, "mcp_request_path": 5}, "command"),
    ],
)
def test_an_invalid_instruction_names_its_form(value: Any, form: str) -> None:
    received = read(data(value))
    assert isinstance(received, BadInstruction)
    assert received.form == form


def test_everything_else_is_words() -> None:
    assert read(TextPart("hello"), TextPart("you")) == Saying("hello\nyou")
    assert read(data({"a": 1})) == Saying('{"a": 1}')
    assert read(FilePart(url="https://example.com")) == Saying("")


@pytest.mark.parametrize("text", ['{"tool":"a"', "{" * 100_000, '{"a":' * 5000 + "1" + "}" * 5000, '{"a":1,"a":2}'])
def test_text_that_is_no_fit_json_is_words(text: str) -> None:
    assert read(TextPart(text)) == Saying(text)


@given(st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_any_data_is_read_without_an_exception(value: Any) -> None:
    keys = ("tool", "arguments", "tool_name", "mcp_method", "mcp_target_url", "mcp_params")
    for received in (value, dict.fromkeys(keys, value)):
        assert isinstance(read(data(received)), ToolInstruction | CommandInstruction | Saying | BadInstruction)


FORM = {
    "message": "Who?",
    "requestedSchema": {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]},
}
ELICIT = StoredQuestion("elicitation/create", raw(FORM))
URL = StoredQuestion("elicitation/create", raw({"mode": "url", "url": "https://a", "message": "Log in"}))
SAMPLE = StoredQuestion("sampling/createMessage", raw({"messages": []}))


def reply(asked: StoredQuestion, *parts: Part) -> Any:
    received = read_reply(asked, Message("m", "user", parts))
    return json.loads(bytes(received.result)) if isinstance(received, Answered) else received


@pytest.mark.parametrize("part", [DataPart(raw({"age": 3})), TextPart('{"age": 3}')])
def test_the_values_alone_are_an_answer(part: Part) -> None:
    assert reply(ELICIT, part) == {"action": "accept", "content": {"age": 3}}


def test_an_answer_may_name_its_action() -> None:
    assert reply(ELICIT, DataPart(raw({"action": "accept", "content": {"age": 3}})))["content"] == {"age": 3}
    assert reply(ELICIT, DataPart(raw({"action": "decline"}))) == {"action": "decline"}
    assert reply(ELICIT, DataPart(raw({"action": "cancel"}))) == {"action": "cancel"}


@pytest.mark.parametrize(
    ("word", "action"), [("No.", "decline"), ("decline", "decline"), ("cancel!", "cancel"), ("stop", "cancel")]
)
def test_words_decline_and_cancel(word: str, action: str) -> None:
    assert reply(ELICIT, TextPart(word)) == {"action": action}


def test_values_that_do_not_fit_leave_the_question_open() -> None:
    for part in (
        DataPart(raw({"age": "three"})),
        DataPart(raw({})),
        DataPart(raw({"action": "accept"})),
        TextPart("yes"),
    ):
        assert "does not fit" in reply(ELICIT, part)
    assert "data part" in reply(ELICIT, TextPart("I am three"))
    assert "data part" in reply(ELICIT)


def test_an_address_is_answered_without_values() -> None:
    assert reply(URL, TextPart("done")) == {"action": "accept"}
    assert reply(URL, TextPart("no")) == {"action": "decline"}


NAME = {"properties": {"name": {"type": "string", "maxLength": 5}}, "required": ["name"], "type": "object"}


@pytest.mark.parametrize("word", ["Ann", "yes", "Ann\nof A"])
def test_words_answer_a_question_for_one_text(word: str) -> None:
    asked = StoredQuestion("elicitation/create", raw({"message": "Who?", "requestedSchema": NAME}))
    if len(word) > 5:
        assert "does not fit" in reply(asked, TextPart(word))
    else:
        assert reply(asked, TextPart(f" {word} ")) == {"action": "accept", "content": {"name": word}}
    assert reply(asked, TextPart("no")) == {"action": "decline"}
    assert "data part" in reply(asked, TextPart(""))


@pytest.mark.parametrize(
    "properties", [{}, {"a": {"type": "string"}, "b": {"type": "string"}}, {"a": {}}, {"a": 7}, []]
)
def test_words_answer_no_other_question(properties: Any) -> None:
    asked = StoredQuestion("elicitation/create", raw({"message": "?", "requestedSchema": {"properties": properties}}))
    assert "data part" in reply(asked, TextPart("Ann"))


def test_values_keep_their_text() -> None:
    asked = StoredQuestion("elicitation/create", raw({"message": "?"}))
    received = read_reply(asked, Message("m", "user", (TextPart('{"n":1.50,"big":12345678901234567890123}'),)))
    assert isinstance(received, Answered)
    assert b'"content":{"n":1.50,"big":12345678901234567890123}' in bytes(received.result)


def test_other_questions_are_answered_by_their_result() -> None:
    assert reply(SAMPLE, DataPart(raw({"role": "assistant"}))) == {"role": "assistant"}
    assert reply(SAMPLE, TextPart("no")) == Declined(-1, "The caller declined")
    assert "sampling/createMessage" in reply(SAMPLE, TextPart("well"))


def test_deep_text_is_no_answer() -> None:
    assert "data part" in reply(ELICIT, TextPart('{"a":' * 5000 + "1" + "}" * 5000))
