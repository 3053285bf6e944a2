"""`isthmus stdio`: the hub over this process's own standard streams, for clients that start their servers."""

from __future__ import annotations

import os
from pathlib import Path

from isthmus.app.reload import Source
from isthmus.app.stdio import run_stdio
from isthmus.cli.exits import Exit
from isthmus.cli.reached import running_as_server
from isthmus.cli.running import run_service
from isthmus.cli.serve import log_as, warn
from isthmus.cli.sources import Own, Running, configuration_of, home, refused
from isthmus.config.findings import ConfigError

STDIN, STDOUT, STDERR = 0, 1, 2


def serve_stdio(source: Running | Own) -> Exit:
    """Serve one caller until it leaves.

    Raises:
        CommandFailed: the configuration cannot be used.
    """
    if isinstance(source, Running):
        configuration, surface = running_as_server(source)
        files = None
    else:
        configuration, surface = configuration_of(source.file), None
        files = Source(source.file, os.environ, Path.cwd(), home())
    log_as(configuration.hub)
    if isinstance(source, Own):
        warn(configuration)
    output = take_stdout()
    try:
        work = run_stdio(configuration, os.environ, files, surface=surface, stdin=STDIN, stdout=output)
        run_service(work, configuration.hub.state if isinstance(source, Own) else None)
    except ConfigError as error:
        raise refused(error) from error
    return Exit.WELL


def take_stdout() -> int:
    """Return a descriptor of our own for standard output and lead the usual one to standard error.

    A stray `print` of any library would break the protocol; this way it lands in the log.
    """
    output = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    return output
