"""Catalogs of a few tools, and a service that has nothing else."""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.core.catalog.argument_validation import CheckCache
from isthmus.core.catalog.snapshot import Snapshot
from isthmus.core.catalog.view import Route
from isthmus.library.catalog import Catalog
from isthmus.library.public_types import UserContext, UserPermissions
from isthmus.model.callers import Grants
from isthmus.model.calls import EVERYTHING, Surface
from isthmus.model.features import Tool
from isthmus.model.names import ServerName
from tests.unit.core.doubles import ready, tool

HUB = Surface("own", ServerName("hub"))


def routes_of(*tools: Tool, surface: Surface = EVERYTHING) -> Mapping[str, Route]:
    """What a hub with these tools shows to who may use everything."""
    servers = dict.fromkeys(each.server for each in tools)
    server_statuses = {
        server: ready(*(each for each in tools if each.server == server), server=server) for server in servers
    }
    return Snapshot(1, server_statuses, CheckCache(limit_bytes=4096)).view(Grants(("*",)), surface).routes


def catalog_of(*names: str, missing: Mapping[str, str] | None = None) -> Catalog:
    """Tools of these full names, which have nothing but a name."""
    pairs = [name.partition(".") for name in names]
    return Catalog({EVERYTHING: routes_of(*(tool(own, server) for server, _, own in pairs))}, missing)


def attached_to(*names: str) -> Catalog:
    """The tools of a hub elsewhere, by the names that it gives them."""
    return Catalog({HUB: routes_of(*(tool(name, "hub") for name in names), surface=HUB)})


def user(*permissions: str, denied: object = ()) -> UserContext:
    """A user that may use these."""
    return UserContext("ada", permissions=UserPermissions(list(permissions), restrictions={"tools": denied}))


class CatalogService:
    """A service that has a catalog."""

    def __init__(self, *names: str, missing: Mapping[str, str] | None = None) -> None:
        self.held = catalog_of(*names, missing=missing)

    async def catalog(self) -> Catalog:
        """See `HasCatalog`."""
        return self.held
