"""`isthmus tools`: what can be called, and below it the servers that are missing and why."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import groupby

import msgspec

from isthmus.cli.exits import Exit
from isthmus.cli.opening import open_hub
from isthmus.cli.output import Row, aligned, first_line, say, show_table, write, write_json
from isthmus.cli.reached import Absence, Offer
from isthmus.cli.sources import Own, Running
from isthmus.wire.mcp.lists import TOOLS, array_of, write_entry
from isthmus.wire.mcp.messages import read_string


async def list_tools(source: Running | Own, *, wait: float, is_json: bool) -> Exit:
    """Print the tools of a hub.

    Raises:
        CommandFailed: there is no hub to ask.
    """
    hub = await open_hub(source, wait=wait)
    try:
        offers, absences = hub.offers(), hub.absences()
    finally:
        await hub.aclose()
    if is_json:
        write_json(as_json(offers, absences))
    else:
        _show(offers, absences)
    return Exit.WELL


def as_json(offers: Sequence[Offer], absences: Mapping[str, Absence]) -> bytes:
    """Return the listing for programs: each tool as its server describes it, under the name to call it by."""
    tools = array_of(write_entry(TOOLS, offer.name, offer.tool.definition) for offer in offers)
    missing = {
        name: {"state": gone.state, "reason": gone.reason, "listed": gone.is_listed} for name, gone in absences.items()
    }
    return b'{"tools":' + tools + b',"missing":' + msgspec.json.encode(missing) + b"}"


def _show(offers: Sequence[Offer], absences: Mapping[str, Absence]) -> None:
    rows = [(offer.server, _row(offer)) for offer in offers]
    if not rows:
        say("There are no tools.")
    elif sys.stdout.isatty():
        groups = [(server, [row for _, row in group]) for server, group in groupby(rows, key=lambda pair: pair[0])]
        show_table(sys.stdout, groups, ("cyan", ""))
    else:
        # For grep and awk: a line a tool, whole, and nothing else.
        write("\n".join(aligned([row for _, row in rows])))
    _show_absences(absences)


def _row(offer: Offer) -> Row:
    definition = offer.tool.definition
    described = read_string(definition.get("description")) or read_string(definition.get("title")) or ""
    return offer.name, first_line(described)


def _show_absences(absences: Mapping[str, Absence]) -> None:
    """Tell who is missing, beside the output, so that whoever reads that reads only tools."""
    if not absences:
        return
    rows = [(name, gone.state, first_line(gone.reason or "")) for name, gone in absences.items()]
    say("")
    if sys.stderr.isatty():
        show_table(sys.stderr, [("missing", rows)], ("yellow", "", ""))
    else:
        say("\n".join(["missing", *aligned(rows)]))
    say("`isthmus doctor` says more.")
