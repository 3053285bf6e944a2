"""The hub's own log lines, where it runs inside somebody else's program.

The hub logs with structlog, which prints to standard output until it is configured. A program that has not configured
it gets the hub's lines as ordinary records of `logging` instead, under the name of the module that wrote them; its
own lines of structlog stay as they were. A program that has configured structlog gets the hub's lines there.
Called by the service when it is initialised.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

import structlog

VALUE_LENGTH_MAX = 2000
"""What a server or caller said may be in a line, and needs not all be there."""

_LEVELS = {"exception": logging.ERROR, "warn": logging.WARNING, "fatal": logging.CRITICAL}


class _Named:
    """Stands for a logger of `logging`, which is looked up when there is something to say."""

    def __init__(self, name: str) -> None:
        self.name = name


def use_standard_logging() -> None:
    """Have the hub's lines become records of `logging`, unless the program has configured structlog."""
    if structlog.is_configured():
        return
    known = structlog.get_config()
    others = known["logger_factory"]

    def factory(*args: Any) -> Any:
        is_own = bool(args) and isinstance(args[0], str) and args[0].startswith("isthmus.")
        return _Named(args[0]) if is_own else others(*args)

    structlog.configure(processors=[_as_record, *known["processors"]], logger_factory=factory)


def _as_record(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if not isinstance(logger, _Named):
        return event
    level = _LEVELS.get(method) or logging.getLevelNamesMapping().get(method.upper(), logging.INFO)
    target = logging.getLogger(logger.name)
    if target.isEnabledFor(level):
        error = event.pop("exc_info", method == "exception")
        target.log(level, "%s", _line(event), exc_info=error)
    raise structlog.DropEvent


def _line(event: MutableMapping[str, Any]) -> str:
    values = " ".join(f"{key}={_bounded(value)}" for key, value in event.items() if key != "event")
    return f"{event.get('event', '')} {values}".rstrip()


def _bounded(value: Any) -> str:
    # In quotes nothing can forge a line or drive a terminal.
    return repr(value[:VALUE_LENGTH_MAX] if isinstance(value, str) else value)[: VALUE_LENGTH_MAX + 2]
