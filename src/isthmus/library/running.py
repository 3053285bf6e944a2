"""The services that this process has initialized and not shut down, for whoever is given none.

Services say when they begin and end. A forked child has those of its parent no more.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import ref

from isthmus.library.catalog import Catalog
from isthmus.library.errors import ServiceClosedError


class HasCatalog(Protocol):
    """What resolving names needs of a service."""

    async def catalog(self) -> Catalog:
        """Its tools at this moment."""


_services: dict[tuple[int, int], ref[HasCatalog]] = {}
"""By process and identity. Each use is one operation, so that no lock is needed, which a fork could leave locked."""


def begun(service: HasCatalog) -> None:
    """A service was initialized."""
    _services[os.getpid(), id(service)] = ref(service)


def ended(service: HasCatalog) -> None:
    """It was shut down."""
    _services.pop((os.getpid(), id(service)), None)


def only_service() -> HasCatalog:
    """The one service of this process.

    Raises:
        ServiceClosedError: there is none, or there are several.
    """
    held = [service() for (process, _), service in list(_services.items()) if process == os.getpid()]
    services = [service for service in held if service is not None]
    if len(services) == 1:
        return services[0]
    if not services:
        raise ServiceClosedError("This process has no initialized ToolService: initialize one, or give tool_service=.")
    raise ServiceClosedError(f"This process has {len(services)} services: say which one by tool_service=.")
