"""The progress of a running call, as one line on standard error where that is a terminal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TextIO

import msgspec

from isthmus.cli.output import harmless
from isthmus.model.calls import Event

CLEAR_LINE = "\r\x1b[K"

BAR_WIDTH = 24
TICK_SECONDS = 0.5


class StatusLine:
    """One line on a terminal with the latest report and the time since the call began; `clear` wipes it.

    Elsewhere nothing is shown. A short call shows nothing: the first line comes after a moment, or with a report.
    """

    def __init__(self, stream: TextIO, name: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._began = clock()
        self._report: Event | None = None
        self._name = name
        self._is_terminal = stream.isatty()
        self._is_shown = False
        self._is_paused = False
        self._ticking: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Show the line after a moment, and the time as it passes."""
        if self._is_terminal:
            self._ticking = asyncio.get_running_loop().call_later(2 * TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._draw()
        self._ticking = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def show(self, report: Event) -> None:
        """Show one report."""
        self._report = report
        self._draw()

    def _draw(self) -> None:
        if not self._is_terminal or self._is_paused:
            return
        # A line that wraps could not be cleared.
        import shutil  # it loads compressors

        room = shutil.get_terminal_size().columns - 1
        text = progress_text(self._report, self._name, self._clock() - self._began, room)
        self._stream.write(CLEAR_LINE + text)
        self._stream.flush()
        self._is_shown = True

    def pause(self) -> None:
        """Leave the terminal to a question."""
        self.clear()
        self._is_paused = True

    def resume(self) -> None:
        """Show the line again."""
        self._is_paused = False

    def stop(self) -> None:
        """End it and wipe the line."""
        if self._ticking is not None:
            self._ticking.cancel()
        self.clear()

    def clear(self) -> None:
        """Wipe the line from the terminal."""
        if self._is_shown:
            self._stream.write(CLEAR_LINE)
            self._stream.flush()
            self._is_shown = False


def progress_text(report: Event | None, name: str, seconds: float, room: int) -> str:
    """A bar if the total is known, the counts, the message and the time, in `room` columns."""
    done, total, message = (_member(report, key) for key in ("progress", "total", "message"))
    passed = f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
    share = _share(done, total)
    count = f"{done}/{total}" if done and total else done
    bar = ""
    if share is not None and room >= 2 * BAR_WIDTH:
        filled = round(share * BAR_WIDTH)
        bar = f"{'━' * filled}{'╌' * (BAR_WIDTH - filled)} {share:4.0%}"
    words = [each for each in (bar, count, message or (name if not count else "")) if each]
    text = harmless("  ".join(words), keep="")
    return f"{text[: max(room - len(passed) - 2, 0)]}  {passed}"[:room]


def _member(report: Event | None, key: str) -> str:
    raw = None if report is None else report.members.get(key)
    value = None if raw is None else msgspec.json.decode(raw)
    if raw is None or value is None:
        return ""
    return value if isinstance(value, str) else bytes(raw).decode()


def _share(done: str, total: str) -> float | None:
    try:
        share = float(done) / float(total)
    except (ValueError, ZeroDivisionError, OverflowError):
        return None
    return share if 0 <= share <= 1 else None
