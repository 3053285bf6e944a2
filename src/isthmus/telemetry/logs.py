"""Structured logs: to a file, or to standard error, because standard output belongs to the stdio face.

One line an event, control characters escaped, and a bound on its length: what a server or caller said may be in it.
Writing never fails for whoever logs: a full disk or a closed terminal costs lines, not the hub. Set up by the
command line, and again by `app` when the configuration changes.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TextIO, TypeAlias, TypeVar

import structlog

from isthmus.model.unsafe_characters import INVISIBLE, escaped_misjoined

LINE_LENGTH_MAX = 8192
VALUE_LENGTH_MAX = 2000
NAME_LENGTH_MAX = 200
VALUES_MAX = 20
"""How many values of a list, or members of a table, are told."""

SHORTER = (1000, 300, 60)
"""To how many characters values are cut until their line is not too long; as many as there are, the last fits."""

INDENT = "    "

LOOK_SECONDS = 1.0
"""How often it is looked whether the file is still where it was: programs that rotate logs move it away."""

_T = TypeVar("_T")
Format: TypeAlias = Literal["auto", "json", "console"]


class LogStream:
    """Standard error, or whatever stands in for it, as something that can always be written to."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what can be written."""
        # ValueError: somebody closed it. There is nobody left to tell.
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Have it leave."""
        with suppress(OSError, ValueError):
            self._stream.flush()


class LogFile:
    """A file that lines are appended to; only its owner may read it.

    It is made anew when it was moved or taken away. Lines that it does not take go to standard error.
    """

    def __init__(self, path: Path, otherwise: LogStream) -> None:
        """Raises: OSError if there can be no such file."""
        self._path = path
        self._otherwise = otherwise
        self._is_cut = False
        self._looked_at = time.monotonic()
        self._descriptor = _open(path)

    def write(self, text: str) -> int:
        """Append whole lines."""
        if time.monotonic() - self._looked_at > LOOK_SECONDS:
            self._look()
        try:
            self._append(text.encode("utf-8", "backslashreplace"))
        except OSError:
            self._otherwise.write(text)
            self._otherwise.flush()
        return len(text)

    def _append(self, line: bytes) -> None:
        # The end of a line may be missing since the disk was full; the next one begins anew all the same.
        line = b"\n" + line if self._is_cut else line
        written = os.write(self._descriptor, line)
        if written:
            self._is_cut = not line[:written].endswith(b"\n")
        if written < len(line):
            raise OSError("the rest was not taken")

    def flush(self) -> None:
        """Nothing waits: every line is written at once."""

    def _look(self) -> None:
        self._looked_at = time.monotonic()
        try:
            is_there = os.path.samestat(os.stat(self._path), os.fstat(self._descriptor))
        except OSError:
            is_there = False
        if not is_there:
            self.reopen()

    def reopen(self) -> None:
        """Write to whatever is at the path now; if that cannot be, go on as before."""
        with suppress(OSError):
            descriptor = _open(self._path)
            os.close(self._descriptor)
            self._descriptor, self._is_cut = descriptor, False

    def close(self) -> None:
        """Write nothing any more."""
        os.close(self._descriptor)


def _open(path: Path) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Not waiting, so that a pipe without a reader is an error and not a hub that stands still.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    return os.open(path, flags, 0o600)


class _Target:
    """Where the process logs to at the moment."""

    file: LogFile | None = None


def configure(level: str = "info", format: Format = "auto", file: str | None = None) -> None:
    """Set up logging for the process; `auto` is readable on a terminal and JSON elsewhere.

    Raises:
        OSError: the file cannot be written to; nothing has changed then.
    """
    stderr = LogStream(sys.stderr)
    target = None if file is None else LogFile(Path(file), stderr)
    number = getattr(logging, level.upper())
    is_terminal = target is None and sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
            structlog.processors.format_exc_info,
            _bound_values,
            *_renderers(format, is_terminal=is_terminal),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(target or stderr),  # type: ignore[arg-type]  # all it needs
        # A logger that is kept would go on as it was when the configuration changes; lines are rare enough.
        cache_logger_on_first_use=False,
    )
    _lead_libraries(max(number, logging.WARNING))
    if _Target.file is not None:
        _Target.file.close()
    _Target.file = target


def reopen() -> None:
    """Begin the file anew if it was moved away, without waiting for the next look."""
    if _Target.file is not None:
        _Target.file.reopen()


def _renderers(format: Format, *, is_terminal: bool) -> list[Any]:
    if format == "json" or (format == "auto" and not is_terminal):
        return [_one_line]
    console = structlog.dev.ConsoleRenderer(
        colors=is_terminal,
        exception_formatter=structlog.dev.plain_traceback,  # the pretty one shows locals, secrets among them
    )
    return [_indent_traceback, console]


# -- libraries that log the ordinary way (uvicorn, asyncio) --------------------------------------------------


class _Bridge(logging.Handler):
    """Has what libraries say look like everything else."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one of their lines."""
        line = structlog.get_logger(record.name)
        line.log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info)


def _lead_libraries(level: int) -> None:
    """Have them say only what matters, unless somebody else has made arrangements."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(_Bridge())
    if any(isinstance(handler, _Bridge) for handler in root.handlers):
        root.setLevel(level)


# -- what may be in a line -----------------------------------------------------------------------------------


def _bound_values(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if key == "exception" and isinstance(value, str):
            event[key] = _traceback(value)
        else:
            event[key] = _bounded(value, VALUE_LENGTH_MAX)
    return event


def _bounded(value: Any, length: int) -> Any:
    """A value as a line may have it, whatever kind it is: short, and without what could forge anything."""
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
    """An event as one line of JSON; if it is too long, all that it says is cut until it fits."""
    text = str(_JSON(logger, name, event))
    for length in SHORTER:
        if len(text) <= LINE_LENGTH_MAX:
            break
        text = str(_JSON(logger, name, {key: _cut(value, length) for key, value in event.items()}))
    return text


def _cut(value: Any, length: int) -> Any:
    return value if value is None or isinstance(value, int | float) else str(value)[:length]


def _escaped(text: str) -> str:
    """The text without what could forge a line or drive a terminal."""
    if text.isascii() and text.isprintable():
        return text
    text = escaped_misjoined(text)
    return "".join(c if c.isprintable() and not INVISIBLE.match(c) else _spelt(c) for c in text)


def _spelt(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _indent_traceback(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Set a traceback apart: a line that begins at the margin is the hub's own, whatever an error's text holds."""
    if isinstance(event.get("exception"), str):
        event["exception"] = "\n".join(INDENT + line for line in event["exception"].split("\n"))
    return event


def _traceback(text: str) -> str:
    """A traceback keeps its lines; what is in them may be a peer's words."""
    return "\n".join(_escaped(line) for line in text[:LINE_LENGTH_MAX].split("\n"))
