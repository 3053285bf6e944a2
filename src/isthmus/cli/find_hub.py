"""The hub that a command works against: a running one, or one started in this process for the command.

Options and variables become a `RemoteSource` or a `LocalSource`; `open_hub` opens either and returns the REST client,
`cli.rest_client.HubClient`. Nothing of the hub itself is imported here: a request to a running hub would take three
times as long.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast
from urllib.parse import urlsplit

import click

from isthmus.cli.exits import CommandFailed, Exit, refused
from isthmus.cli.options import with_private, with_source
from isthmus.cli.output import print_error
from isthmus.cli.rest_client import HubClient, RemoteSource
from isthmus.model.callers import KEY_VARIABLE
from isthmus.transport.egress import DialFailed, Egress, parse_url
from isthmus.transport.http_client import header_lines
from isthmus.wire.mcp.lists import TOOLS, ListShape

if TYPE_CHECKING:
    from isthmus.app.state_folder import RunningHubInfo

F = TypeVar("F", bound=Callable[..., Any])

HUB_VARIABLE = "ISTHMUS_HUB"

STATE_VARIABLE = "ISTHMUS_HUB_STATE"
"""The state folder of that hub, which `isthmus record` sets: the key of the local operator is there."""

ENDPOINT = "/mcp"

PROBE_SECONDS = 2.0
"""How long an address has to accept a connection."""


@dataclass(frozen=True, slots=True)
class LocalSource:
    """The hub of a configuration: the running one, else one that is started in this process.

    Without a file, the usual places are searched. A private one is started even if one runs.
    """

    file: Path | None
    is_private: bool = False
    set_name: str | None = None
    """The only set that the command sees."""


HubSource: TypeAlias = RemoteSource | LocalSource


def source_of(hub: str | None, config: Path | None, *, is_private: bool = False) -> HubSource:
    """The hub that the options name. `--hub` and `--config` win over `ISTHMUS_HUB`, which wins over a file found here.

    Raises:
        CommandFailed: options exclude each other, or the address is invalid.
    """
    if hub is not None and is_private:
        raise CommandFailed(Exit.USAGE, "--hub and --private exclude each other", "Give one of the two.")
    if hub is not None and config is not None:
        raise CommandFailed(
            Exit.USAGE,
            "--hub and --config exclude each other",
            "A running hub has its own configuration: give one of the two.",
        )
    address = hub if hub is not None or config is not None or is_private else os.environ.get(HUB_VARIABLE)
    if not address:
        return LocalSource(config, is_private)
    try:
        parse_url(address)  # before it is split: a malformed address is refused, not repaired
    except ValueError as error:
        advice = f"Write it like http://127.0.0.1:8765, after --hub or in {HUB_VARIABLE}."
        raise CommandFailed(Exit.USAGE, f"the hub's address {error}", advice) from None
    parts = urlsplit(address)
    url = parts._replace(path=ENDPOINT).geturl() if parts.path in ("", "/") else address
    key = os.environ.get(KEY_VARIABLE, "")
    if not key and hub is None and (state := os.environ.get(STATE_VARIABLE)):
        from isthmus.app.state_folder import find_running

        running = find_running(Path(state))
        if running is not None and running.origin == address:
            return running_source(running)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        header_lines(headers)
    except ValueError:
        text = f"{KEY_VARIABLE} cannot be sent: a key is one line of plain text"
        advice = f"Set {KEY_VARIABLE} to the key exactly as the hub printed it."
        raise CommandFailed(Exit.CONFIGURATION, text, advice) from None
    return RemoteSource(url, headers)


def find_hub(file: Path | None, *, is_needed: bool = False) -> RemoteSource | None:
    """The running hub of a configuration, named on stderr; None if none runs.

    With `is_needed`, the command cannot start one for itself.

    Raises:
        CommandFailed: the configuration cannot be read; or a hub is needed, and none runs.
    """
    used, running = running_hub(file)
    if running is None:
        if not is_needed:
            return None
        import shlex

        # Not the hub at the configured port: it may be that of another configuration.
        named = "this folder, which has no configuration" if used is None else os.path.abspath(used)
        serve = "isthmus serve" if file is None else f"isthmus serve --config {shlex.quote(str(file))}"
        advice = f"Start it with `{serve}`, or name a hub elsewhere with --hub URL or {HUB_VARIABLE}."
        raise CommandFailed(Exit.UNREACHABLE, f"no hub runs for {named}", advice)
    print_error(f"Using the hub that runs at {running.origin}{'.' if is_needed else '; --private starts another.'}")
    if os.environ.get(KEY_VARIABLE):
        print_error(f"{KEY_VARIABLE} is not used: the command has a key of that hub. To use yours, add --hub URL.")
    return running_source(running)


def running_source(running: RunningHubInfo) -> RemoteSource:
    """The running hub of a configuration, with the key of its user."""
    return RemoteSource(running.origin + ENDPOINT, {"Authorization": f"Bearer {running.key}"}, is_found=True)


def running_hub(file: Path | None) -> tuple[Path | None, RunningHubInfo | None]:
    """The configuration in use and its running hub; None if none runs.

    Raises:
        CommandFailed: the configuration cannot be read.
    """
    from isthmus.app.state_folder import configuration_name, find_running
    from isthmus.config.files import find_file, home_folder, read_document, state_folder
    from isthmus.config.findings import ConfigError

    try:
        used = find_file(file, os.environ, Path.cwd(), home_folder())
        document = None if used is None else read_document(used)
        running = find_running(state_folder(document, os.environ, home_folder()))
    except ConfigError as error:
        raise refused(error) from error
    is_same = running is not None and running.configuration == configuration_name(used, os.environ)
    return used, running if is_same else None


def with_hub(command: F) -> F:
    """Add `--hub`, `--config` and `--private`; the command gets the `source` that they name."""

    @functools.wraps(command)
    def run(*words: Any, hub: str | None, config: Path | None, is_private: bool, **options: Any) -> Any:
        return command(*words, source=source_of(hub, config, is_private=is_private), **options)

    return cast(F, with_source(with_private(run)))


def with_set(command: F) -> F:
    """Add `--set`; put it below `with_hub`, whose `source` then names the set."""

    @functools.wraps(command)
    def run(*words: Any, source: HubSource, set_name: str | None, **options: Any) -> Any:
        return command(*words, source=replace(source, set_name=set_name), **options)

    option = click.option(
        "--set", "set_name", metavar="SET", help="Only this set of the configuration, with its names."
    )
    return cast(F, option(run))


async def is_taken(url: str) -> bool:
    """Whether something listens at the address of a hub."""
    origin, _ = parse_url(url)
    try:
        connection, _ = await Egress().dial(origin, asyncio.Protocol, is_configured=True, within=PROBE_SECONDS)
    except DialFailed:
        return False
    connection.abort()
    return True


@asynccontextmanager
async def open_hub(
    source: HubSource,
    *,
    wait: float,
    name: str | None = None,
    shape: ListShape = TOOLS,
    is_to_call: bool = False,
    is_askable: bool = False,
) -> AsyncIterator[HubClient]:
    """Open the hub, and close it at the end.

    The running hub of a configuration is used, if there is one. With a `name`, a local hub starts only the servers that
    could have it. With `is_to_call`, it opens its audit log.
    With `is_askable`, it tells servers that the caller answers questions.

    A `source` with a set sees the names of that set.

    Raises:
        CommandFailed: the configuration cannot be used.
    """
    name = name if source.set_name is None else None  # names of a set do not say of which server
    found = source if isinstance(source, RemoteSource) or source.is_private else find_hub(source.file) or source
    if isinstance(found, RemoteSource):
        hub = HubClient(found)
    else:
        from isthmus.cli.local_hub import open_local_hub

        hub = await open_local_hub(
            found.file, within=wait, name=name, shape=shape, is_to_call=is_to_call, is_askable=is_askable
        )
    hub.set_name = source.set_name
    try:
        yield hub
    finally:
        await hub.aclose()
