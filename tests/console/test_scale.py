"""The console with long lists, and without a browser. `make console` measures the rest at full size."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from tests.console.pages import console
from tests.hubs import PATIENT, HubProcess, Raw, serving, stdio

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("console_scale")]

MANY = Path(__file__).with_name("many_server.py")
TOOLS = 10_000
FIRST_VIEW_BYTES = 60_000

UNTIL_USABLE = """() => new Promise((done) => {
  const isMarked = (list) => list.getEntriesByName("console-usable").length && done();
  new PerformanceObserver(isMarked).observe({ type: "mark", buffered: true });
})"""
FIRST_VIEW = """() => {
  const usable = performance.getEntriesByName("console-usable")[0].startTime;
  return [performance.getEntriesByType("navigation")[0], ...performance.getEntriesByType("resource")]
    .filter((each) => each.responseEnd <= usable)
    .map((each) => [new URL(each.name).pathname, each.transferSize]);
}"""
# Headless Chromium never hides a page.
HIDE = """(state) => {
  Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


async def test_ten_thousand_tools_are_searched_and_reached_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    servers = {"many": stdio([sys.executable, str(MANY), str(TOOLS)])}
    async with (
        serving(tmp_path, servers, limits={**PATIENT, "tools_per_server": TOOLS}) as hub,
        console(browser, hub.port, "tools", width=360) as page,
    ):
        grid = page.get_by_role("grid", name="Tools")
        await expect(grid.get_by_text("many.tool-00000", exact=True)).to_be_visible()
        total = int(await grid.get_attribute("aria-rowcount") or "0")
        assert total > TOOLS
        assert await grid.locator("tr").count() < 200
        await grid.focus()
        await page.keyboard.press("End")
        last = grid.locator(f"[aria-rowindex='{total}']")
        await expect(last).to_be_in_viewport()
        await expect(last).to_have_attribute("aria-selected", "true")
        await expect(page.get_by_role("region", name=await last.locator("b").inner_text())).to_be_visible()
        await page.keyboard.press("k")
        await expect(grid.locator(f"[aria-rowindex='{total - 1}']")).to_have_attribute("aria-selected", "true")
        assert await grid.locator("tr").count() < 200
        await page.get_by_label("Filter tools").fill("THING 4711.")
        await expect(grid).to_have_attribute("aria-rowcount", "1")
        await expect(grid.get_by_text("many.tool-04711")).to_be_visible()


async def test_a_hidden_page_asks_for_nothing(browser: Browser, hub: HubProcess) -> None:
    async with console(browser, hub.port, may_fail=True) as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        async with page.expect_request_finished(lambda request: "/v1/tools" in request.url):
            pass
        # No request is open but the stream, which ends.
        async with page.expect_event("requestfailed", lambda request: "/v1/activity" in request.url):
            await page.evaluate(HIDE, "hidden")
        asked.clear()
        async with Raw(hub.url) as caller:
            await caller.call("desk.add", {"a": 1, "b": 1})
        await until_timers_fired(page)
        assert [url for url in asked if "/v1/" in url] == []
        async with page.expect_request(lambda request: "/v1/activity" in request.url):
            await page.evaluate(HIDE, "visible")


async def until_timers_fired(page: Page) -> None:
    """Wait for longer than any timer of the page."""
    await page.evaluate("() => new Promise((done) => setTimeout(done, 2500))")


async def test_the_first_view_is_small(browser: Browser, hub: HubProcess) -> None:
    async with console(browser, hub.port) as page:
        await page.evaluate(UNTIL_USABLE)
        loaded = dict(await page.evaluate(FIRST_VIEW))
        assert sum(loaded.values()) <= FIRST_VIEW_BYTES, loaded
        assert "/console/pages/overview.js" in loaded
        assert "/console/pages/doctor.js" not in loaded
        # The other pages are loaded afterwards, before somebody opens one.
        async with page.expect_event("console", lambda line: line.text == "doctor"):
            await page.evaluate("import('/console/pages/doctor.js').then(() => console.log('doctor'))")


async def test_the_scroll_position_stays_while_calls_arrive(browser: Browser, hub: HubProcess) -> None:
    async with Raw(hub.url) as caller, console(browser, hub.port, "activity", height=500) as page:
        for number in range(40):
            await caller.call("desk.add", {"a": number, "b": 1})
        grid = page.get_by_role("grid", name="Calls")
        rows = grid.locator("xpath=..")
        await caller.call("desk.last", {})
        await expect(grid.locator("[aria-rowindex='2']")).to_contain_text("desk.last")
        await rows.evaluate("element => { element.scrollTop = 10 * 36; }")
        # The page learns of it in the next frame.
        await page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        first = "element => Math.round((element.scrollHeight - element.scrollTop) / 36)"
        before = await rows.evaluate(first)
        total = int(await grid.get_attribute("aria-rowcount") or "0")
        for number in range(5):
            await caller.call("desk.add", {"a": number, "b": 1})
        await expect(grid).to_have_attribute("aria-rowcount", str(total + 5))
        assert await rows.evaluate(first) == before


async def test_pages_that_were_left_are_forgotten(browser: Browser, hub: HubProcess) -> None:
    shown = "(window.shown ??= []).push(new WeakRef(document.querySelector('main h1')))"
    async with console(browser, hub.port) as page:
        for view in ("activity", "servers", "tools", "overview") * 3:
            await page.evaluate("view => { location.hash = `#/${view}`; }", view)
            await expect(page.get_by_role("heading", level=1)).to_have_text(view.capitalize())
            await page.evaluate(shown)
        devtools = await page.context.new_cdp_session(page)
        await devtools.send("HeapProfiler.collectGarbage")
        # The one in sight, and the one that the browser may need to go back to.
        assert await page.evaluate("window.shown.filter((each) => each.deref()).length") <= 2
