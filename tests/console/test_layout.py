"""The console's pages in every width and both themes: accessible, nothing cut, nothing over anything else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.console.conftest import SERVER
from tests.console.pages import LONG_NAME, WIDTHS, call, console, cut_boxes, is_too_wide, serious_findings, show
from tests.hubs import PATIENT, HubProcess, Raw, serving, stdio

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("console_layout")]

VIEWS = (
    "overview",
    "servers",
    "servers/broken",
    "tools",
    "tools/desk.book",
    f"tools/desk.{LONG_NAME}",
    "activity",
    "tasks",
    "approvals",
    "devices",
    "definitions",
    "access",
    "access/local",
    "audit",
    "audit/0:1",
    "cluster",
    "doctor",
)


async def test_every_page_is_accessible_in_both_themes(browser: Browser, hub: HubProcess) -> None:
    await call(hub, "desk.add", a=1, b=2)
    # Without a relay the page of devices gets 404, and without a cluster that of the cluster, which Chromium logs.
    async with console(browser, hub.port, may_fail=True) as page:
        for view in VIEWS:
            await show(page, view)
            assert await serious_findings(page) == [], view


@pytest.mark.parametrize("view", ["tasks", "tools", "tools/desk.book"])
async def test_the_list_and_the_detail_fit_on_a_tablet(browser: Browser, hub: HubProcess, view: str) -> None:
    async with console(browser, hub.port, width=768) as page:
        await show(page, view)
        for each in await page.locator(".split > *").all():
            box = await each.bounding_box()
            assert box is not None
            assert box["width"] > 400
        if view != "tasks":
            await expect(page.locator(".split .list").get_by_text("desk.book")).to_be_visible()


@pytest.mark.parametrize("width", WIDTHS)
async def test_nothing_sticks_out_at_any_width(browser: Browser, hub: HubProcess, width: int) -> None:
    await call(hub, "desk.add", a=1, b=2)
    async with console(browser, hub.port, width=width, may_fail=True) as page:
        for view in VIEWS:
            await show(page, view)
            assert await is_too_wide(page) == [], view
            assert await cut_boxes(page) == [], view


@pytest.mark.parametrize("width", WIDTHS)
async def test_the_buttons_of_a_server_are_in_one_line(browser: Browser, hub: HubProcess, width: int) -> None:
    async with console(browser, hub.port, "servers/broken", width=width) as page:
        opened = page.get_by_role("region", name="broken")
        names = ("Disable", "Restart")
        boxes = [await opened.get_by_role("button", name=name).bounding_box() for name in names]
        first, second = [box for box in boxes if box is not None]
        assert first["y"] == second["y"]
        assert first["x"] + first["width"] < second["x"]


async def test_a_changed_tool_with_a_long_name_fits_a_phone(browser: Browser, tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.write_text("Has a long name.")
    servers = {"desk": stdio([sys.executable, str(SERVER), str(words), "-1"])}
    async with serving(tmp_path, servers, hub={"pin": "strict"}, limits=PATIENT) as hub:
        async with Raw(hub.url) as caller:
            assert f"desk.{LONG_NAME}" in await caller.names()
        words.write_text("Has another description.")
        async with console(browser, hub.port, "servers/desk", width=360) as page:
            await page.get_by_role("button", name="Restart").click()
            await expect(page.locator("nav")).to_contain_text("1 waiting")
            for view in ("definitions", "overview"):
                await show(page, view)
                await expect(page.get_by_role("main")).to_contain_text(LONG_NAME)
                assert await is_too_wide(page) == [], view


async def test_a_phone_shows_callers_and_servers_as_lists_and_where_it_is(browser: Browser, hub: HubProcess) -> None:
    await call(hub, "desk.add", a=1, b=2)
    async with console(browser, hub.port, width=360, height=740) as page:
        picture, listed = page.locator(".map svg"), page.get_by_role("list", name="Servers")
        await expect(listed.get_by_role("listitem").filter(has_text="broken")).to_contain_text("not connected")
        await expect(listed).to_be_in_viewport()
        await expect(page.get_by_role("list", name="Callers")).to_contain_text("MCP")
        await expect(picture).to_be_hidden()
        assert await page.locator(".map").evaluate("map => map.scrollWidth <= map.clientWidth")
        await show(page, "doctor")
        await expect(page.get_by_role("button", name="Doctor")).to_be_in_viewport()
        await show(page, "overview")
        await page.set_viewport_size({"width": 1440, "height": 900})
        await expect(picture).to_be_visible()
        await expect(listed).to_be_hidden()


@pytest.mark.parametrize(
    ("view", "filter"), [("activity", "Outcome"), ("audit", "What happened"), ("access", "Frontend")]
)
async def test_on_a_phone_filters_are_behind_a_button(
    browser: Browser, hub: HubProcess, view: str, filter: str
) -> None:
    for number in range(10):
        await call(hub, "desk.add", a=1, b=number)
    async with console(browser, hub.port, view, width=360, height=740) as page:
        await show(page, view)
        chosen, button = page.get_by_label(filter, exact=True), page.get_by_role("button", name="Filters")
        await expect(chosen).to_be_hidden()
        if view == "activity":  # how each of the last calls ended is in sight
            row = page.get_by_role("grid", name="Calls").get_by_role("row").nth(10)
            await expect(row.locator(".state")).to_be_in_viewport(ratio=1)
        await button.click()
        await chosen.select_option(index=1)
        await expect(button).to_have_text("Filters: 1")
        await button.click()
        await expect(chosen).to_be_hidden()


async def test_a_narrow_window_has_the_pages_behind_a_button(browser: Browser, hub: HubProcess) -> None:
    async with console(browser, hub.port, "tools", width=360) as page:
        button = page.get_by_role("button", name="Tools")
        await expect(page.get_by_role("navigation")).to_be_hidden()
        await expect(button).to_contain_text("1 page needs you")
        await button.click()
        links = page.get_by_role("navigation").get_by_role("link")
        await expect(links.last).to_be_in_viewport()
        assert await is_too_wide(page) == []
        await page.keyboard.press("Escape")
        await expect(links.last).to_be_hidden()
        await button.press("Enter")
        await links.filter(has_text="Servers").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Servers")
        await expect(page.get_by_role("navigation")).to_be_hidden()
        await page.keyboard.press("g")
        await expect(links.last.locator("kbd")).to_be_in_viewport()
