"""An artifact in pieces, as a stream tells it: part by part, and a part that is large piece by piece.

Pure. Text is cut between characters and a file where its base64 is whole, so that each piece can be read by itself, and
all of them put together are the part again; its metadata says which piece of how many it is. JSON is never cut: where
it may be too long, who tells it gives it another form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from isthmus.model.conversation import Artifact, Data, File, Part, Text
from isthmus.wire.jsonrpc import object_members, render

PIECE_LENGTH = 256 * 1024
"""Characters of one piece: at most 1 MiB on the wire, which every client takes (gRPC's refuse 4 MiB), and few enough
that others are served between two of them. A multiple of 4, because base64 is whole there."""

PIECE = "isthmus/piece"
"""What says in a part's metadata which piece it is."""


Form: TypeAlias = Callable[[Part], Part]
"""As what a part is told."""


def as_it_is(part: Part) -> Part:
    """Every part in its own form."""
    return part


class Piece(NamedTuple):
    """Some of an artifact."""

    artifact: Artifact
    is_more: bool
    """It goes behind what was told before."""
    is_complete: bool


def is_long(artifact: Artifact) -> bool:
    """Whether an artifact is more than a piece."""
    return sum(map(_length, artifact.parts)) > PIECE_LENGTH


def _length(part: Part) -> int:
    match part:
        case Text(text=whole) | File(content=str(whole)):
            return len(whole)
        case Data():
            return len(bytes(part.data))
        case File():
            return 0


def pieces_of(artifact: Artifact, form: Form = as_it_is) -> Iterator[Piece]:
    """The pieces of an artifact in their order, made one at a time."""
    last = len(artifact.parts) - 1
    for position, part in enumerate(map(form, artifact.parts)):
        count = pieces_in(part)
        for number in range(count):
            piece = part if count == 1 else _cut(part, position, number, count)
            is_complete = position == last and number == count - 1
            yield Piece(replace(artifact, parts=(piece,)), position + number > 0, is_complete)


def pieces_in(part: Part) -> int:
    """How many pieces a part is told in."""
    match part:
        case Text(text=whole):
            return _count(whole)
        case File(content=str(whole)) if len(whole) % 4 == 0 and not any(map(whole.__contains__, " \r\n")):
            return _count(whole)
        case File() | Data():
            return 1


def _count(whole: str) -> int:
    return max(1, -(-len(whole) // PIECE_LENGTH))


def _cut(part: Part, position: int, number: int, count: int) -> Part:
    metadata = _marked(part.metadata, position, number, count)
    where = slice(number * PIECE_LENGTH, (number + 1) * PIECE_LENGTH)
    if isinstance(part, Text):
        return replace(part, text=part.text[where], metadata=metadata)
    assert isinstance(part, File), "JSON is never cut"
    assert part.content is not None, "only bytes are"
    return replace(part, content=part.content[where], metadata=metadata)


def _marked(metadata: Raw, position: int, number: int, count: int) -> Raw:
    members = object_members(metadata) if metadata else None
    piece = msgspec.json.encode({"part": position, "piece": number, "pieces": count})
    return Raw(render({**(members or {}), PIECE: piece}))
