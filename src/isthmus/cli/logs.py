"""`isthmus logs`: the lines of one server of a running hub."""

from __future__ import annotations

import asyncio
import sys
import textwrap
import time
from contextlib import aclosing, suppress
from pathlib import Path

import click
import msgspec

from isthmus.cli.documents import read_servers
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.find_hub import source_of
from isthmus.cli.options import WholeNumber, with_json, with_source
from isthmus.cli.output import (
    harmless,
    print_error,
    print_json,
    print_output,
    terminal_width,
    wants_color,
    write_output,
)
from isthmus.cli.relay import hub_of
from isthmus.cli.rest_client import HubClient, RemoteSource
from isthmus.cli.run_command import quiet_logs, run_command
from isthmus.model.names import legal_server_name

UNNAMED = "Name a server; `isthmus servers` lists them."

POLL_SECONDS = 0.5
"""How often new lines are fetched."""

LOG_INDENT = 17
"""Where the text of a log line begins; on a terminal its further lines begin there, too."""

COLORS = {"warning": "33", "error": "31", "critical": "31", "alert": "31", "emergency": "31", "hub": "36"}
"""SGR codes of the lines that a person should notice."""


class LogRow(msgspec.Struct, frozen=True):
    """A line of a server."""

    at: float
    text: str
    source: str
    number: int
    level: str | None = None


class _Log(msgspec.Struct):
    lines: list[LogRow]


@click.command()
@click.argument("server")
@click.option("-f", "--follow", "follows", is_flag=True, help="Go on with new lines, until Ctrl-C.")
@click.option("-n", "count", type=WholeNumber(0), default=100, show_default=True, help="How many lines.")
@with_source
@with_json
def logs(server: str, count: int, hub: str | None, config: Path | None, *, follows: bool, is_json: bool) -> int:
    """Print the last lines of SERVER: its standard error, what it logged, and when it came and went.

    A running hub keeps 400 lines of each server. What a server logs during a call goes to the caller.
    """
    if not server:
        raise click.UsageError(UNNAMED)
    quiet_logs()
    source = hub_of(source_of(hub, config))
    if not follows:
        return run_command(show_log(source, server, count, follows=False, is_json=is_json))
    with suppress(KeyboardInterrupt):
        run_command(show_log(source, server, count, follows=True, is_json=is_json))
    return Exit.SUCCESS


async def show_log(source: RemoteSource, server: str, count: int, *, follows: bool, is_json: bool) -> Exit:
    """Print the last lines of a server; with `follows`, also those that come.

    Raises:
        CommandFailed: there is no such server, or the hub cannot be reached.
    """
    async with aclosing(HubClient(source, is_needed=True)) as hub:
        server = await name_in_hub(hub, server)
        if is_json and not follows:
            print_json(await hub.log(server))
            return Exit.SUCCESS
        lines = read_log(await hub.log(server))
        after, is_away = lines[-1].number if lines else 0, False
        if not lines and not follows:
            print_error(f"{server} has written nothing since the hub started.")
        lines = lines[len(lines) - min(count, len(lines)) :]
        while True:
            for line in lines:
                if is_json:
                    print_output(msgspec.json.encode(line).decode())
                else:
                    print_line(line)
            if not follows:
                return Exit.SUCCESS
            await asyncio.sleep(POLL_SECONDS)
            try:
                lines = read_log(await hub.log(server, after))
            except CommandFailed as failed:
                if failed.exit is not Exit.UNREACHABLE:
                    raise
                if not is_away:
                    print_error("The hub is away; waiting for it.")
                lines, after, is_away = [], 0, True  # the next hub counts its lines anew
            else:
                is_away = False
            after = lines[-1].number if lines else after


def read_log(document: bytes) -> list[LogRow]:
    """The lines in the hub's response."""
    return msgspec.json.decode(document, type=_Log).lines


def print_line(line: LogRow) -> None:
    """Print a line for people: time, where it comes from, text."""
    text = line.text
    if line.source == "log" and text.startswith('"'):
        with suppress(msgspec.DecodeError):
            text = msgspec.json.decode(text, type=str)
    kind = line.level or line.source
    shown = f"{kind:<7}"
    if kind in COLORS and sys.stdout.isatty() and wants_color():
        shown = f"\x1b[{COLORS[kind]}m{shown}\x1b[0m"
    text = harmless(text, keep=chr(9))
    if sys.stdout.isatty():
        text = f"\n{' ' * LOG_INDENT}".join(textwrap.wrap(text, max(terminal_width() - LOG_INDENT, 20))) or text
    # Not by `print_output`, which would escape the color.
    write_output(f"{time.strftime('%H:%M:%S', time.localtime(line.at))} {shown} {text}\n")


async def name_in_hub(hub: HubClient, given: str) -> str:
    """The name of a server in the hub. Its name in a client's file, such as `my server`, is accepted, too.

    Raises:
        CommandFailed: there is no such server, or the hub cannot be reached.
    """
    from isthmus.config.findings import closest_match

    known = [server.name for server in read_servers(await hub.servers())]
    found = next((name for name in (given, legal_server_name(given)) if name in known), None)
    if found is not None:
        return found
    meant = closest_match(given, known)
    advice = f"Did you mean {meant}?" if meant else f"It has {', '.join(known)}."
    raise CommandFailed(Exit.USAGE, f"the hub has no server {given!r}", advice)
