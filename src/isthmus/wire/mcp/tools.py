"""The parts of MCP that both eras write alike: tool lists, calls, progress, cancellation.

Used by faces (to read requests and write answers) and by links (the other way round). What comes from a server is
read leniently and reported, never trusted: a bad tool costs itself, not the list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from isthmus.wire.jsonrpc import Payload, object_members, render

Members: TypeAlias = dict[str, msgspec.Raw]

PROGRESS = "notifications/progress"
CANCELLED = "notifications/cancelled"
TOOLS_CHANGED = "notifications/tools/list_changed"
PROGRESS_TOKEN = "progressToken"

PROBLEMS_MAX = 100
"""Bad tools that one page may hold before the rest of it is not looked at: a page may hold millions."""

PAGE_MAX = 10_000
"""Entries of one page that are looked at, ten times what a server may have."""

CALL_MEMBERS = frozenset({"name", "arguments", "_meta"})
EMPTY_OBJECT = msgspec.Raw(b"{}")

TOOL_NAME_LENGTH_MAX = 256
"""Twice what the specification asks for; longer ones are not names."""
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class Implementation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who one end says it is."""

    name: str
    version: str
    title: str | None = None


class _ToolsCapability(msgspec.Struct):
    listChanged: bool | None = False


class Capabilities(msgspec.Struct):
    """What a server says it can do, as far as the hub asks."""

    tools: _ToolsCapability | None = None

    @property
    def announces_changes(self) -> bool:
        """Whether it will tell when its tools change."""
        return self.tools is not None and bool(self.tools.listChanged)


class CallRequest(msgspec.Struct, frozen=True):
    """The parameters of `tools/call`, read."""

    name: str
    arguments: msgspec.Raw
    meta: Members
    extra: Members


def read_call(params: Members, meta: Members | None = None) -> CallRequest | str:
    """Read `tools/call` parameters, or say what is wrong with them; `meta` is given where it was read before."""
    name = read_string(params.get("name"))
    if name is None:
        return "tools/call needs a name, a string"
    arguments = params.get("arguments", EMPTY_OBJECT)
    if not _is_object(arguments):
        return "arguments must be an object"
    if meta is None and (meta := object_members(params["_meta"]) if "_meta" in params else {}) is None:
        return "_meta must be an object without repeated members"
    if params.keys() <= CALL_MEMBERS:
        return CallRequest(name, arguments, meta, {})
    extra = {key: value for key, value in params.items() if key not in CALL_MEMBERS}
    for key in extra:
        # A server that ignores case would take `Name` for `name`, which is not what was authorised.
        if key.casefold() in CALL_MEMBERS:
            return f"{key!r} is not a member of tools/call; did you mean {key.casefold()!r}?"
    return CallRequest(name, arguments, meta, extra)


def call_params(name: str, arguments: Payload, meta: Payload | None, extra: Mapping[str, Payload]) -> bytes:
    """Write `tools/call` parameters from what was authorised, never from what was received."""
    head = b'{"name":' + msgspec.json.encode(name) + b',"arguments":'
    tail = b"}" if meta is None else b"".join((b',"_meta":', meta, b"}"))
    if extra:
        tail = b"," + render(extra)[1:-1] + tail
    return b"".join((head, arguments, tail))


class ListPage(msgspec.Struct, frozen=True):
    """One page of a server's tools, with what had to be left out and why."""

    tools: list[tuple[str, Members]]
    next_cursor: str | None
    problems: list[str]


class _ListResult(msgspec.Struct):
    tools: list[msgspec.Raw]
    nextCursor: str | None = None


def read_list(result: Payload) -> ListPage | str:
    """Read a `tools/list` result, or say why it is none."""
    try:
        page = msgspec.json.decode(result, type=_ListResult)
    except msgspec.MsgspecError as error:
        return f"tools/list answered with something else ({error})"
    tools: list[tuple[str, Members]] = []
    problems: list[str] = []
    if len(page.tools) > PAGE_MAX:
        problems.append(f"a page of its list has over {PAGE_MAX} entries; the rest was left out")
    for position, raw in enumerate(page.tools[:PAGE_MAX]):
        read = _read_tool(raw)
        if not isinstance(read, str):
            tools.append(read)
        elif len(problems) < PROBLEMS_MAX:
            problems.append(f"tool {position} left out: {read}")
        else:
            problems.append("more was wrong with its list, and the rest of it was left out")
            break
    return ListPage(tools, page.nextCursor or None, problems)


def _read_tool(raw: msgspec.Raw) -> tuple[str, Members] | str:
    members = object_members(raw)
    if members is None:
        return "it is not an object, or has repeated members"
    name = read_string(members.get("name"))
    if not name:
        return "it has no name"
    if len(name) > TOOL_NAME_LENGTH_MAX or _UNPRINTABLE.search(name):
        return f"its name is too long or has control characters ({name[:40]!r})"
    if "inputSchema" in members and not _is_object(members["inputSchema"]):
        return f"the schema of {name!r} is not an object"
    # The page it came on may be large; a copy keeps only this tool's bytes.
    return name, {key: value.copy() for key, value in members.items()}


def tool_definition(exposed: str, definition: Members) -> bytes:
    """One entry of a list as the caller sees it: the server's own words under the name that the caller must use."""
    shown: dict[str, Payload] = {"name": msgspec.json.encode(exposed)}
    shown.update((key, value) for key, value in definition.items() if key != "name")
    if "inputSchema" not in shown:
        shown["inputSchema"] = b'{"type":"object"}'  # required of a server; clients refuse the whole list without
    return render(shown)


def tool_array(definitions: Iterable[bytes]) -> bytes:
    """The `tools` member of a list."""
    return b"[" + b",".join(definitions) + b"]"


class _CallResult(msgspec.Struct):
    isError: bool | None = False
    resultType: str | None = None


_CALL_RESULT = msgspec.json.Decoder(_CallResult)


class CallAnswer(msgspec.Struct, frozen=True):
    """What the hub needs to know of a call's result; the rest stays text."""

    is_error: bool
    result_type: str | None


def read_call_result(result: Payload) -> CallAnswer | None:
    """Read the two members of a result that matter here; None if it is not a result object."""
    try:
        answer = _CALL_RESULT.decode(result)
    except msgspec.MsgspecError:
        return None
    return CallAnswer(bool(answer.isError), answer.resultType)


def progress_params(token: Payload, members: Mapping[str, Payload]) -> bytes:
    """Write a progress notification's parameters under the receiver's own token."""
    return render({PROGRESS_TOKEN: token, **members})


def token_of(params: Members) -> int:
    """The token of a progress report, which is always an id of ours; -1, which is none, if it is anything else."""
    try:
        return int(bytes(params.get(PROGRESS_TOKEN, b"")))
    except ValueError:
        return -1


def cancelled_params(request_id: Payload, reason: str) -> bytes:
    """Write a cancellation's parameters."""
    return b"".join((b'{"requestId":', request_id, b',"reason":', msgspec.json.encode(reason), b"}"))


def read_string(raw: msgspec.Raw | None) -> str | None:
    """A JSON string's value; None if it is absent or no string."""
    if raw is None:
        return None
    try:
        return _STRING.decode(raw)
    except msgspec.MsgspecError:
        return None


_STRING = msgspec.json.Decoder(str)


def _is_object(raw: msgspec.Raw) -> bool:
    return bytes(memoryview(raw)[:1]) == b"{"
