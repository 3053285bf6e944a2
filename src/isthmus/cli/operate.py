"""`isthmus logs`, `restart` and `top`: what an operator does with the servers of a running hub."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from isthmus.cli.documents import read_servers
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.hub import source_of
from isthmus.cli.options import WholeNumber, with_json, with_source, with_wait
from isthmus.cli.output import (
    Row,
    aligned,
    counted,
    first_line,
    harmless,
    print_error,
    print_json,
    print_output,
    terminal_width,
    wants_color,
    write_output,
)
from isthmus.cli.relay import hub_of
from isthmus.cli.rest_client import HubClient, RemoteSource, unless_away
from isthmus.cli.running import quiet_logs, run_command
from isthmus.model.names import legal_server_name

UNNAMED = "Name a server; `isthmus servers` lists them."

POLL_SECONDS = 0.5
"""How often new lines are fetched."""

REFRESH_SECONDS = 1.0

LOG_INDENT = 17
"""Where the text of a log line begins; on a terminal its further lines begin there, too."""

COLORS = {"warning": "33", "error": "31", "critical": "31", "alert": "31", "emergency": "31", "hub": "36"}
"""SGR codes of the lines that a person should notice."""


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


class LogLine(msgspec.Struct, frozen=True):
    """A line of a server."""

    at: float
    text: str
    source: str
    number: int
    level: str | None = None


class _Log(msgspec.Struct):
    lines: list[LogLine]


class ServerFigures(msgspec.Struct, frozen=True):
    """The figures of one server; `name` is None for calls that reached no server."""

    name: str | None
    state: str | None = None
    running: int = 0
    queued: int = 0
    calls: int = 0
    outcomes: dict[str, int] = {}
    latency: dict[str, float] | None = None

    @property
    def faults(self) -> int:
        """Calls without a result."""
        return sum(count for outcome, count in self.outcomes.items() if outcome not in ("result", "tool_error"))


class Figures(msgspec.Struct, frozen=True):
    """The figures of a hub."""

    at: float
    servers: list[ServerFigures]
    event_loop: dict[str, object] = {}


# -- logs --------------------------------------------------------------------------------------------------------------


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
        lines = _read_log(await hub.log(server))
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
                lines = _read_log(await hub.log(server, after))
            except CommandFailed as failed:
                if failed.exit is not Exit.UNREACHABLE:
                    raise
                if not is_away:
                    print_error("The hub is away; waiting for it.")
                lines, after, is_away = [], 0, True  # the next hub counts its lines anew
            else:
                is_away = False
            after = lines[-1].number if lines else after


def _read_log(document: bytes) -> list[LogLine]:
    return msgspec.json.decode(document, type=_Log).lines


def print_line(line: LogLine) -> None:
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
    write_output(f"{_clock(line.at)} {shown} {text}\n")


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


# -- restart -----------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("server")
@with_source
@with_wait
@with_json
def restart(server: str, hub: str | None, config: Path | None, wait: float, *, is_json: bool) -> int:
    """Restart SERVER: the old one serves until the new one is ready, and finishes its calls."""
    if not server:
        raise click.UsageError(UNNAMED)
    quiet_logs()
    return run_command(restart_server(hub_of(source_of(hub, config)), server, wait=wait, is_json=is_json))


async def restart_server(source: RemoteSource, server: str, *, wait: float, is_json: bool) -> Exit:
    """Restart a server, and wait for what becomes of it.

    Raises:
        CommandFailed: there is no such server, or it did not start.
    """
    began = time.monotonic()
    async with aclosing(HubClient(source, is_needed=True)) as hub:
        server = await name_in_hub(hub, server)
        before = _read_log(await hub.log(server))
        after = before[-1].number if before else 0
        document = await hub.restart(server)
        ended: list[str] = []
        while not ended and time.monotonic() - began < wait:
            lines = _read_log(await hub.log(server, after))
            ended = [line.text for line in lines if line.source == "hub" and not line.text.startswith("restarting")]
            if not ended:
                await asyncio.sleep(POLL_SECONDS / 2)
        if not ended:
            advice = f"`isthmus servers --watch` shows when it is ready, `isthmus logs {server}` what it says."
            text = f"{server} is not ready after {wait:g} s; the hub goes on trying"
            raise CommandFailed(Exit.CALL_FAILED, text, advice)
        why = ended[0]
        if not why.startswith("ready"):
            info = next((each for each in read_servers(await hub.servers()) if each.name == server), None)
            if info is not None and info.reason:
                why = why.replace(info.reason, info.trouble)  # with the last line of its standard error
            advice = f"`isthmus logs {server}` shows its last words."
            raise CommandFailed(Exit.CALL_FAILED, f"{server} is {first_line(why)}", advice)
    if is_json:
        print_json(document)
    else:
        print_output(f"{server} is {why} after {time.monotonic() - began:.1f} s")
    return Exit.SUCCESS


# -- top ---------------------------------------------------------------------------------------------------------------


@click.command()
@with_source
@with_json
def top(hub: str | None, config: Path | None, *, is_json: bool) -> int:
    """Show the calls of each server of a running hub: rates, durations and faults. Press q to quit.

    Rates and durations are those since it was started. Without a terminal, the figures are printed once.
    """
    quiet_logs()
    source = hub_of(source_of(hub, config))
    if is_json or not sys.stdout.isatty():
        return run_command(print_figures(source, is_json=is_json))
    with suppress(KeyboardInterrupt):
        run_command(show_figures(source))
    return Exit.SUCCESS


async def print_figures(source: RemoteSource, *, is_json: bool) -> Exit:
    """Print the figures once.

    Raises:
        CommandFailed: the hub cannot be reached, or the caller is no operator.
    """
    async with aclosing(HubClient(source, is_needed=True)) as hub:
        document = await hub.stats()
    if is_json:
        print_json(document)
    else:
        figures = msgspec.json.decode(document, type=Figures)
        print_output("\n".join(aligned(figure_rows(figures, {}))))
    return Exit.SUCCESS


HEAD = ("SERVER", "STATE", "CALLS", "/S", "RUN", "QUEUE", "P50", "P99", "FAULTS")
NAME_WIDTH_MIN = 8


def figure_rows(figures: Figures, rates: Mapping[str | None, float]) -> list[Row]:
    """The servers as rows, the busiest first."""

    def rank(server: ServerFigures) -> tuple[float, int, str]:
        return (-rates.get(server.name, 0.0), -server.calls, server.name or "")

    rows: list[Row] = []
    for server in sorted(figures.servers, key=rank):
        latency = server.latency or {}
        rate = rates.get(server.name)
        rows.append(
            (
                "(no server)" if server.name is None else server.name,
                server.state or "",
                str(server.calls),
                "" if rate is None else f"{rate:.1f}" if rate < 100 else f"{rate:.0f}",
                str(server.running),
                str(server.queued),
                _duration(latency.get("p50")),
                _duration(latency.get("p99")),
                str(server.faults),
            )
        )
    return rows


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 0.1:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Screen:
    """The size of a terminal."""

    width: int
    height: int


def screen_lines(figures: Figures, rates: Mapping[str | None, float], url: str, screen: Screen) -> list[str]:
    """The dashboard as lines that fit the terminal."""
    total = sum(rates.values())
    ready = sum(server.state == "ready" for server in figures.servers)
    known = sum(server.state is not None for server in figures.servers)
    lag = figures.event_loop.get("lag_seconds_max", 0.0)
    title = f"isthmus top  {url.removesuffix('/mcp')}  {_clock(figures.at)}"
    summary = (
        f"{ready} of {counted(known, 'server')} ready   {total:.1f} calls/s   "
        f"{sum(server.running for server in figures.servers)} running   "
        f"loop lag {(lag if isinstance(lag, float) else 0.0) * 1000:.0f} ms"
    )
    rows = figure_rows(figures, rates)
    room = max(screen.height - 6, 1)
    hidden = len(rows) - room
    reasons: dict[str, int] = {}
    for server in figures.servers:
        for outcome, count in server.outcomes.items():
            if outcome != "result":
                reasons[outcome] = reasons.get(outcome, 0) + count
    frequent = sorted(reasons.items(), key=lambda each: -each[1])[:4]
    notes = ", ".join(f"{outcome} {count}" for outcome, count in frequent)
    foot = "q quits" + (f"   failed calls: {notes}" if notes else "")
    more = [f"… {counted(hidden, 'more server')}"] if hidden > 0 else []
    lines = [title, summary, "", *_columns([HEAD, *rows[:room]], screen.width), *more, "", foot]
    return [line[: screen.width] for line in lines]


def _columns(rows: Sequence[Row], width: int) -> list[str]:
    """Rows as lines: texts to the left, figures to the right. A name that does not fit ends in an ellipsis."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    room = max(width - sum(widths[1:]) - 2 * (len(widths) - 1), NAME_WIDTH_MIN)
    widths[0] = min(widths[0], room)
    lines = []
    for row in rows:
        name = harmless(row[0], keep="")
        name = name if len(name) <= widths[0] else name[: widths[0] - 1] + "…"
        cells = [name.ljust(widths[0]), row[1].ljust(widths[1])]
        cells += [cell.rjust(wide) for cell, wide in zip(row[2:], widths[2:], strict=True)]
        lines.append("  ".join(cells))
    return lines


async def show_figures(source: RemoteSource) -> Exit:
    """Show the figures until `q` is pressed. While the hub is away, the last ones stay.

    Raises:
        CommandFailed: the hub rejects the key, or the caller is no operator.
    """
    quit = asyncio.Event()
    before: Figures | None = None
    problem: str | None = None
    async with aclosing(HubClient(source, is_needed=True)) as hub:
        figures = msgspec.json.decode(await hub.stats(), type=Figures)
        with full_screen(quit):
            while not quit.is_set():
                _draw(screen_lines(figures, _rates(before, figures), hub.url, _screen()), problem)
                with suppress(TimeoutError):
                    await asyncio.wait_for(quit.wait(), REFRESH_SECONDS)
                document, problem = await unless_away(hub.stats())
                if document is not None:
                    before, figures = figures, msgspec.json.decode(document, type=Figures)
    return Exit.SUCCESS


def _rates(before: Figures | None, now: Figures) -> dict[str | None, float]:
    """Calls per second since the last look. After a restart of the hub its counters begin anew."""
    if before is None:
        return {}
    calls = {server.name: server.calls for server in before.servers}
    seconds = max(now.at - before.at, 0.001)
    return {server.name: max(server.calls - calls.get(server.name, 0), 0) / seconds for server in now.servers}


def _screen() -> Screen:
    size = shutil.get_terminal_size((80, 24))
    return Screen(size.columns, size.lines)


def _draw(lines: Sequence[str], problem: str | None) -> None:
    lines = lines if problem is None else [*lines[:-1], f"q quits   {harmless(problem, keep='')}"[: _screen().width]]
    text = "".join(f"{line}\x1b[K\r\n" for line in lines[:-1]) + f"{lines[-1]}\x1b[K"
    sys.stdout.write(f"\x1b[H{text}\x1b[J")
    sys.stdout.flush()


@contextmanager
def full_screen(quit: asyncio.Event) -> Iterator[None]:
    """Use the terminal's other screen, and read keys as they are pressed; `q` sets `quit`."""
    import termios  # Windows has none
    import tty

    loop, keys = asyncio.get_running_loop(), sys.stdin.fileno() if sys.stdin.isatty() else None
    saved = None if keys is None else termios.tcgetattr(keys)

    def pressed() -> None:
        typed = os.read(sys.stdin.fileno(), 100)
        if not typed or b"q" in typed.lower():
            quit.set()

    sys.stdout.write("\x1b[?1049h\x1b[?25l")
    try:
        if keys is not None:
            tty.setcbreak(keys)
            loop.add_reader(keys, pressed)
        yield
    finally:
        if keys is not None and saved is not None:
            loop.remove_reader(keys)
            termios.tcsetattr(keys, termios.TCSADRAIN, saved)
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()
