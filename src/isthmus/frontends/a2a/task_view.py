"""Converts stored tasks to the tasks, messages and artifacts that A2A callers see.

`http` and `grpc` use it for responses, `task_stream` for updates, `push_notifications` for notifications.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import suppress
from typing import Literal, TypeAlias
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from isthmus.core.tasks.live_task import Report
from isthmus.core.tasks.record import StoredOutcome, StoredQuestion, TaskRecord
from isthmus.frontends.a2a.caller_messages import Form, message_bytes
from isthmus.model.calls import LogMessage, Progress
from isthmus.model.fault_table import FAULTS, FaultRow, code_row
from isthmus.model.json_members import KNOWN, known_members
from isthmus.model.tasks import (
    ABSENT,
    WAITING,
    Artifact,
    DataPart,
    FilePart,
    Message,
    Part,
    Task,
    TaskStatus,
    TaskStatusUpdate,
    TextPart,
)
from isthmus.wire.jsonrpc import Payload, object_members, render
from isthmus.wire.mcp.forwarded_methods import json_tool_result
from isthmus.wire.mcp.messages import read_string

UNREADABLE = (msgspec.MsgspecError, RecursionError)
"""`RecursionError` is for JSON that is nested too deeply for the present depth of the stack."""


class _Resource(msgspec.Struct):
    uri: str = ""
    mimeType: str | None = None  # noqa: N815 - as it is spelt on the wire
    text: str | None = None
    blob: str | None = None
    meta: Raw = msgspec.field(default=ABSENT, name="_meta")


class _Block(msgspec.Struct):
    type: str = ""
    text: str | None = None
    data: str | None = None
    mimeType: str | None = None  # noqa: N815
    uri: str | None = None
    name: str | None = None
    title: Raw = ABSENT
    description: Raw = ABSENT
    size: Raw = ABSENT
    annotations: Raw = ABSENT
    resource: _Resource | None = None
    meta: Raw = msgspec.field(default=ABSENT, name="_meta")


class _Result(msgspec.Struct, forbid_unknown_fields=True):
    content: list[Raw] = []
    structuredContent: Raw = ABSENT  # noqa: N815
    isError: Raw = ABSENT  # noqa: N815
    resultType: Raw = ABSENT  # noqa: N815
    ttlMs: Raw = ABSENT  # noqa: N815
    cacheScope: Raw = ABSENT  # noqa: N815
    meta: Raw = msgspec.field(default=ABSENT, name="_meta")


_result = msgspec.json.Decoder(_Result).decode
_block = msgspec.json.Decoder(_Block).decode
_exactly = msgspec.json.Decoder(float_hook=Raw).decode
"""Decodes JSON and keeps fractions as they are written."""


def parts_of(result: Raw) -> tuple[Part, ...]:
    """The parts of a tool's result. What cannot be read becomes a data part."""
    try:
        read, rest = _result(result), ABSENT
    except UNREADABLE:
        read, rest = _known_members(result)
    parts = tuple(_result_parts(read))
    if parts and rest:
        return *parts, DataPart(rest, "application/json")
    if parts:
        return parts
    # Not a result of MCP: a text part for a string, otherwise a data part.
    try:
        return (TextPart(msgspec.json.decode(result, type=str)),)
    except UNREADABLE:
        return (DataPart(result, "application/json"),)


def _known_members(result: Raw) -> tuple[_Result, Raw]:
    """The members of a result that MCP defines, and the others as JSON; both empty if it is not a result of MCP."""
    members = object_members(result) or {}
    known = {name: value for name, value in members.items() if name in _MEMBERS}
    try:
        return _result(render(known)), Raw(render({name: members[name] for name in members if name not in known}))
    except UNREADABLE:
        return _Result(), ABSENT


_MEMBERS = frozenset(_Result.__struct_encode_fields__)


def _result_parts(read: _Result) -> Iterator[Part]:
    structured = ABSENT if bytes(read.structuredContent) == b"null" else read.structuredContent
    if structured:
        yield DataPart(structured, "application/json")
    for raw in read.content:
        part = _part(raw)
        if not (structured and _repeats(part, structured)):
            yield part


def _repeats(part: Part, structured: Raw) -> bool:
    """Whether a text part is a copy of the structured content, which servers add for older clients."""
    if not isinstance(part, TextPart) or part.metadata or part.text[:1] not in ("{", "["):
        return False
    try:
        return _ordered(part.text) == _ordered(structured)
    except UNREADABLE:
        return False


def _ordered(text: str | Raw) -> bytes:
    """JSON with sorted members and no spaces. Not compared as Python values, where `1` equals `true`."""
    return msgspec.json.encode(_exactly(text), order="sorted")


def _part(raw: Raw) -> Part:
    try:
        block = _block(raw)
    except UNREADABLE:
        return DataPart(raw, "application/json")
    about: dict[str, Payload] = {}
    if block.annotations or block.meta:
        about = {"annotations": block.annotations, "_meta": block.meta}
    if block.type == "text" and block.text is not None:
        return TextPart(block.text, metadata=_metadata(about))
    if block.type in ("image", "audio") and block.data is not None:
        return FilePart(block.data, name=block.name, media_type=block.mimeType, metadata=_metadata(about))
    if block.type == "resource_link" and block.uri is not None:
        about |= {"title": block.title, "description": block.description, "size": block.size}
        return FilePart(url=block.uri, name=block.name, media_type=block.mimeType, metadata=_metadata(about))
    if block.type == "resource" and block.resource is not None:
        return _embedded(block.resource, about, raw)
    return DataPart(raw, "application/json")


def _metadata(about: dict[str, Payload]) -> Raw:
    """The metadata of a part."""
    if not about:
        return ABSENT
    members = {name: value for name, value in about.items() if value and bytes(value) != b"null"}
    return Raw(render(members)) if members else ABSENT


def _merged(outer: Payload, inner: Payload) -> Payload:
    """The `_meta` of a block and of the resource in it; where both have a member, that of the resource counts."""
    of_block, of_resource = object_members(outer), object_members(inner)
    if not of_block or not of_resource:
        return inner if of_resource else outer
    return render({**of_block, **of_resource})


def _embedded(resource: _Resource, about: dict[str, Payload], raw: Raw) -> Part:
    """The part of an embedded resource. Metadata has its URI, and the media type of a text."""
    meta = _merged(about.get("_meta", ABSENT), resource.meta)
    about = {**about, "uri": msgspec.json.encode(resource.uri), "_meta": meta}
    name = posixpath.basename(unquote(urlsplit(resource.uri).path)) or None
    if resource.blob is not None:
        return FilePart(resource.blob, name=name, media_type=resource.mimeType, metadata=_metadata(about))
    if resource.text is not None:
        about["mimeType"] = ABSENT if resource.mimeType is None else msgspec.json.encode(resource.mimeType)
        return TextPart(resource.text, resource.mimeType, _metadata(about))
    return DataPart(raw, "application/json")


ErrorKind: TypeAlias = Literal["request", "network", "mcp", "internal"]

INSTRUCTION_REASONS = frozenset({"bad_instruction", "unknown_tool", "bad_arguments"})
"""Reasons that concern the instruction itself, so that another one would help."""

JSON_TYPE = "application/json"


class StoredInstruction(msgspec.Struct, frozen=True, omit_defaults=True):
    """What this frontend stores of an instruction."""

    form: Form = "tool"
    tool: str = ""
    id: Raw = ABSENT
    """The id that the response to a command repeats."""
    called: str = ""
    """The name of the tool in the hub (`server.tool`), if `tool` is another name of it."""


def answer_parts(ending: StoredOutcome, brief: StoredInstruction) -> tuple[Part, ...]:
    """The parts of a task's answer."""
    match brief.form:
        case "tool":
            if ending.result:
                return parts_of(ending.result)
            if ending.reason not in INSTRUCTION_REASONS:
                return (TextPart(ending.message),)
            error = {
                "kind": kind_of(ending),
                "message": ending.message,
                "reason": ending.reason,
                "executed": ending.executed,
            }
            return (DataPart(Raw(msgspec.json.encode({"error": error})), JSON_TYPE),)
        case "execute":
            return (DataPart(Raw(_execute_output(ending, brief)), JSON_TYPE),)
        case "command":
            return (DataPart(Raw(_command_output(ending, brief)), JSON_TYPE),)


def summary(ending: StoredOutcome, brief: StoredInstruction) -> str | None:
    """A sentence for people about a failure; None without one."""
    if ending.result and not ending.is_error:
        return None
    if brief.form == "execute":
        source, code, message = _explain_failure(ending, brief)
        return f"[{source}/{code}] {message}"
    return ending.message or f"{brief.tool or 'The tool'} reported an error"


# -- {success, mcp_result | error} ---------------------------------------------------------------------------------


def _execute_output(ending: StoredOutcome, brief: StoredInstruction) -> bytes:
    if ending.result and not ending.is_error:
        # `mcp_result` must be an object: any other value is wrapped like a tool's result.
        is_object = bytes(memoryview(ending.result)[:1]) == b"{"
        result = ending.result if is_object else json_tool_result(ending.result).payload
        return render({"success": b"true", "mcp_result": result})
    source, code, message = _explain_failure(ending, brief)
    error: dict[str, Payload] = {"source": _json(source), "code": _json(code), "message": _json(message)}
    details: dict[str, Payload] = {}
    if not ending.result:
        details = {"executed": _json(ending.executed), "reason": _json(ending.reason)}
        if ending.retry_after is not None:
            details["retryAfter"] = _seconds(ending.retry_after)
        if ending.data:
            details["mcp_protocol_error_data"] = ending.data
    else:
        with suppress(msgspec.MsgspecError):  # a result that is not an object
            members = msgspec.json.decode(ending.result, type=dict[str, Raw])
            if content := members.get("content", ABSENT):
                details["mcp_tool_error_content"] = content
    if details:
        error["details"] = render(details)
    return render({"success": b"false", "error": render(error)})


def _explain_failure(ending: StoredOutcome, brief: StoredInstruction) -> tuple[str, str, str]:
    if ending.result:
        return "MCP_TOOL", "TOOL_EXECUTION_FAILED", f"Execution failed for tool '{brief.tool}'"
    if ending.code is not None:
        return "MCP_PROTOCOL", str(ending.code), ending.message
    return "A2A_PROXY", _row(ending).agentvault, ending.message


# -- {mcp_request_id_echo, mcp_response_id, mcp_result | mcp_error} ----------------------------------------------------


def _command_output(ending: StoredOutcome, brief: StoredInstruction) -> bytes:
    output: dict[str, Payload] = {"mcp_request_id_echo": brief.id, "mcp_response_id": brief.id}
    if ending.result:
        output["mcp_result"] = ending.result
    else:
        data: dict[str, Payload] = {
            "kind": _json(kind_of(ending)),
            "executed": _json(ending.executed),
            "reason": _json(ending.reason),
        }
        if ending.server is not None:
            data["server"] = _json(ending.server)
        if ending.retry_after is not None:
            data["retryAfter"] = _seconds(ending.retry_after)
        if ending.data:
            data["mcp_data"] = ending.data
        output["mcp_error"] = render(
            {"code": b"%d" % _code(ending), "message": _json(ending.message), "data": render(data)}
        )
    return render(output)


def _code(ending: StoredOutcome) -> int:
    """The code of the same failure in MCP."""
    if ending.code is not None:
        return ending.code
    return code_row(ending.reason, ending.executed).mcp


def kind_of(ending: StoredOutcome) -> ErrorKind:
    """The origin of a failure."""
    return _row(ending).a2a_kind


def _row(ending: StoredOutcome) -> FaultRow:
    # Another version of the hub may have stored a reason that this one does not know.
    return FAULTS.get(ending.reason, FAULTS["internal"])


def _json(text: str) -> bytes:
    return msgspec.json.encode(text)


def _seconds(pause: float) -> bytes:
    return msgspec.json.encode(round(pause, 3))


RESULT = "result"
"""The id of a task's only artifact."""

QUESTION = "question-"
"""Part of the ids of questions, after the task's id."""

ANSWER = "isthmus/answer"
"""The member of a result's `_meta` by which a tool chooses its response: `message` instead of a task."""

ANSWER_BYTES = ANSWER.encode()

_decode_stored_instruction = msgspec.json.Decoder(StoredInstruction).decode


def brief_of(record: TaskRecord) -> StoredInstruction:
    """The stored instruction of a task."""
    return _decode_stored_instruction(record.brief) if record.brief else StoredInstruction()


def whole_task(record: TaskRecord) -> Task:
    """The whole task. In AgentVault's dialect the result is a message, in all others an artifact."""
    brief = brief_of(record)
    artifacts = artifacts_of(record, brief)
    history = record.said
    if record.origin == "agentvault" and artifacts:
        history = (*history, agent_says(record, RESULT, artifacts[0].parts))
        artifacts = ()
    return Task(
        record.id,
        record.context,
        TaskStatus(record.state, record.updated, _status_message(record, brief)),
        record.created,
        artifacts,
        history,
        record.metadata,
    )


def record_bytes(record: TaskRecord) -> int:
    """The approximate size of a task's messages and result."""
    result = 0 if record.ending is None else len(memoryview(record.ending.result))
    return result + sum(map(message_bytes, record.said))


def task_bytes(task: Task) -> int:
    """The approximate size of a task's history and artifacts."""
    return sum(map(message_bytes, task.history)) + sum(map(message_bytes, task.artifacts))


def direct_answer(record: TaskRecord) -> Message | None:
    """The result as a message without a task, if its tool requests that; see `ANSWER`."""
    ending = record.ending
    if record.state != "completed" or ending is None:
        return None
    members = known_members(ending.result) if KNOWN else None  # of a long result
    if ANSWER_BYTES not in bytes(ending.result if members is None else members.get("_meta", ABSENT)):
        return None
    brief = brief_of(record)
    meta = object_members((object_members(ending.result) or {}).get("_meta", ABSENT)) or {}
    if brief.form != "tool" or read_string(meta.get(ANSWER)) != "message":
        return None
    return replace(agent_says(record, RESULT, answer_parts(ending, brief)), context=record.context)


def artifacts_of(record: TaskRecord, brief: StoredInstruction) -> tuple[Artifact, ...]:
    """The result of a task as an artifact. A failure is one as well, if the form of its instruction defines that."""
    ending = record.ending
    if ending is None or (brief.form == "tool" and not ending.result and ending.reason not in INSTRUCTION_REASONS):
        return ()
    return (Artifact(RESULT, answer_parts(ending, brief), brief.tool or None),)


def _status_message(record: TaskRecord, brief: StoredInstruction) -> Message | None:
    if record.asked is not None:
        return question_of(record)
    if record.ending is not None and (text := summary(record.ending, brief)) is not None:
        said = agent_says(record, "status", (TextPart(text),))
        return msgspec.structs.replace(said, metadata=facts_of(record.ending))
    if record.state in WAITING and record.said and record.said[-1].role == "agent":
        return record.said[-1]  # suggests tools to a caller that named none
    return None


def question_of(record: TaskRecord) -> Message | None:
    """The open question of a server as a message, for the status of the task and later for its history."""
    if record.asked is None or record.owner.realm:
        return None
    # The history does not grow while the question is open, so the id is unique.
    return agent_says(record, f"{QUESTION}{len(record.said)}", question_parts(record.asked))


def without_questions(task: Task) -> Task:
    """A task without the questions in its history.

    For a caller that just answered one: Google's ADK takes the agent's last message in a task without artifacts as the
    result.
    """
    questions = f"{task.id}-{QUESTION}"
    return replace(task, history=tuple(each for each in task.history if not each.id.startswith(questions)))


def facts_of(ending: StoredOutcome) -> Raw:
    """A failure as metadata for programs, above all whether the tool ran. It is the same for all forms."""
    facts: dict[str, Payload] = {"executed": msgspec.json.encode(ending.executed)}
    if ending.reason:
        facts["reason"] = msgspec.json.encode(ending.reason)
    if ending.server is not None:
        facts["server"] = msgspec.json.encode(ending.server)
    if ending.retry_after is not None:
        facts["retryAfter"] = _seconds(ending.retry_after)
    if ending.approval is not None:
        facts["approval"] = msgspec.json.encode(ending.approval)
    if ending.code is not None:
        facts["code"] = msgspec.json.encode(ending.code)
    if ending.data:
        facts["data"] = ending.data
    return Raw(render(facts))


def agent_says(record: TaskRecord, what: str, parts: tuple[Part, ...]) -> Message:
    """A message of the agent; the same `what` always gives the same id."""
    return Message(f"{record.id}-{what}", "agent", parts)


def question_parts(asked: StoredQuestion) -> tuple[Part, ...]:
    """The parts of a server's question: a text for people, and the whole request for programs."""
    members = object_members(asked.params) or {}
    whole = DataPart(
        Raw(render({"method": msgspec.json.encode(asked.method), "params": asked.params})), "application/json"
    )
    text = read_string(members.get("message"))
    if read_string(members.get("mode")) == "url":
        text = f"{text or ''}\n{read_string(members.get('url')) or ''}".strip()
    return (whole,) if text is None else (TextPart(text), whole)


def reported(record: TaskRecord, noted: Report) -> TaskStatusUpdate:
    """A report of a running tool as a status update; the number makes its id unique."""
    parts: tuple[Part, ...]
    match noted.event:
        case Progress(members=members):
            text = read_string(members.get("message"))
            data = DataPart(Raw(render(members)), "application/json")
            parts = (data,) if text is None else (TextPart(text), data)
        case LogMessage(members=members):
            parts = (DataPart(Raw(render(members)), "application/json"),)
    message = Message(f"{record.id}-{noted.at:.6f}-{noted.number}", "agent", parts)
    return TaskStatusUpdate(record.id, record.context, TaskStatus("working", noted.at, message))
