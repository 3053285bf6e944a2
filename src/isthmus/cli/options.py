"""Options that several commands share, and what these come to. Only click is loaded here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from isthmus.cli.sources import Own, Running

F = TypeVar("F", bound=Callable[..., Any])

WAIT_SECONDS = 20.0
"""How long a command waits for servers that are only starting; a package runner may have to fetch one."""


def with_config(command: F) -> F:
    """Let a command be told which configuration."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The configuration: isthmus.toml or mcp.json.",
    )(command)


def with_source(command: F) -> F:
    """Let a command be told which hub, or which configuration to start one from."""
    hub = click.option("--hub", metavar="URL", help="A running hub, such as http://127.0.0.1:8765.")
    return with_config(hub(command))


def with_wait(command: F) -> F:
    """Let a command be told how long it waits."""
    return click.option(
        "--wait",
        type=click.FloatRange(0.0, 600.0),
        default=WAIT_SECONDS,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait for servers that are starting.",
    )(command)


def with_json(command: F) -> F:
    """Let a command print JSON."""
    return click.option("--json", "is_json", is_flag=True, help="Print JSON, for programs.")(command)


def chosen(hub: str | None, config: Path | None) -> Running | Own:
    """The hub that a command is to work against."""
    from isthmus.cli.sources import source_of

    return source_of(hub, config)


def quietly() -> None:
    """Keep what the hub logs out of a command's way: it tells the outcome itself."""
    from isthmus.telemetry.logs import configure

    configure("error", "auto")
