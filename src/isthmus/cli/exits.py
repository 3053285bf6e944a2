"""Exit codes, and the error that ends a command.

Commands return an `Exit` or raise `CommandFailed`, which `cli.main` prints.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isthmus.config.findings import ConfigError


class Exit(IntEnum):
    """The exit codes of the process; scripts rely on them."""

    SUCCESS = 0
    CALL_FAILED = 1
    USAGE = 2
    CONFIGURATION = 3
    UNREACHABLE = 4
    NOT_ALLOWED = 5
    INTERRUPTED = 130
    """128 plus the number of SIGINT, as in shells."""
    TERMINATED = 143


class OutputClosed(Exception):
    """The reader of the output, such as `head`, has all it wanted: the command ends, with success."""


class CommandFailed(Exception):
    """The command cannot go on. `advice` says what the person at the terminal can do next."""

    def __init__(self, exit: Exit, message: str, *advice: str) -> None:
        super().__init__(message)
        self.exit = exit
        self.message = message
        self.advice = advice


def refused(error: ConfigError) -> CommandFailed:
    """The error for a configuration that cannot be used."""
    findings = "\n  ".join(str(finding) for finding in error.findings)
    advice = "Fix the errors above; `isthmus config check` checks the file without starting anything."
    return CommandFailed(Exit.CONFIGURATION, f"the configuration cannot be used:\n  {findings}", advice)
