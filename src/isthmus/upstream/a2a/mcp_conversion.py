"""Conversions between MCP and A2A: tool arguments, questions and answers, progress, faults, artifacts and results.

Pure. Another hub passes MCP questions, reports, faults and results through unchanged; other agents write text. JSON is
kept byte for byte. Called by the link and remote tasks.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple
from urllib.parse import quote

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from isthmus.core.calls.running_call import InFlight
from isthmus.model.calls import LOG_LEVELS, Event, LogMessage, Progress, Question, Result
from isthmus.model.fault_table import FAULTS, NOT_CONNECTED, SENT_AND_LOST, ServerError
from isthmus.model.names import ServerName
from isthmus.model.tasks import (
    ABSENT,
    Artifact,
    DataPart,
    FilePart,
    Message,
    Part,
    TaskArtifactUpdate,
    TaskStatus,
    TextPart,
)
from isthmus.upstream.a2a.card_to_tools import SkillTool
from isthmus.upstream.credential_redaction import Redact, redact_json
from isthmus.wire.a2a.v1_0 import null_as_absent
from isthmus.wire.jsonrpc import Payload, compact, object_members, render
from isthmus.wire.mcp.forwarded_methods import QUESTIONS
from isthmus.wire.mcp.messages import is_object, read_log, read_string

SKILL = "skill"
"""The metadata of a message that names the skill. A2A has no field for it, and agents may ignore it."""


class TaskMessage(msgspec.Struct, frozen=True):
    """The first message of a remote task, and the task and context that it continues."""

    parts: tuple[Part, ...]
    metadata: Raw = ABSENT
    task: str = ""
    context: str = ""
    takes_text: bool = True
    """The tool takes a text and a task id, not arguments of its own schema."""


class _TextArguments(msgspec.Struct):
    message: str
    data: Raw = ABSENT
    task_id: str | None = None
    context_id: str | None = None


_TEXT_ARGUMENTS = msgspec.json.Decoder(_TextArguments)


def message_for(offered: SkillTool, arguments: Raw) -> TaskMessage | str:
    """The message for a tool call; a string says why its arguments are invalid."""
    metadata = Raw(msgspec.json.encode({SKILL: offered.skill})) if offered.skill else ABSENT
    if not offered.takes_text:
        return TaskMessage((DataPart(arguments, "application/json"),), metadata, takes_text=False)
    try:
        given = _TEXT_ARGUMENTS.decode(arguments)
    except msgspec.MsgspecError as error:
        return str(error)
    parts: tuple[Part, ...] = (TextPart(given.message),)
    if data := null_as_absent(given.data):
        parts = (*parts, DataPart(data, "application/json"))
    return TaskMessage(parts, metadata, given.task_id or "", given.context_id or "")


ELICIT = "elicitation/create"
SCHEMA_KEYS = ("requestedSchema", "schema", "inputSchema", "input_schema")
"""Members under which agents send the schema of the input that they need."""

FLAT_TYPES = frozenset({"string", "number", "integer", "boolean"})
"""The types of fields that MCP allows in a form."""

DEFAULT_QUESTION = "The agent needs more input."
ANSWER_FIELD = "message"
"""The field of a form with a single text."""

_encode = msgspec.json.Encoder().encode
_TEXT_SCHEMA = _encode(
    {
        "type": "object",
        "properties": {ANSWER_FIELD: {"type": "string", "title": "Answer"}},
        "required": [ANSWER_FIELD],
    }
)


class AgentQuestion(NamedTuple):
    """A question, and the form of the answer that the agent gets."""

    question: Question
    is_hubs_own: bool = False
    """It is a question of another hub, which gets the answer unchanged."""
    takes_text: bool = False
    """The answer is one text."""


def question_in(parts: Iterable[Part]) -> AgentQuestion:
    """The question in an agent's message."""
    parts = tuple(parts)
    objects = [members for part in parts if isinstance(part, DataPart) and (members := object_members(part.data))]
    for members in objects:
        if (method := read_string(members.get("method"))) in QUESTIONS and is_object(members.get("params", Raw())):
            return AgentQuestion(Question(method, members["params"]), is_hubs_own=True)
    words = _encode("\n".join(part.text for part in parts if isinstance(part, TextPart)) or DEFAULT_QUESTION)
    schemas = (
        schema
        for members in objects
        for schema in (*(members[key] for key in SCHEMA_KEYS if key in members), Raw(render(members)))
    )
    form = next((schema for schema in schemas if _is_form(schema)), None)
    params = Raw(render({"message": words, "requestedSchema": _TEXT_SCHEMA if form is None else form}))
    return AgentQuestion(Question(ELICIT, params), takes_text=form is None)


class _Field(msgspec.Struct):
    type: str = ""


class _Form(msgspec.Struct):
    type: str
    properties: dict[str, _Field]


_FORM = msgspec.json.Decoder(_Form)


def _is_form(schema: Raw) -> bool:
    """Whether a schema describes a form as MCP allows it: an object of flat fields."""
    try:
        form = _FORM.decode(schema)
    except msgspec.MsgspecError:
        return False
    return form.type == "object" and all(field.type in FLAT_TYPES for field in form.properties.values())


class _Elicited(msgspec.Struct):
    action: str = ""
    content: dict[str, Raw] | None = None


_ELICITED = msgspec.json.Decoder(_Elicited)


def answer_parts(asking: AgentQuestion, result: Raw) -> tuple[Part, ...] | None:
    """The parts of the answer to an agent; None if the caller declined."""
    if asking.is_hubs_own:
        return (DataPart(result, "application/json"),)
    try:
        elicited = _ELICITED.decode(result)
    except msgspec.MsgspecError:
        return None
    if elicited.action != "accept":
        return None
    content = elicited.content or {}
    text = read_string(content.get(ANSWER_FIELD)) if asking.takes_text else None
    return (DataPart(Raw(render(content)), "application/json"),) if text is None else (TextPart(text),)


WORDS_LENGTH_MAX = 4_096
"""Longest text of one report; longer texts belong in an artifact."""

_NUMBER = msgspec.json.Decoder(float)


class ProgressReports:
    """Turns the status messages of an agent's task into progress and log messages of one call."""

    def __init__(self, inflight: InFlight) -> None:
        self._inflight = inflight
        self._steps = 0
        self._last: Message | None = None
        """The last reported message: polling returns the same message repeatedly."""

    def report(self, status: TaskStatus) -> None:
        """Send the caller a status message, unless it is the same as before."""
        message = status.message if status.state in ("submitted", "working") else None
        if message is None or message == self._last:
            return
        self._last = message
        wants_progress = self._inflight.call.wants_progress
        event = _event_of_server(message)
        text = "\n".join(part.text for part in message.parts if isinstance(part, TextPart))[:WORDS_LENGTH_MAX]
        if event is None and text and wants_progress:
            self._steps += 1
            event = Progress({"progress": Raw(b"%d" % self._steps), "message": Raw(_encode(text))})
        elif event is None and text:
            event = LogMessage("info", {"level": Raw(b'"info"'), "data": Raw(_encode(text))})
        if event is not None and (wants_progress or isinstance(event, LogMessage)):
            self._inflight.emit(event)


def _event_of_server(message: Message) -> Event | None:
    """The progress or log message of a server that another hub passes on."""
    for part in message.parts:
        members = object_members(part.data) if isinstance(part, DataPart) else None
        if members is None:
            continue
        if read_string(members.get("level")) in LOG_LEVELS and "data" in members:
            return read_log(members)
        try:
            _NUMBER.decode(members.get("progress", b""))
        except msgspec.MsgspecError:
            continue
        return Progress({key: value for key, value in members.items() if key not in ("progressToken", "_meta")})
    return None


class _FaultFacts(msgspec.Struct):
    executed: Literal["no", "yes", "unknown"]
    reason: str = ""


_FAULT_FACTS = msgspec.json.Decoder(_FaultFacts)


def fault_in(status: TaskStatus, server: ServerName, redact: Redact = str) -> ServerError | None:
    """The fault in the status of another hub's task, redacted; None if it has none."""
    message = status.message
    try:
        facts = None if message is None or not message.metadata else _FAULT_FACTS.decode(message.metadata)
    except msgspec.MsgspecError:
        facts = None
    if message is None or facts is None:
        return None
    words = redact("\n".join(part.text for part in message.parts if isinstance(part, TextPart)))
    code = NOT_CONNECTED if facts.executed == "no" else SENT_AND_LOST
    row = FAULTS.get(facts.reason)  # known if the agent is a hub, too
    if row is not None and row.executed == facts.executed:
        code = row.mcp
    fault = ServerError(server, code, words or "It failed", redact_json(message.metadata, redact))
    fault.executed = facts.executed
    return fault


# -- artifacts and results ---------------------------------------------------------------------------------------------

PIECE_KEY = "isthmus/piece"
"""The metadata with which another hub numbers the pieces of a part that it had to split."""

ARTIFACTS_MAX = 1_000
PARTS_MAX = 10_000
"""Limits per task. Text is appended to the text before it, so honest agents stay far below."""

TASK_KEY = "isthmus/agent"
"""The `_meta` member of a result with its task and context."""

DESCRIPTION_MEMBERS = ("title", "description", "size", "annotations", "_meta")
"""Members of a content block that another hub puts into the metadata of the part."""


class _Position(msgspec.Struct):
    piece: int


_POSITION = msgspec.json.Decoder(_Position)


class _PartBuffer:
    """A part, and the texts that were appended to it."""

    __slots__ = ("part", "size", "texts")

    def __init__(self, part: Part) -> None:
        kept = {"metadata": part.metadata.copy()} | ({"data": part.data.copy()} if isinstance(part, DataPart) else {})
        self.part = part = replace(part, **kept)  # a copy: a slice would keep the whole message in memory
        self.size = _size_of(part)
        self.texts = [_text_of(part)]

    def append(self, part: Part) -> None:
        """Append a part. Empty texts are skipped: they have no size, so their number would be unbounded."""
        self.size += _size_of(part)
        if text := _text_of(part):
            self.texts.append(text)

    def joined(self) -> Part:
        """The part with all appended texts."""
        part = self.part
        if isinstance(part, TextPart):
            return replace(part, text="".join(self.texts))
        return replace(part, content=_joined(self.texts)) if isinstance(part, FilePart) and part.content else part


def _text_of(part: Part) -> str:
    if isinstance(part, TextPart):
        return part.text
    return part.content or "" if isinstance(part, FilePart) else ""


def _size_of(part: Part) -> int:
    own = part.data if isinstance(part, DataPart) else _text_of(part)
    names = [getattr(part, field, "") or "" for field in ("media_type", "name", "url")]
    return len(own) + len(part.metadata) + sum(map(len, names))


def _joined(texts: Sequence[str]) -> str:
    """Join pieces of base64. Pieces that end in padding were encoded separately: decode and encode them together."""
    if not any(text.endswith("=") for text in texts[:-1]):
        return "".join(texts)
    try:
        return base64.b64encode(b"".join(base64.b64decode(text) for text in texts)).decode()
    except (binascii.Error, ValueError):
        return "".join(texts)


class ArtifactBuffer:
    """The artifacts of a task so far. Together they may have `limit_bytes`.

    Another hub says which parts belong together. Other agents stream a text in parts without saying so.
    """

    def __init__(self, limit_bytes: int, *, is_hub: bool) -> None:
        self._limit_bytes = limit_bytes
        self._is_hub = is_hub
        self._artifacts: dict[str, list[_PartBuffer]] = {}
        self._size = self._count = 0

    def replace(self, artifacts: Iterable[Artifact]) -> str | None:
        """Replace all artifacts by those of a whole task; returns an error message, or None."""
        self._artifacts = {}
        self._size = self._count = 0
        complaints = [self._put(artifact, is_more=False) for artifact in artifacts]
        return next((complaint for complaint in complaints if complaint), None)

    def add(self, update: TaskArtifactUpdate) -> str | None:
        """Add an artifact, or the next chunk of one; returns an error message, or None."""
        return self._put(update.artifact, is_more=update.is_more)

    def _put(self, artifact: Artifact, *, is_more: bool) -> str | None:
        buffers = self._artifacts.setdefault(artifact.id, [])
        if not is_more:
            self._size -= sum(buffer.size for buffer in buffers)
            self._count -= len(buffers)
            buffers.clear()
        for position, part in enumerate(artifact.parts):
            self._size += _size_of(part)
            if buffers and is_more and self._continues(part, buffers[-1].part, is_first=position == 0):
                buffers[-1].append(part)
            else:
                self._count += 1
                buffers.append(_PartBuffer(part))
        if self._size > self._limit_bytes:
            return f"artifacts of over {self._limit_bytes} bytes"
        if len(self._artifacts) > ARTIFACTS_MAX or self._count > PARTS_MAX:
            return f"over {ARTIFACTS_MAX} artifacts or {PARTS_MAX} parts"
        return None

    def _continues(self, part: Part, before: Part, *, is_first: bool) -> bool:
        """Whether a part is appended to the one before. Another hub marks it; otherwise text continues text."""
        if _is_later_piece(part):
            return type(part) is type(before) and not isinstance(part, DataPart)
        return is_first and not self._is_hub and isinstance(part, TextPart) and isinstance(before, TextPart)

    def parts(self) -> tuple[Part, ...]:
        """All parts of all artifacts, in their order."""
        return tuple(buffer.joined() for buffers in self._artifacts.values() for buffer in buffers)


def _is_later_piece(part: Part) -> bool:
    if PIECE_KEY.encode() not in bytes(part.metadata):
        return False
    position = (object_members(part.metadata) or {}).get(PIECE_KEY)
    try:
        return position is not None and _POSITION.decode(position).piece > 0
    except msgspec.MsgspecError:
        return False


# -- a result ----------------------------------------------------------------------------------------------------------


class TaskRef(NamedTuple):
    """The task and the context of a result; empty if the agent named none."""

    task: str = ""
    context: str = ""

    def members(self) -> dict[str, Payload]:
        """The arguments with which a caller continues the task."""
        named = {"task_id": self.task, "context_id": self.context}
        return {name: _encode(value) for name, value in named.items() if value}


def result_of(
    parts: Sequence[Part],
    task_ref: TaskRef,
    *,
    is_error: bool = False,
    structured: Payload = b"",
    is_hub: bool = False,
) -> Result:
    """The tool result of these parts. A single data object is the structured content, unless `structured` is given.

    Another hub turned a server's result into parts; this restores the result.
    """
    shown = parts
    structured = structured or _structured(parts, is_hub=is_hub)
    if is_hub and any(isinstance(part, TextPart) for part in parts):
        # The server's own text represents the structured content, so it is not repeated as text.
        shown = [part for part in parts if not (isinstance(part, DataPart) and part.data is structured)]
    blocks = [_block(part, number, is_hub=is_hub) for number, part in enumerate(shown)]
    members: dict[str, Payload] = {"content": b"[%b]" % b",".join(blocks)}
    if structured:
        members["structuredContent"] = structured
    if is_hub and len(parts) == 1 and isinstance(parts[0], DataPart):
        joined = object_members(parts[0].data)
        if joined is not None and bytes(joined.get("content", b"")) == b"[]":
            members = {**joined}  # a hub passes a result without content through as it is
    members["isError"] = b"true" if is_error else b"false"
    if known := task_ref.members():
        members["_meta"] = render({**(object_members(members.get("_meta", b"{}")) or {}), TASK_KEY: render(known)})
    return Result(Raw(render(members)), is_error)


def _structured(parts: Sequence[Part], *, is_hub: bool) -> Payload:
    """The structured content: the only data object. Another hub writes it first, and other data may follow."""
    data = [part.data for part in parts if isinstance(part, DataPart)]
    is_one = len(data) == 1 or (is_hub and bool(data) and isinstance(parts[0], DataPart))
    return data[0] if is_one and is_object(data[0]) else b""


def _block(part: Part, number: int, *, is_hub: bool) -> bytes:
    described = (object_members(part.metadata) or {}) if is_hub and part.metadata else {}
    match part:
        case TextPart(text=text) if "uri" in described:
            return _embedded(described, b'"text":%b' % _encode(text))
        case TextPart(text=text):
            return _described(_text(text), described)
        case DataPart(data=data):
            # Also if it is the structured content: some clients read only text.
            return _text(compact(data).decode())
        case FilePart(content=None):
            link = {"uri": part.url or "", "name": part.name or part.url or f"file {number + 1}"}
            typed = {} if part.media_type is None else {"mimeType": part.media_type}
            return _described(_encode({"type": "resource_link", **link, **typed}), described)
        case FilePart() if "uri" in described:
            named = {} if part.media_type is None else {"mimeType": Raw(_encode(part.media_type))}
            return _embedded({**named, **described}, b'"blob":%b' % _encode(part.content))
        case FilePart():
            kind = (part.media_type or "").partition("/")[0].lower()
            if kind in ("image", "audio"):
                return _described(_encode({"type": kind, "data": part.content, "mimeType": part.media_type}), described)
            uri = f"a2a:file/{number + 1}/{quote(part.name or '', safe='')}"
            mime_type = part.media_type or "application/octet-stream"
            resource = {"uri": uri, "mimeType": mime_type, "blob": part.content}
            return _described(_encode({"type": "resource", "resource": resource}), described)


def _described(block: bytes, described: Mapping[str, Payload]) -> bytes:
    """A block with the members that another hub put into the metadata."""
    members = {name: described[name] for name in DESCRIPTION_MEMBERS if name in described}
    return b"%b,%b" % (block[:-1], render(members)[1:]) if members else block


def _embedded(described: Mapping[str, Payload], content: bytes) -> bytes:
    """An embedded resource, restored from the part that another hub made of it."""
    resource = {name: described[name] for name in ("uri", "mimeType", "_meta") if name in described}
    block = b'{"type":"resource","resource":%b,%b}}' % (render(resource)[:-1], content)
    return _described(block, {name: value for name, value in described.items() if name == "annotations"})


def _text(text: str) -> bytes:
    return b'{"type":"text","text":%b}' % _encode(text)
