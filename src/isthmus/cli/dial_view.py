"""What `isthmus dial` shows on a terminal: the hub, the connection and each server, redrawn when something changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from isthmus.app.dial import Dialler, ServerShown, Shown
from isthmus.app.dial_line import LineShown
from isthmus.cli.output import Row, first_line, harmless

if TYPE_CHECKING:
    from rich.table import Table

SECONDS = 1.0
"""How often it is drawn when nothing happens: times grow."""

AGAIN_SECONDS = 0.1
"""How long changes are gathered before it is drawn."""


def line_in_words(line: LineShown, now: float) -> str:
    """How a connection stands."""
    match line.state:
        case "starting":
            return "waiting for a server"
        case "connecting":
            return f"connecting; {line.reason}" if line.reason else "connecting"
        case "connected":
            how = "one connection for all" if line.is_muxed else "one connection"
            return f"connected for {duration(now - line.since)}, {how}"
        case "pausing":
            seconds = max(0.0, (line.again_at or now) - now)
            return f"reconnecting in {seconds:.0f} s: {line.reason}"


def lines_in_words(lines: Sequence[LineShown], now: float) -> list[str]:
    """How the connections stand: those that stand alike are counted."""
    if not lines:
        return ["waiting for a server"]
    if len(lines) == 1:
        return [line_in_words(lines[0], now)]
    connected = sum(line.state == "connected" for line in lines)
    others = [line_in_words(line, now) for line in lines if line.state != "connected"]
    return [f"{connected} of {len(lines)} connections", *dict.fromkeys(others)]


def server_row(server: ServerShown, now: float) -> Row:
    """One server: its name, its state, its tools, its calls, and what is wrong with it."""
    server_status = server.server_status
    calls = _counted(server.answered, "call") + (f", {server.running} now" if server.running else "")
    remark = server_status.reason or (f"as {server.hub_name}" if server.hub_name else "")
    state: str = server_status.state
    if state == "ready" and server.refusal is not None:
        seconds = max(0.0, server.refusal.again_at - now)
        state, remark = "refused", f"again in {seconds:.0f} s: {server.refusal.reason}"
    return (server.server_id, state, _counted(len(server_status.tools), "tool"), calls, first_line(remark))


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """A length of time in one or two units."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class DialView:
    """Draws until it is left. Used by `with`, around the running."""

    def __init__(self, dialler: Dialler, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._dialler = dialler
        console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False

    def __enter__(self) -> None:
        self._live.start()
        self._dialler.on_change = self._soon
        self._draw()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._dialler.on_change = lambda: None
        if self._timer is not None:
            self._timer.cancel()
        self._live.stop()

    def _soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._plan(AGAIN_SECONDS)

    def _plan(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._draw)

    def _draw(self) -> None:
        self._is_due = False
        self._live.update(_table(self._dialler.shown(), time.time()), refresh=True)
        self._plan(SECONDS)


def _table(shown: Shown, now: float) -> Table:
    from rich.table import Table
    from rich.text import Text

    whole = Table.grid()
    whole.add_row(Text(harmless(shown.hub, keep=""), style="bold"))
    for words in lines_in_words(shown.lines, now):
        whole.add_row(Text(harmless(words, keep=""), no_wrap=True, overflow="ellipsis"))
    servers = Table.grid(padding=(0, 2, 0, 0))
    for server in shown.servers:
        *cells, remark = (Text(harmless(cell, keep="")) for cell in server_row(server, now))
        for cell in cells if server.refusal is not None else (*cells, remark):  # what to do about it is told whole
            cell.no_wrap, cell.overflow = True, "ellipsis"
        servers.add_row(*cells, remark)
    whole.add_row(servers)
    return whole
