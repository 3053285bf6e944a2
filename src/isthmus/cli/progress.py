"""Progress of a call on standard error: one line that changes on a terminal, a line a report elsewhere."""

from __future__ import annotations

import shutil
from typing import TextIO

import msgspec

from isthmus.cli.output import harmless
from isthmus.model.events import Event

CLEAR = "\r\x1b[K"


class ProgressLine:
    """Shows the latest report; on a terminal `clear` wipes it away."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._is_shown = False

    def show(self, event: Event) -> None:
        """Show a report."""
        text = in_words(event)
        if self._is_terminal:
            # A line that wraps could not be wiped away again.
            room = shutil.get_terminal_size().columns - 1
            self._stream.write(CLEAR + text[:room])
            self._is_shown = True
        else:
            self._stream.write(f"progress: {text}\n")
        self._stream.flush()

    def clear(self) -> None:
        """Leave no trace on a terminal."""
        if self._is_shown:
            self._stream.write(CLEAR)
            self._stream.flush()
            self._is_shown = False


def in_words(event: Event) -> str:
    """Return a report as `3/10 message`, with whatever of the three is there."""
    done, total, message = (_text(event.members.get(key)) for key in ("progress", "total", "message"))
    count = f"{done}/{total}" if done and total else done
    return harmless(f"{count} {message}".strip(), keep="")


def _text(raw: msgspec.Raw | None) -> str:
    """Return a string's value, and anything else as it is written; null is nothing."""
    value = None if raw is None else msgspec.json.decode(raw)
    if raw is None or value is None:
        return ""
    return value if isinstance(value, str) else bytes(raw).decode()
