"""What an A2A client sends over gRPC: protobuf, read as the frontend reads it. Called by `fuzz.targets`."""

from __future__ import annotations

import msgspec

from fuzz.replies import Disagreement
from isthmus.wire.a2a import protobuf, v1_0
from isthmus.wire.a2a.operations import A2aProblem
from isthmus.wire.a2a.protobuf import METHODS

_METHODS = tuple(METHODS)


def grpc(data: bytes) -> None:
    """A request of some method is read, or refused as a problem; and what was read is JSON."""
    if not data:
        return
    method = _METHODS[data[0] % len(_METHODS)]
    members = protobuf.read(method, data[1:])
    if isinstance(members, A2aProblem):
        return
    for name, value in members.items():
        try:
            msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise Disagreement(f"{name} of {method} is no JSON: {value!r}") from error
    v1_0.DIALECT.read(method, members)
