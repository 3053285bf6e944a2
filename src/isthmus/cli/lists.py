"""`isthmus tools`, `prompts`, `resources` and `servers`: lists of a hub, and the servers missing from them."""

from __future__ import annotations

import sys
from itertools import groupby

import click

from isthmus.cli.documents import read_servers
from isthmus.cli.exits import Exit
from isthmus.cli.hub import HubSource, open_hub
from isthmus.cli.options import with_hub, with_json, with_wait
from isthmus.cli.output import aligned, counted, first_line, print_error, print_json, print_output, show_table
from isthmus.cli.running import quiet_logs, run_command
from isthmus.wire.mcp.lists import PROMPTS, RESOURCES, TEMPLATES, TOOLS, ListShape
from isthmus.wire.mcp.messages import read_string


@click.command()
@with_hub
@with_wait
@with_json
def tools(source: HubSource, wait: float, *, is_json: bool) -> int:
    """List the tools, and the servers that are missing."""
    quiet_logs()
    return run_command(list_features(source, TOOLS, wait=wait, is_json=is_json))


@click.command()
@with_hub
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
def prompts(source: HubSource, wait: float, *, is_json: bool) -> int:
    """List the prompts, and the servers that are missing."""
    quiet_logs()
    return run_command(list_features(source, PROMPTS, wait=wait, is_json=is_json))


@click.command()
@with_hub
@with_wait
@with_json
def servers(source: HubSource, wait: float, *, is_json: bool) -> int:
    """List the servers and their states."""
    quiet_logs()
    return run_command(list_servers(source, wait=wait, is_json=is_json))


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
    rows = []
    for offer in listing.offers:
        texts = (read_string(offer.definition.get(key)) for key in ("description", "title", "name"))
        described = next((text for text in texts if text and text != offer.name), "")
        rows.append((offer.server, (offer.name, first_line(described))))
    if not rows:
        print_error(f"There are no {shape.noun}s.")
    elif sys.stdout.isatty():
        groups = [(server, [row for _, row in group]) for server, group in groupby(rows, key=lambda pair: pair[0])]
        show_table(sys.stdout, groups, ("cyan", ""))
    else:
        # For grep and awk: one line each, and nothing else.
        print_output("\n".join(aligned([row for _, row in rows])))
    if listing.absences:
        # On stderr: a program that reads the list gets only the list.
        missing = [(name, gone.state, first_line(gone.reason or "")) for name, gone in listing.absences.items()]
        print_error("")
        if sys.stderr.isatty():
            show_table(sys.stderr, [("missing", missing)], ("yellow", "", ""))
        else:
            print_error("\n".join(["missing", *aligned(missing)]))
        print_error("`isthmus doctor` says more.")
    return Exit.SUCCESS


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
    rows = []
    for server in read_servers(document):
        counts = {
            "tool": server.tools,
            "prompt": server.prompts,
            "resource": server.resources,
            "template": server.resource_templates,
        }
        offered = ", ".join(counted(count, noun) for noun, count in counts.items() if count)
        remark = first_line(server.trouble or offered)
        rows.append((server.name, server.state, server.transport or "", protocol_name(server.era), remark))
    if sys.stdout.isatty():
        show_table(sys.stdout, [("", rows)], ("bold", "", "", "", ""))
    else:
        print_output("\n".join(aligned(rows)))
    return Exit.SUCCESS


def protocol_name(era: str | None) -> str:
    """The protocol that a server speaks. A revision of MCP is a date, so it gets a prefix."""
    return f"MCP {era}" if era is not None and era[:1].isdigit() else era or ""
