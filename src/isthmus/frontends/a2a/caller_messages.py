"""Reads the messages of callers: instructions, and answers to questions of servers.

An instruction is JSON of one of a few forms, in a data part or in a text part that is a JSON object; the first one
counts. Plain text is passed on as it is. Tools are looked up later, in the caller's view (`planning`). Used by
`service`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from operator import is_
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from isthmus.core.catalog.argument_validation import UnusableSchema, compile_check
from isthmus.core.event_loop import DECODED_BYTES, offload
from isthmus.core.tasks.record import StoredQuestion, TaskOwner
from isthmus.model.calls import Answered, Declined, Reply
from isthmus.model.tasks import ABSENT, Artifact, DataPart, FilePart, Message, Part, TextPart
from isthmus.wire.a2a.operations import SendMessage
from isthmus.wire.jsonrpc import Malformed, decode_object, object_members, ready_to_forward, render, repeats_a_member
from isthmus.wire.mcp.messages import read_string

Form: TypeAlias = Literal["tool", "execute", "command"]
"""The form of an instruction, which its result has as well. `tool`: our own. `execute`: `target_mcp_server_id`,
`tool_name`, `arguments`. `command`: `mcp_target_url`, `mcp_method`, `mcp_params`."""

SKILL_KEYS = ("skill", "skillId", "skill_id")
"""Members of a message's metadata that may name a skill."""

EXECUTE = "mcp.execute_tool"
COMMAND = "execute_mcp_command"
OWN_FORMS: dict[str, Form] = {EXECUTE: "execute", COMMAND: "command"}
"""Skills that are not tools: they take an instruction of their own form."""

EMPTY = Raw(b"{}")

UNCLEAR = "data must be an object that has no member twice: readers differ on which of them counts"

HEADERS = b"mcp_headers"
ESCAPE = b"\\u"
"""An escape sequence: a member's name may be written with it."""

UNKEPT = b'{"mcp_headers":null}'
"""Stored instead of an instruction with headers and a repeated member: its secrets cannot be recognized."""

_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


class ToolInstruction(msgspec.Struct, frozen=True):
    """Run a tool, by any of its names; only a tool of `server`, if that is given."""

    name: str
    arguments: Raw
    server: str | None = None
    form: Form = "tool"
    words: str = ""
    """Text that was sent instead of arguments."""


class CommandInstruction(msgspec.Struct, frozen=True):
    """Call a method of MCP at a server, which is named or given by its URL."""

    target: str
    method: str
    params: Raw = EMPTY
    path: str | None = None
    id: Raw = ABSENT
    """The caller's id of the request; only its response repeats it."""
    headers: Mapping[str, str] = {}


class CodeInstruction(msgspec.Struct, frozen=True):
    """Run a script that calls tools."""

    code: str
    timeout: float | None = None
    given: str = ""
    """The whole instruction, for a hub whose callers send such objects to its `text_tool`."""


class Saying(msgspec.Struct, frozen=True):
    """Plain text without an instruction, for the tool that is configured as `text_tool`."""

    text: str
    form: Form | None = None
    """The form that the message's skill requires and that text cannot have."""


class BadInstruction(msgspec.Struct, frozen=True):
    """An invalid instruction."""

    form: Form
    message: str
    id: Raw = ABSENT


Instruction: TypeAlias = ToolInstruction | CommandInstruction | CodeInstruction | Saying | BadInstruction


class ReadMessage(NamedTuple):
    """What is read of a message: its stored form without secrets, its instruction, and the task that it begins."""

    stored: Message
    instruction: Instruction
    task: str
    """The id, derived from the stored form."""
    size: int


async def read_message(owner: TaskOwner, said: SendMessage) -> ReadMessage:
    """Read a message, elsewhere if it is long."""
    size = message_bytes(said.message)
    return await offload(size, partial(_read_now, owner, said, size), over=DECODED_BYTES, owner=owner)


def _read_now(owner: TaskOwner, said: SendMessage, size: int) -> ReadMessage:
    stored = without_headers(said.message)
    task = task_id_for(owner, message_digest(stored, said.context))
    instruction = read_instruction(said.message)
    if isinstance(instruction, ToolInstruction):
        instruction = replace(instruction, arguments=ready_to_forward(instruction.arguments))
    return ReadMessage(stored, instruction, task, size)


def digest_of(said: SendMessage) -> str:
    """The digest that repeated messages with a key share."""
    return message_digest(without_headers(said.message), said.task, said.context, said.metadata or None)


def message_digest(*said: object) -> str:
    """A digest that is equal for equal messages, whatever the layout of their JSON."""
    text = _encode(said)
    # Protobuf clients order object members at random, differently after a restart. Values that Python cannot hold (a
    # number beyond a double, unbounded nesting) are compared as text.
    with suppress(msgspec.MsgspecError, RecursionError):
        text = _encode_sorted(msgspec.json.decode(text))
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def task_id_for(owner: TaskOwner, digest: str) -> str:
    """The id of the task that a message starts, by the digest of its content.

    The journal accepts an id once: a repeated message finds its task, also after a crash, without a lookup or a write.
    """
    return hashlib.blake2b(f"{owner.key}\n{digest}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def message_bytes(said: Message | Artifact) -> int:
    """The approximate size of the parts of a message or artifact."""
    return sum(map(part_bytes, said.parts))


def part_bytes(part: Part) -> int:
    """The approximate size of a part, without what a URL leads to."""
    match part:
        case TextPart():
            return len(part.text)
        case DataPart():
            return len(memoryview(part.data))
        case FilePart():
            return len(part.content or "")


def read_instruction(message: Message) -> Instruction:
    """The instruction in a message."""
    about = object_members(message.metadata) if message.metadata else None
    skill = next((name for key in SKILL_KEYS if (name := _string(about, key))), None) if about else None
    members, given = _first_object(message.parts)
    if members is None:
        return BadInstruction(OWN_FORMS.get(skill or "", "tool"), UNCLEAR) if given else _without_object(message, skill)
    if skill is not None and skill not in OWN_FORMS:
        return ToolInstruction(skill, given)
    if skill == COMMAND or "mcp_method" in members or "mcp_target_url" in members:
        return _command(members)
    if skill == EXECUTE or "target_mcp_server_id" in members or "tool_name" in members:
        return _execute(members)
    if "tool" in members:
        return _tool(members)
    if (code := _string(members, "code")) and members.keys() <= {"code", "timeout"}:
        return _code(code, members.get("timeout", ABSENT), bytes(given).decode())
    return Saying(bytes(given).decode())


def _code(code: str, timeout: Raw, given: str) -> Instruction:
    try:
        seconds = msgspec.json.decode(timeout, type=float | None) if timeout else None
    except msgspec.MsgspecError:
        return BadInstruction("tool", "timeout must be a number of seconds")
    if seconds is not None and not seconds > 0:
        return BadInstruction("tool", f"timeout must be positive, not {seconds:g}")
    return CodeInstruction(code, seconds, given)


def _without_object(message: Message, skill: str | None) -> Instruction:
    text = "\n".join(part.text for part in message.parts if isinstance(part, TextPart))
    if skill is None or skill in OWN_FORMS:
        return Saying(text, OWN_FORMS.get(skill or ""))
    if any(isinstance(part, DataPart) and not _is_null(part.data) for part in message.parts):
        # Without arguments, the tool might apply to everything.
        return BadInstruction("tool", "arguments must be an object")
    return ToolInstruction(skill, EMPTY, words=text)


def _first_object(parts: tuple[Part, ...]) -> tuple[dict[str, Raw] | None, Raw]:
    """The members and the text of the first part that is a JSON object; no members if one of them is repeated."""
    for part in parts:
        given = part.data if isinstance(part, DataPart) else object_in(part)
        if given and _is_object(given):
            return None if repeats_a_member(given) else object_members(given), given
    return None, ABSENT


def object_in(part: Part) -> Raw:
    """The JSON object that is the text of a part, or `ABSENT`. Unlike data, text was not checked before."""
    text = part.text.strip() if isinstance(part, TextPart) else ""
    if not text.startswith("{"):
        return ABSENT
    value = decode_object(text.encode())
    return ABSENT if isinstance(value, Malformed) else value


def _tool(members: Mapping[str, Raw]) -> Instruction:
    name = _string(members, "tool")
    if not name:
        return BadInstruction("tool", "tool must be the name of a tool")
    arguments = members.get("arguments", EMPTY)
    if not _is_object(arguments):
        return BadInstruction("tool", "arguments must be an object")
    return ToolInstruction(name, arguments, _string(members, "server"))


def _execute(members: Mapping[str, Raw]) -> Instruction:
    server, name = _string(members, "target_mcp_server_id"), _string(members, "tool_name")
    if not name:
        return BadInstruction("execute", "tool_name must be the name of a tool")
    if not server and "." not in name:
        return BadInstruction("execute", "target_mcp_server_id must be the name of a server")
    if "arguments" not in members or not _is_object(members["arguments"]):
        return BadInstruction("execute", "arguments must be an object")
    return ToolInstruction(name, members["arguments"], server, "execute")


def _command(members: Mapping[str, Raw]) -> Instruction:
    id = _unless_null(members.get("mcp_request_id", ABSENT))
    if id and bytes(id)[:1] not in b'"-0123456789':
        return BadInstruction("command", "mcp_request_id must be a text or a number")
    target, method = _string(members, "mcp_target_url"), _string(members, "mcp_method")
    if not target:
        return BadInstruction("command", "mcp_target_url must be the name or the address of a server", id)
    if not method:
        return BadInstruction("command", "mcp_method must be a method of MCP", id)
    params = _unless_null(members.get("mcp_params", EMPTY)) or EMPTY
    if not _is_object(params):
        return BadInstruction("command", "mcp_params must be an object", id)
    headers = _headers(members.get("mcp_headers", EMPTY))
    if isinstance(headers, str):
        return BadInstruction("command", headers, id)
    path = _string(members, "mcp_request_path")
    if path is None and _unless_null(members.get("mcp_request_path", ABSENT)):
        return BadInstruction("command", "mcp_request_path must be a text", id)
    return CommandInstruction(target, method, params, path, id, headers)


def _headers(given: Raw) -> dict[str, str] | str:
    """The headers; a string says what is wrong with them."""
    try:
        read = {} if _is_null(given) else msgspec.json.decode(given, type=dict[str, str | None])
    except msgspec.MsgspecError:
        return "mcp_headers must be an object of texts"
    known = {name: value for name, value in read.items() if value is not None}
    return known if len(known) == len(read) else "mcp_headers are not kept: give the whole instruction again"


def without_headers(message: Message) -> Message:
    """A message as it is stored: of the headers of an instruction, which are secrets, only the names."""
    parts = tuple([_without_headers(part) for part in message.parts])
    return message if all(map(is_, parts, message.parts)) else msgspec.structs.replace(message, parts=parts)


def _without_headers(part: Part) -> Part:
    if isinstance(part, FilePart):
        return part
    text = bytes(part.data) if isinstance(part, DataPart) else part.text.encode("utf-8", "surrogatepass")
    if HEADERS not in text and ESCAPE not in text:  # nearly all messages
        return part
    members = object_members(part.data if isinstance(part, DataPart) else object_in(part) or b"")
    if members is None:
        if not _may_have_headers(text.strip()):
            return part
        kept = UNKEPT
    elif "mcp_headers" not in members:
        return part
    else:
        names = object_members(members["mcp_headers"]) or {}
        kept = render({**members, "mcp_headers": render(dict.fromkeys(names, b"null"))})
    return replace(part, data=Raw(kept)) if isinstance(part, DataPart) else replace(part, text=kept.decode())


def _may_have_headers(text: bytes) -> bool:
    """Whether an invalid instruction may contain headers."""
    if not text.startswith(b"{"):
        return False
    try:
        return "mcp_headers" in msgspec.json.decode(text, type=dict[str, Raw])
    except (msgspec.MsgspecError, RecursionError):
        return HEADERS in text


def _string(members: Mapping[str, Raw], key: str) -> str | None:
    try:
        return msgspec.json.decode(members[key], type=str)
    except (KeyError, msgspec.MsgspecError):
        return None


def _is_object(value: Raw) -> bool:
    return bytes(value)[:1] == b"{"


def _is_null(value: Raw) -> bool:
    return bytes(value) == b"null"


def _unless_null(value: Raw) -> Raw:
    """`ABSENT` for null: many clients write null for members without a value."""
    return ABSENT if _is_null(value) else value


Action: TypeAlias = Literal["accept", "decline", "cancel"]
ACTIONS: tuple[Action, ...] = ("accept", "decline", "cancel")

REFUSALS = ("decline", "cancel")

ELICIT = "elicitation/create"

SCHEMA_BYTES = 64 * 1024
"""A longer schema is not checked: it is not a form for people."""

PLAIN_ANSWERS: Mapping[str, Action] = {"decline": "decline", "no": "decline", "cancel": "cancel", "stop": "cancel"}
"""Texts that decline. `yes` and `accept` are accepted as well, unless the question asks for one text."""


def read_reply(asked: StoredQuestion, message: Message) -> Reply | str:
    """The reply in a message; a string says what is wrong with it, and the question stays open."""
    if asked.method == ELICIT:
        return _read_elicited(asked, message)
    given = _first_data(message)
    if given is not None:
        return Answered(given)
    if _word(message) in PLAIN_ANSWERS:
        return Declined(-1, "The caller declined")
    return f"{asked.method} is answered by a data part that is its result"


def is_refusal(asked: StoredQuestion, message: Message) -> bool:
    """Whether a message declines a question."""
    reply = read_reply(asked, message)
    return isinstance(reply, Answered) and read_string((object_members(reply.result) or {}).get("action")) in REFUSALS


def _read_elicited(asked: StoredQuestion, message: Message) -> Reply | str:
    given = _first_data(message)
    if given is None:
        return _read_words(asked, message)
    members = object_members(given) or {}
    action = read_string(members.get("action"))
    if action in ACTIONS and members.keys() <= {"action", "content", "_meta"}:
        return _answer(asked, action, members.get("content"))
    return _answer(asked, "accept", given)


def _read_words(asked: StoredQuestion, message: Message) -> Reply | str:
    word = _word(message)
    if word in PLAIN_ANSWERS:
        return _answer(asked, PLAIN_ANSWERS[word], None)
    if (field := _only_text(asked)) is not None and (text := _text(message)):
        return _answer(asked, "accept", Raw(msgspec.json.encode({field: text})))
    if word in ("accept", "yes", "ok", "done"):
        return _answer(asked, "accept", None)
    return 'answer with a data part: the values asked for, or {"action": "decline"}'


def _only_text(asked: StoredQuestion) -> str | None:
    """The name of the only field that is asked for, if it is a string: then plain text is the answer."""
    schema = object_members((object_members(asked.params) or {}).get("requestedSchema", ABSENT)) or {}
    fields = object_members(schema.get("properties", ABSENT)) or {}
    if len(fields) != 1:
        return None
    [(name, field)] = fields.items()
    return name if read_string((object_members(field) or {}).get("type")) == "string" else None


def _answer(asked: StoredQuestion, action: str, content: Raw | None) -> Reply | str:
    if action != "accept":
        return Answered(Raw(render({"action": msgspec.json.encode(action)})))
    params = object_members(asked.params) or {}
    if read_string(params.get("mode")) == "url":
        return Answered(Raw(b'{"action":"accept"}'))
    content = content if content is not None else Raw(b"{}")
    schema = params.get("requestedSchema")
    if schema is not None:
        with suppress(UnusableSchema):  # the server makes its own check
            if (wrong := compile_check(schema, limit_bytes=SCHEMA_BYTES)(content)) is not None:
                return f"the answer does not fit the requested schema: {wrong}"
    return Answered(Raw(render({"action": b'"accept"', "content": content})))


def _first_data(message: Message) -> Raw | None:
    """The first data part, or text that is a JSON object."""
    for part in message.parts:
        given = part.data if isinstance(part, DataPart) else object_in(part)
        if given:
            return given
    return None


def _text(message: Message) -> str:
    return "\n".join(part.text for part in message.parts if isinstance(part, TextPart)).strip()


def _word(message: Message) -> str:
    return _text(message).lower().rstrip(".!")
