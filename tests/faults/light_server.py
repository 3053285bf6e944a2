"""A stdio server that starts in a millisecond: a shell script, for tests that need hundreds at once."""

from __future__ import annotations

from pathlib import Path

_SCRIPT = str(Path(__file__).with_suffix(".sh"))


def command(mark: str) -> list[str]:
    """The words that start it; the mark is found in its answers and in the list of processes."""
    return ["/bin/sh", _SCRIPT, mark]
