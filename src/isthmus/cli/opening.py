"""From a source to an open hub, whichever kind it is. Called by `tools`, `call` and `doctor`."""

from __future__ import annotations

import os

from isthmus.cli.naming import servers_for
from isthmus.cli.reached import Reached, reach_running, start_own
from isthmus.cli.sources import Own, Running, configuration_of


async def open_hub(source: Running | Own, *, wait: float, name: str | None = None) -> Reached:
    """Reach the running hub, or start one with every server, or with those that `name` could belong to.

    Raises:
        CommandFailed: there is no way to it, or the configuration cannot be used.
    """
    if isinstance(source, Running):
        return await reach_running(source)
    configuration = configuration_of(source.file)
    only = None if name is None else servers_for(name, configuration)
    return await start_own(configuration, os.environ, within=wait, only=only)
