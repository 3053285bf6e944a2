"""Conversions between MCP and A2A messages: tool arguments, questions and answers, progress, and failures.

Pure. Another hub passes MCP questions, reports and faults through unchanged; other agents write text. Called by the
link and remote tasks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec
from msgspec import Raw

from isthmus.core.calls.inflight import InFlight
from isthmus.model.calls import LOG_LEVELS, Event, LogMessage, Progress, Question
from isthmus.model.faults import ServerError
from isthmus.model.names import ServerName
from isthmus.model.tasks import ABSENT, DataPart, Message, Part, TaskStatus, TextPart
from isthmus.upstream.a2a.agent_card import SkillTool
from isthmus.upstream.redaction import Redact, redact_json
from isthmus.wire.a2a.fields import null_as_absent
from isthmus.wire.jsonrpc import INVALID_PARAMS, object_members, render
from isthmus.wire.mcp.calls import QUESTIONS
from isthmus.wire.mcp.messages import is_object, read_log, read_string

SKILL = "skill"
"""Where a message's metadata names the skill that is meant: agents have no other place for it, and need not look."""


class TaskMessage(msgspec.Struct, frozen=True):
    """What the first message of a commission says, and where it belongs."""

    parts: tuple[Part, ...]
    metadata: Raw = ABSENT
    task: str = ""
    context: str = ""
    takes_text: bool = True
    """The tool takes words, and the task that they are about."""


class _TextArguments(msgspec.Struct):
    message: str
    data: Raw = ABSENT
    task_id: str | None = None
    context_id: str | None = None


_TEXT_ARGUMENTS = msgspec.json.Decoder(_TextArguments)


def message_for(offered: SkillTool, arguments: Raw) -> TaskMessage | str:
    """What the arguments of a tool tell its agent, or what is wrong with them."""
    metadata = Raw(msgspec.json.encode({SKILL: offered.skill})) if offered.skill else ABSENT
    if not offered.takes_text:
        return TaskMessage((DataPart(arguments, "application/json"),), metadata, takes_text=False)
    try:
        words = _TEXT_ARGUMENTS.decode(arguments)
    except msgspec.MsgspecError as error:
        return str(error)
    data = null_as_absent(words.data)
    parts: tuple[Part, ...] = (TextPart(words.message),)
    if data:
        parts = (*parts, DataPart(data, "application/json"))
    return TaskMessage(parts, metadata, words.task_id or "", words.context_id or "")


ELICIT = "elicitation/create"
SCHEMA_KEYS = ("requestedSchema", "schema", "inputSchema", "input_schema")
"""Where agents put the schema of what they want to know."""

FLAT = frozenset({"string", "number", "integer", "boolean"})
"""What a field of a form may be."""

NO_WORDS = "The agent needs more input."
ANSWER = "message"
"""The field of a form that only asks for words."""

_encode = msgspec.json.Encoder().encode
_TEXT_SCHEMA = _encode(
    {
        "type": "object",
        "properties": {ANSWER: {"type": "string", "title": "Answer"}},
        "required": [ANSWER],
    }
)


class AgentQuestion(NamedTuple):
    """A question, and how its answer is told the agent."""

    question: Question
    is_hubs_own: bool = False
    """The answer is told as it is: it is another hub's question."""
    takes_text: bool = False
    """The answer is one text."""


def question_in(parts: Iterable[Part]) -> AgentQuestion:
    """The question that an agent's message asks."""
    parts = tuple(parts)
    objects = [members for part in parts if isinstance(part, DataPart) and (members := object_members(part.data))]
    for members in objects:
        if (method := read_string(members.get("method"))) in QUESTIONS and is_object(members.get("params", Raw())):
            return AgentQuestion(Question(method, members["params"]), is_hubs_own=True)
    words = _encode("\n".join(part.text for part in parts if isinstance(part, TextPart)) or NO_WORDS)
    schema = next((schema for members in objects if (schema := _schema(members))), None)
    wanted = schema or _TEXT_SCHEMA
    params = Raw(render({"message": words, "requestedSchema": wanted}))
    return AgentQuestion(Question(ELICIT, params), takes_text=schema is None)


def _schema(members: dict[str, Raw]) -> bytes | None:
    """A schema that a form can be made of."""
    named = [members[key] for key in SCHEMA_KEYS if key in members]
    for schema in (*named, Raw(render(members))):
        if _is_form(schema):
            return bytes(schema)
    return None


class _Field(msgspec.Struct):
    type: str = ""


class _Form(msgspec.Struct):
    type: str
    properties: dict[str, _Field]


_FORM = msgspec.json.Decoder(_Form)


def _is_form(schema: Raw) -> bool:
    try:
        form = _FORM.decode(schema)
    except msgspec.MsgspecError:
        return False
    return form.type == "object" and all(field.type in FLAT for field in form.properties.values())


class _Elicited(msgspec.Struct):
    action: str = ""
    content: dict[str, Raw] | None = None


_ELICITED = msgspec.json.Decoder(_Elicited)


def answer_parts(asking: AgentQuestion, result: Raw) -> tuple[Part, ...] | None:
    """The parts that tell an agent the answer; None if there is none: the caller declined."""
    if asking.is_hubs_own:
        return (DataPart(result, "application/json"),)
    try:
        elicited = _ELICITED.decode(result)
    except msgspec.MsgspecError:
        return None
    if elicited.action != "accept":
        return None
    content = elicited.content or {}
    text = read_string(content.get(ANSWER)) if asking.takes_text else None
    return (DataPart(Raw(render(content)), "application/json"),) if text is None else (TextPart(text),)


WORDS_LENGTH_MAX = 4_096
"""Of one report; what is longer belongs into an artifact."""

_NUMBER = msgspec.json.Decoder(float)


class ProgressReports:
    """The reports of one call."""

    def __init__(self, inflight: InFlight) -> None:
        self._inflight = inflight
        self._steps = 0
        self._last: Message | None = None
        """What was told last: who looks at a task again and again sees the same words as often."""

    def tell(self, status: TaskStatus) -> None:
        """Tell the caller what the agent says of its work, if it says something new."""
        message = status.message if status.state in ("submitted", "working") else None
        if message is None or message == self._last:
            return
        self._last = message
        event = _passed_on(message) or self._worded(message)
        if event is not None and (self._inflight.call.wants_progress or isinstance(event, LogMessage)):
            self._inflight.emit(event)

    def _worded(self, message: Message) -> Event | None:
        text = "\n".join(part.text for part in message.parts if isinstance(part, TextPart))[:WORDS_LENGTH_MAX]
        if not text:
            return None
        words = Raw(_encode(text))
        if not self._inflight.call.wants_progress:
            return LogMessage("info", {"level": Raw(b'"info"'), "data": words})
        self._steps += 1
        return Progress({"progress": Raw(b"%d" % self._steps), "message": words})


def _passed_on(message: Message) -> Event | None:
    """A report of a server, as a hub passes it on."""
    for part in message.parts:
        members = object_members(part.data) if isinstance(part, DataPart) else None
        if members is None:
            continue
        if read_string(members.get("level")) in LOG_LEVELS and "data" in members:
            return read_log(members)
        if "progress" in members and _is_number(members["progress"]):
            return Progress({key: value for key, value in members.items() if key not in ("progressToken", "_meta")})
    return None


def _is_number(raw: Raw) -> bool:
    try:
        _NUMBER.decode(raw)
    except msgspec.MsgspecError:
        return False
    return True


SENT_AND_LOST, NOT_SENT = -32012, -32011
"""What the hub's other faces answer where it is not known whether a tool ran, and where it did not."""

CALLER_FAULTS = frozenset({"bad_arguments", "bad_instruction", "unknown_tool", "unknown_server", "target_refused"})
"""Reasons for which the caller is to blame."""


class _Facts(msgspec.Struct):
    executed: Literal["no", "yes", "unknown"]
    reason: str = ""


_FACTS = msgspec.json.Decoder(_Facts)


def fault_in(status: TaskStatus, server: ServerName, redact: Redact = str) -> ServerError | None:
    """The fault that a hub's status tells of, without what `redact` takes out of it; None if it tells of none."""
    message = status.message
    try:
        facts = None if message is None or not message.metadata else _FACTS.decode(message.metadata)
    except msgspec.MsgspecError:
        facts = None
    if message is None or facts is None:
        return None
    words = redact("\n".join(part.text for part in message.parts if isinstance(part, TextPart)))
    fault = ServerError(server, _code(facts), words or "It failed", redact_json(message.metadata, redact))
    fault.executed = facts.executed
    return fault


def _code(facts: _Facts) -> int:
    if facts.reason in CALLER_FAULTS:
        return INVALID_PARAMS
    return NOT_SENT if facts.executed == "no" else SENT_AND_LOST
