"""Structured logs to standard error, because standard output belongs to the stdio face.

One line an event, control characters escaped, and a bound on its length: what a server or caller said may be in it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Literal

import structlog

LINE_LENGTH_MAX = 8192
VALUE_LENGTH_MAX = 2000


def configure(level: str = "info", format: Literal["auto", "json", "console"] = "auto") -> None:
    """Set up logging for the process; `auto` is readable on a terminal and JSON elsewhere."""
    number = getattr(logging, level.upper())
    is_console = format == "console" or (format == "auto" and sys.stderr.isatty())
    render: Any = (
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            exception_formatter=structlog.dev.plain_traceback,  # the pretty one shows locals, secrets among them
        )
        if is_console
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
            structlog.processors.format_exc_info,
            _bound_values,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    # Libraries that log the ordinary way (uvicorn, asyncio): only what matters, in plain words.
    plain = "%(levelname)s %(name)s %(message)s"
    logging.basicConfig(level=max(number, logging.WARNING), stream=sys.stderr, format=plain)


def _bound_values(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = _escaped(value[:VALUE_LENGTH_MAX]) if key != "exception" else _traceback(value)
    return event


def _escaped(text: str) -> str:
    """The text without what could forge a line or drive a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _traceback(text: str) -> str:
    """A traceback keeps its lines; what is in them may be a peer's words."""
    return "\n".join(_escaped(line) for line in text[:LINE_LENGTH_MAX].split("\n"))
