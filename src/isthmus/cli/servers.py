"""`isthmus servers`: how each server stands, in a line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from isthmus.cli.documents import ServerTold, read_servers
from isthmus.cli.exits import Exit
from isthmus.cli.opening import opened
from isthmus.cli.output import Row, aligned, first_line, show_table, write, write_json
from isthmus.cli.sources import Own, Running


async def list_servers(source: Running | Own, *, wait: float, is_json: bool) -> Exit:
    """Print how the servers of a hub stand.

    Raises:
        CommandFailed: there is no hub to ask.
    """
    async with opened(source, wait=wait) as hub:
        document = await hub.servers()
    if is_json:
        write_json(document)
    else:
        _show(read_servers(document))
    return Exit.WELL


def _show(servers: Sequence[ServerTold]) -> None:
    rows = [_row(server) for server in servers]
    if sys.stdout.isatty():
        show_table(sys.stdout, [("", rows)], ("bold", "", "", "", ""))
    else:
        write("\n".join(aligned(rows)))


def _row(server: ServerTold) -> Row:
    return (
        server.name,
        server.state,
        server.transport or "",
        spoken(server.era),
        first_line(server.reason or _offered(server)),
    )


def spoken(era: str | None) -> str:
    """Name what a server speaks; only a revision of MCP, which is a day, needs to be told what it is of."""
    return f"MCP {era}" if era is not None and era[:1].isdigit() else era or ""


def _offered(server: ServerTold) -> str:
    counts = {"tool": server.tools, "prompt": server.prompts, "resource": server.resources}
    counts["template"] = server.resource_templates
    told = [f"{count} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items() if count]
    return ", ".join(told)
