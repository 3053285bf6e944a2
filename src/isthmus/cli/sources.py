"""Which hub a command works against: a running one, or one started here for the command.

Options and variables become a `Source`; files become a `Configuration`. Nothing is started or dialled here;
`cli.reached` does that.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from isthmus.cli.exits import CommandFailed, Exit
from isthmus.config.findings import ConfigError
from isthmus.config.load import load, load_for_keys
from isthmus.config.settings import Configuration
from isthmus.upstream.settings import HttpSettings

HUB_VARIABLE = "ISTHMUS_HUB"
KEY_VARIABLE = "ISTHMUS_KEY"
"""The key comes from the environment alone: everybody on a machine can read a command's arguments."""

ENDPOINT = "/mcp"


@dataclass(frozen=True, slots=True)
class Running:
    """A hub that runs already, somewhere."""

    reach: HttpSettings
    has_key: bool


@dataclass(frozen=True, slots=True)
class Own:
    """A hub to be started in this process; without a file the usual places are searched."""

    file: Path | None


def source_of(hub: str | None, config: Path | None) -> Running | Own:
    """Return what the options ask for; options win over `ISTHMUS_HUB`, and that over a file that lies about.

    Raises:
        CommandFailed: both were asked for, or the address is none.
    """
    if hub is not None and config is not None:
        raise CommandFailed(
            Exit.USAGE,
            "--hub and --config exclude each other",
            "A running hub has its own configuration: give one of the two.",
        )
    address = hub if hub is not None or config is not None else os.environ.get(HUB_VARIABLE)
    return Own(config) if not address else _running(address, os.environ.get(KEY_VARIABLE, ""))


def _running(address: str, key: str) -> Running:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        return Running(HttpSettings(_endpoint(address), headers), has_key=bool(key))
    except ValueError as error:
        raise _unusable(str(error)) from None


def _endpoint(address: str) -> str:
    """Return the address of the MCP endpoint; the hub's own address will do."""
    HttpSettings(address)  # before it is taken apart: a strange address is refused, not repaired
    parts = urlsplit(address)
    return parts._replace(path=ENDPOINT).geturl() if parts.path in ("", "/") else address


def _unusable(why: str) -> CommandFailed:
    if why.startswith("headers"):
        text = f"{KEY_VARIABLE} cannot be sent: a key is one line of plain text"
        return CommandFailed(Exit.CONFIGURATION, text, f"Set {KEY_VARIABLE} to the key as the hub has it.")
    advice = f"Write it like http://127.0.0.1:8765, after --hub or in {HUB_VARIABLE}."
    return CommandFailed(Exit.USAGE, f"the hub's {why}", advice)


def configuration_of(file: Path | None, *, host: str | None = None, port: int | None = None) -> Configuration:
    """Find and read the configuration.

    Raises:
        CommandFailed: it cannot be used; every finding is told.
    """
    try:
        return load(file, os.environ, Path.cwd(), home(), host=host, port=port)
    except ConfigError as error:
        raise refused(error) from error


def configuration_for_keys(file: Path | None) -> tuple[Configuration, str]:
    """The configuration, or as much of it as keys need, and then why not all of it.

    A key must be revocable by who has none of the variables that the hub was started with.

    Raises:
        CommandFailed: not even that can be read.
    """
    try:
        return load(file, os.environ, Path.cwd(), home()), ""
    except ConfigError as error:
        trouble = "\n  ".join(str(finding) for finding in error.findings)
    try:
        return load_for_keys(file, os.environ, Path.cwd(), home()), trouble
    except ConfigError as error:
        raise refused(error) from error


def home() -> Path:
    """Return the user's folder; `~` itself where the system knows none."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("~")


def refused(error: ConfigError) -> CommandFailed:
    """Tell of a configuration that cannot be used."""
    told = "\n  ".join(str(finding) for finding in error.findings)
    advice = "Mend what is named above; `isthmus config check` looks at the file without starting anything."
    return CommandFailed(Exit.CONFIGURATION, f"the configuration cannot be used:\n  {told}", advice)
