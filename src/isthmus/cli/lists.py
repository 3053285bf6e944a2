"""`isthmus resources` and `servers`: lists of a hub, and the servers missing from them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby

import click

from isthmus.cli.documents import ListedFeature, MissingServerInfo, read_servers
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.find_hub import HubSource, open_hub, with_hub, with_set
from isthmus.cli.options import with_json, with_wait
from isthmus.cli.output import (
    Row,
    aligned,
    counted,
    first_line,
    harmless,
    in_place,
    print_error,
    print_json,
    print_output,
    print_table,
    show_table,
)
from isthmus.cli.rest_client import RemoteSource, unless_away
from isthmus.cli.run_command import quiet_logs, run_command
from isthmus.model.descriptions import on_one_line
from isthmus.wire.mcp.lists import RESOURCES, TEMPLATES, ListShape
from isthmus.wire.mcp.messages import read_string

REFRESH_SECONDS = 1.0
CONNECT_SECONDS = 0.1
"""How long servers of an own hub may take before the list is shown."""

LINE_LENGTH_MAX = 100
"""The length of a description in a list. `isthmus tools NAME`, `prompts NAME` and `--json` have the whole."""

SERVER_HEAD = ("SERVER", "STATE", "BY", "PROTOCOL", "OFFERS")
SERVER_STYLES = ("bold", "", "", "", "")


@click.command()
@with_hub
@with_set
@with_wait
@with_json
@click.option("--templates", is_flag=True, help="List resource templates instead.")
def resources(source: HubSource, wait: float, *, is_json: bool, templates: bool) -> int:
    """List the resources, and the servers that are missing."""
    quiet_logs()
    shape = TEMPLATES if templates else RESOURCES
    return run_command(list_features(source, shape, wait=wait, is_json=is_json))


@click.command()
@with_hub
@with_wait
@with_json
@click.option("--watch", "is_watched", is_flag=True, help="Refresh every second, until Ctrl-C.")
def servers(source: HubSource, wait: float, *, is_json: bool, is_watched: bool) -> int:
    """List the servers and their states."""
    if is_watched and is_json:
        raise click.UsageError("--watch and --json exclude each other.")
    quiet_logs()
    if not is_watched:
        return run_command(list_servers(source, wait=wait, is_json=is_json))
    with suppress(KeyboardInterrupt):
        run_command(watch_servers(source, wait=wait))
    return Exit.SUCCESS


async def list_features(source: HubSource, shape: ListShape, *, wait: float, is_json: bool) -> Exit:
    """Print one of a hub's lists.

    Raises:
        CommandFailed: the hub cannot be reached or started.
    """
    async with open_hub(source, wait=wait) as hub:
        if is_json:
            print_json(await hub.list(shape))
            return Exit.SUCCESS
        listing = await hub.listing(shape)
    print_features(listing.features, shape)
    print_missing(listing.missing)
    return Exit.SUCCESS


def print_features(offers: Sequence[ListedFeature], shape: ListShape) -> None:
    """Print the entries of a list, a line each: under their servers on a terminal, else aligned for grep and awk."""
    rows = [(offer.server, (offer.name, line_of(offer))) for offer in offers]
    if not rows:
        print_error(f"There are no {shape.noun}s.")
    elif sys.stdout.isatty():
        groups = [(server, [row for _, row in group]) for server, group in groupby(rows, key=lambda pair: pair[0])]
        show_table(sys.stdout, groups, ("cyan", ""), (shape.noun.upper(), "DESCRIPTION"))
    else:
        print_output("\n".join(aligned([row for _, row in rows])))


def line_of(offer: ListedFeature) -> str:
    """The beginning of an entry's description, else its title or name, if that says more than its name in the list."""
    texts = (read_string(offer.definition.get(key)) for key in ("description", "title", "name"))
    text = next((text for text in texts if text and text != offer.name), "")
    return harmless(on_one_line(text, LINE_LENGTH_MAX), keep="")


def print_missing(absences: Mapping[str, MissingServerInfo]) -> None:
    """Print the servers that cannot be called on stderr: a program that reads the list gets only the list."""
    for head, is_listed in (("missing", False), ("listed, but away", True)):
        rows = [
            (name, gone.state, first_line(gone.reason or ""))
            for name, gone in absences.items()
            if gone.is_listed is is_listed
        ]
        if not rows:
            continue
        print_error("")
        if sys.stderr.isatty():
            table = (head.upper(), "STATE", "REASON")
            show_table(sys.stderr, [("", rows)], ("yellow", "", ""), table, is_wrapped=True)
        else:
            print_error("\n".join([head, *aligned(rows)]))
    if absences:
        print_error("`isthmus doctor` says more.")


async def list_servers(source: HubSource, *, wait: float, is_json: bool) -> Exit:
    """Print the servers of a hub and their states.

    Raises:
        CommandFailed: the hub cannot be reached or started.
    """
    async with open_hub(source, wait=wait) as hub:
        document = await hub.servers()
    if is_json:
        print_json(document)
        return Exit.SUCCESS
    print_table(SERVER_HEAD, server_rows(document), SERVER_STYLES, is_wrapped=True)
    return Exit.SUCCESS


async def watch_servers(source: HubSource, *, wait: float) -> Exit:
    """Show the servers until interrupted. While the hub is away, the last state stays.

    Raises:
        CommandFailed: the hub rejects the key, or there is no terminal.
    """
    if not sys.stdout.isatty():
        raise CommandFailed(Exit.USAGE, "--watch needs a terminal", "Leave it out to print the servers once.")
    rows: list[Row] = []
    # Servers that start are shown as such; the command does not wait for them.
    async with open_hub(source, wait=wait if isinstance(source, RemoteSource) else CONNECT_SECONDS) as hub:
        with in_place(sys.stdout, SERVER_HEAD) as show:
            while True:
                document, problem = await unless_away(hub.servers())
                rows = rows if document is None else server_rows(document)
                show([("", rows), *([(problem, [])] if problem else [])], SERVER_STYLES)
                await asyncio.sleep(REFRESH_SECONDS)


def server_rows(document: bytes) -> list[Row]:
    """The servers as rows."""
    rows: list[Row] = []
    for server in read_servers(document):
        counts = {
            "tool": server.tools,
            "prompt": server.prompts,
            "resource": server.resources,
            "template": server.resource_templates,
        }
        offered = ", ".join(counted(count, noun) for noun, count in counts.items() if count)
        remark = first_line(server.trouble or "; ".join((offered, *server.cuts)))
        rows.append((server.name, server.state, server.transport or "", protocol_name(server.era), remark))
    return rows


def protocol_name(era: str | None) -> str:
    """The protocol that a server speaks. A revision of MCP is a date, so it gets a prefix."""
    return f"MCP {era}" if era is not None and era[:1].isdigit() else era or ""
