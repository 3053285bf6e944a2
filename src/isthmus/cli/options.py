"""Options that several commands share. Only click is loaded here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from isthmus.cli.exits import CommandFailed, Exit

F = TypeVar("F", bound=Callable[..., Any])

WAIT_SECONDS = 20.0
"""How long a command waits for starting servers; a package runner may have to download one first."""

WAIT_SECONDS_MAX = 600.0

DURATION_SECONDS_MAX = 100 * 365 * 86_400

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"([0-9]{1,9})([smhdw])")


class CommandGroup(click.Group):
    """A group whose help shows the whole first sentence of each command; click would cut it."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the section of commands."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(limit=1000)) for name, command in sorted(self.commands.items())]
            )


def with_config(command: F) -> F:
    """Add `--config`."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The configuration: isthmus.toml or mcp.json.",
    )(command)


def with_source(command: F) -> F:
    """Add `--hub` and `--config`: the running hub, or the configuration to start one from."""
    hub = click.option("--hub", metavar="URL", help="A running hub, such as http://127.0.0.1:8765.")
    return with_config(hub(command))


def with_private(command: F) -> F:
    """Add `--private`."""
    return click.option(
        "--private", "is_private", is_flag=True, help="Start a hub for this command, even if one is running."
    )(command)


class WholeNumber(click.IntRange):
    """A whole number. For other words, click only says "not a valid integer range"."""

    name = "whole number"


class WaitSeconds(click.FloatRange):
    """A number of seconds; click's own range lets NaN through."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value as a number in the range; NaN and words are errors."""
        try:
            is_number = not math.isnan(float(value))
        except ValueError:
            is_number = False
        if not is_number:
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return super().convert(value, param, ctx)


def with_wait(command: F) -> F:
    """Add `--wait`."""
    return click.option(
        "--wait",
        type=WaitSeconds(0.0, WAIT_SECONDS_MAX),
        default=WAIT_SECONDS,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait for servers that are starting; 0 does not wait.",
    )(command)


def with_json(command: F) -> F:
    """Add `--json`."""
    return click.option("--json", "is_json", is_flag=True, help="Print JSON, for programs.")(command)


def with_log_level(command: F) -> F:
    """Add `-v`, `-q` and `--log-level`, which win over the configuration; the command gets `log_level`."""
    verbose = click.option("-v", "--verbose", "log_level", flag_value="debug", help="Log everything, also each call.")
    quiet = click.option("-q", "--quiet", "log_level", flag_value="warning", help="Log only warnings and errors.")
    level = click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
        metavar="LEVEL",
        help="Log from debug, info, warning or error on.  [default: info]",
    )
    return verbose(quiet(level(command)))


def parse_duration(option: str, text: str, advice: str, *, least: int = 1) -> float:
    """Seconds of a duration such as 12h, 30d or 52w.

    Raises:
        CommandFailed: it is malformed or out of range.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    seconds = int(match[1]) * _UNITS[match[2]] if match else -1
    if not least <= seconds <= DURATION_SECONDS_MAX:
        raise CommandFailed(Exit.USAGE, f"{option} must be a time like 12h, 30d or 52w, got {text!r}", advice)
    return float(seconds)
