"""Which hubs are behind an address, and how many steps away: a hub says so in `_meta` when it is greeted.

A pure reader and writer. Other programs pay no heed to it; what a hub does when it finds itself is the keeper's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from isthmus.wire.jsonrpc import Payload

HUBS_KEY = "isthmus/hubs"

HUBS_MAX = 256
"""The nearest are told. Who names more than that is not believed at all."""

NO_HUBS: Mapping[str, int] = {}

ID_LENGTH_MAX = 64
STEPS_MAX = 100
"""No row of hubs is as long. One that is said to be further away is told as this far: else none would be believed."""


class _Meta(msgspec.Struct):
    hubs: dict[
        Annotated[str, msgspec.Meta(max_length=ID_LENGTH_MAX)], Annotated[int, msgspec.Meta(ge=0, le=STEPS_MAX)]
    ] = msgspec.field(name=HUBS_KEY, default_factory=dict)


def read_hubs(meta: Payload) -> dict[str, int]:
    """The hubs that a greeting's `_meta` names, by their ids; none if it is no such thing."""
    try:
        hubs = msgspec.json.decode(meta, type=_Meta).hubs
    except msgspec.MsgspecError:
        return {}
    return hubs if len(hubs) <= HUBS_MAX else {}


def write_hubs(hubs: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """The member of `_meta` that says so; none if there is nothing to say."""
    nearest = sorted(hubs.items(), key=lambda entry: entry[1])[:HUBS_MAX]
    return {HUBS_KEY: {id: min(steps, STEPS_MAX) for id, steps in nearest}} if nearest else {}
