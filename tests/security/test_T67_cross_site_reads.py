"""T67: a foreign page makes a browser send requests that carry no `Origin`: pictures, scripts, frames, plain links.

Browsers say of each request where it comes from (`Sec-Fetch-Site`). On an open hub, what comes from another site is
refused as a foreign origin is, unless a person followed a link to it: the page cannot read what a new tab shows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.frontends.wire import connected
from tests.hubs import HubProcess, serving
from tests.security.endpoints import ENDPOINTS, knock

pytestmark = pytest.mark.asyncio(loop_scope="module")

GETS = {name: endpoint for name, endpoint in ENDPOINTS.items() if endpoint.method == "GET"}
FROM_A_PAGE = {
    "picture": (("sec-fetch-mode", "no-cors"), ("sec-fetch-dest", "image")),
    "frame": (("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe"), ("sec-fetch-user", "?1")),
    "window that a script opens": (("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")),
    "nothing else": (),
}
CLICK = (("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document"), ("sec-fetch-user", "?1"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    folder: Path = tmp_path_factory.mktemp("open")
    async with serving(folder) as running:
        yield running


async def status_of(hub: HubProcess, name: str, site: str, more: tuple[tuple[str, str], ...]) -> int:
    endpoint = ENDPOINTS[name]
    async with connected(hub.port) as wire:
        return (await knock(wire, endpoint, [*endpoint.lines(None), ("sec-fetch-site", site), *more])).status


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_another_sites_requests_are_refused_as_a_foreign_origin_is(hub: HubProcess, name: str) -> None:
    foreign = await status_of(hub, name, "cross-site", (("origin", "https://evil.test"),))
    for more in FROM_A_PAGE.values():
        assert await status_of(hub, name, "cross-site", more) == foreign
    assert foreign == 403 or ENDPOINTS[name].is_public or ENDPOINTS[name].is_form


@pytest.mark.parametrize("name", GETS)
async def test_links_own_pages_and_the_address_bar_are_served(hub: HubProcess, name: str) -> None:
    assert await status_of(hub, name, "cross-site", CLICK) != 403
    for site in ("none", "same-origin", "same-site"):
        assert await status_of(hub, name, site, FROM_A_PAGE["picture"]) != 403
