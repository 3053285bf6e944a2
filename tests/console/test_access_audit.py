"""The pages Access and Audit: reasons, a change that is tried, records, verification and export."""

from __future__ import annotations

import io
import json
import re
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, redirect_stdout
from pathlib import Path

import httpx2
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from isthmus.cli.main import main
from isthmus.model.fault_table import FAULTS
from tests.console.conftest import SERVER
from tests.console.pages import WIDTHS, console, cut_boxes, is_too_wide, serious_findings
from tests.faults.watching import eventually
from tests.hubs import CHECKOUT, PATIENT, TRUSTED, HubProcess, Raw, serving, stdio

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("console_access_audit")]

STATIC = CHECKOUT / "src/isthmus/frontends/console/static"
OPERATOR = "the-key-of-ops-0123456789"
CALLER = "the-key-of-cal-0123456789"
CALLERS = {
    "ops": {"key": OPERATOR, "allow": ["*"], "operator": True},
    "cal": {"key": CALLER, "allow": ["desk.*"], "deny": ["desk.die"]},
    "<b>loud</b>": {"key": "the-key-of-loud-123456789", "allow": ["builtin.echo"]},
    "pad": {"key": "the-key-of-pad-0123456789", "allow": ["*"], "set": "small"},
}
SETS = {"small": {"tools": ["desk.add"]}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audited")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def locked(folder: Path) -> AsyncIterator[HubProcess]:
    """A hub with callers and a few calls."""
    broken = stdio([sys.executable, "-c", "raise SystemExit('no paper')"])
    servers = {"desk": stdio([sys.executable, str(SERVER)]), "a_server_that_does_not_start": broken}
    async with serving(folder, servers, callers=CALLERS, sets=SETS, limits=PATIENT) as running:
        async with Raw(running.url, key=OPERATOR) as caller:
            await caller.call("desk.add", {"a": 1, "b": 2})
            await caller.call("desk.fail")
            await caller.call("<img src=x onerror=alert(1)>")
        yield running


@asynccontextmanager
async def signed_in(
    browser: Browser, hub: HubProcess, view: str, *, width: int = 1440, may_fail: bool = False
) -> AsyncIterator[Page]:
    async with console(browser, hub.port, view, width=width, may_fail=may_fail) as page:
        await page.get_by_label("Key").fill(OPERATOR)
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("Signed in as ops")).to_be_attached()
        yield page


async def test_a_cell_of_the_matrix_says_why(browser: Browser, locked: HubProcess) -> None:
    async with signed_in(browser, locked, "access") as page:
        matrix = page.get_by_role("region", name="Who can reach what")
        server = matrix.get_by_role("row").filter(has=page.get_by_role("button", name="desk", exact=True))
        await expect(server).to_contain_text("12 of 13")
        await expect(matrix.get_by_role("columnheader", name="<b>loud</b>")).to_be_visible()
        await server.get_by_role("button").click()
        row = matrix.get_by_role("row").filter(has_text="desk.die")
        await expect(row.get_by_role("button")).to_have_text(["denied", "denied", "allowed", "denied", "allowed"])
        await row.get_by_role("button").nth(1).focus()
        why = page.get_by_role("status").filter(has_text="desk.die")
        await expect(why).to_have_text("cal, desk.die: denied, desk.die in callers.cal.deny.")
        await row.get_by_role("button").nth(2).hover()
        await expect(why).to_have_text("ops (operator), desk.die: allowed, * in callers.ops.allow.")
        await page.get_by_label("Filter callers").fill("ca")
        await expect(row.get_by_role("button")).to_have_count(2)  # cal and local; the server stays open
        await page.get_by_label("Filter tools").fill("echo")
        await expect(matrix.get_by_role("row").filter(has_text="builtin.echo")).to_contain_text("denied")
        await expect(matrix.get_by_role("columnheader", name="ops")).to_have_count(0)


async def test_many_callers_are_read_in_groups_without_scrolling_sideways(browser: Browser, tmp_path: Path) -> None:
    callers = {f"caller_{n:02}_with_a_long_name": {"key": f"{OPERATOR}{n:02}", "allow": ["*"]} for n in range(40)}
    servers = {"desk": stdio([sys.executable, str(SERVER)])}
    async with (
        serving(tmp_path, servers, callers=callers | {"ops": CALLERS["ops"]}, limits=PATIENT) as hub,
        signed_in(browser, hub, "access") as page,
    ):
        matrix, group = page.get_by_role("region", name="Who can reach what"), page.get_by_role("group", name="Callers")
        await page.get_by_role("button", name="desk", exact=True).click()
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 900})
            shown = {360: 8, 768: 3, 1440: 6}[width]
            await expect(group.get_by_role("status")).to_have_text(f"Callers 1 to {shown} of 42")
            await expect(matrix.get_by_role("row").filter(has_text="desk.add").get_by_role("button")).to_have_count(
                shown
            )
            assert await cut_boxes(page) == []
            assert await is_too_wide(page) == []
        await group.get_by_role("button", name="Next").click()
        await expect(group.get_by_role("status")).to_have_text("Callers 7 to 12 of 42")
        row = matrix.get_by_role("row").filter(has_text="desk.add")
        await row.get_by_role("button").first.focus()
        await expect(page.get_by_role("status").last).to_contain_text("caller_06_with_a_long_name, desk.add: allowed")
        await page.get_by_label("Filter callers").fill("39")
        await expect(matrix.get_by_role("columnheader", name="caller_39")).to_be_visible()
        await expect(group).to_have_count(0)


async def test_no_access_and_nothing_listed_do_not_look_like_problems(browser: Browser, locked: HubProcess) -> None:
    async with signed_in(browser, locked, "access") as page:
        matrix = page.get_by_role("region", name="Who can reach what")
        absent = matrix.get_by_role("row").filter(has_text="a_server_that_does_not_start")
        await expect(absent.locator(".state").first).to_have_text("none")
        await expect(matrix.get_by_text("0 of 13").first).to_have_class("state idle")
        await expect(matrix.locator(".state.bad")).to_have_count(0)


async def test_a_caller_that_is_bound_to_a_set_says_so(browser: Browser, locked: HubProcess) -> None:
    async with signed_in(browser, locked, "access/pad") as page:
        await expect(page.get_by_text("Bound to the set small")).to_be_visible()
        await expect(page.get_by_role("row").filter(has_text="desk")).to_contain_text("1 of 13")


async def test_reasons_are_in_sight_on_a_phone(browser: Browser, locked: HubProcess) -> None:
    async with signed_in(browser, locked, "access/cal", width=360) as page:
        await page.get_by_label("Deny").fill("")
        await page.get_by_label("Allow").fill("builtin.*")
        await page.get_by_role("button", name="See the difference").click()
        changes = page.get_by_role("table", name="cal: ").get_by_role("row")
        await expect(changes.last).to_contain_text("not in callers.cal.allow")
        await page.get_by_role("button", name="builtin", exact=True).click()
        reason = page.get_by_role("region", name="Who can reach what").get_by_text("not in callers.cal.allow").last
        for each in (changes.last.get_by_text("not in"), reason):
            await each.scroll_into_view_if_needed()
            box = await each.bounding_box()
            assert box is not None
            assert 0 <= box["x"] <= box["x"] + box["width"] <= 360
        scrolls = "e => e.scrollHeight > e.clientHeight + 1"
        assert not await page.locator(".diffs").evaluate(scrolls)


async def test_a_change_is_tried_without_being_applied(browser: Browser, locked: HubProcess) -> None:
    async with signed_in(browser, locked, "access/cal", may_fail=True) as page:
        change = page.get_by_role("region", name="Try a change")
        await expect(change.get_by_label("Allow")).to_have_value("desk.*")
        await expect(change.get_by_label("Deny")).to_have_value("desk.die")
        await change.get_by_label("Allow").fill("desk.*\nbuiltin.echo")
        await change.get_by_label("Deny").fill("desk.add")
        await change.get_by_role("button", name="See the difference").click()
        await expect(change.get_by_role("heading", level=3)).to_have_text("cal: 2 appear, 1 vanish")
        appear = change.get_by_role("row").filter(has_text="builtin.echo")
        await expect(appear).to_contain_text("appears")
        await expect(change.get_by_role("row").filter(has_text="vanishes")).to_contain_text(
            "desk.add in callers.cal.deny"
        )
        await expect(change.locator(".cmd code")).to_contain_text('deny = ["desk.add"]')
        await change.get_by_label("Allow").fill("de*k")
        await change.get_by_role("button", name="See the difference").click()
        await expect(change.get_by_role("alert")).to_contain_text("* cannot be part of a name")
        await page.get_by_role("button", name="desk", exact=True).click()
        await expect(page.get_by_role("row").filter(has_text="desk.die")).to_contain_text(
            "desk.die in callers.cal.deny"
        )


async def test_records_are_filtered_shown_and_exported(browser: Browser, locked: HubProcess) -> None:
    async with signed_in(browser, locked, "audit") as page:
        table = page.get_by_role("region", name="Records")
        await expect(table).to_contain_text("hub.started")
        await expect(table).to_contain_text("<img src=x onerror=alert(1)>")
        await page.get_by_label("What happened").select_option(label="tool error")
        await expect(table.get_by_role("row")).to_have_count(3)  # with the heads of the columns and of the day
        await expect(table).to_contain_text("tool error")
        async with page.expect_download() as downloading:
            await page.get_by_role("link", name="Export as JSON Lines").click()
        exported = (await (await downloading.value).path()).read_text().splitlines()
        assert [json.loads(line)["record"]["name"] for line in exported] == ["desk.fail"]
        await table.get_by_role("link").click()
        record = page.get_by_role("region", name=re.compile(r"^Record \d+$"))
        await expect(record).to_contain_text('"desk.fail"')
        await expect(record).to_contain_text("arguments (keyed digest)")
        await expect(record.get_by_text(re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$"))).to_be_visible()
        await page.get_by_label("Tool", exact=True).fill("nothing")
        await expect(page.get_by_text("No record matches these filters.")).to_be_visible()


async def test_audit_events_are_filtered_by_plain_words(browser: Browser, locked: HubProcess) -> None:
    async with Raw(locked.url, key=CALLER) as caller:
        await caller.call("desk.die")
        await caller.call("desk.no_such_tool")
    async with signed_in(browser, locked, "audit") as page:
        table, happened = page.get_by_role("region", name="Records"), page.get_by_label("What happened")
        await happened.select_option(label="denied")
        await expect(table.locator("tbody tr:not(.day)")).to_contain_text([re.compile("denied.*desk.die")])
        await happened.select_option(label="Unknown tool")
        await expect(table.get_by_role("row").filter(has_text="desk.no_such_tool")).to_contain_text("not sent")
        await happened.select_option(label="hub started or stopped")
        await expect(table.locator("tbody tr:not(.day)")).to_contain_text(["hub.started"])
        await happened.select_option(label="Anything")
        await page.get_by_label("Server", exact=True).select_option("desk")
        await page.get_by_label("Caller", exact=True).fill("ops")
        await expect(table.locator("tbody tr:not(.day)")).to_contain_text(["desk.fail", "desk.add"])
        await page.get_by_role("link", name="Activity").click()
        calls = page.get_by_role("grid", name="Calls").get_by_role("row")
        await expect(calls.filter(has_text="desk.die")).to_contain_text("denied")
        await expect(calls.filter(has_text="desk.no_such_tool")).to_contain_text("not sent")
        await page.get_by_label("Outcome").select_option("denied")
        await expect(calls).to_have_count(2)  # with the heads of the columns
        await calls.last.click()
        opened = page.locator(".over").get_by_role("region")
        await expect(opened).to_contain_text("desk.die in callers.cal.deny")
        await expect(opened.get_by_role("link", name="rules of cal")).to_have_attribute("href", "#/access/cal")


async def test_audit_offers_every_outcome_and_every_event() -> None:
    page = (STATIC / "pages/audit.js").read_text()
    outcomes = re.findall(r'"outcome=(\w+)"', page)
    faults = re.findall(r'^  \["(\w+)", ', (STATIC / "faults.js").read_text(), re.MULTILINE)
    assert sorted([*outcomes, *faults]) == sorted([*FAULTS, "result", "tool_error", "asked", "denied"])
    events = set(re.findall(r'"event=(\w+)', page))
    rows = re.findall(r"^\| (`[a-z]+\..*?) \|", (CHECKOUT / "docs/audit.md").read_text(), re.MULTILINE)
    assert events == {name for row in rows for name in re.findall(r"`([a-z]+)\.", row)}


@pytest.mark.parametrize("width", [360, 768])
async def test_the_outcome_of_a_record_is_in_sight_at_any_width(
    browser: Browser, locked: HubProcess, width: int
) -> None:
    async with signed_in(browser, locked, "audit", width=width) as page:
        table = page.get_by_role("region", name="Records")
        await expect(table.get_by_text("tool error")).to_be_visible()
        box, outer = await table.get_by_text("tool error").bounding_box(), await table.bounding_box()
        assert box is not None
        assert outer is not None
        assert box["x"] + box["width"] <= outer["x"] + outer["width"]


async def test_both_pages_are_accessible_and_fit_when_they_are_full(browser: Browser, locked: HubProcess) -> None:
    async with signed_in(browser, locked, "access") as page:
        await page.get_by_role("button", name="desk", exact=True).click()
        await expect(page.get_by_role("row").filter(has_text="desk.die")).to_be_visible()
        await check(page)
        await page.evaluate("location.hash = '#/access/cal'")
        await expect(page.get_by_label("Allow")).to_have_value("desk.*")
        await page.get_by_label("Deny").fill("desk.add")
        await page.get_by_role("button", name="See the difference").click()
        await expect(page.get_by_role("heading", level=3)).to_be_visible()
        await check(page)
        await page.evaluate("location.hash = '#/audit'")
        await page.get_by_role("button", name="Verify the log").click()
        await expect(page.get_by_role("region", name="Verify")).to_contain_text("The audit log is intact")
        await check(page)
        await page.get_by_role("region", name="Records").get_by_role("link").last.click()
        await expect(page.get_by_role("region", name="Record 1")).to_contain_text("hub.started")
        await check(page)


async def test_a_record_of_a_key_does_not_name_its_caller_as_the_creator(
    browser: Browser, locked: HubProcess, folder: Path
) -> None:
    with redirect_stdout(io.StringIO()):
        assert main(["token", "create", "newcomer", "--allow", "desk.*", "--config", str(folder / "isthmus.json")]) == 0
    headers = {"authorization": f"Bearer {OPERATOR}"}
    async with httpx2.AsyncClient(headers=headers, verify=TRUSTED) as http:

        async def is_noted() -> bool:
            return "newcomer" in (await http.get(f"http://127.0.0.1:{locked.port}/v1/audit")).text

        await eventually(is_noted, "the log has the new key")
    async with signed_in(browser, locked, "audit") as page:
        cells = page.get_by_role("row").filter(has_text="key.created for newcomer").get_by_role("cell")
        await expect(cells.nth(2)).to_have_text("")


async def check(page: Page) -> None:
    assert await serious_findings(page) == []
    for width in WIDTHS:
        await page.set_viewport_size({"width": width, "height": 900})
        assert await is_too_wide(page) == [], width


async def test_an_altered_log_is_reported_in_plain_words(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path) as hub:
        with closing(sqlite3.connect(tmp_path / "state" / "journal.db", isolation_level=None)) as journal:
            journal.execute("UPDATE audit SET content = replace(content, 'hub', 'bad') WHERE number = 1")
        async with console(browser, hub.port, "audit") as page:
            await page.get_by_role("button", name="Verify the log").click()
            verdict = page.get_by_role("region", name="Verify").get_by_role("status")
            await expect(verdict).to_contain_text("The audit log failed verification: record 1: it was changed")


async def test_empty_pages_teach(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path, hub={"audit": "off"}) as hub, console(browser, hub.port, "audit") as page:
        await expect(page.get_by_text("This hub keeps no audit log.")).to_be_visible()
        await expect(page.locator(".cmd code")).to_have_text('[hub]\naudit = "batched"')
        await page.evaluate("location.hash = '#/access'")
        await expect(page.get_by_text("This hub is open")).to_be_visible()
        await expect(page.locator(".cmd code")).to_have_text("isthmus token create NAME --operator --allow '*'")
