"""From a source to a hub, whichever kind it is. Called by the commands that work with what servers offer."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from isthmus.cli.naming import servers_for
from isthmus.cli.reached import OwnHub, Reached, start_own
from isthmus.cli.remote import RemoteHub
from isthmus.cli.sources import Own, Running, configuration_of
from isthmus.wire.mcp.lists import TOOLS, ListShape


@asynccontextmanager
async def opened(
    source: Running | Own, *, wait: float, name: str | None = None, shape: ListShape = TOOLS, is_to_call: bool = False
) -> AsyncIterator[Reached]:
    """A running hub, or one with every server or those that `name`, of this list, could belong to; closed at the end.

    What `is_to_call` is in an audit log: the running hub's, or this one's.

    Raises:
        CommandFailed: the configuration cannot be used.
    """
    hub = (
        RemoteHub(source)
        if isinstance(source, Running)
        else await _start(source, wait, name, shape, is_to_call=is_to_call)
    )
    try:
        yield hub
    finally:
        await hub.aclose()


async def _start(source: Own, wait: float, name: str | None, shape: ListShape, *, is_to_call: bool) -> OwnHub:
    configuration = configuration_of(source.file)
    only = None if name is None else servers_for(name, configuration, shape)
    return await start_own(configuration, os.environ, within=wait, only=only, is_to_call=is_to_call)
