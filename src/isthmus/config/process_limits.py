"""`[servers.NAME.limits]`: how much a server that the hub starts may use. Called by `config.reaches`."""

from __future__ import annotations

import re

from isthmus.config import values
from isthmus.transport.bounds import ProcessLimits

ROOT = "limits"

_COUNTS = ("files", "processes", "cpu_seconds")
_KEYS = ("memory", *_COUNTS)
_SIZE = re.compile(r"(\d{1,12}) ?([KMGT]i)?B?")
_UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


def process_limits(table: object) -> ProcessLimits:
    """Return the limits of one server.

    Raises:
        ValueError: a value makes no sense or a key is unknown, in the words "limits.<key> must …": a mistyped limit
            would be none.
    """
    given = values.table(ROOT, table)
    for key in given:
        if key not in _KEYS:
            raise ValueError(f"{ROOT} must have only {', '.join(_KEYS)}, not {values.shown(key)}")
    counts = {key: values.integer(f"{ROOT}.{key}", given[key]) for key in _COUNTS if key in given}
    memory = size_of(f"{ROOT}.memory", given["memory"]) if "memory" in given else None
    try:
        return ProcessLimits(memory_bytes=memory, **counts)
    except ValueError as error:
        raise ValueError(f"{ROOT}.{str(error).replace('memory_bytes', 'memory')}") from error


def size_of(key: str, value: object) -> int:
    """Return a number of bytes: a whole number, or one with a unit, such as `512MiB`.

    Raises:
        ValueError: it is neither.
    """
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is not None:
        return int(found[1]) * _UNITS[found[2] or ""]
    try:
        return values.integer(key, value)
    except ValueError:
        raise ValueError(f"{key} must be a size like 512MiB or 1GiB, not {values.shown(value)}") from None
