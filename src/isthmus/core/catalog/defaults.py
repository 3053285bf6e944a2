"""Arguments that the operator fills in: what a call becomes with them, and how its tool is listed then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from isthmus.model.features import Tool

Defaults = Mapping[str, msgspec.Raw]
"""Arguments as JSON text, by name."""

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.encode


def compile_defaults(values: Mapping[str, Any]) -> Defaults:
    """The operator's values as text."""
    return {name: msgspec.Raw(_encode(value)) for name, value in values.items()}


def fill_defaults(arguments: msgspec.Raw, defaults: Defaults) -> msgspec.Raw:
    """The arguments with those added that the caller left out; what it gave stays as it is."""
    try:
        given = _MEMBERS.decode(arguments)
    except msgspec.MsgspecError:
        return arguments  # not an object: the check that follows says so
    absent = {name: value for name, value in defaults.items() if name not in given}
    return msgspec.Raw(_encode({**given, **absent})) if absent else arguments


def without_required(tool: Tool, defaults: Defaults) -> Tool:
    """The tool as callers see it: what is filled in for them is not required of them."""
    schema = tool.definition.get("inputSchema")
    try:
        members = {} if schema is None else _MEMBERS.decode(schema)
        required = msgspec.json.decode(members["required"], type=list[str]) if "required" in members else []
    except msgspec.MsgspecError:
        return tool
    left = [name for name in required if name not in defaults]
    if left == required:
        return tool
    members["required"] = msgspec.Raw(_encode(left))
    return Tool.of(tool.server, tool.name, {**tool.definition, "inputSchema": msgspec.Raw(_encode(members))})
