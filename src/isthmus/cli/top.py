"""`isthmus top`: the calls of each server of a running hub, live."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from isthmus.cli.exits import Exit
from isthmus.cli.find_hub import source_of
from isthmus.cli.options import with_json, with_source
from isthmus.cli.output import Row, aligned, counted, harmless, print_json, print_output
from isthmus.cli.relay import hub_of
from isthmus.cli.rest_client import HubClient, RemoteSource, unless_away
from isthmus.cli.run_command import quiet_logs, run_command

REFRESH_SECONDS = 1.0


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
    title = f"isthmus top  {url.removesuffix('/mcp')}  {time.strftime('%H:%M:%S', time.localtime(figures.at))}"
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
