"""`isthmus serve` and `isthmus stdio`: the hub over HTTP, or on standard input and output."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
import structlog

from isthmus.app.reload import ConfigurationSource
from isthmus.app.serve import reserve_address, serve
from isthmus.app.shared_state import close_shared_state
from isthmus.app.state_folder import find_running
from isthmus.app.stdio import run_stdio
from isthmus.app.workers import WORKERS_MAX, Parent, Worker, check_workers
from isthmus.cli.config import configuration_of, home, servers_folder
from isthmus.cli.exits import CommandFailed, Exit, refused
from isthmus.cli.find_hub import LocalSource, running_hub, source_of
from isthmus.cli.local_hub import running_as_server
from isthmus.cli.options import WholeNumber, with_config, with_log_level, with_source
from isthmus.cli.output import print_error, wants_color
from isthmus.cli.rest_client import RemoteSource
from isthmus.cli.run_command import run_service
from isthmus.config.files import MAP_VARIABLE
from isthmus.config.findings import ConfigError
from isthmus.config.settings import Configuration, HubSettings, local_origin
from isthmus.frontends.http.listener import ListenError
from isthmus.telemetry.logs import configure

log = structlog.get_logger(__name__)

STDIN, STDOUT, STDERR = 0, 1, 2


@click.command("serve")
@with_config
@click.option("--host", metavar="H", help="The address to listen on.  [default: 127.0.0.1]")
@click.option(
    "--port",
    metavar="N",
    type=WholeNumber(0, 65535),
    help="The port; 0 picks a free one.  [default: 8765]",
)
@click.option(
    "--workers",
    metavar="N",
    type=WholeNumber(1, WORKERS_MAX),
    default=1,
    help="Processes that share the port; several need a PostgreSQL database.  [default: 1]",
)
@click.option("--insecure", "is_insecure", is_flag=True, help="Without callers, accept everybody who can connect.")
@with_log_level
def serve_command(
    config: Path | None, host: str | None, port: int | None, workers: int, log_level: str | None, *, is_insecure: bool
) -> int:
    """Run the hub: MCP at /mcp (all servers), /mcp/SERVER (one) and /mcp/SET, REST at /v1."""
    if workers > 1:
        return serve_workers(config, host, port, workers, is_insecure=is_insecure, log_level=log_level)
    return serve_hub(config, host, port, is_insecure=is_insecure, log_level=log_level)


@click.command("stdio")
@with_source
@click.option("--set", "set_name", metavar="SET", help="Serve only this set of the configuration.")
@with_log_level
def stdio_command(hub: str | None, config: Path | None, set_name: str | None, log_level: str | None) -> int:
    """Serve MCP on standard input and output, for clients that start their servers."""
    return serve_stdio(source_of(hub, config), log_level, set_name)


def serve_workers(
    file: Path | None, host: str | None, port: int | None, count: int, *, is_insecure: bool, log_level: str | None
) -> int:
    """Serve with several processes until SIGTERM or SIGINT; return the exit code.

    Raises:
        CommandFailed: the configuration cannot be used, or the hub cannot listen on its address.
    """
    configuration = configuration_of(file, host=host, port=port, log_level=log_level)
    configure_logs(configuration.hub)
    try:
        check_workers(configuration, count)
        reserved = asyncio.run(reserve_address(configuration))
    except ConfigError as error:
        raise refused(error) from error
    except ListenError as error:
        raise cannot_listen(error, configuration) from error
    close_shared_state(configuration)  # its thread would not survive a fork
    port = int(reserved[0].getsockname()[1])
    configuration = replace(configuration, hub=replace(configuration.hub, port=port))

    def run(worker: Worker) -> int:
        try:
            return serve_hub(file, host, port, is_insecure=is_insecure, log_level=log_level, worker=worker)
        except CommandFailed as failed:
            print_error(f"isthmus: {failed.message}")
            for line in failed.advice:
                print_error(line)
            return failed.exit

    try:
        return Parent(configuration, count, run).run()
    finally:
        for each in reserved:
            each.close()


def serve_hub(
    file: Path | None,
    host: str | None,
    port: int | None,
    *,
    is_insecure: bool = False,
    log_level: str | None = None,
    worker: Worker | None = None,
) -> Exit:
    """Serve until SIGTERM or SIGINT, alone or as one of several workers.

    Raises:
        CommandFailed: the configuration cannot be used, or the hub cannot listen on its address.
    """
    configuration = configuration_of(file, host=host, port=port, log_level=log_level)
    configure_logs(configuration.hub)
    source = ConfigurationSource(file, os.environ, Path.cwd(), home(), host, port, log_level, worker)
    if worker is not None:
        configuration = worker.adapt(configuration)

    def on_open(origin: str) -> None:
        url = f"{origin}/mcp"
        if worker is not None:
            worker.on_open()
            if worker.number > 1:
                log.debug("listening", url=url)
                return
        if configuration.hub.log_file is not None:
            print_error(f"listening at {url}, logging to {configuration.hub.log_file}")
        places = {"console": f"{origin}/"} if configuration.hub.console else {}
        if (config := configuration.file) is not None:
            here = Path.cwd()
            places["file"] = str(config.relative_to(here) if config.is_relative_to(here) else config)
        log.info("listening", url=url, servers=len(configuration.servers), **places)

    try:
        is_first = worker is None or worker.number == 1
        on_bound = partial(log_warnings, configuration) if is_first else lambda: None
        work = serve(
            configuration,
            os.environ,
            source,
            on_bound=on_bound,
            on_open=on_open,
            is_insecure=is_insecure,
            worker=worker,
        )
        run_service(work, configuration.hub.state)
    except ConfigError as error:
        raise refused(error) from error
    except ListenError as error:
        raise cannot_listen(error, configuration) from error
    return Exit.SUCCESS


def cannot_listen(error: ListenError, configuration: Configuration) -> CommandFailed:
    """The error for an address that the hub cannot have: perhaps the same hub already runs there."""
    running = find_running(Path(configuration.hub.state))
    settings = configuration.hub
    if running is not None and running.origin == local_origin(settings.host, error.port):
        text = f"this hub already runs at {running.origin} (process {running.pid})"
        advice = "Commands use it by themselves. Another one needs another address: --port N."
    elif error.port == configuration.a2a.grpc_port:
        text, advice = str(error), "Choose another grpc_port under [a2a] of the configuration."
    else:
        text = str(error)
        advice = (
            "Choose another address with --port N (0 picks a free one) or --host H, or in [hub] of the configuration."
        )
    return CommandFailed(Exit.CONFIGURATION, text, advice)


def serve_stdio(source: RemoteSource | LocalSource, log_level: str | None = None, set_name: str | None = None) -> Exit:
    """Serve one caller until it disconnects.

    Raises:
        CommandFailed: the configuration cannot be used, or has no such set.
    """
    if isinstance(source, RemoteSource):
        configuration, surface = running_as_server(source, set_name)
        set_name = None  # the running hub has it
        files, state = None, None
        configure_logs(configuration.hub, log_level)
    else:
        configuration, surface = configuration_of(source.file, log_level=log_level), None
        files, state = (
            ConfigurationSource(source.file, os.environ, Path.cwd(), home(), log_level=log_level),
            configuration.hub.state,
        )
        configure_logs(configuration.hub)
        log_warnings(configuration)
        if set_name is not None and set_name not in configuration.sets:
            known = ", ".join(configuration.sets)
            advice = f"Its sets: {known}." if known else "It has none: add [sets.NAME] to the file."
            raise CommandFailed(Exit.USAGE, f"the configuration has no set {set_name!r}", advice)
        # It does not use that hub by itself: the client may outlive it, and the key for commands ends with it.
        if (running := running_hub(source.file)[1]) is not None:
            log.info("another hub of this configuration runs: --hub uses it", url=running.origin)
    output = take_stdout()
    try:
        work = run_stdio(
            configuration, os.environ, files, surface=surface, set_name=set_name, stdin=STDIN, stdout=output
        )
        run_service(work, state)
    except ConfigError as error:
        raise refused(error) from error
    return Exit.SUCCESS


def take_stdout() -> int:
    """Return a private descriptor of standard output, and redirect the public one to standard error.

    A stray `print` in any library would break the protocol; now it goes to the log.
    """
    output = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    return output


def configure_logs(settings: HubSettings, log_level: str | None = None) -> None:
    """Log as the configuration says, or from another level on.

    Raises:
        CommandFailed: the log file cannot be written.
    """
    try:
        configure(log_level or settings.log_level, settings.log_format, settings.log_file, has_color=wants_color())
    except OSError as error:
        text = f"the log cannot be written to {settings.log_file}: {error.strerror}"
        raise CommandFailed(Exit.CONFIGURATION, text, "Name another file under [log].") from error


def log_warnings(configuration: Configuration) -> None:
    """Log the findings of a configuration that can still be used."""
    for finding in configuration.warnings:
        log.warning("configuration", finding=str(finding))
    if (folder := servers_folder(configuration)) is not None:
        log.info("servers of the file run in its folder", cwd=folder)
    if configuration.file is None:
        served = f"servers come from {MAP_VARIABLE}" if configuration.servers else "serving only the built-in tools"
        log.info(f"no configuration file found: {served}")
