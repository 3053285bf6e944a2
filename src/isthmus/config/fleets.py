"""Read `[fleets.NAME]`: servers with the same tools, which callers see as one server.

The keys are declared once, here: their sentences in the reference, and the fields of `core.catalog.fleets` that they
fill. A fleet with a mistake is left out. Called by `config.load`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from isthmus.config import codes, values
from isthmus.config.callers import FLEETS
from isthmus.config.files import Document
from isthmus.config.findings import Finding, Place, fix_of
from isthmus.core.catalog.fleets import (
    AT_ONCE,
    DEADLINE_SECONDS,
    RESULT_BYTES,
    FleetSettings,
    check_member_pattern,
)
from isthmus.model.names import ServerName, parse_server_name

FLEET_KEYS: Mapping[str, str] = {
    "members": 'Which servers are members, a text or a list: `"sensor-*"` for configured servers and `"dialin:plant_*"`'
    ' for those that dialled in, by name, with `*` for any characters; `"agent:KEY"` and `"tag:NAME"` as in'
    " permissions.",
    "hide_members": "Whether lists of several servers leave out the members' own tools; `/mcp/MEMBER` has them. Default"
    " `true`.",
    "deadline": f"Seconds that a call of `all` members, or of `any`, may take. Default {DEADLINE_SECONDS:g}, at most"
    " 3600.",
    "at_once": f"How many members one call reaches at once; the others wait. Default {AT_ONCE}, at most 256.",
    "result_bytes": f"Bytes of all results that one call gathers; each member may use an equal share. Default"
    f" {RESULT_BYTES}, at most 8388608.",
    "read_only": 'Tools that only read, as you say, so that `any` works for them; `"*"` for all. Tools of a `trusted`'
    " server that say so themselves need not be listed.",
}
"""The keys of `[fleets.NAME]`, with their sentence in the reference."""

_FIXES = (
    ("must have another name than a server", "rename the fleet"),
    ("must have a name like that of a server", "name the fleet with 1 to 50 letters, digits, _ and -"),
    ("members must have a pattern", 'write members = "sensor-*"'),
    ("a member must be", 'write a pattern such as "sensor-*", "dialin:plant_*" or "agent:plant"'),
    ("must be a list", 'write a list, such as ["sensor-*"]'),
    ("must have only", "correct the spelling of the key, or remove it"),
)
"""Parts of the mistakes in a fleet, and what to write instead; the first match counts."""


def read_fleets(
    document: Document | None, servers: Collection[str]
) -> tuple[dict[ServerName, FleetSettings], list[Finding]]:
    """Return the fleets of a file by name, with findings. `servers` are the names that a fleet cannot have."""
    if document is None or not document.dialect.has_hub:
        return {}, []
    fleets: dict[ServerName, FleetSettings] = {}
    findings: list[Finding] = []
    for name, entry in document.section(FLEETS).items():
        try:
            fleets[ServerName(name)] = _read_fleet(name, entry, servers)
        except ValueError as error:
            place = Place(document.file, FLEETS).at(name)
            advice = fix_of(error, _FIXES, "the fleet does not exist, and its members are listed themselves")
            findings.append(place.mistake(error, advice=advice, code=codes.BAD_FLEET))
    return fleets, findings


def _read_fleet(name: str, entry: object, servers: Collection[str]) -> FleetSettings:
    try:
        parse_server_name(name)
    except ValueError as error:
        raise ValueError(f"must have a name like that of a server, not {values.quoted(name)}: {error}") from error
    if name in servers:
        raise ValueError(f"must have another name than a server, not {values.quoted(name)}")
    fields = values.table("", entry, FLEET_KEYS)
    members = fields.get("members", [])
    given: dict[str, Any] = {
        "members": (members,) if isinstance(members, str) and members else values.texts("members", members)
    }
    for pattern in given["members"]:
        try:
            check_member_pattern(pattern)
        except ValueError as error:
            raise ValueError(f"members: {error}") from error
    if "hide_members" in fields:
        given["hide_members"] = values.flag("hide_members", fields["hide_members"])
    if "deadline" in fields:
        given["deadline"] = values.number("deadline", fields["deadline"])
    for key in ("at_once", "result_bytes"):
        if key in fields:
            given[key] = values.integer(key, fields[key])
    if "read_only" in fields:
        given["read_only"] = values.texts("read_only", fields["read_only"])
    return FleetSettings(**given)
