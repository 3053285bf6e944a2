"""Structured logs to a file or to standard error; standard output belongs to the stdio frontend.

One line per event, with control characters escaped and a bounded length, since it may quote servers or callers. Logging
never fails: a full disk or a closed terminal costs lines, not the hub. Configured by the command line, and again by
`app` when the configuration changes.
"""

from __future__ import annotations

import logging
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TextIO, TypeAlias, TypeVar

import structlog

from isthmus.model.hidden_characters import INVISIBLE, escaped_misjoined
from isthmus.model.stderr_summary import telling_line

LINE_LENGTH_MAX = 8192
VALUE_LENGTH_MAX = 2000
NAME_LENGTH_MAX = 200
VALUES_MAX = 20
"""Items of a list or table that are logged."""

SHORTER = (1000, 300, 60)
"""Lengths to which values are cut, one after the other, until the line fits; the last always does."""

INDENT = "    "

WIDTH = 80
"""Columns of a terminal that does not say how many it has."""

LEAST_ROOM = 20
LEVEL_WIDTH = len("warning")

COLORS = {"debug": "2", "warning": "33", "error": "31", "critical": "31"}
"""SGR codes of the levels that a person should notice, or may overlook."""

FIRST_KEYS = ("server", "tool", "caller")
"""What a person looks for comes first."""

CHECK_SECONDS = 1.0
"""How often the file is checked: log rotation moves it away."""

_T = TypeVar("_T")
Format: TypeAlias = Literal["auto", "json", "console"]


class LogStream:
    """A stream, such as standard error, whose errors are ignored."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, and ignore errors."""
        # ValueError: the stream is closed.
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, and ignore errors."""
        with suppress(OSError, ValueError):
            self._stream.flush()


class LogFile:
    """A log file that only its owner may read.

    It is made again after it was moved or deleted. Lines that cannot be written go to standard error.
    """

    def __init__(self, path: Path, fallback: LogStream) -> None:
        """Raises `OSError` if the file cannot be opened."""
        self._path = path
        self._fallback = fallback
        self._is_cut = False
        self._checked_at = time.monotonic()
        self._descriptor = _open(path)

    def write(self, text: str) -> int:
        """Append whole lines."""
        if time.monotonic() - self._checked_at > CHECK_SECONDS:
            self._checked_at = time.monotonic()
            is_there = False
            with suppress(OSError):
                is_there = os.path.samestat(os.stat(self._path), os.fstat(self._descriptor))
            if not is_there:
                self.reopen()
        # On a full disk the end of a line may be missing; the next line still starts on a new one.
        line = (b"\n" if self._is_cut else b"") + text.encode("utf-8", "backslashreplace")
        written = 0
        with suppress(OSError):
            written = os.write(self._descriptor, line)
        if written:
            self._is_cut = not line[:written].endswith(b"\n")
        if written < len(line):
            self._fallback.write(text)
            self._fallback.flush()
        return len(text)

    def flush(self) -> None:
        """Nothing to flush: every line is written at once."""

    def reopen(self) -> None:
        """Open the path again; on an error, keep the open file."""
        with suppress(OSError):
            descriptor = _open(self._path)
            os.close(self._descriptor)
            self._descriptor, self._is_cut = descriptor, False

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def _open(path: Path) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Non-blocking, so that a pipe without a reader is an error and does not block the hub.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    return os.open(path, flags, 0o600)


class _Target:
    """The current log file of the process, and whether its terminal shows colors."""

    file: LogFile | None = None
    has_color = True


def configure(
    level: str = "info", format: Format = "auto", file: str | None = None, *, has_color: bool | None = None
) -> None:
    """Set up logging for the process; `auto` is readable text on a terminal and JSON elsewhere.

    `has_color` says whether a terminal shows colors; None keeps what the last call said.

    Raises:
        OSError: the file cannot be opened; then nothing has changed.
    """
    if has_color is not None:
        _Target.has_color = has_color
    stderr = LogStream(sys.stderr)
    target = None if file is None else LogFile(Path(file), stderr)
    number = getattr(logging, level.upper())
    is_terminal = target is None and sys.stderr.isatty()
    is_console = format == "console" or (format == "auto" and is_terminal)
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts")
    if is_console:
        # A terminal shows today; a file is also read tomorrow.
        stamp = structlog.processors.TimeStamper(
            "%H:%M:%S" if is_terminal else "%Y-%m-%d %H:%M:%S", utc=False, key="ts"
        )
    console = ConsoleRenderer(terminal_width if is_terminal else None, has_color=is_terminal and _Target.has_color)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            stamp,
            structlog.processors.format_exc_info,
            *([_shorten] if is_console else []),
            _bound_values,
            console if is_console else _one_line,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(target or stderr),  # type: ignore[arg-type]  # it only needs `write` and `flush`
        # A cached logger would ignore a new configuration; lines are rare enough.
        cache_logger_on_first_use=False,
    )
    # Of libraries only warnings, unless the root logger already has handlers.
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(_Bridge())
    if any(isinstance(handler, _Bridge) for handler in root.handlers):
        root.setLevel(max(number, logging.WARNING))
    if _Target.file is not None:
        _Target.file.close()
    _Target.file = target


def reopen() -> None:
    """Reopen the log file now, for example after log rotation."""
    if _Target.file is not None:
        _Target.file.reopen()


# -- libraries that log the ordinary way (uvicorn, asyncio) --------------------------------------------------


class _Bridge(logging.Handler):
    """Sends records of `logging` to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        line = structlog.get_logger(record.name)
        line.log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info)


# -- bounds and escapes --------------------------------------------------------------------------------------


def _bound_values(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if key == "exception" and isinstance(value, str):
            # Each line by itself: a traceback may quote a peer.
            event[key] = "\n".join(_escaped(line) for line in value[:LINE_LENGTH_MAX].split("\n"))
        else:
            event[key] = _bounded(value, VALUE_LENGTH_MAX)
    return event


def _bounded(value: Any, length: int) -> Any:
    """A value for a log line: bounded and escaped, of any type."""
    match value:
        case None | bool() | int() | float():
            return value
        case Mapping():
            return {_bounded(str(key), NAME_LENGTH_MAX): _bounded(item, length) for key, item in _first(value.items())}
        case list() | tuple() | set() | frozenset():
            return [_bounded(item, length) for item in _first(value)]
        case _:
            return _escaped(str(value)[:length])[:length]


def _first(values: Iterable[_T]) -> Iterable[_T]:
    return islice(values, VALUES_MAX)


_JSON = structlog.processors.JSONRenderer()


def _one_line(logger: object, name: str, event: MutableMapping[str, Any]) -> str:
    """An event as one line of JSON; values are cut until it fits."""
    text = str(_JSON(logger, name, event))
    for length in SHORTER:
        if len(text) <= LINE_LENGTH_MAX:
            break
        shorter = {
            key: value if value is None or isinstance(value, int | float) else str(value)[:length]
            for key, value in event.items()
        }
        text = str(_JSON(logger, name, shorter))
    return text


def _escaped(text: str) -> str:
    """Escape characters that could forge a line or drive a terminal."""
    if text.isascii() and text.isprintable():
        return text
    text = escaped_misjoined(text)
    return "".join(
        c if c.isprintable() and not INVISIBLE.match(c) else c.encode("unicode_escape").decode() for c in text
    )


# -- for people ----------------------------------------------------------------------------------------------


def terminal_width() -> int:
    """The columns of the terminal on standard error."""
    with suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stderr.fileno()).columns or WIDTH
    return WIDTH


class ConsoleRenderer:
    """Time, level, event, and what there is to say about it.

    Lines that are longer than the terminal continue under the event, so that only times stand at the margin.
    """

    def __init__(self, width: Callable[[], int] | None, *, has_color: bool) -> None:
        """Without a `width`, lines are not broken."""
        self._width = width
        self._has_color = has_color

    def __call__(self, _: object, __: str, event: MutableMapping[str, Any]) -> str:
        """See `structlog.typing.Processor`."""
        level, exception = event.pop("level", ""), event.pop("exception", None)
        head = f"{event.pop('ts')} {level:<{LEVEL_WIDTH}} "
        words = [*str(event.pop("event")).split(" ")]
        keys = [*(key for key in FIRST_KEYS if key in event), *(key for key in event if key not in FIRST_KEYS)]
        # One more space before the first of them.
        words += [f"{'' if at else ' '}{key}={_console_value(event[key])}" for at, key in enumerate(keys)]
        room = LINE_LENGTH_MAX if self._width is None else max(self._width() - len(head), LEAST_ROOM)
        lines = _broken(words, room)
        # Only lines of the hub start at the margin, whatever the text of an error holds.
        more = [] if not isinstance(exception, str) else [INDENT + line for line in exception.split("\n")]
        text = "\n".join([head + lines[0], *(" " * len(head) + line for line in lines[1:]), *more])
        if self._has_color and level in COLORS:
            text = text.replace(level, f"\x1b[{COLORS[level]}m{level}\x1b[0m", 1)
        return text


def _broken(words: Iterable[str], room: int) -> list[str]:
    """Words as lines that fit; a longer word has a line of its own."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word) <= room:
            lines[-1] += " " + word
        elif len(word) > room and " " in word:
            lines += textwrap.wrap(word.lstrip(), room, break_long_words=False, break_on_hyphens=False)
        else:
            lines.append(word.lstrip())
    return lines


def _console_value(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    text = str(value)
    return text if text and " " not in text and '"' not in text else f'"{text}"'


def _is_usual(key: str, value: Any) -> bool:
    """Whether a value says nothing to a person: the only tenant, no calls, the digest of a key in the configuration."""
    is_digest = key == "key" and isinstance(value, str) and value.startswith("file:")
    return is_digest or (key, value) in (("tenant", "default"), ("calls", 0))


def _shorten(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Leave out what says nothing, and of several lines all but the one with the error."""
    for key, value in list(event.items()):
        if key in ("event", "exception"):
            continue
        if value is None or value in ("", []) or _is_usual(key, value):
            del event[key]
        elif isinstance(value, str) and "\n" in value.strip():
            event[key] = f"… {telling_line(value)}"
    return event
