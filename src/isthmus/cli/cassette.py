"""`isthmus record` and `isthmus replay`: calls recorded once, and served offline."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import click

from isthmus.app.cassette import NO_SETS, ReplayPlace, open_player, replay_configuration
from isthmus.app.serve import serve
from isthmus.app.stdio import run_stdio
from isthmus.cli.config import configuration_of
from isthmus.cli.exits import CommandFailed, Exit, refused
from isthmus.cli.find_hub import HUB_VARIABLE, STATE_VARIABLE
from isthmus.cli.options import WholeNumber, with_config, with_log_level
from isthmus.cli.output import print_error
from isthmus.cli.run_command import run_service
from isthmus.cli.serve import STDIN, cannot_listen, configure_logs, log_warnings, take_stdout
from isthmus.config.findings import ConfigError
from isthmus.config.settings import Configuration, LogLevel
from isthmus.core.background import BackgroundTasks
from isthmus.core.cassette_matching import CassetteError, Match, Player, Timing
from isthmus.frontends.http.listener import ListenError
from isthmus.transport.process import SpawnFailed, run_foreground

F = TypeVar("F", bound=Callable[..., Any])

URL_WORD = "{url}"
"""Stands for the address of MCP in the words of the command."""


def with_place(command: F) -> F:
    """Add `--host` and `--port`, together as `address`, and the command to run."""

    @functools.wraps(command)
    def run(*, host: str | None, port: int | None, **options: Any) -> Any:
        return command(address=(host, port), **options)

    host = click.option("--host", metavar="H", help="The address to listen on.  [default: 127.0.0.1]")
    port = click.option(
        "--port",
        metavar="N",
        type=WholeNumber(0, 65535),
        help="The port; 0 picks a free one, as it is with a COMMAND.  [default: 8765]",
    )
    words = click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
    return cast(F, words(host(port(run))))


@click.command("record")
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False), metavar="OUT")
@with_config
@click.option("--no-timing", "has_timing", is_flag=True, flag_value=False, default=True, help="Write no times.")
@with_place
@with_log_level
def record(
    out: Path,
    config: Path | None,
    address: tuple[str | None, int | None],
    command: tuple[str, ...],
    log_level: str | None,
    *,
    has_timing: bool,
) -> int:
    """Record calls into the cassette OUT.

    Starts a hub from the configuration and runs COMMAND, which finds the hub's address in ISTHMUS_HUB; a word {url}
    becomes the address of MCP. OUT is written when COMMAND has ended. Without COMMAND the hub serves until Ctrl-C. A
    recording without calls replaces no cassette that has some.
    """
    host, port = address
    port = 0 if port is None and command else port
    configuration = configuration_of(config, host=host, port=port, log_level=log_level or _usual_level(command))
    hub = replace(configuration.hub, cassette=str(out.absolute()), cassette_timing=has_timing)
    configuration = replace(configuration, hub=hub)
    configure_logs(hub)
    log_warnings(configuration)
    return _run(configuration, command)


@click.command("replay")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")
@click.option(
    "--config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Also serve the sets of this configuration. Nothing else of it is used.",
)
@click.option("--stdio", "is_stdio", is_flag=True, help="Serve on standard input and output instead of HTTP.")
@click.option(
    "--match",
    type=click.Choice(get_args(Match)),
    default="strict",
    show_default=True,
    help="strict: the recorded calls in their order, each once. lenient: in any order, as often as wanted.",
)
@click.option(
    "--timing",
    type=click.Choice(get_args(Timing)),
    default="none",
    show_default=True,
    help="recorded: events and results take as long as they did. none: they come at once.",
)
@with_place
@with_log_level
def replay(
    file: Path,
    config: Path | None,
    match: Match,
    timing: Timing,
    address: tuple[str | None, int | None],
    command: tuple[str, ...],
    log_level: str | None,
    *,
    is_stdio: bool,
) -> int:
    """Serve the cassette FILE as a hub, without its servers and their keys.

    Clients connect by HTTP or --stdio as to the hub that recorded it. With COMMAND the hub ends with it, as in
    `isthmus record`; if COMMAND succeeds and has not made all calls of a strict cassette, the exit code is 1. A call
    that is not in the cassette fails with the nearest recorded one and what differs.
    """
    host, port = address
    if is_stdio and (command or host or port is not None):
        raise CommandFailed(Exit.USAGE, "--stdio has no address and runs no command", "Leave out one of the two.")
    player = _open(file, match, timing)
    with tempfile.TemporaryDirectory(prefix="isthmus-replay-") as state:
        usual = 0 if command else 8765
        place = ReplayPlace(state, host or "127.0.0.1", usual if port is None else port)
        sets = NO_SETS if config is None else configuration_of(config).sets
        configuration = replay_configuration(player, place, sets)
        configure_logs(configuration.hub, log_level or _usual_level(command))
        if is_stdio:
            run_service(run_stdio(configuration, os.environ, stdin=STDIN, stdout=take_stdout()), state)
            code = int(Exit.SUCCESS)
        else:
            code = _run(configuration, command)
    is_whole = _report(file, player)
    return Exit.CALL_FAILED if command and code == Exit.SUCCESS and not is_whole else code


def _usual_level(command: Sequence[str]) -> LogLevel | None:
    """A command's own output should not be mixed with the hub's log."""
    return "error" if command else None


def _open(file: Path, match: Match, timing: Timing) -> Player:
    try:
        return open_player(file, match, timing)
    except CassetteError as error:
        text = f"{file} is not a whole cassette: {error}"
        raise CommandFailed(Exit.CONFIGURATION, text, "Record it again with `isthmus record`.") from error


def _report(file: Path, player: Player) -> bool:
    """Print which calls of a strict cassette were not made; True if there are none."""
    left = player.unplayed() if player.match == "strict" else []
    if left:
        calls = len(player.cassette.calls)
        first = f"the first is {left[0].title} in line {left[0].line}"
        print_error(f"isthmus: {len(left)} of {calls} calls of {file} were not made; {first}")
    return not left


def _run(configuration: Configuration, command: Sequence[str]) -> int:
    try:
        return run_service(_serve(configuration, command), configuration.hub.state)
    except ConfigError as error:
        raise refused(error) from error
    except ListenError as error:
        raise cannot_listen(error, configuration) from error
    except SpawnFailed as error:
        raise CommandFailed(Exit.USAGE, str(error), "The command follows `--`.") from error


async def _serve(configuration: Configuration, command: Sequence[str]) -> int:
    """Serve until a signal, or until the command has ended; return its exit code."""
    opened: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_open(origin: str) -> None:
        opened.set_result(origin)
        if not command:
            print_error(f"listening at {origin}/mcp")

    hub: Coroutine[Any, Any, None] = serve(configuration, os.environ, on_open=on_open)
    if not command:
        await hub
        return Exit.SUCCESS
    tasks = BackgroundTasks("command")
    serving = tasks.spawn("hub", _expected(hub))
    try:
        await asyncio.wait({serving, opened}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            return _result(serving)
        origin = opened.result()
        words = [word.replace(URL_WORD, f"{origin}/mcp") for word in command]
        running = tasks.spawn("command", _expected(run_foreground(words, _environment(configuration, origin))))
        await asyncio.wait({serving, running}, return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            # The hub ends as by any signal: running calls finish, and the cassette is written.
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait({serving})
        _result(serving)
        if not running.done():  # the hub was ended by a signal
            return Exit.TERMINATED
        code = _result(running)
        return code if code >= 0 else 128 - code
    finally:
        await tasks.aclose()


def _environment(configuration: Configuration, origin: str) -> dict[str, str]:
    """The environment of the command: commands of isthmus find the hub there, and the key of the local operator."""
    return {**os.environ, HUB_VARIABLE: origin, STATE_VARIABLE: os.path.abspath(configuration.hub.state)}


async def _expected(work: Coroutine[Any, Any, int | None]) -> int | Exception | None:
    """Run to the end; errors that the command explains are returned, because others are logged as defects."""
    try:
        return await work
    except (ConfigError, ListenError, SpawnFailed) as error:
        return error


def _result(task: asyncio.Task[int | Exception | None]) -> int:
    found = task.result()
    if isinstance(found, Exception):
        raise found
    return found or Exit.SUCCESS
