"""The console's page of the cluster: two real nodes on a real NATS server, and a hub that is no node."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.cluster.servers import NatsServer
from tests.cluster_hubs.nodes import nats_server, node, stands
from tests.console.pages import WIDTHS, console, cut_boxes, is_too_wide, serious_findings
from tests.hubs import HubProcess
from tests.relay.peers import raw_server

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("console_cluster")]

Nodes = tuple[NatsServer, Sequence[HubProcess]]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def nodes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Nodes]:
    """Two nodes whose limits differ; a server has dialled in at the second."""
    folder = tmp_path_factory.mktemp("nodes")
    async with (
        nats_server(folder) as nats,
        node(folder, nats.url, "bergen") as first,
        node(folder, nats.url, "porto", limits={"max_calls": 7}) as second,
        raw_server(second.port, "kitchen", "oven"),
    ):
        await stands(first, "kitchen_oven", "ready")
        yield nats, (first, second)


async def test_the_page_shows_nodes_owners_lag_and_differences(browser: Browser, nodes: Nodes) -> None:
    _, (first, _) = nodes
    async with console(browser, first.port, "cluster") as page:
        main = page.get_by_role("main")
        own, other = (page.get_by_role("row", name=re.compile(f"^{name} ")) for name in ("bergen", "porto"))
        await expect(own).to_contain_text("this node")
        await expect(other).to_contain_text("present")
        await expect(other.locator("[data-head=Lag]")).to_have_text(re.compile(r"^(< )?[\d.]+ ms$"))
        await expect(other.locator("[data-head='Last heard']")).to_have_text(re.compile(r"^[\d.]+ m?s ago$"))
        await expect(main).to_contain_text("porto has another configuration than this node")
        await expect(main).to_contain_text("[limits]")
        await expect(main.get_by_role("link", name="kitchen_oven")).to_have_attribute("href", "#/servers/kitchen_oven")


async def test_the_page_fits_every_width_and_is_accessible(browser: Browser, nodes: Nodes) -> None:
    _, (first, _) = nodes
    async with console(browser, first.port, "cluster") as page:
        await expect(page.get_by_role("link", name="kitchen_oven")).to_be_visible()
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 900})
            assert await is_too_wide(page) == [], width
            assert await cut_boxes(page) == [], width
        assert await serious_findings(page) == []


async def test_a_node_that_is_cut_off_says_so_and_finds_the_others_again(browser: Browser, nodes: Nodes) -> None:
    nats, (first, _) = nodes
    async with console(browser, first.port, "cluster") as page:
        main = page.get_by_role("main")
        await expect(main).to_contain_text("2 nodes")
        nats.kill()
        await expect(main).to_contain_text("calls to those of other nodes fail as not sent")
        await expect(page.get_by_role("row", name=re.compile("^bergen "))).to_contain_text("cut off")
        nats.start()
        await expect(main).to_contain_text("2 nodes")
        await expect(main.get_by_role("link", name="kitchen_oven")).to_be_visible()


async def test_a_hub_without_a_cluster_shows_how_to_start_one(browser: Browser, hub: HubProcess) -> None:
    async with console(browser, hub.port, "cluster", may_fail=True) as page:  # Chromium logs the 404
        main = page.get_by_role("main")
        await expect(main).to_contain_text("This hub is no node of a cluster")
        await expect(main).to_contain_text("isthmus serve --workers 4")
