"""Results that are too large for their callers: cuts them by rule, and keeps the whole for a while.

The hub wraps `InFlight.keep` of calls that may be cut. A result within its limit is not even looked at; its length is
known. A longer one is split into its members, if it is very long by the reader (`core.event_loop`), and the caller gets
what fits: texts up to a character, other blocks and `structuredContent` whole or not at all, and a line that says what
is left out. The whole stays in memory as a resource that only this caller can read, at `isthmus://results/ID`. MCP
reads resources whole, so parts have URIs of their own: `isthmus://results/ID?from=N` is what follows the first N bytes.

Texts are cut and joined as JSON, without decoding them: what is kept is what the server wrote.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec
import structlog
from msgspec import Raw

from isthmus.core.catalog.names import BUILTIN
from isthmus.core.catalog.view import Route
from isthmus.core.event_loop import LONG_BYTES, in_turns, read_then
from isthmus.core.settings import Limits
from isthmus.model.calls import Call, Outcome, Result
from isthmus.model.fault_table import Fault, UnknownResource
from isthmus.model.features import Resource
from isthmus.model.json_members import known_members
from isthmus.model.names import FeatureName, ServerName

if TYPE_CHECKING:
    from isthmus.core.calls.hub import Hub
    from isthmus.core.calls.running_call import InFlight, Keep

log = structlog.get_logger(__name__)

URI = "isthmus://results/"
"""How the URIs of kept results begin."""

CUT_BYTES_MIN = 2048
"""The least limit: what a cut result says about itself takes up to half of it."""

NOTE_BYTES = 900
"""What is reserved for the line and the link."""

FROM = "?from="
"""What follows the id in the URI of a part."""

BLOCKS_MAX = 1000
"""Content blocks that are looked at one by one. Of more, the kept resource is the whole result as JSON."""

MIME_LENGTH_MAX = 100
NAME_BYTES = 100
MEMBER_BYTES = 30
"""What the link says of a tool's name, and the line of a member's: servers choose both."""

DROPPED_MAX = 10_000
"""Dropped results whose reason is remembered, for the error that a reader gets."""

SWEEP_SECONDS = 30.0
"""How often expired results are removed; none is readable after its time."""

SLICE_BYTES = 256 * 1024
"""What is written as a JSON text in one turn of the event loop."""

VALIDATING = ("mcp", "sse")
"""Frontends whose clients check `structuredContent` against the tool's `outputSchema`."""

SMALL = ("isError", "resultType")
"""Members that are always kept."""

Owner: TypeAlias = tuple[str, str]
"""Tenant and name of a caller."""

BlockKind: TypeAlias = Literal["text", "data", "resource", "json"]

_encode = msgspec.json.Encoder().encode
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_list = msgspec.json.Decoder(list[Raw]).decode
_OFFSET = re.compile(r"[0-9]{1,12}")
_HALF_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")


class ResultLimits(msgspec.Struct, frozen=True):
    """`max_result_bytes` of the hub, its sets and its servers; 0 for no limit. Callers have their own."""

    hub: int = 0
    sets: Mapping[str, int] = {}
    servers: Mapping[ServerName, int] = {}

    def limit_of(self, call: Call, server: ServerName | None) -> int:
        """The limit of a call's result: the caller's, else its set's, else the server's, else the hub's."""
        own = call.caller.max_result_bytes
        if own is None and call.set is not None:
            own = self.sets.get(call.set)
        if own is None and server is not None:
            own = self.servers.get(server)
        return self.hub if own is None else own


def check_result_limit(limit: int | None) -> None:
    """Accept a `max_result_bytes`.

    Raises:
        ValueError: it leaves no room for what a cut result says about itself.
    """
    if (limit and limit < CUT_BYTES_MIN) or (limit or 0) < 0:
        raise ValueError(f"max_result_bytes must be 0 for no limit, or at least {CUT_BYTES_MIN}, not {limit}")


# -- splitting a result ------------------------------------------------------------------------------------------------


class Block(NamedTuple):
    """A content block: the whole of it, and the JSON text or object that a resource has of it."""

    kind: BlockKind
    raw: Raw
    value: Raw
    mime: str


class SplitResult(NamedTuple):
    """The members of a result besides `content`, its first blocks, and their number."""

    members: dict[str, Raw]
    blocks: list[Block]
    total: int


class _CutBlock(msgspec.Struct, rename="camel"):
    type: str = ""
    text: Raw = Raw()
    data: Raw = Raw()
    resource: Raw = Raw()
    mime_type: str = ""


_decode_block = msgspec.json.Decoder(_CutBlock).decode


def split_result(payload: Raw | bytes | memoryview) -> SplitResult | None:
    """Split a result; None if it is not one of a tool. All parts lie in the given text."""
    for split in split_passes(payload):
        if split is not None:
            return split
    return None


def split_passes(payload: Raw | bytes | memoryview) -> Iterator[SplitResult | None]:
    """The same in passes."""
    try:
        members = known_members(payload) if isinstance(payload, Raw) else None
        members = _decode_members(payload) if members is None else dict(members)
        yield None
        listed = _decode_list(members.pop("content"))
        yield None
        yield SplitResult(members, [_read_block(raw) for raw in listed[:BLOCKS_MAX]], len(listed))
    except (KeyError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return


def _read_block(raw: Raw) -> Block:
    try:
        block = _decode_block(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Block("json", raw, raw, "application/json")
    mime = block.mime_type if len(block.mime_type) <= MIME_LENGTH_MAX else "application/octet-stream"
    if block.type == "text" and _is_string(block.text):
        return Block("text", raw, block.text, "text/plain")
    if block.type in ("image", "audio") and _is_string(block.data):
        return Block("data", raw, block.data, mime or "application/octet-stream")
    if block.type == "resource" and bytes(memoryview(block.resource)[:1]) == b"{":
        return Block("resource", raw, block.resource, "")
    return Block("json", raw, raw, "application/json")


def _is_string(raw: Raw) -> bool:
    return bytes(memoryview(raw)[:1]) == b'"'


def cut_string(text: Raw, most: int) -> bytes:
    """The beginning of a JSON text, without its quotation marks: at most so many bytes, and no part of a character."""
    inner = bytes(memoryview(text)[1:-1][:most])
    if len(inner) == len(memoryview(text)) - 2:
        return inner
    start = len(inner) - 1
    while start > len(inner) - 4 and start >= 0 and inner[start] & 0xC0 == 0x80:
        start -= 1
    if start >= 0 and inner[start] >= 0xC0:
        length = 2 if inner[start] < 0xE0 else 3 if inner[start] < 0xF0 else 4
        inner = inner if len(inner) - start >= length else inner[:start]
    escape = _last_escape(inner)
    if escape is not None:
        length = 6 if inner[escape + 1 : escape + 2] == b"u" else 2
        if escape + length > len(inner):
            inner = inner[:escape]
            escape = _last_escape(inner)
    if escape is not None and _HALF_PAIR.fullmatch(inner[escape:]):  # the other half would be missing
        inner = inner[:escape]
    return inner


def _last_escape(inner: bytes) -> int | None:
    """Where the last escape begins, if it may reach to the end."""
    at = inner.rfind(b"\\", max(0, len(inner) - 6))
    if at < 0:
        return None
    run = at + 1 - len(inner[: at + 1].rstrip(b"\\"))
    return at if run % 2 else at - 1


# -- kept results ------------------------------------------------------------------------------------------------------


class _StoredResult(NamedTuple):
    owner: Owner
    payload: Raw
    split: SplitResult | None
    expires: float
    size: int
    part_bytes: int
    """How much of it is read by the URI of a part: as much as its caller got at first."""

    def blocks(self) -> list[Block]:
        """What it has, in the order in which it is read."""
        if self.split is None or self.split.total > len(self.split.blocks):
            return [Block("json", self.payload, self.payload, "application/json")]
        structured = self.split.members.get("structuredContent")
        more = [] if structured is None else [Block("json", structured, structured, "application/json")]
        return [*self.split.blocks, *more]


class StoredResults:
    """Whole results in memory, readable by their callers until they expire or make room for newer ones."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self.prefix = ""
        """What ids begin with: in a cluster, the tag of the node that has the result."""
        self.seconds = 3600.0
        self.caller_bytes = 0
        self.hub_bytes = 0
        self._kept: OrderedDict[str, _StoredResult] = OrderedDict()
        self._bytes_of: dict[Owner, int] = {}
        self.size_bytes = 0
        self._dropped: OrderedDict[str, tuple[Owner, str]] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._kept)

    def store(self, owner: Owner, payload: Raw, split: SplitResult | None, part_bytes: int) -> tuple[str, float] | None:
        """Keep a result, and return its id and when it expires; None if it is too large to be kept."""
        size = len(memoryview(payload))
        if size > min(self.caller_bytes, self.hub_bytes):
            return None
        while self._bytes_of.get(owner, 0) + size > self.caller_bytes:
            self._drop_oldest(owner)
        while self.size_bytes + size > self.hub_bytes:
            # One caller's many results must not cost others theirs.
            self._drop_oldest(max(self._bytes_of, key=lambda each: self._bytes_of[each]))
        id, expires = self.prefix + secrets.token_urlsafe(18), self._now() + self.seconds
        self._kept[id] = _StoredResult(owner, payload, split, expires, size, part_bytes)
        self._bytes_of[owner] = self._bytes_of.get(owner, 0) + size
        self.size_bytes += size
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)
        return id, expires

    def find(self, owner: Owner, id: str) -> _StoredResult | str:
        """A kept result; otherwise why it cannot be read, which says nothing about the results of others."""
        kept = self._kept.get(id)
        if kept is not None and kept.expires <= self._now():
            self._drop(id, f"it expired after {self.seconds:g} s")
            kept = None
        if kept is not None and kept.owner == owner:
            return kept
        dropped = self._dropped.get(id)
        if dropped is not None and dropped[0] == owner:
            return dropped[1]
        return f"results are kept for {self.seconds:g} s, until the hub stops, and for the caller that got them"

    def _drop_oldest(self, owner: Owner) -> None:
        oldest = next(id for id, kept in self._kept.items() if kept.owner == owner)
        self._drop(oldest, "it was dropped to make room for newer results; call the tool again if that is safe")

    def _drop(self, id: str, why: str) -> None:
        kept = self._kept.pop(id)
        self.size_bytes -= kept.size
        if left := self._bytes_of[kept.owner] - kept.size:
            self._bytes_of[kept.owner] = left
        else:
            del self._bytes_of[kept.owner]
        self._dropped[id] = kept.owner, why
        while len(self._dropped) > DROPPED_MAX:
            self._dropped.popitem(last=False)

    def _sweep(self) -> None:
        now = self._now()
        self._timer = None
        for id in [id for id, kept in self._kept.items() if kept.expires <= now]:
            self._drop(id, f"it expired after {self.seconds:g} s")
        if self._kept:
            self._timer = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)

    def close(self) -> None:
        """Forget everything."""
        if self._timer is not None:
            self._timer.cancel()
        self._kept.clear()


def contents_passes(uri: str, kept: _StoredResult) -> Generator[None, None, Raw]:
    """The result of reading a kept result: one entry for each of its blocks, then its `structuredContent` as JSON."""
    head = b'{"uri":%b,"mimeType":%b,' % (_encode(uri), b"%b")
    parts: list[bytes | memoryview] = [b'{"contents":[']
    for at, block in enumerate(kept.blocks()):
        parts.append(b"," if at else b"")
        start = head % _encode(block.mime)
        match block.kind:
            case "text":
                parts += (start, b'"text":', memoryview(block.value), b"}")
            case "data":
                parts += (start, b'"blob":', memoryview(block.value), b"}")
            case "resource":
                parts.append(memoryview(block.value))
            case "json":
                parts += (start, b'"text":"')
                yield from _escape(block.value, parts)
                parts.append(b'"}')
    parts.append(b"]}")
    yield
    return Raw(b"".join(parts))


def _extent(block: Block) -> int:
    """How many bytes a block counts in the URIs of parts: a text or its data without the quotation marks."""
    return len(memoryview(block.value)) - (2 if block.kind in ("text", "data") else 0)


def part_of(uri: str, kept: _StoredResult, start: int) -> Raw | None:
    """What reading a part returns: texts from `start` on, as many as fit, then a line that says where it goes on.

    Other blocks are whole, or begin the next part. None if the result has no such part.
    """
    whole, room, at = uri.partition("?")[0], kept.part_bytes, start
    entries: list[bytes] = []
    for block in kept.blocks():
        extent = _extent(block)
        if start >= extent:
            start -= extent
            continue
        head, end = b'{"uri":%b,"mimeType":%b,' % (_encode(uri), _encode(block.mime)), extent
        if block.kind == "resource":
            entry = bytes(block.value)
        elif block.kind == "data":
            entry = head + b'"blob":%b}' % bytes(block.value)
        else:
            text, end = _slice_of(block, start, max(0, room - len(head)))
            entry = head + b'"text":"%b"}' % text if text else b""
        if not entry or (entries and len(entry) > room + len(head)):
            break
        entries.append(entry)
        room, at, start = room - len(entry), at + end - start, 0
        if end < extent:
            break
    if not entries:
        return None
    total = sum(map(_extent, kept.blocks()))
    if at < total:
        then = f"{whole}{FROM}{at}"
        said = f"[{total - at} of {total} bytes follow. Read on at {then}]"
        entries.append(b'{"uri":%b,"mimeType":"text/plain","text":%b}' % (_encode(then), _encode(said)))
    return Raw(b'{"contents":[%b]}' % b",".join(entries))


def _slice_of(block: Block, start: int, most: int) -> tuple[bytes, int]:
    """A part of a text as the inside of a JSON text, and where in the block it ends.

    Both ends are moved back to the end of a character.
    """
    view = memoryview(block.value)
    if block.kind == "text":
        begin = len(cut_string(block.value, start))
        # With quotation marks of its own it is cut like a whole text, and 8 more bytes show where a character ends.
        text = cut_string(Raw(b'"%b"' % bytes(view[1 + begin : min(1 + begin + most + 8, len(view) - 1)])), most)
        return text, begin + len(text)
    end = min(start + most // 2, len(view))  # quotation marks become longer when they are escaped
    while 0 < start < len(view) and view[start] & 0xC0 == 0x80:
        start -= 1
    while start < end < len(view) and view[end] & 0xC0 == 0x80:
        end -= 1
    return _encode(str(view[start:end], "utf-8", "replace"))[1:-1], end


def _escape(raw: Raw, parts: list[bytes | memoryview]) -> Generator[None, None, None]:
    """Write JSON as the inside of a JSON text, slice by slice."""
    view = memoryview(raw)
    at = 0
    while at < len(view):
        end = min(at + SLICE_BYTES, len(view))
        while end < len(view) and view[end] & 0xC0 == 0x80:  # not within a character
            end -= 1
        parts.append(_encode(str(view[at:end], "utf-8", "replace"))[1:-1])
        at = end
        yield


# -- cutting -----------------------------------------------------------------------------------------------------------


class _Cut(NamedTuple):
    """A result that is too large for its caller."""

    limit: int
    call: Call
    outcome: Result
    has_schema: bool
    """Whether the caller checks `structuredContent`."""
    ids: Mapping[str, str]
    """What log lines name the call by."""


class ResultCuts:
    """Cuts the results of one hub's calls."""

    URI = URI

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.limits = ResultLimits()
        self.kept = StoredResults(now)
        self.cutting = 0
        """Results that are being split."""
        self.count = 0
        """Results that were cut since the hub started."""

    def change(self, limits: ResultLimits, bounds: Limits) -> None:
        """Apply another configuration to what ends from now on."""
        self.limits = limits
        self.kept.seconds = bounds.kept_result_seconds
        self.kept.caller_bytes, self.kept.hub_bytes = bounds.caller_kept_bytes, bounds.kept_bytes

    def limit_of(self, inflight: InFlight, server: ServerName | None = None) -> int:
        """How long the result of a call may be; 0 for no limit. Programs within the hub, such as scripts, have none.

        `server` is the one that answers, if it is a member of the server that was called.
        """
        call = inflight.call
        if call.kind not in ("tool", "task_result") or call.script or inflight.within is not None:
            return 0
        server = server or inflight.target.feature.server
        return self.limits.limit_of(call, None if server == BUILTIN else server)

    def watch(self, inflight: InFlight, server: ServerName | None = None) -> None:
        """Have the result of a call cut if it is too large; `server` is as in `limit_of`."""
        if limit := self.limit_of(inflight, server):
            inflight.keep = partial(self._on_end, limit, inflight.keep)

    def _on_end(
        self,
        limit: int,
        keep: Keep | None,
        inflight: InFlight,
        outcome: Outcome,
    ) -> Outcome | None:
        if keep is not None:
            keep(inflight, outcome)
        if not isinstance(outcome, Result) or outcome.asked_by is not None or len(memoryview(outcome.payload)) <= limit:
            return outcome
        call = inflight.call
        is_checked = call.frontend in VALIDATING and not call.is_by_argument
        has_schema = is_checked and "outputSchema" in inflight.target.feature.definition
        return self._cut_or_split(_Cut(limit, call, outcome, has_schema, inflight.ids()), inflight.deliver)

    def cut(self, call: Call, outcome: Outcome, deliver: Callable[[Outcome], None]) -> None:
        """Deliver what a tool of the hub returned to a caller without an `InFlight`, cut if it is too large."""
        limit = self.limits.limit_of(call, None)
        shown: Outcome | None = outcome
        if limit and isinstance(outcome, Result) and len(memoryview(outcome.payload)) > limit:
            shown = self._cut_or_split(_Cut(limit, call, outcome, has_schema=False, ids={}), deliver)
        if shown is not None:
            deliver(shown)

    def _cut_or_split(self, cut: _Cut, deliver: Callable[[Outcome], None]) -> Result | None:
        """The result that its caller gets; None if it has to be split first and is delivered later."""
        self.count += 1
        # A copy: the payload may be a part of a much larger body, and it stays for an hour.
        payload = Raw(bytes(cut.outcome.payload))
        if cut.outcome.is_bare:
            return self._cut(cut, payload, None)
        if len(memoryview(payload)) <= LONG_BYTES:
            return self._cut(cut, payload, split_result(payload))
        self.cutting += 1
        then = partial(self._deliver, cut, payload, deliver)
        whole, owner = partial(split_result, payload), cut.call.caller.name
        read_then(whole, _split_in_passes, then, lambda _: None, owner, over=LONG_BYTES)
        return None

    def _deliver(self, cut: _Cut, payload: Raw, deliver: Callable[[Outcome], None], split: SplitResult | None) -> None:
        self.cutting -= 1
        deliver(self._cut(cut, payload, split))

    def _cut(self, cut: _Cut, payload: Raw, split: SplitResult | None) -> Result:
        try:
            return self._shorten(cut, payload, split)
        except Exception:  # a defect must not cost the caller the result
            log.exception("a result could not be cut", tool=cut.call.name, **cut.ids)
            return cut.outcome

    def _shorten(self, cut: _Cut, payload: Raw, split: SplitResult | None) -> Result:
        """What the caller gets instead."""
        limit, call, outcome, has_schema, _ = cut
        size = len(memoryview(payload))
        kept = self.kept.store((call.caller.tenant, call.caller.name), payload, split, limit - NOTE_BYTES)
        uri = None if kept is None else URI + kept[0]
        until = "" if kept is None else datetime.fromtimestamp(kept[1], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if split is None:
            members: dict[str, Raw] = {}
            blocks = [Block("text", payload, Raw(_bare_text(payload, limit)), "")]
        else:
            members, blocks = split.members, split.blocks
        plan = _fit(members, blocks, limit - NOTE_BYTES, has_schema=has_schema)
        where = " The whole result is too large to be kept."
        if uri is not None:
            follows = f"{uri}{FROM}{_shown_bytes(plan, blocks, split)}"
            where = f" The whole result is the resource {uri} until {until}; {follows} is the next part of it."
        is_failed = has_schema and not outcome.is_error and "structuredContent" in plan.left_out
        note = _note(plan, size, 1 if split is None else split.total, where, is_failed=is_failed)
        written = [*plan.blocks]
        if plan.cut_at is None:
            written.append(b'{"type":"text","text":%b}' % _encode(note))
        else:
            written[plan.cut_at] = b'{"type":"text","text":"%b\\n%b}' % (written[plan.cut_at], _encode(note)[1:])
        if uri is not None and call.knows_links:
            about = {"type": "resource_link", "uri": uri, "name": f"result of {_beginning(call.name, NAME_BYTES)}"}
            written.append(_encode({**about, "description": f"The whole result, until {until}.", "size": size}))
        parts = [b'"content":[%b]' % b",".join(written)]
        if is_failed:
            plan.members["isError"] = Raw(b"true")
        parts += (b"%b:%b" % (_encode(name), bytes(raw)) for name, raw in plan.members.items())
        return msgspec.structs.replace(
            outcome,
            payload=Raw(b"{%b}" % b",".join(parts)),
            is_error=outcome.is_error or is_failed,
            is_bare=False,
            is_typed="resultType" in plan.members,
            is_untyped=False,
        )

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, hub: Hub, inflight: InFlight) -> Fault | None:
        """Start to answer a call that reads a kept result, or return why it cannot be read."""
        call = inflight.call
        inflight.route = Route(Resource.of(BUILTIN, FeatureName(call.name), {}), call.name)
        id, _, start = call.name.removeprefix(URI).partition(FROM)
        kept = self.kept.find((call.caller.tenant, call.caller.name), id)
        if isinstance(kept, str):
            return UnknownResource(call.name, why=kept)
        if FROM in call.name:
            part = part_of(call.name, kept, int(start)) if _OFFSET.fullmatch(start) else None
            if part is None:
                total = sum(map(_extent, kept.blocks()))
                return UnknownResource(call.name, why=f"the result has {total} bytes, and from must be fewer")
            inflight.finish(Result(part))
            return None
        inflight.limit(hub.limits.hard_seconds, hub.deadlines)
        in_turns(contents_passes(call.name, kept), partial(_finish, inflight))
        return None


def _finish(inflight: InFlight, payload: Raw) -> None:
    inflight.finish(Result(payload))


def _split_in_passes(payload: Raw) -> Generator[None, None, SplitResult | None]:
    found = None
    for split in split_passes(payload):
        found = split
        yield
    return found


class _Plan(NamedTuple):
    members: dict[str, Raw]
    blocks: list[bytes]
    cut_at: int | None
    """Which block is the beginning of a text, without its end."""
    left_out: list[str]
    """Members that are left out."""
    blocks_left_out: int
    goes_on: tuple[int, int] | None
    """The first block that is left out or cut, and how many bytes of it are there; None if all blocks are."""


def _fit(members: Mapping[str, Raw], blocks: list[Block], room: int, *, has_schema: bool) -> _Plan:
    """Choose what fits: the members first, then the blocks in their order; the first text that does not fit is cut."""
    fitting: dict[str, Raw] = {}
    left_out: list[str] = []
    for name, raw in members.items():
        size = len(memoryview(raw)) + len(name) + 4
        # Without a schema, the texts are what models read: they get at least half of the room.
        most = room if name in SMALL or (name == "structuredContent" and has_schema) else room // 2
        if size <= most:
            fitting[name] = raw
            room -= size
        else:
            left_out.append(name)
    written: list[bytes] = []
    cut_at, missing = None, 0
    goes_on: tuple[int, int] | None = None
    for number, block in enumerate(blocks):
        size = len(memoryview(block.raw)) + 1
        if size <= room and cut_at is None:
            written.append(bytes(block.raw))
            room -= size
        elif block.kind == "text" and cut_at is None and room > 0:
            cut_at = len(written)
            written.append(cut_string(block.value, room))
            goes_on = goes_on or (number, len(written[-1]))
        else:
            missing += 1
            goes_on = goes_on or (number, 0)
    return _Plan(fitting, written, cut_at, left_out, missing, goes_on)


def _shown_bytes(plan: _Plan, blocks: list[Block], split: SplitResult | None) -> int:
    """How far the caller has read the result, as the URIs of parts count it."""
    if split is None:  # shown as a text, kept as JSON
        shown = b"" if plan.cut_at is None else plan.blocks[plan.cut_at]
        return len(msgspec.json.decode(b'"%b"' % shown, type=str).encode("utf-8", "replace"))
    if split.total > len(split.blocks):
        return 0
    number, shown_of_it = plan.goes_on or (len(blocks), 0)
    return sum(map(_extent, blocks[:number])) + shown_of_it


def _bare_text(payload: Raw, limit: int) -> bytes:
    """The beginning of any JSON value as a JSON text, longer than what is shown of it."""
    return _encode(str(memoryview(payload)[: 2 * limit], "utf-8", "replace"))


def _beginning(name: str, most: int) -> str:
    """The beginning of a name, which takes at most so many bytes in JSON."""
    return msgspec.json.decode(b'"%b"' % cut_string(Raw(_encode(name)), most), type=str)


def _note(plan: _Plan, size: int, count: int, where: str, *, is_failed: bool) -> str:
    """The line that says what is left out."""
    shown = sum(map(len, plan.blocks)) + sum(len(memoryview(raw)) for raw in plan.members.values())
    missing = [_beginning(name, MEMBER_BYTES) for name in islice(plan.left_out, 3)]
    blocks = count - len(plan.blocks)
    if blocks:
        missing.append(f"{blocks} of {count} content blocks")
    what = f" ({', '.join(missing)})" if missing else ""
    failed = " The tool ran and succeeded; do not repeat the call. Without its structuredContent the result does not"
    failed = f"{failed} have the form that the tool declares, so it is marked as an error." if is_failed else ""
    return f"[Cut by the hub: {size - min(size, shown)} of {size} bytes are left out{what}.{where}{failed}]"
