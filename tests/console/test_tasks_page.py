"""The console's page of tasks, with tasks that an A2A client starts, and the sessions on the page of devices."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.console.a2a_tasks import client, gate, opened, say, start
from tests.console.conftest import SERVER
from tests.console.pages import console, serious_findings
from tests.console.test_tasks import ADA, CALLERS, OPERATOR
from tests.hubs import PATIENT, HubProcess, Raw, serving, stdio

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("console_tasks_page")]


def shown(page: Page, id: str) -> Locator:
    return page.get_by_role("region", name=f"Task {id}")


async def test_an_empty_page_teaches_how_to_start_a_task(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path) as hub, console(browser, hub.port, "tasks") as page:
        await expect(page.get_by_text("No tasks yet.")).to_be_visible()
        snippet = await page.locator(".cmd code").inner_text()
        assert f"http://127.0.0.1:{hub.port}/a2a" in snippet
        run = await asyncio.create_subprocess_exec("sh", "-c", snippet, stdout=PIPE, stderr=PIPE)
        answer, problem = await run.communicate()
        assert run.returncode == 0, problem
        id = json.loads(answer)["result"]["task"]["id"]
        await page.get_by_role("row", name=re.compile("builtin.echo completed")).click()
        await expect(page).to_have_url(re.compile(f"#/tasks/{id}$"))
        await expect(shown(page, id).locator(".out").last).to_contain_text("hello")


async def test_a_failed_task_and_one_that_asks_say_so(browser: Browser, hub: HubProcess) -> None:
    async with client(hub) as http:
        failed = await start(http, "desk.fail")
        async with console(browser, hub.port, f"tasks/{failed}") as page:
            await expect(shown(page, failed)).to_contain_text("tool error")
            await expect(shown(page, failed)).to_contain_text("out of paper")
            asking = await start(http, "desk.sign")
            await page.evaluate("view => { location.hash = `#/tasks/${view}`; }", asking)
            await expect(shown(page, asking)).to_contain_text("waits for an answer")
            await expect(shown(page, asking)).to_contain_text("Who signs?")
            assert await serious_findings(page) == []
            await page.get_by_label("State").select_option("waits for an answer")
            await expect(page.get_by_role("row", name=re.compile("desk.fail"))).to_have_count(0)
            await say(http, {"kind": "data", "data": {"name": "Ada"}}, task=asking)
            await expect(shown(page, asking)).to_contain_text("completed")
            await expect(page.get_by_role("row", name=re.compile("desk.sign"))).to_have_count(0)


async def test_a_running_task_is_live_and_cancelled_after_a_second_look(
    browser: Browser, hub: HubProcess, tmp_path: Path
) -> None:
    async with client(hub) as http, gate(tmp_path) as path, console(browser, hub.port, "tasks") as page:
        await expect(page.get_by_text("unfinished")).to_be_visible()
        id = await start(http, "desk.steps", gate=str(path))
        await page.get_by_role("row", name=re.compile("desk.steps running")).first.click()
        task = shown(page, id)
        with await opened(path) as held:
            await expect(task.get_by_role("progressbar")).to_have_attribute("max", "2")
            held.write(b".")
            await expect(task.get_by_role("list", name="Timeline")).to_contain_text("step 2")
            await task.get_by_role("button", name="Cancel task").click()
            await task.get_by_role("button", name="Keep it").click()
            await expect(task).to_contain_text("running")
            await task.get_by_role("button", name="Cancel task").click()
            await task.get_by_role("button", name="Cancel it").click()
            await expect(task).to_contain_text("unknown: the tool may have run")
            await expect(task.get_by_role("button", name="Cancel task")).to_have_count(0)
            await expect(page.locator("[role=grid] [aria-selected=true]")).to_contain_text("cancelled")
        assert (await http.get(f"/v1/tasks/{id}")).json()["state"] == "canceled"


async def test_a_task_that_does_not_exist_is_a_sentence(browser: Browser, hub: HubProcess) -> None:
    async with console(browser, hub.port, "tasks/none", may_fail=True) as page:
        await expect(page.get_by_role("alert")).to_have_text("Task not found")


async def sign_in(page: Page, key: str) -> None:
    await page.get_by_label("Key").fill(key)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Tasks")


async def test_an_operator_can_show_messages_of_others_and_a_caller_sees_only_its_own(
    browser: Browser, tmp_path: Path
) -> None:
    servers = {"desk": stdio([sys.executable, str(SERVER)])}
    async with serving(tmp_path, servers, callers=CALLERS, limits=PATIENT) as hub:
        async with client(hub, ADA) as ada:
            own = await start(ada, "desk.add", a=40, b=2)
        async with client(hub, OPERATOR) as ops:
            await start(ops, "desk.fail")
        async with console(browser, hub.port, "tasks", may_fail=True) as page:
            await sign_in(page, OPERATOR)
            await expect(page.get_by_role("row", name=re.compile("desk.fail"))).to_be_visible()
            await page.get_by_role("row", name=re.compile("desk.add completed .* ada")).click()
            task = shown(page, own)
            await expect(task).to_contain_text("Another caller's messages and result are hidden")
            await task.get_by_role("button", name="Show messages and result").click()
            await expect(task.locator(".out").last).to_contain_text("42")
        async with console(browser, hub.port, "tasks", may_fail=True) as page:
            await sign_in(page, ADA)
            await page.get_by_role("row", name=re.compile("desk.add")).click()
            await expect(page).to_have_url(re.compile(f"#/tasks/{own}$"))
            await expect(shown(page, own).locator(".out").last).to_contain_text("42")
            await expect(page.get_by_role("row", name=re.compile("desk.fail"))).to_have_count(0)


async def test_devices_show_the_sessions_of_callers(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path, relay={"enabled": True}) as hub, Raw(hub.url) as caller:
        about = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "Desk app", "version": "7"},
        }
        await caller.post({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about})
        async with console(browser, hub.port, "devices") as page:
            await expect(page.get_by_role("row").filter(has_text="Desk app, version 7")).to_contain_text("MCP")
            await expect(page.get_by_text("Open event streams: local")).to_be_visible()
            assert await serious_findings(page) == []
