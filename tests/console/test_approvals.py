"""The page of approvals, as an operator uses it: the whole arguments, and a decision about each call."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Locator, Page, expect

from tests.console.pages import console, is_too_wide, serious_findings
from tests.faults.watching import eventually
from tests.hubs import PATIENT, TRUSTED, HubProcess, serving, stdio
from tests.property.echo_server import command

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("console")]

EVIL = {
    "to": "Ann\u202egnp.exe\u200b",
    "note": "<img src=x onerror=alert(1)>",
    "amount": 12345678901234567890,
    "share": 0.1,
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def held_hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    folder = tmp_path_factory.mktemp("approvals")
    rules = {"all": {"tools": ["bank.*"]}}
    async with serving(folder, {"bank": stdio(command())}, approvals=rules, limits=PATIENT) as running:
        yield running


async def decide(hub: HubProcess, text: str, what: str, **body: Any) -> None:
    """Decide about the call with this text in its arguments, as another operator does."""
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", timeout=60, verify=TRUSTED) as http:
        found = (await http.get("/v1/approvals?state=pending")).json()["approvals"]
        [id] = [each["id"] for each in found if text in json.dumps(each["arguments"])]
        assert (await http.post(f"/v1/approvals/{what}/{id}", json=body)).is_success


async def holding(hub: HubProcess, *names: str) -> list[asyncio.Future[Any]]:
    """Calls that the hub holds, in this order. A page asks only every other second, and is not waited for."""
    calls: list[asyncio.Future[Any]] = []
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", timeout=60, verify=TRUSTED) as http:
        for name in names:
            calls.append(asyncio.ensure_future(call(hub, {name: 1})))

            async def is_held(name: str = name) -> bool:
                return f'"{name}"' in (await http.get("/v1/approvals?state=pending")).text

            await eventually(is_held, f"the call with {name} is held")
    return calls


async def call(hub: HubProcess, arguments: Any) -> Any:
    async with httpx2.AsyncClient(timeout=60, verify=TRUSTED) as http:
        # As a caller may spell it: with more digits than a float has.
        text = json.dumps(arguments).replace("0.1}", "0.10000000000000001}")
        headers = {"content-type": "application/json"}
        return (
            await http.post(f"http://127.0.0.1:{hub.port}/v1/tools/bank.echo", content=text, headers=headers)
        ).json()


def request_with(page: Page, text: str) -> Locator:
    return page.get_by_role("main").locator("section.panel").filter(has_text=text)


async def test_a_call_is_shown_whole_and_allowed_once(browser: Browser, held_hub: HubProcess) -> None:
    waiting = asyncio.ensure_future(call(held_hub, EVIL))
    async with console(browser, held_hub.port, "approvals") as page:
        request = request_with(page, "onerror")
        arguments = request.get_by_role("region", name="Arguments")
        await expect(arguments).to_contain_text("12345678901234567890")
        await expect(arguments).to_contain_text("0.10000000000000001")
        await expect(arguments).to_contain_text("Ann\\u202egnp.exe\\u200b")
        await expect(arguments).to_contain_text("<img src=x onerror=alert(1)>")
        await expect(page.get_by_role("navigation")).to_contain_text("1 waiting")
        await request.get_by_role("button", name="Allow once").click()
        assert (await waiting)["structuredContent"] == EVIL
        await expect(page.get_by_text("No call waits for approval.")).to_be_visible()


async def test_the_same_call_is_allowed_for_an_hour(browser: Browser, held_hub: HubProcess) -> None:
    waiting = asyncio.ensure_future(call(held_hub, {"hour": 1}))
    async with console(browser, held_hub.port, "approvals") as page:
        await request_with(page, '"hour"').get_by_role("button", name="for an hour").click()
        await waiting
        assert (await call(held_hub, {"hour": 1.0}))["structuredContent"] == {"hour": 1.0}


async def test_a_call_is_denied_with_a_reason(browser: Browser, held_hub: HubProcess) -> None:
    waiting = asyncio.ensure_future(call(held_hub, {"deny": 1}))
    async with console(browser, held_hub.port, "approvals") as page:
        request = request_with(page, '"deny"')
        await request.get_by_label("Reason for denying").fill("Ask Bob first")
        await request.get_by_role("button", name="Deny").click()
        assert "Ask Bob first" in (await waiting)["detail"]


async def test_the_page_is_accessible_and_fits_a_phone(browser: Browser, held_hub: HubProcess) -> None:
    waiting = asyncio.ensure_future(call(held_hub, {"long": "x" * 3000, "word": "word " * 200}))
    async with console(browser, held_hub.port, "approvals", width=375, height=800) as page:
        request = request_with(page, '"long"')
        await expect(request).to_be_visible()
        assert not await is_too_wide(page)
        found = await Axe().run(page)
        serious = [each for each in found.response["violations"] if each["impact"] in ("serious", "critical")]
        assert serious == [], json.dumps(serious)[:2000]
        await request.get_by_role("button", name="Deny").click()
        await waiting


async def test_a_call_that_another_operator_decided_stays_in_its_place(browser: Browser, held_hub: HubProcess) -> None:
    async with (
        # Chromium logs the 404 of what was allowed and used.
        console(browser, held_hub.port, "approvals", height=2400, may_fail=True) as wide,
        console(browser, held_hub.port, "approvals", width=375, height=2400, may_fail=True) as page,
    ):
        waiting = await holding(held_hub, "first", "second", "third")
        for each in (wide, page):
            await expect(request_with(each, '"third"')).to_be_visible()
        lasts = [request_with(each, '"third"').get_by_role("button", name="Allow once") for each in (wide, page)]
        places = [await last.bounding_box() for last in lasts]
        await decide(held_hub, '"first"', "deny", reason="Ask Bob\u202e first" + ", please" * 100)
        await decide(held_hub, '"second"', "allow")
        for each, last, place in zip((wide, page), lasts, places, strict=True):
            first, second = request_with(each, '"first"'), request_with(each, '"second"')
            await expect(first).to_contain_text("It was denied by local: Ask Bob\\u202e first, please")
            await expect(second).to_contain_text("it was allowed and used, or its time is over")
            assert await last.bounding_box() == place
            for ended in (first, second):
                await expect(ended.get_by_role("button")).to_have_text(["Dismiss"])
                await expect(ended.get_by_role("textbox")).to_have_count(0)
            assert not await is_too_wide(each)
        denied = request_with(page, '"first"')
        await denied.get_by_role("button", name="Dismiss").click()
        await expect(denied).to_have_count(0)
        await lasts[1].click()
        await page.get_by_role("button", name="Dismiss all 2 that ended").click()
        await expect(page.locator("section.panel")).to_have_text(re.compile("No call waits for approval"))
        await asyncio.gather(*waiting)


async def test_a_decision_that_comes_too_late_says_how_the_call_ended(browser: Browser, held_hub: HubProcess) -> None:
    waiting = asyncio.ensure_future(call(held_hub, {"late": 1}))
    async with console(browser, held_hub.port, "approvals", may_fail=True) as page:
        request = request_with(page, '"late"')
        await expect(request).to_be_visible()
        # The page does not learn of the decision before the click.
        await page.route("**/v1/approvals?*", lambda route: route.abort())
        await decide(held_hub, '"late"', "deny", reason="No")
        await request.get_by_role("button", name="Allow once").click()
        await expect(request).to_contain_text("Your decision came too late. It was denied by local: No")
        await expect(request.get_by_role("button")).to_have_text(["Dismiss"])
        await waiting


async def test_a_call_whose_time_is_over_stays_without_buttons(browser: Browser, tmp_path: Path) -> None:
    rules = {"short": {"tools": ["bank.*"], "expires": 6}}
    async with (
        serving(tmp_path, {"bank": stdio(command())}, approvals=rules, limits=PATIENT) as hub,
        console(browser, hub.port, "approvals", may_fail=True) as page,
    ):
        waiting = asyncio.ensure_future(call(hub, {"slow": 1}))
        request = request_with(page, '"slow"')
        reason = request.get_by_label("Reason for denying")
        await reason.focus()
        await expect(request).to_contain_text("expired")
        await expect(request).to_contain_text("Nobody decided until")
        await expect(request.get_by_role("button")).to_have_text(["Dismiss"])
        await expect(request.get_by_role("heading", level=2)).to_be_focused()
        assert (await waiting)["type"].endswith("approval_expired")


async def test_by_keyboard_the_focus_stays_and_the_end_is_announced(browser: Browser, held_hub: HubProcess) -> None:
    async with console(browser, held_hub.port, "approvals") as page:
        waiting = await holding(held_hub, "keys", "other")
        await expect(request_with(page, '"other"')).to_be_visible()
        request, other = request_with(page, '"keys"'), request_with(page, '"other"')
        await request.get_by_role("button", name="Deny").focus()
        await page.keyboard.press("Enter")
        await expect(request.get_by_role("heading", level=2)).to_be_focused()
        await expect(page.get_by_role("status")).to_have_text("bank.echo for local: It was denied by local.")
        await page.keyboard.press("Tab")
        await expect(request.get_by_role("button", name="Dismiss")).to_be_focused()
        assert await serious_findings(page) == []
        await page.keyboard.press("Enter")
        await page.keyboard.press("Enter")
        await expect(request).to_have_count(0)
        await expect(other.get_by_role("heading", level=2)).to_be_focused()
        await other.get_by_role("button", name="Allow once").focus()
        await page.keyboard.press("Space")
        await expect(page.get_by_role("status")).to_have_text("bank.echo for local: It was allowed once by local.")
        await other.get_by_role("button", name="Dismiss").focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_be_focused()
        await asyncio.gather(*waiting)


async def test_the_empty_page_has_a_rule_that_holds_calls(browser: Browser, hub: HubProcess, tmp_path: Path) -> None:
    async with console(browser, hub.port, "approvals") as page:
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await page.get_by_role("button", name="Copy the rule").click()
        await expect(page.get_by_role("button", name="Copy the rule")).to_have_text("copied")
        text = str(await page.evaluate("navigator.clipboard.readText()"))
        assert await page.get_by_role("main").get_by_role("link").count() == 0
    rules = tomllib.loads(text)["approvals"]
    async with (
        serving(tmp_path, {"bank": stdio(command())}, approvals=rules, limits=PATIENT) as careful,
        httpx2.AsyncClient(timeout=60, verify=TRUSTED) as http,
    ):
        url = f"http://127.0.0.1:{careful.port}/v1/tools/bank.echo?timeout=0.1"
        assert (await http.post(url, json={})).json()["type"].endswith("approval_pending")
