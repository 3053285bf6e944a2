"""Times as a person writes them at the command line: 12h, 30d, 52w."""

from __future__ import annotations

import re

from isthmus.cli.exits import CommandFailed, Exit

LONGEST_SECONDS = 100 * 365 * 86_400

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_FORM = re.compile(r"([0-9]{1,9})([smhdw])")


def seconds_of(option: str, text: str, advice: str, *, least: int = 1) -> float:
    """How long that is.

    Raises:
        CommandFailed: it is not so written, or out of its range.
    """
    found = _FORM.fullmatch(text.strip().lower())
    seconds = int(found[1]) * _UNITS[found[2]] if found else -1
    if not least <= seconds <= LONGEST_SECONDS:
        raise CommandFailed(Exit.USAGE, f"{option} must be a time like 12h, 30d or 52w, not {text!r}", advice)
    return float(seconds)
