"""Cassettes: recorded calls as text, and which of them answers a call. No I/O and no clock.

A cassette is a file of JSON lines. The first line names the format, the last one counts the calls. In between are the
servers, each followed by its lists, and the calls, each followed by its events, questions, answers and its outcome.
Members of a line are sorted; what servers and callers wrote stays as they wrote it, byte for byte.
`telemetry.call_recorder` writes cassettes, `upstream.replay` replays them.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, TypeVar
from urllib.parse import unquote

import msgspec
from msgspec import Raw

from isthmus.core.catalog.names import has_parts
from isthmus.model.callers import Exposure
from isthmus.model.calls import ClientCapabilities, Declined, Kind
from isthmus.model.fault_table import Executed
from isthmus.model.features import ListName
from isthmus.model.tasks import ABSENT

FORMAT: Final = 1

MARK: Final = "***"
"""Stands for a secret in a recorded text. In a call that is marked as redacted it matches any text."""

Match: TypeAlias = Literal["strict", "lenient"]
"""`strict`: the same calls in the same order, each once. `lenient`: any order, as often as wanted."""

Timing: TypeAlias = Literal["none", "recorded"]
"""Whether a replayed call takes as long as the recorded one."""

SHOWN_LENGTH: Final = 80
"""How much of a value an error shows."""

DIFFERENCES_MAX: Final = 5
"""Differences between two calls that an error shows."""

NEAREST_MAX: Final = 200
"""Recorded calls that are compared to find the nearest."""


class CassetteError(Exception):
    """A file is no cassette, or is damaged; the message says where."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line = line
        self.problem = problem


# -- lines -------------------------------------------------------------------------------------------------------------


class _CassetteLine(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One line of a cassette."""


class HeadLine(_CassetteLine, frozen=True, kw_only=True):
    """The first line."""

    cassette: int
    names: Literal["canonical", "llm"] = "canonical"
    """The names of tools; see `[hub] names`."""
    expose: Exposure = "all"
    """Which tools the lists have; see `[hub] expose`."""
    max_result_bytes: int = 0
    """See `[hub] max_result_bytes`; the recorded results are whole."""


class ServerLine(_CassetteLine, frozen=True, kw_only=True):
    """A server, or what it lists to clients with some capabilities. The lines of its lists follow."""

    server: str
    abilities: tuple[str, ...]
    capabilities: tuple[str, ...] | None = None
    """The client capabilities that the lists are for; None for all others."""
    unlisted: bool = False
    """A plain JSON-RPC server without a list."""


class FeatureLine(_CassetteLine, frozen=True, kw_only=True):
    """One entry of a list."""

    list: ListName
    definition: Raw


class CallLine(_CassetteLine, frozen=True, kw_only=True):
    """A call. What happened follows."""

    call: str
    """The server's own name of what is called."""
    kind: Kind = "tool"
    server: str
    arguments: Raw
    extra: Raw = ABSENT
    """Other members of the request, such as answers to questions of a modern server."""
    overlaps: bool = False
    """It began before the one above had ended, so their order may change."""
    redacted: bool = False
    """Secrets in its arguments are replaced by `***`."""
    fixed: tuple[str, ...] = ()
    """Arguments that its caller's set fills in. Their values may be private: the file has only what the caller sent."""


class ProgressLine(_CassetteLine, frozen=True, kw_only=True):
    """Progress that the server reported."""

    progress: Raw
    ms: int | None = None
    """Milliseconds since the call began."""


class LogLine(_CassetteLine, frozen=True, kw_only=True):
    """A log message that the server sent during the call."""

    log: Raw
    ms: int | None = None


class QuestionLine(_CassetteLine, frozen=True, kw_only=True):
    """A request of the server to the caller; the questions of a call are numbered from 1."""

    question: int
    method: str
    params: Raw
    lasts: bool = False
    """It may belong to no call, and stays open when this one has ended."""
    ms: int | None = None


class AnswerLine(_CassetteLine, frozen=True, kw_only=True):
    """The caller's answer to a question: a result, or the reason that it gave none."""

    answer: int
    reply: Raw = ABSENT
    declined: Declined | None = None
    redacted: bool = False
    ms: int | None = None


class ResultLine(_CassetteLine, frozen=True, kw_only=True):
    """The end of a call: what the server returned."""

    result: Raw
    bare: bool = False
    """See `Result.is_bare`."""
    ms: int | None = None


RULED = frozenset(("approval_pending", "approval_denied", "approval_expired", "too_many_approvals", "budget_exceeded"))
"""Reasons of refusals by rules of the operator, which a replaying hub does not have. It has names and schemas, and so
refuses unknown tools and bad arguments by itself."""


class RecordedFault(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A fault with the fields that callers see."""

    reason: str
    message: str
    executed: Executed
    code: int | None = None
    """The code of a server's own error."""
    data: Raw = ABSENT
    retry_after: float | None = None
    approval: str | None = None
    """Which of the cassette's approvals it is about: ap_1, ap_2, …"""


class FaultLine(_CassetteLine, frozen=True, kw_only=True):
    """The end of a call that failed."""

    fault: RecordedFault
    ms: int | None = None


class EndCount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the last line counts."""

    calls: int


class EndLine(_CassetteLine, frozen=True, kw_only=True):
    """The last line. A file without it was cut."""

    end: EndCount


Step: TypeAlias = ProgressLine | LogLine | QuestionLine | AnswerLine
Ending: TypeAlias = ResultLine | FaultLine
Line: TypeAlias = HeadLine | ServerLine | FeatureLine | CallLine | Step | Ending | EndLine

L = TypeVar("L", bound=_CassetteLine)

_KINDS: Mapping[str, type[Line]] = {
    "cassette": HeadLine,
    "abilities": ServerLine,
    "definition": FeatureLine,
    "call": CallLine,
    "progress": ProgressLine,
    "log": LogLine,
    "question": QuestionLine,
    "answer": AnswerLine,
    "result": ResultLine,
    "fault": FaultLine,
    "end": EndLine,
}
"""The member that tells the kind of a line."""

_MEMBERS = msgspec.json.Decoder(dict[str, Raw])
_DECODERS: Mapping[type[Line], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in _KINDS.values()
}


def write_line(line: Line) -> bytes:
    """One line with its line break."""
    return msgspec.json.encode(line, order="sorted") + b"\n"


def on_one_line(payload: Raw | bytes) -> Raw:
    """The same JSON without line breaks, which only pretty-printed payloads have."""
    raw = bytes(payload)
    return Raw(msgspec.json.format(raw, indent=-1) if b"\n" in raw or b"\r" in raw else raw)


def _read_line(number: int, text: bytes) -> Line:
    try:
        members = _MEMBERS.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CassetteError(number, f"it is not a JSON object ({error}): the file was cut or edited") from None
    kind = next((kind for member, kind in _KINDS.items() if member in members), None)
    if kind is None:
        named = ", ".join(map(repr, list(members)[:SHOWN_LENGTH])) or "nothing"
        raise CassetteError(number, f"no line of a cassette has only {named[:SHOWN_LENGTH]}")
    try:
        line: Line = _DECODERS[kind].decode(text)
    except msgspec.MsgspecError as error:
        raise CassetteError(number, f"{error}: the file was edited, or is of another version") from None
    return line


# -- a whole cassette --------------------------------------------------------------------------------------------------


class RecordedLists(msgspec.Struct, frozen=True):
    """What a server lists to some clients."""

    abilities: tuple[str, ...]
    is_unlisted: bool
    entries: Mapping[ListName, list[Raw]]


class RecordedServer(msgspec.Struct, frozen=True):
    """A server and its lists by client capabilities."""

    name: str
    lists: dict[ClientCapabilities | None, RecordedLists]

    def lists_for(self, client_caps: ClientCapabilities) -> RecordedLists:
        """The lists for these capabilities: the recorded ones, else those of the largest set that they contain."""
        fitting = [known for known in self.lists if known is not None and known <= client_caps]
        return self.lists[max(fitting, key=len) if fitting else None]


class RecordedCall(msgspec.Struct, frozen=True, eq=False):
    """A call of a cassette. `line` is its number in the file; calls of one `group` ran at the same time."""

    line: int
    group: int
    call: CallLine
    steps: Sequence[Step]
    ending: Ending

    @property
    def title(self) -> str:
        """The call in a few words."""
        return f"{self.call.server}.{self.call.call}" + ("" if self.call.kind == "tool" else f" ({self.call.kind})")


class Cassette(msgspec.Struct, frozen=True):
    """A whole cassette."""

    head: HeadLine
    servers: Mapping[str, RecordedServer]
    calls: Sequence[RecordedCall]

    def fixed_in(self, server: str) -> dict[str, set[str]]:
        """By tool of a server: the arguments that a set has filled in."""
        found: dict[str, set[str]] = {}
        for each in self.calls:
            if each.call.fixed and each.call.kind == "tool" and each.call.server == server:
                found.setdefault(each.call.call, set()).update(each.call.fixed)
        return found


def read_cassette(text: bytes) -> Cassette:
    """Read a cassette.

    Raises:
        CassetteError: it is damaged; the error names the line.
    """
    return _CassetteReader(text).read()


class _CassetteReader:
    """Reads a cassette line by line."""

    def __init__(self, text: bytes) -> None:
        self._lines = text.split(b"\n")
        self._servers: dict[str, RecordedServer] = {}
        self._lists: RecordedLists | None = None
        self._calls: list[RecordedCall] = []
        self._group = 0
        self._call: tuple[int, CallLine] | None = None
        """The call whose end has not come, and its line."""
        self._steps: list[Step] = []

    def read(self) -> Cassette:
        last = len(self._lines)
        if self._lines[-1]:
            raise CassetteError(last, "the line has no end: the file was cut")
        head = _read_line(1, self._lines[0]) if last > 1 else None
        if not isinstance(head, HeadLine):
            raise CassetteError(1, 'a cassette begins with {"cassette":1}')
        if head.cassette != FORMAT:
            raise CassetteError(1, f"this version of isthmus reads format {FORMAT}, not {head.cassette}")
        for number, text in enumerate(self._lines[1:-1], start=2):
            line = _read_line(number, text)
            if isinstance(line, EndLine):
                self._end(number, line)
                return Cassette(head, self._servers, self._calls)
            self._read_line(number, line)
        raise CassetteError(last, "the last line is missing: the file was cut, or its hub was killed")

    def _end(self, number: int, line: EndLine) -> None:
        if self._call is not None:
            raise self._unended(number)
        if number != len(self._lines) - 1:
            raise CassetteError(number + 1, "the cassette ended in the line before")
        if line.end.calls != len(self._calls):
            problem = (
                f"it counts {line.end.calls} calls, but the file has {len(self._calls)}: lines were added or removed"
            )
            raise CassetteError(number, problem)

    def _unended(self, number: int) -> CassetteError:
        assert self._call is not None
        return CassetteError(number, f"the call of line {self._call[0]} has no result or fault before this line")

    def _read_line(self, number: int, line: Line) -> None:
        match line:
            case ServerLine():
                self._begin_lists(number, line)
            case FeatureLine():
                if self._lists is None or self._call is not None or self._calls:
                    raise CassetteError(number, "a list belongs below its server, before the calls")
                self._lists.entries[line.list].append(line.definition)
            case CallLine():
                if self._call is not None:
                    raise self._unended(number)
                if line.server not in self._servers:
                    raise CassetteError(number, f"there is no server {line.server!r} above")
                self._call, self._steps = (number, line), []
            case ResultLine() | FaultLine():
                began, call = self._open_call(number)
                self._group += not call.overlaps
                self._calls.append(RecordedCall(began, self._group, call, self._steps, line))
                self._call = None
            case AnswerLine():
                self._open_call(number)
                open_questions = {each.question for each in self._steps if isinstance(each, QuestionLine)}
                open_questions -= {each.answer for each in self._steps if isinstance(each, AnswerLine)}
                if line.answer not in open_questions:
                    raise CassetteError(number, f"there is no open question {line.answer} above")
                if bool(bytes(line.reply)) is (line.declined is not None):
                    raise CassetteError(number, "an answer has either `reply` or `declined`")
                self._steps.append(line)
            case ProgressLine() | LogLine() | QuestionLine():
                self._open_call(number)
                self._steps.append(line)
            case _:
                raise CassetteError(number, "this line belongs to the beginning of a cassette")

    def _begin_lists(self, number: int, line: ServerLine) -> None:
        if self._calls or self._call is not None:
            raise CassetteError(number, "servers belong before the calls")
        caps = None if line.capabilities is None else frozenset(line.capabilities)
        server = self._servers.get(line.server)
        if (server is None) is (caps is not None) or (server is not None and caps in server.lists):
            raise CassetteError(number, f"the server {line.server!r} begins without capabilities, and each only once")
        if server is None:
            server = self._servers[line.server] = RecordedServer(line.server, {})
        entries: dict[ListName, list[Raw]] = {"tools": [], "prompts": [], "resources": [], "templates": []}
        self._lists = server.lists[caps] = RecordedLists(line.abilities, line.unlisted, entries)

    def _open_call(self, number: int) -> tuple[int, CallLine]:
        if self._call is None:
            raise CassetteError(number, "there is no call above to which this line belongs")
        return self._call


# -- which recorded call answers a call --------------------------------------------------------------------------------


class IncomingCall(msgspec.Struct, frozen=True):
    """A call that a caller makes now."""

    server: str
    kind: Kind
    name: str
    arguments: Raw
    extra: Raw

    @property
    def title(self) -> str:
        """The call in a few words."""
        return f"{self.server}.{self.name}" + ("" if self.kind == "tool" else f" ({self.kind})")


class Player:
    """Finds the recorded call for each call. One for all servers of a cassette."""

    def __init__(self, cassette: Cassette, file: str, match: Match, timing: Timing) -> None:
        self.cassette = cassette
        self.match = match
        self.timing = timing
        self._file = file
        self._played: dict[RecordedCall, None] = {}
        self._next = 0
        """In strict mode: the first call that was not made."""

    def unplayed(self) -> list[RecordedCall]:
        """The recorded calls that nobody has made."""
        return [each for each in self.cassette.calls if each not in self._played]

    def find(self, given: IncomingCall) -> RecordedCall | str:
        """The recorded call to replay, or a sentence that names the nearest one and what differs."""
        calls = self.cassette.calls
        while self._next < len(calls) and calls[self._next] in self._played:
            self._next += 1
        if self.match == "strict":
            expected = list(self._expected())
            found = next((each for each in expected if is_same_call(each, given)), None)
        else:
            expected = []
            same = [each for each in calls if is_same_call(each, given)]
            found = next((each for each in same if each not in self._played), same[-1] if same else None)
        if found is None:
            return self._why_not(given, expected)
        self._played[found] = None
        return found

    def _expected(self) -> Iterator[RecordedCall]:
        """In strict mode: the calls that may come now. Calls that ran at the same time may change places."""
        calls = self.cassette.calls
        for each in calls[self._next :]:
            if each.group != calls[self._next].group:
                return
            if each not in self._played:
                yield each

    def _why_not(self, given: IncomingCall, expected: Sequence[RecordedCall]) -> str:
        calls = self.cassette.calls
        if not calls:
            return f"{self._file} has no calls."
        if self.match == "strict":
            if not expected:
                made = f"All {len(calls)} calls of {self._file} were made, and {given.title} is one more."
                return made + self._elsewhere(given)
            nearest = min(expected, key=lambda each: _distance(each, given))
            what = f"The next call of {self._file} is another one"
        else:
            nearest = min(_like(calls, given), key=lambda each: _distance(each, given))
            what = f"{self._file} has no such call of {given.title}"
        found = differences_of(nearest, given)
        more = f", and {len(found) - DIFFERENCES_MAX} more" if len(found) > DIFFERENCES_MAX else ""
        said = "; ".join(found[:DIFFERENCES_MAX])
        where = self._elsewhere(given) if self.match == "strict" else ""
        return f"{what}. The nearest is {nearest.title} in line {nearest.line}: {said}{more}.{where}"

    def _elsewhere(self, given: IncomingCall) -> str:
        """Another sentence if a lenient replay would answer this call."""
        same = next((each for each in self.cassette.calls if is_same_call(each, given)), None)
        if same is None:
            return ""
        rule = "a strict replay wants each call once and in order; lenient does not"
        return f" The call of line {same.line} is this one, but {rule}."


def _like(calls: Sequence[RecordedCall], given: IncomingCall) -> Sequence[RecordedCall]:
    """The calls to compare: those of the same name, else those of the most similar name."""
    same = [each for each in calls if (each.call.server, each.call.call) == (given.server, given.name)]
    if not same:
        titles = {each.title: each for each in reversed(calls)}
        close = difflib.get_close_matches(given.title, titles, n=1, cutoff=0.0)
        same = [titles[title] for title in close]
    return same[:NEAREST_MAX]


def _distance(recorded: RecordedCall, given: IncomingCall) -> tuple[bool, int]:
    is_other = (recorded.call.server, recorded.call.call) != (given.server, given.name)
    return is_other, len(differences_of(recorded, given))


def is_same_call(recorded: RecordedCall, given: IncomingCall) -> bool:
    """Whether a call is the recorded one; arguments are compared as JSON."""
    call = recorded.call
    if (call.server, call.kind, call.call) != (given.server, given.kind, given.name):
        return False
    if bytes(call.arguments) == bytes(given.arguments) and bytes(call.extra) == bytes(given.extra):
        return True
    return not differences_of(recorded, given)


def differences_of(recorded: RecordedCall, given: IncomingCall) -> list[str]:
    """What differs between a recorded call and one that is made now, as phrases."""
    call = recorded.call
    found = []
    if (call.server, call.kind, call.call) != (given.server, given.kind, given.name):
        found.append(f"it is {recorded.title} there and {given.title} here")
    arguments, extra = without_fixed(call.kind, given.arguments, given.extra, call.fixed)
    found += json_differences(call.arguments, arguments, "arguments", is_redacted=call.redacted)
    return found + json_differences(call.extra, extra, "request", is_redacted=call.redacted)


def without_fixed(kind: Kind, arguments: Raw, extra: Raw, fixed: Collection[str]) -> tuple[Raw, Raw]:
    """The arguments and other members of a request without arguments that a set fills in.

    Those of a completion are in its `context`.
    """
    if kind != "prompt_argument":
        return without_members(arguments, fixed), extra
    members = _decoded(extra)
    if not fixed or "context" not in members:
        return arguments, extra
    known = without_members(Raw(json.dumps(members.pop("context").get("arguments", {})).encode()), fixed)
    if bytes(known) != b"{}":
        members["context"] = {"arguments": _decoded(known)}
    return arguments, Raw(json.dumps(members).encode()) if members else ABSENT


def without_members(payload: Raw, names: Collection[str]) -> Raw:
    """A JSON object without these members; the same object if it has none of them."""
    if not names or not isinstance(value := _decoded(payload), dict) or value.keys().isdisjoint(names):
        return payload
    return Raw(json.dumps({name: each for name, each in value.items() if name not in names}).encode())


def json_differences(there: Raw, here: Raw, path: str, *, is_redacted: bool = False) -> list[str]:
    """How two JSON texts differ, as phrases; an absent text is an empty object."""
    return list(_differences(_decoded(there), _decoded(here), path, is_redacted=is_redacted))


def _decoded(payload: Raw) -> Any:
    return json.loads(bytes(payload) or b"{}")


def _differences(there: Any, here: Any, path: str, *, is_redacted: bool) -> Iterator[str]:
    if isinstance(there, dict) and isinstance(here, dict):
        for name in sorted({*there, *here}):
            at = f"{path}.{name}"[-SHOWN_LENGTH:]
            if name not in here:
                yield f"{at} is {_shown(there[name])} there and missing here"
            elif name not in there:
                yield f"{at} is missing there and {_shown(here[name])} here"
            else:
                yield from _differences(there[name], here[name], at, is_redacted=is_redacted)
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        for number, (one, other) in enumerate(zip(there, here, strict=True)):
            yield from _differences(one, other, f"{path}[{number}]"[-SHOWN_LENGTH:], is_redacted=is_redacted)
    elif not _is_equal(there, here, is_redacted=is_redacted):
        yield f"{path} is {_shown(there)} there and {_shown(here)} here"


def _is_equal(there: Any, here: Any, *, is_redacted: bool) -> bool:
    if is_redacted and isinstance(there, str) and MARK in there:
        return there == MARK or (isinstance(here, str) and has_parts(here, there.split(MARK)))
    # In Python, True equals 1.
    return isinstance(there, bool) is isinstance(here, bool) and bool(there == here)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_LENGTH else f"{text[:SHOWN_LENGTH]}…"


# -- secrets in arguments ----------------------------------------------------------------------------------------------

SCHEMA_DEPTH_MAX: Final = 32
SCHEMA_VISITS_MAX: Final = 10_000
"""How far schemas are searched for marks of secrets; a schema may refer to itself, more than once."""


class SecretFinder:
    """Replaces the values that a JSON Schema marks as secret, by `writeOnly` or as a password."""

    def __init__(self, schema: Raw | None) -> None:
        self.found: list[str] = []
        """The texts that were replaced: a server may repeat them."""
        self._visits = 0
        # Nearly no schema has such a mark: the arguments, which may have megabytes, are not read then.
        is_marked = schema is not None and any(mark in bytes(schema) for mark in (b"writeOnly", b"password"))
        try:
            self._root: Any = json.loads(bytes(schema)) if schema is not None and is_marked else None
        except ValueError:
            self._root = None

    def redacted(self, payload: Raw) -> Raw:
        """The same JSON without the secrets; the same object if there are none."""
        if self._root is None:
            return payload
        # Numbers stay as they are written: Python has not all of them.
        value = json.loads(bytes(payload) or b"{}", parse_int=_as_written, parse_float=_as_written)
        replaced = self._replaced(self._root, value, 0)
        return Raw(msgspec.json.encode(replaced)) if self.found else payload

    def _replaced(self, schema: Any, value: Any, depth: int) -> Any:
        self._visits += 1
        if not isinstance(schema, dict) or depth > SCHEMA_DEPTH_MAX or self._visits > SCHEMA_VISITS_MAX:
            return value
        if (schema.get("writeOnly") is True or schema.get("format") == "password") and value is not None:
            self.found.extend(_texts_in(value))
            return MARK
        for branch in self._branches(schema):
            value = self._replaced(branch, value, depth + 1)
        if isinstance(value, dict):
            return {name: self._replaced_by(_member_schemas(schema, name), each, depth) for name, each in value.items()}
        if isinstance(value, list):
            return [self._replaced_by(_item_schemas(schema, at), each, depth) for at, each in enumerate(value)]
        return value

    def _replaced_by(self, schemas: Iterable[Any], value: Any, depth: int) -> Any:
        for schema in schemas:
            value = self._replaced(schema, value, depth + 1)
        return value

    def _branches(self, schema: dict[str, Any]) -> Iterator[Any]:
        """The schemas that apply to the same value."""
        for word in ("anyOf", "oneOf", "allOf"):
            yield from _list(schema, word)
        yield from (schema.get(word) for word in ("if", "then", "else"))
        yield from _table(schema, "dependentSchemas").values()
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            place = self._root
            for part in unquote(reference).split("/")[1:]:
                place = place.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(place, dict) else None
            yield place


def _member_schemas(schema: dict[str, Any], name: str) -> Iterator[Any]:
    """The schemas of a member. Patterns of names are not read: rather too much is a secret than too little."""
    properties = _table(schema, "properties")
    if name in properties:
        yield properties[name]
        return
    yield from _table(schema, "patternProperties").values()
    yield from (schema.get(word) for word in ("additionalProperties", "unevaluatedProperties"))


def _item_schemas(schema: dict[str, Any], at: int) -> Iterator[Any]:
    """The schemas of an element."""
    first = _list(schema, "prefixItems") or _list(schema, "items")
    if at < len(first):
        yield first[at]
    else:
        yield from (schema.get(word) for word in ("items", "additionalItems", "unevaluatedItems"))
    yield schema.get("contains")


def _table(schema: dict[str, Any], word: str) -> dict[str, Any]:
    found = schema.get(word)
    return found if isinstance(found, dict) else {}


def _list(schema: dict[str, Any], word: str) -> list[Any]:
    found = schema.get(word)
    return found if isinstance(found, list) else []


def _as_written(number: str) -> Raw:
    return Raw(number.encode())


def _texts_in(value: Any) -> Iterator[str]:
    below: Iterable[Any] = ()
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        below = value.values()
    elif isinstance(value, list):
        below = value
    else:
        yield msgspec.json.encode(value).decode()
    for each in below:
        yield from _texts_in(each)
