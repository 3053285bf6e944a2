"""A task as its caller is shown it, made from what is kept of it."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Literal, TypeAlias
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from isthmus.core.tasks.live_task import Report
from isthmus.core.tasks.record import StoredOutcome, StoredQuestion, TaskRecord
from isthmus.frontends.a2a.caller_messages import Form
from isthmus.model.calls import LogMessage, Progress
from isthmus.model.faults import FAULTS, INVALID_PARAMS, NOT_CONNECTED, FaultRow, is_unsent
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
from isthmus.wire.mcp.calls import json_tool_result
from isthmus.wire.mcp.messages import read_string

UNREADABLE = (msgspec.MsgspecError, RecursionError)
"""The second for JSON that is nested too deeply, which depends on who reads it from where."""


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
"""JSON with its fractions as they are spelt."""


def parts_of(result: Raw) -> tuple[Part, ...]:
    """The parts that a result is made of; whatever cannot be read is there as the JSON that it is."""
    try:
        read, rest = _result(result), ABSENT
    except UNREADABLE:
        read, rest = _beside(result)
    parts = tuple(_result_parts(read))
    if parts and rest:
        return *parts, DataPart(rest, "application/json")
    return parts or (_value_part(result),)


def _beside(result: Raw) -> tuple[_Result, Raw]:
    """Of a result that has more members than MCP's, what MCP knows of it, and the others; nothing if it is another."""
    members = object_members(result) or {}
    known = {name: value for name, value in members.items() if name in _MEMBERS}
    try:
        return _result(render(known)), Raw(render({name: members[name] for name in members if name not in known}))
    except UNREADABLE:
        return _Result(), ABSENT


_MEMBERS = frozenset(_Result.__struct_encode_fields__)


def _value_part(result: Raw) -> Part:
    """What a server returned that is no result of MCP: a text as such, anything else as the JSON that it is."""
    try:
        return TextPart(msgspec.json.decode(result, type=str))
    except UNREADABLE:
        return DataPart(result, "application/json")


def _result_parts(read: _Result) -> Iterator[Part]:
    structured = ABSENT if bytes(read.structuredContent) == b"null" else read.structuredContent
    if structured:
        yield DataPart(structured, "application/json")
    for raw in read.content:
        part = _part(raw)
        if not (structured and _repeats(part, structured)):
            yield part


def _repeats(part: Part, structured: Raw) -> bool:
    """Whether a part is the text as which servers repeat structured content, for those who know nothing else."""
    return isinstance(part, TextPart) and not part.metadata and _says(part.text, structured)


def _says(text: str, value: Raw) -> bool:
    """Whether a text is the same JSON as a value, whatever the order and the spaces."""
    if text[:1] not in ("{", "["):
        return False
    try:
        return _ordered(text) == _ordered(value)
    except UNREADABLE:
        return False


def _ordered(text: str | Raw) -> bytes:
    """JSON in one spelling; as values `1` and `true` would be the same."""
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
    """What is said of a part beside what it is."""
    if not about:
        return ABSENT
    members = {name: value for name, value in about.items() if value and bytes(value) != b"null"}
    return Raw(render(members)) if members else ABSENT


def _merged(outer: Payload, inner: Payload) -> Payload:
    """What is said of a block and of the resource in it; of both at once, what the resource says counts."""
    of_block, of_resource = object_members(outer), object_members(inner)
    if not of_block or not of_resource:
        return inner if of_resource else outer
    return render({**of_block, **of_resource})


def _embedded(resource: _Resource, about: dict[str, Payload], raw: Raw) -> Part:
    """A resource as it is; where it is from is told beside it, and its type too, for which a text may have no place."""
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

AGENTVAULT_CODES = {"bad_instruction": "INVALID_INPUT", "unknown_server": "MCP_SERVER_NOT_FOUND"}
"""AgentVault's codes for instructions that this frontend refuses before they are a call."""

INSTRUCTION_REASONS = frozenset({"bad_instruction", "unknown_tool", "bad_arguments"})
"""What is wrong with the instruction itself, so that another one would help."""

JSON_TYPE = "application/json"


class StoredInstruction(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the face remembers of an instruction."""

    form: Form = "tool"
    tool: str = ""
    id: Raw = ABSENT
    """What a command's answer repeats."""


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
    """A sentence for people about what went wrong; None if nothing did."""
    if ending.result and not ending.is_error:
        return None
    if brief.form == "execute":
        source, code, message = _blame(ending, brief)
        return f"[{source}/{code}] {message}"
    return ending.message or f"{brief.tool or 'The tool'} reported an error"


# -- {success, mcp_result | error} ---------------------------------------------------------------------------------


def _execute_output(ending: StoredOutcome, brief: StoredInstruction) -> bytes:
    if ending.result and not ending.is_error:
        # `mcp_result` is an object there: any other value is told as a tool of MCP would.
        is_object = bytes(memoryview(ending.result)[:1]) == b"{"
        told = ending.result if is_object else json_tool_result(ending.result).payload
        return render({"success": b"true", "mcp_result": told})
    source, code, message = _blame(ending, brief)
    error: dict[str, Payload] = {"source": _json(source), "code": _json(code), "message": _json(message)}
    if details := _details(ending):
        error["details"] = render(details)
    return render({"success": b"false", "error": render(error)})


def _blame(ending: StoredOutcome, brief: StoredInstruction) -> tuple[str, str, str]:
    if ending.result:
        return "MCP_TOOL", "TOOL_EXECUTION_FAILED", f"Execution failed for tool '{brief.tool}'"
    if ending.code is not None:
        return "MCP_PROTOCOL", str(ending.code), ending.message
    code = AGENTVAULT_CODES.get(ending.reason) or _row(ending).agentvault
    return "A2A_PROXY", code, ending.message


def _details(ending: StoredOutcome) -> dict[str, Payload]:
    if ending.result:
        content = _member(ending.result, "content")
        return {"mcp_tool_error_content": content} if content else {}
    details: dict[str, Payload] = {"executed": _json(ending.executed), "reason": _json(ending.reason)}
    if ending.data:
        details["mcp_protocol_error_data"] = ending.data
    return details


# -- {mcp_request_id_echo, mcp_response_id, mcp_result | mcp_error} ----------------------------------------------------


def _command_output(ending: StoredOutcome, brief: StoredInstruction) -> bytes:
    output: dict[str, Payload] = {"mcp_request_id_echo": brief.id, "mcp_response_id": brief.id}
    if ending.result:
        output["mcp_result"] = ending.result
    else:
        output["mcp_error"] = _command_error(ending)
    return render(output)


def _command_error(ending: StoredOutcome) -> bytes:
    data: dict[str, Payload] = {
        "kind": _json(kind_of(ending)),
        "executed": _json(ending.executed),
        "reason": _json(ending.reason),
    }
    if ending.server is not None:
        data["server"] = _json(ending.server)
    if ending.retry_after is not None:
        data["retryAfter"] = msgspec.json.encode(round(ending.retry_after, 3))
    if ending.data:
        data["mcp_data"] = ending.data
    return render({"code": b"%d" % _code(ending), "message": _json(ending.message), "data": render(data)})


def _code(ending: StoredOutcome) -> int:
    """The code that the same failure has over MCP."""
    if ending.code is not None:
        return ending.code
    if ending.reason in AGENTVAULT_CODES:
        return INVALID_PARAMS
    return NOT_CONNECTED if is_unsent(ending.reason, ending.executed) else _row(ending).mcp


def kind_of(ending: StoredOutcome) -> ErrorKind:
    """Where a failure comes from."""
    return "request" if ending.reason in AGENTVAULT_CODES else _row(ending).a2a_kind


def _row(ending: StoredOutcome) -> FaultRow:
    # Another version of the hub may have stored a reason that this one does not know.
    return FAULTS.get(ending.reason, FAULTS["internal"])


def _member(payload: Raw, key: str) -> Raw:
    try:
        return msgspec.json.decode(payload, type=dict[str, Raw]).get(key, ABSENT)
    except msgspec.MsgspecError:
        return ABSENT


def _json(text: str) -> bytes:
    return msgspec.json.encode(text)


RESULT = "result"
"""The id of the one artifact of a task."""

QUESTION = "question-"
"""How the ids of questions go on after the task's."""

ANSWER = "isthmus/answer"
"""What a tool says in the `_meta` of its result to be answered by a `message`, and not by a task."""

ANSWER_BYTES = ANSWER.encode()

_decode_stored_instruction = msgspec.json.Decoder(StoredInstruction).decode


def brief_of(record: TaskRecord) -> StoredInstruction:
    """What the face kept of the instruction."""
    return _decode_stored_instruction(record.brief) if record.brief else StoredInstruction()


def shown(record: TaskRecord) -> Task:
    """The whole task. In AgentVault's dialect an answer is a message, everywhere else an artifact."""
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


def direct_answer(record: TaskRecord) -> Message | None:
    """The answer alone, where its tool wants it said without a task around it."""
    ending = record.ending
    if record.state != "completed" or ending is None or ANSWER_BYTES not in bytes(ending.result):
        return None
    brief = brief_of(record)
    meta = object_members((object_members(ending.result) or {}).get("_meta", ABSENT)) or {}
    if brief.form != "tool" or read_string(meta.get(ANSWER)) != "message":
        return None
    return replace(agent_says(record, RESULT, answer_parts(ending, brief)), context=record.context)


def artifacts_of(record: TaskRecord, brief: StoredInstruction) -> tuple[Artifact, ...]:
    """What the work brought forth; a failure too, where its form has a place for it."""
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
        return record.said[-1]  # which tools there are, to who did not say which
    return None


def question_of(record: TaskRecord) -> Message | None:
    """What a server asks, as the agent says it now and as it stays in the task's history."""
    if record.asked is None or record.owner.realm:
        return None
    # Nothing else is said while it is open, so this id is its own.
    return agent_says(record, f"{QUESTION}{len(record.said)}", question_parts(record.asked))


def without_questions(task: Task) -> Task:
    """A task whose history lacks what was asked and answered.

    For who just answered: Google's ADK takes the last message of the agent in a task without artifacts for its answer.
    """
    questions = f"{task.id}-{QUESTION}"
    return replace(task, history=tuple(each for each in task.history if not each.id.startswith(questions)))


def facts_of(ending: StoredOutcome) -> Raw:
    """What a failure is to programs, whatever the form of the instruction: above all, whether the tool ran."""
    facts: dict[str, Payload] = {"executed": msgspec.json.encode(ending.executed)}
    if ending.reason:
        facts["reason"] = msgspec.json.encode(ending.reason)
    if ending.server is not None:
        facts["server"] = msgspec.json.encode(ending.server)
    if ending.code is not None:
        facts["code"] = msgspec.json.encode(ending.code)
    if ending.data:
        facts["data"] = ending.data
    return Raw(render(facts))


def agent_says(record: TaskRecord, what: str, parts: tuple[Part, ...]) -> Message:
    """A message of the agent's; its id is the same whenever it is made."""
    return Message(f"{record.id}-{what}", "agent", parts)


def question_parts(asked: StoredQuestion) -> tuple[Part, ...]:
    """A server's question: its words for people, and all of it for programs."""
    members = object_members(asked.params) or {}
    whole = DataPart(
        Raw(render({"method": msgspec.json.encode(asked.method), "params": asked.params})), "application/json"
    )
    text = read_string(members.get("message"))
    if read_string(members.get("mode")) == "url":
        text = f"{text or ''}\n{read_string(members.get('url')) or ''}".strip()
    return (whole,) if text is None else (TextPart(text), whole)


def reported(record: TaskRecord, noted: Report) -> TaskStatusUpdate:
    """What a tool reports while it works; its number tells it from others of the same moment."""
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
