"""Opens the console of a hub in Chromium, and notices everything that a page must not do."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from typing import Any, Literal

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, Request, async_playwright, expect

from tests.browser import FLAGS, program
from tests.choices import IS_FULL
from tests.hubs import HubProcess, Raw

SECONDS = 30.0
expect.set_options(timeout=SECONDS * 1000)

WIDTHS = (360, 768, 1440)

LONG_NAME = "a_long_name_" + "of_one_word" * 8
"""The name of a tool of `tools_server.py`."""

Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """The system's Chromium; without one a test is skipped with the reason, and in CI it fails."""
    flags = [flag for flag in FLAGS if flag != "--headless"] + (["--no-sandbox"] if os.geteuid() == 0 else [])
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program(), args=flags)
        try:
            yield browser
        finally:
            await browser.close()


class Watched:
    """What a page did that the console must never do."""

    def __init__(self, page: Page, origin: str) -> None:
        self.errors: list[str] = []
        self.foreign: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda line: self.errors.append(line.text) if line.type == "error" else None)
        page.on("request", lambda request: self._note(request, origin))

    def _note(self, request: Request, origin: str) -> None:
        if not request.url.startswith((origin, "data:")):
            self.foreign.append(request.url)


@asynccontextmanager
async def console(
    browser: Browser,
    port: int,
    view: str = "",
    *,
    width: int = 1440,
    height: int = 900,
    scheme: Scheme = "light",
    may_fail: bool = False,
) -> AsyncIterator[Page]:
    """A page of the console. Leaving the block fails if it logged an error or asked another host for anything.

    `may_fail` allows error lines: Chromium logs every response with a status of 400 and more.
    """
    origin = f"http://127.0.0.1:{port}"
    context = await browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, permissions=["clipboard-read"]
    )
    context.set_default_timeout(SECONDS * 1000)
    page = await context.new_page()
    watched = Watched(page, origin)
    try:
        await page.goto(f"{origin}/console/#/{view}")
        yield page
    finally:
        await context.close()
    assert watched.foreign == []
    errors = [] if may_fail else watched.errors
    assert errors == [], errors


async def serious_findings(page: Page) -> list[Any]:
    """What axe finds serious or critical in the page: narrow and light, wide and dark; all four with `ISTHMUS_FULL`.

    A page gets axe once, and sends only its findings: that takes a third.
    """
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(Axe().axe_script)
    run = "axe.run({resultTypes: ['violations']}).then((told) => told.violations)"
    size, found = page.viewport_size, []
    assert size is not None
    widths = (WIDTHS[0], WIDTHS[-1])
    for width, scheme in product(widths, SCHEMES) if IS_FULL else zip(widths, SCHEMES, strict=True):
        await page.set_viewport_size({**size, "width": width})
        await page.emulate_media(color_scheme=scheme)
        await expect(page.locator("html")).to_have_attribute("data-theme", scheme)
        violations = [each for each in await page.evaluate(run) if each["impact"] in ("serious", "critical")]
        found += [(width, scheme, each) for each in violations]
    await page.emulate_media(color_scheme=SCHEMES[0])
    await page.set_viewport_size(size)
    return found


async def cut_boxes(page: Page) -> list[Any]:
    """The boxes whose content is wider than they are, so that a reader must scroll sideways to see all of it.

    Names in rows of a list end in "…" where they are too long, and the whole name is in what the row opens.
    """
    found: list[Any] = await page.evaluate(
        """() => [...document.querySelectorAll("body *")]
          .filter((element) => element.scrollWidth > element.clientWidth + 1)
          .filter((element) => getComputedStyle(element).overflowX !== "visible")
          .filter((element) => !element.closest(".vh, .skip, svg, thead"))
          .filter((element) => element.checkVisibility() && getComputedStyle(element).textOverflow !== "ellipsis")
          .filter((element) => !element.matches("input, select, textarea"))
          .map((element) => `${element.tagName}.${element.className} ${element.textContent.slice(0, 60)}`)"""
    )
    return found


async def is_too_wide(page: Page) -> list[Any]:
    """The elements that stick out of the page or of their panel, outside of boxes that scroll."""
    found: list[Any] = await page.evaluate(
        """() => {
          const scrolls = (element) => {
            for (; element; element = element.parentElement)
              if (getComputedStyle(element).overflowX !== "visible") return true;
            return false;
          };
          const edge = (element) => element?.getBoundingClientRect().right ?? Infinity;
          const sticksOut = (element) =>
            edge(element) > Math.min(innerWidth, edge(element.parentElement.closest(".panel"))) + 1;
          return [...document.querySelectorAll("body *")]
            .filter((element) => sticksOut(element) && !scrolls(element.parentElement))
            .map((element) => `${element.tagName}.${element.className} ${element.textContent.slice(0, 40)}`);
        }"""
    )
    return found


async def call(hub: HubProcess, name: str, **arguments: Any) -> dict[str, Any]:
    async with Raw(hub.url) as caller:
        return await caller.call(name, arguments)


async def show(page: Page, view: str) -> None:
    """Go to another view, and wait until it has what the hub knows."""
    await page.evaluate("view => { location.hash = `#/${view}`; }", view)
    await expect(page.get_by_role("heading", level=1)).to_have_text(view.partition("/")[0].capitalize())
    await expect(page.locator("nav")).to_contain_text(re.compile(r"Tools[1-9]"))
    await expect(page.get_by_text("Loading")).to_have_count(0)
