"""`isthmus serve`: the hub behind its HTTP door, until it is told to end."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import structlog

from isthmus.app.reload import Source
from isthmus.app.serve import serve
from isthmus.cli.addresses import local_origin
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.output import say
from isthmus.cli.running import run_service
from isthmus.cli.sources import configuration_of, home, refused
from isthmus.config.environment import MAP_VARIABLE
from isthmus.config.findings import ConfigError
from isthmus.config.settings import Configuration, HubSettings
from isthmus.frontends.http.listener import DoorError
from isthmus.telemetry.logs import configure

log = structlog.get_logger(__name__)


def serve_hub(file: Path | None, host: str | None, port: int | None, *, is_insecure: bool = False) -> Exit:
    """Serve until SIGTERM or SIGINT.

    Raises:
        CommandFailed: the configuration cannot be used, or its address cannot be listened on.
    """
    configuration = configuration_of(file, host=host, port=port)
    log_as(configuration.hub)
    warn(configuration)
    source = Source(file, os.environ, Path.cwd(), home(), host, port)
    try:
        opened = partial(_opened, configuration)
        work = serve(configuration, os.environ, source, on_open=opened, is_insecure=is_insecure)
        run_service(work, configuration.hub.state)
    except ConfigError as error:
        raise refused(error) from error
    except DoorError as error:
        advice = "Choose another address with --host and --port, or in [hub] of the configuration."
        raise CommandFailed(Exit.CONFIGURATION, str(error), advice) from error
    return Exit.WELL


def log_as(settings: HubSettings) -> None:
    """Begin to log as the configuration says.

    Raises:
        CommandFailed: the file to log to cannot be written.
    """
    try:
        configure(settings.log_level, settings.log_format, settings.log_file)
    except OSError as error:
        text = f"the log cannot be written to {settings.log_file}: {error.strerror}"
        raise CommandFailed(Exit.CONFIGURATION, text, "Name another file under [log], or leave it out.") from error


def warn(configuration: Configuration) -> None:
    """Log what is wrong with a configuration that can still be used."""
    for finding in configuration.warnings:
        log.warning("configuration", finding=str(finding))
    if configuration.file is None:
        served = (
            f"servers are those of {MAP_VARIABLE}" if configuration.servers else "only the built-in tools are served"
        )
        log.info(f"no configuration file found: {served}")


def _opened(configuration: Configuration, host: str, port: int) -> None:
    if configuration.hub.log_file is not None:
        say(f"listening at {address(host, port)}, logging to {configuration.hub.log_file}")
    log.info("listening", url=address(host, port), servers=len(configuration.servers))


def address(host: str, port: int) -> str:
    """Return the address to give to a client on this machine."""
    return f"{local_origin(host, port)}/mcp"
