"""`isthmus tools`, `prompts` and `resources`: what there is, and below it the servers that are missing and why."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import groupby

from isthmus.cli.documents import Absence, Offer, read_listing
from isthmus.cli.exits import Exit
from isthmus.cli.opening import opened
from isthmus.cli.output import Row, aligned, first_line, say, show_table, write, write_json
from isthmus.cli.sources import Own, Running
from isthmus.wire.mcp.lists import ListShape
from isthmus.wire.mcp.messages import read_string


async def list_features(source: Running | Own, shape: ListShape, *, wait: float, is_json: bool) -> Exit:
    """Print one of the lists of a hub.

    Raises:
        CommandFailed: there is no hub to ask.
    """
    async with opened(source, wait=wait) as hub:
        document = await hub.list(shape)
    if is_json:
        write_json(document)
        return Exit.WELL
    listing = read_listing(document, shape)
    _show(listing.offers, shape)
    _show_absences(listing.absences)
    return Exit.WELL


def _show(offers: Sequence[Offer], shape: ListShape) -> None:
    rows = [(offer.server, _row(offer)) for offer in offers]
    if not rows:
        say(f"There are no {shape.noun}s.")
    elif sys.stdout.isatty():
        groups = [(server, [row for _, row in group]) for server, group in groupby(rows, key=lambda pair: pair[0])]
        show_table(sys.stdout, groups, ("cyan", ""))
    else:
        # For grep and awk: a line each, whole, and nothing else.
        write("\n".join(aligned([row for _, row in rows])))


def _row(offer: Offer) -> Row:
    texts = (read_string(offer.definition.get(key)) for key in ("description", "title", "name"))
    described = next((text for text in texts if text and text != offer.name), "")
    return offer.name, first_line(described)


def _show_absences(absences: Mapping[str, Absence]) -> None:
    """Tell who is missing, beside the output, so that whoever reads that reads only what there is."""
    if not absences:
        return
    rows = [(name, gone.state, first_line(gone.reason or "")) for name, gone in absences.items()]
    say("")
    if sys.stderr.isatty():
        show_table(sys.stderr, [("missing", rows)], ("yellow", "", ""))
    else:
        say("\n".join(["missing", *aligned(rows)]))
    say("`isthmus doctor` says more.")
