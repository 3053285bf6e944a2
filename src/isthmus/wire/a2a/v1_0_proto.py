"""A2A 1.0 as its gRPC binding writes it: protobuf, to and from the JSON that the dialect reads and writes.

Protobuf has no other numbers in data than doubles, and no order of keys: what is whole comes out whole up to 2**53, and
nothing more can be promised there. Pure; called by the face.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from msgspec import Raw

from isthmus.wire.a2a.operations import Problem
from isthmus.wire.a2a.problems import V1_0, details_1_0
from isthmus.wire.a2a.proto_schema import CLASSES, METHODS
from isthmus.wire.jsonrpc import VALUES_MAX, Payload, is_dense

Members: TypeAlias = dict[str, Raw]

STATUSES: Mapping[str, int] = {
    "INVALID_ARGUMENT": 3,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "FAILED_PRECONDITION": 9,
    "INTERNAL": 13,
}
"""The numbers of the statuses that problems have."""

WHOLE_MAX = 2.0**53
"""Up to here every whole number is a double of its own."""


VALUE_BYTES = 12
"""What a value takes beside its own text: a number is 9 bytes, and what is in something has its tags and lengths."""


class Unwritable(ValueError):
    """JSON that protobuf has no form for: it is nested too deeply, or holds a number beyond a double."""


def read(method: str, request: bytes) -> Members | Problem:
    """The parameters that a request of JSON-RPC would have had."""
    kind, _ = METHODS[method]
    try:
        told = json_format.MessageToDict(CLASSES[kind].FromString(request))
        written = {name: msgspec.json.encode(_whole(value)) for name, value in told.items()}
    except (DecodeError, json_format.Error, ValueError, RecursionError) as error:
        return Problem("invalid_params", f"the request is no {kind}: {str(error)[:200]}")
    if any(is_dense(text, VALUES_MAX) for text in written.values()):
        return Problem("invalid_params", f"the request has over {VALUES_MAX} values: send less at once, or one text")
    return {name: Raw(text) for name, text in written.items()}


def _whole(value: Any) -> Any:
    """The same with whole numbers written as such: `1.0` is an integer to no server that is strict."""
    if isinstance(value, float):
        return int(value) if abs(value) <= WHOLE_MAX and value.is_integer() else value
    if isinstance(value, dict):
        return {key: _whole(each) for key, each in value.items()}
    return [_whole(each) for each in value] if isinstance(value, list) else value


def write(method: str, result: Payload) -> bytes:
    """A method's result, or one item of its stream.

    Raises:
        Unwritable: protobuf cannot hold it.
    """
    _, kind = METHODS[method]
    message = CLASSES[kind]()
    try:
        _check_numbers(bytes(result))
        # What is no field is what only the merged form of a card has.
        json_format.Parse(bytes(result), message, ignore_unknown_fields=True)
        written: bytes = message.SerializeToString()
        # No reader takes what is nested too deeply, but not every version minds to write it.
        message.ParseFromString(written)
    except (DecodeError, json_format.Error, ValueError, OverflowError, RecursionError) as error:
        raise Unwritable(f"the answer cannot be written in protobuf: {str(error)[:200]}") from error
    return written


PIECE_BYTES = 64 * 1024
OVERLAP_BYTES = 310
"""What is looked for may stand across the end of a piece."""

_PERHAPS_BEYOND = re.compile(rb"[0-9](?:[eE]\+?[0-9]{3}|[0-9]{308})")
"""What a number beyond a double looks like; texts may look so, too."""


def _check_numbers(text: bytes) -> None:
    """Refuse what protobuf's reader would take for Infinity. Raises: ValueError."""
    # In pieces: a search holds the interpreter to its end, and this runs beside the event loop.
    starts = range(0, len(text), PIECE_BYTES)
    if any(_PERHAPS_BEYOND.search(text, at, at + PIECE_BYTES + OVERLAP_BYTES) is not None for at in starts):
        json.loads(text, parse_float=_finite)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is beyond a double")
    return value


def size_max(data: Payload) -> int:
    """The most bytes that JSON takes in protobuf, found without writing it, which takes long where it is long."""
    text = bytes(data)
    return len(text) + VALUE_BYTES * (1 + text.count(b",") + text.count(b"[") + text.count(b"{"))


def write_problem(problem: Problem) -> tuple[int, bytes]:
    """The number of a problem's status, and the `google.rpc.Status` that goes with it."""
    code = STATUSES[V1_0[problem.kind].status]
    details = [_packed(each) for each in details_1_0(problem)]
    status = CLASSES["Status"](code=code, message=problem.message, details=details)
    return code, status.SerializeToString()


def _packed(detail: dict[str, Any]) -> Any:
    told = {key: value for key, value in detail.items() if key != "@type"}
    kind = "BadRequest" if "fieldViolations" in told else "ErrorInfo"
    message = json_format.ParseDict(told, CLASSES[kind]())
    return CLASSES["Packed"](type_url=detail["@type"], value=message.SerializeToString())
