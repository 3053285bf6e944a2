"""How a command ends: the stable exit codes, and the error that carries one with what to do next.

Commands return an `Exit` or raise `CommandFailed`; `cli.main` prints the latter and ends the process. Nothing
here prints.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What the process's exit code tells a script."""

    WELL = 0
    CALL_FAILED = 1
    USAGE = 2
    CONFIGURATION = 3
    UNREACHABLE = 4
    NOT_ALLOWED = 5
    INTERRUPTED = 130
    """128 and the number of SIGINT, as shells have it."""
    TERMINATED = 143


class CommandFailed(Exception):
    """A command cannot go on: why, in a sentence, and what the person at the terminal can do about it."""

    def __init__(self, exit: Exit, message: str, *advice: str) -> None:
        super().__init__(message)
        self.exit = exit
        self.message = message
        self.advice = advice
