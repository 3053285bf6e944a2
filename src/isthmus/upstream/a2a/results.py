"""An agent's artifacts as a tool result: each part becomes a content block.

Pure. Chunks of an artifact are joined, within a bound; JSON is kept byte for byte. Called by remote tasks.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from isthmus.model.calls import Result
from isthmus.model.tasks import Artifact, DataPart, FilePart, Part, TaskArtifactUpdate, TextPart
from isthmus.wire.a2a.fields import is_object
from isthmus.wire.jsonrpc import Payload, compact, object_members, render

PIECE = "isthmus/piece"
"""What says in a part's metadata that a hub cut it into pieces, and which piece it is."""

ARTIFACTS_MAX = 1_000
PARTS_MAX = 10_000
"""Of one task; as text joins the text before it, only an agent that means no good has more."""

ABOUT = "isthmus/agent"
"""What says in a result's `_meta` which task and which conversation it is of."""

DESCRIBING = ("title", "description", "size", "annotations", "_meta")
"""What a hub says of a part in its metadata, as the server said it of the block."""

_encode = msgspec.json.Encoder().encode


class _Position(msgspec.Struct):
    piece: int


_POSITION = msgspec.json.Decoder(_Position)


class _Growing:
    """A part, and the texts that it is put together of."""

    __slots__ = ("part", "size", "texts")

    def __init__(self, part: Part) -> None:
        kept = {"metadata": part.metadata.copy()} | ({"data": part.data.copy()} if isinstance(part, DataPart) else {})
        self.part = part = replace(part, **kept)  # a copy: a part of a message keeps the whole of it in memory
        self.size = _size_of(part)
        self.texts = [_text_of(part)]

    def grow(self, part: Part) -> None:
        """Put a text to it; an empty one adds nothing, and would not be bounded."""
        self.size += _size_of(part)
        if text := _text_of(part):
            self.texts.append(text)

    def whole(self) -> Part:
        """The part with all that was put to it."""
        part = self.part
        if isinstance(part, TextPart):
            return replace(part, text="".join(self.texts))
        return replace(part, content=_joined(self.texts)) if isinstance(part, FilePart) and part.content else part


def _text_of(part: Part) -> str:
    if isinstance(part, TextPart):
        return part.text
    return part.content or "" if isinstance(part, FilePart) else ""


def _size_of(part: Part) -> int:
    named = (part.media_type or "", getattr(part, "name", "") or "", bytes(part.metadata))
    return sum(map(len, named)) + _own_size_of(part)


def _own_size_of(part: Part) -> int:
    return len(part.data) if isinstance(part, DataPart) else len(_text_of(part)) + len(getattr(part, "url", "") or "")


def _joined(texts: Sequence[str]) -> str:
    """The base64 of bytes whose pieces were encoded one by one: where one ends in padding, all are encoded anew."""
    if not any(text.endswith("=") for text in texts[:-1]):
        return "".join(texts)
    try:
        return base64.b64encode(b"".join(base64.b64decode(text) for text in texts)).decode()
    except (binascii.Error, ValueError):
        return "".join(texts)


class ArtifactBuffer:
    """The artifacts of a task as far as they were told; `limit_bytes` are all that they may have together."""

    def __init__(self, limit_bytes: int, *, is_hub: bool) -> None:
        """A hub says which parts belong together; others send a text word by word and do not."""
        self._limit_bytes = limit_bytes
        self._is_hub = is_hub
        self._artifacts: dict[str, list[_Growing]] = {}
        self._size = self._count = 0

    def replace(self, artifacts: Iterable[Artifact]) -> str | None:
        """Take the artifacts of a whole task for all there is; what is wrong with them, if something is."""
        self._artifacts = {}
        self._size = self._count = 0
        complaints = [self._put(artifact, is_more=False) for artifact in artifacts]
        return next((complaint for complaint in complaints if complaint), None)

    def add(self, update: TaskArtifactUpdate) -> str | None:
        """Take one more artifact, or a piece of one; what is wrong with it, if something is."""
        return self._put(update.artifact, is_more=update.is_more)

    def _put(self, artifact: Artifact, *, is_more: bool) -> str | None:
        grown = self._artifacts.setdefault(artifact.id, [])
        if not is_more:
            self._size -= sum(growing.size for growing in grown)
            self._count -= len(grown)
            grown.clear()
        for position, part in enumerate(artifact.parts):
            self._size += _size_of(part)
            if grown and is_more and self._continues(part, grown[-1].part, is_first=position == 0):
                grown[-1].grow(part)
            else:
                self._count += 1
                grown.append(_Growing(part))
        return self._complaint()

    def _continues(self, part: Part, before: Part, *, is_first: bool) -> bool:
        """Whether a part is more of the one before: a hub says so, and others are read so where text follows text."""
        if _is_later_piece(part):
            return type(part) is type(before) and not isinstance(part, DataPart)
        return is_first and not self._is_hub and isinstance(part, TextPart) and isinstance(before, TextPart)

    def _complaint(self) -> str | None:
        if self._size > self._limit_bytes:
            return f"artifacts of over {self._limit_bytes} bytes"
        if len(self._artifacts) > ARTIFACTS_MAX or self._count > PARTS_MAX:
            return f"over {ARTIFACTS_MAX} artifacts or {PARTS_MAX} parts"
        return None

    def parts(self) -> tuple[Part, ...]:
        """All parts of all artifacts, in their order."""
        return tuple(growing.whole() for grown in self._artifacts.values() for growing in grown)


def _is_later_piece(part: Part) -> bool:
    if PIECE.encode() not in bytes(part.metadata):
        return False
    position = (object_members(part.metadata) or {}).get(PIECE)
    try:
        return position is not None and _POSITION.decode(position).piece > 0
    except msgspec.MsgspecError:
        return False


# -- a result ----------------------------------------------------------------------------------------------------------


class TaskRef(NamedTuple):
    """Whose result it is: the task, and the conversation; empty where there is none."""

    task: str = ""
    context: str = ""

    def members(self) -> dict[str, Payload]:
        """What a caller goes on with."""
        named = {"task_id": self.task, "context_id": self.context}
        return {name: _encode(value) for name, value in named.items() if value}


def result_of(
    parts: Sequence[Part],
    about: TaskRef,
    *,
    is_error: bool = False,
    structured: Payload = b"",
    is_hub: bool = False,
) -> Result:
    """The result that says these parts; of data, one object is the structured content, unless another is given.

    Another hub puts what a server returned into parts, and this puts it back.
    """
    structured = structured or _structured(parts, is_hub=is_hub)
    shown = [part for part in parts if not (is_hub and _is_repeated(part, structured, parts))]
    members: dict[str, Payload] = {"content": _array(_block(part, n, is_hub=is_hub) for n, part in enumerate(shown))}
    if structured:
        members["structuredContent"] = structured
    if is_hub and (bare := _bare(parts)) is not None:
        members = {**bare}
    members["isError"] = b"true" if is_error else b"false"
    if known := about.members():
        members["_meta"] = render({**(object_members(members.get("_meta", b"{}")) or {}), ABOUT: render(known)})
    return Result(Raw(render(members)), is_error)


def _array(blocks: Iterable[bytes]) -> bytes:
    return b"[%b]" % b",".join(blocks)


def _structured(parts: Sequence[Part], *, is_hub: bool) -> Payload:
    """One object; a hub tells it first, and other data may follow."""
    data = [part.data for part in parts if isinstance(part, DataPart)]
    is_one = len(data) == 1 or (is_hub and bool(data) and isinstance(parts[0], DataPart))
    return data[0] if is_one and is_object(data[0]) else b""


def _is_repeated(part: Part, structured: Payload, parts: Sequence[Part]) -> bool:
    """Whether a hub's data need not be told as text too: the server has put it into words itself."""
    is_first = isinstance(part, DataPart) and part.data is structured
    return is_first and any(isinstance(other, TextPart) for other in parts)


def _bare(parts: Sequence[Part]) -> dict[str, Payload] | None:
    """The result of a server that returned no content, which a hub tells as it is."""
    only = parts[0] if len(parts) == 1 else None
    members = object_members(only.data) if isinstance(only, DataPart) else None
    return dict(members) if members is not None and bytes(members.get("content", b"")) == b"[]" else None


def _block(part: Part, number: int, *, is_hub: bool) -> bytes:
    said = (object_members(part.metadata) or {}) if is_hub and part.metadata else {}
    match part:
        case TextPart(text=text) if "uri" in said:
            return _embedded(said, b'"text":%b' % _encode(text))
        case TextPart(text=text):
            return _described(_text(text), said)
        case DataPart(data=data):
            # Also where it is the structured content, for those who know nothing else.
            return _text(compact(data).decode())
        case FilePart(content=None):
            return _described(_linked(part, number), said)
        case FilePart() if "uri" in said:
            named = {} if part.media_type is None else {"mimeType": Raw(_encode(part.media_type))}
            return _embedded({**named, **said}, b'"blob":%b' % _encode(part.content))
        case FilePart():
            return _described(_file(part, number), said)


def _described(block: bytes, said: Mapping[str, Payload]) -> bytes:
    """A block with what a hub says of it besides."""
    members = {name: said[name] for name in DESCRIBING if name in said}
    return b"%b,%b" % (block[:-1], render(members)[1:]) if members else block


def _embedded(said: Mapping[str, Payload], content: bytes) -> bytes:
    """A resource that a hub has taken apart."""
    resource = {name: said[name] for name in ("uri", "mimeType", "_meta") if name in said}
    block = b'{"type":"resource","resource":%b,%b}}' % (render(resource)[:-1], content)
    return _described(block, {name: value for name, value in said.items() if name == "annotations"})


def _text(text: str) -> bytes:
    return b'{"type":"text","text":%b}' % _encode(text)


def _linked(file: FilePart, number: int) -> bytes:
    named = {"uri": file.url or "", "name": file.name or file.url or f"file {number + 1}", "mimeType": file.media_type}
    return _encode({"type": "resource_link", **{key: value for key, value in named.items() if value is not None}})


def _file(file: FilePart, number: int) -> bytes:
    kind = (file.media_type or "").partition("/")[0].lower()
    if kind in ("image", "audio"):
        return _encode({"type": kind, "data": file.content, "mimeType": file.media_type})
    uri = f"a2a:file/{number + 1}/{quote(file.name or '', safe='')}"
    resource = {"uri": uri, "mimeType": file.media_type or "application/octet-stream", "blob": file.content}
    return _encode({"type": "resource", "resource": resource})
