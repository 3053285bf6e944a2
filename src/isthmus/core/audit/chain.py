"""The chain of the audit log: the digest of each record covers the one before it.

So none can be changed, taken out, added or moved without all that follow being other ones. How far the chain goes is
signed beside it (`Seal`), since what is cut off at the end leaves no trace in the rest. Plain functions over bytes:
`storage` appends, `isthmus audit verify` looks through.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal["checkpoint", "anchor"]
"""What a seal vouches for: that the log goes at least this far, or that what came before was taken away by its hub."""

Check: TypeAlias = Callable[[bytes, bytes], bool]
"""Whether a signature is that of a text."""


class Point(msgspec.Struct, frozen=True):
    """A place in the chain: the number of a record, the first being 1, and its digest."""

    number: int
    digest: bytes


START = Point(0, bytes(32))
"""What the first record follows."""

CUT = "audit.cut"
"""The event of a hub that finds, when it starts, that the log ends before its checkpoint, or has none."""


class Row(msgspec.Struct, frozen=True):
    """A record as it is kept."""

    number: int
    at: float
    content: bytes
    digest: bytes


class Seal(msgspec.Struct, frozen=True):
    """A point that was signed."""

    point: Point
    at: float
    signature: bytes


class Standing(msgspec.Struct, frozen=True):
    """How a log stands: where it ends, its last record, and up to where older records were taken away."""

    head: Point
    last: bytes | None = None
    anchor: Seal | None = None


class Broken(msgspec.Struct, frozen=True):
    """The first record that is not as it was written, or is missing; 0 if what is wrong lies beside the records."""

    number: int
    why: str


def follow(before: Point, content: bytes) -> Point:
    """The point of the next record."""
    number = before.number + 1
    return Point(number, sha256(before.digest + number.to_bytes(8, "big") + content).digest())


def signed_text(kind: Kind, point: Point, at: float) -> bytes:
    """What is signed for a point."""
    return f"isthmus audit {kind} {point.number} {point.digest.hex()} {at!r}".encode()


class Verification:
    """Looks at a log's rows in their order, as they are given, and says what is wrong first."""

    def __init__(self, anchor: Seal | None, checkpoint: Seal | None, check: Check) -> None:
        self._before = START if anchor is None else anchor.point
        self._checkpoint = checkpoint
        self.count = 0
        self.broken = self._of_seals(anchor, checkpoint, check)

    @property
    def head(self) -> Point:
        """The last record that was in order."""
        return self._before

    def _of_seals(self, anchor: Seal | None, checkpoint: Seal | None, check: Check) -> Broken | None:
        if anchor is not None and not check(signed_text("anchor", anchor.point, anchor.at), anchor.signature):
            return Broken(anchor.point.number + 1, "the hub's key did not sign that older records were taken away")
        if checkpoint is None:
            return None
        if not check(signed_text("checkpoint", checkpoint.point, checkpoint.at), checkpoint.signature):
            return Broken(0, "the checkpoint was not signed by the hub's key")
        return None

    def take(self, row: Row) -> Broken | None:
        """Look at the next row; None if it is in order."""
        if self.broken is None:
            self.broken = self._fault_of(row)
        if self.broken is None:
            self.count += 1
            self._before = Point(row.number, row.digest)
        return self.broken

    def _fault_of(self, row: Row) -> Broken | None:
        expected = self._before.number + 1
        if row.number != expected:
            return Broken(expected, f"it is missing: record {row.number} comes in its place")
        if follow(self._before, row.content).digest != row.digest:
            return Broken(row.number, "it was changed, or does not follow the one before it")
        if (at := _time_of(row.content)) is None or at != row.at:
            return Broken(row.number, "the time that it is found by is not the one that it has")
        if (seen := _seen_in(row.content)) is not None:
            return Broken(row.number, f"the hub noted here, when it started, that {seen}")
        sealed = None if self._checkpoint is None else self._checkpoint.point
        if sealed is not None and sealed.number == row.number and sealed.digest != row.digest:
            return Broken(row.number, "it is another one than the checkpoint vouches for")
        return None

    def end(self) -> Broken | None:
        """There are no more rows: look whether there should be."""
        if self.broken is None and self._checkpoint is None and self._before is not START:
            self.broken = Broken(0, "there is no checkpoint: nobody can say whether records are missing at the end")
        if self.broken is None and self._checkpoint is not None:
            number = self._checkpoint.point.number
            if self._before.number < number:
                last = self._before.number + 1
                self.broken = Broken(last, f"it is missing at the end: the checkpoint vouches for {number} records")
        return self.broken


class _Known(msgspec.Struct):
    """What is read of every record."""

    at: float
    event: str = ""
    why: str = ""


_DECODER = msgspec.json.Decoder(_Known)


def _time_of(content: bytes) -> float | None:
    try:
        return _DECODER.decode(content).at
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _seen_in(content: bytes) -> str | None:
    """What a hub found wrong with the log when it started: its own going on from there must not hide that."""
    known = _DECODER.decode(content)
    return known.why if known.event == CUT else None
