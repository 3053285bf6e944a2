"""T72: a server, a caller or a device puts a script into a text that the console shows.

Names, descriptions, results, errors, log lines and images come from others. The console writes them as text, and its
Content-Security-Policy allows no script but its own files.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

import isthmus
from tests.console.a2a_tasks import client, start
from tests.console.pages import chromium, console
from tests.faults.watching import eventually
from tests.hubs import PATIENT, HubProcess, Raw, serving, stdio

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("console_scripts")]

RUN = "document.documentElement.dataset.owned=1"
TAGS = (
    "<script>{run}</script>", "<img src=x onerror={run}>", "<svg onload={run}>", "<svg><script>{run}</script></svg>",
    "<iframe srcdoc='<script>parent.{run}</script>'>", "<iframe src='javascript:parent.{run}'>",
    "<a href='javascript:{run}'>click</a>", "<details open ontoggle={run}>", "<video><source onerror={run}>",
    "<input autofocus onfocus={run}>", "<math><mtext></form><form><mglyph><style></math><img src=x onerror={run}>",
    "<object data='javascript:{run}'>", "<embed src='javascript:{run}'>", "<base href='javascript:{run}//'>",
    "<form action='javascript:{run}'><button>x</button></form>", "<style>@import 'javascript:{run}'</style>",
    "<link rel=stylesheet href='data:text/css,*{{x:expression({run})}}'>", "<marquee onstart={run}>",
    "<meta http-equiv=refresh content='0;url=javascript:{run}'>", "<template><img src=x onerror={run}></template>",
)  # fmt: skip
WRAPPERS = (
    "{0}", "\"'>{0}", "--></title></textarea></style>{0}", "${{{0}}}", "</script>{0}", "\x00{0}", "\\u003c{0}",
    "&lt;{0}", "\u202e{0}", "%3C{0}", "`{0}`", "{{{{{0}}}}}", "]]>{0}", "<{0}", "{0}{0}",
)  # fmt: skip
PAYLOADS = [wrapper.format(tag.format(run=RUN)) for tag in TAGS for wrapper in WRAPPERS]
assert len(set(PAYLOADS)) >= 300
HELD: list[tuple[str, dict[str, Any]]] = [
    (f"evil.{PAYLOADS[15]}", {PAYLOADS[0]: PAYLOADS[0]}),
    *(("evil.t2", {"more": PAYLOADS[at : at + 60]}) for at in range(0, len(PAYLOADS), 60)),
]
"""Calls that wait for approval: the names of their tools, and their arguments."""
SERVER = Path(__file__).parents[1] / "console" / "evil_server.py"
APP = Path(isthmus.__file__).parent / "frontends" / "console" / "static" / "app.js"
PAGES = re.findall(r"\{ id: \"(\w+)\", title:", APP.read_text())
assert len(PAGES) >= 10
VIEWS = [*PAGES, "servers/evil", "servers/dead", "tools/evil.t0", "access/local", "audit/0:1"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    folder: Path = tmp_path_factory.mktemp("evil")
    payloads = folder / "payloads.json"
    payloads.write_text(json.dumps({"run": RUN, "payloads": PAYLOADS}))
    title = folder / "title"
    title.write_text("first")
    servers = {
        "evil": stdio([sys.executable, str(SERVER), str(payloads)]),
        "changing": stdio([sys.executable, str(SERVER), str(payloads), str(title)]),
        "dead": {"command": "/no/such/<img src=x onerror=" + RUN + ">"},
        TAGS[1].format(run=RUN): {"command": 7},
    }
    rules = {"held": {"tools": ["evil.*"], "arguments": {"held": {"equals": True}}}}
    async with (
        serving(folder, servers, hub={"pin": "strict"}, approvals=rules, limits=PATIENT) as running,
        Raw(running.url) as caller,
    ):
        names = await caller.names()
        title.write_text("second")
        origin = running.url.removesuffix("/mcp")
        await caller.http.post(f"{origin}/v1/restart/changing")

        async def is_withheld() -> bool:
            return bool((await caller.http.get(f"{origin}/v1/definitions")).json()["pending"])

        await eventually(is_withheld, "changed tools are withheld")
        named = [name for name in names if name.startswith("evil.") and RUN in name]
        assert len(named) >= 250
        for name in named:
            answer = await caller.http.post(f"{origin}/v1/tools/{quote(name, safe='')}", json={})
            assert RUN in answer.json()["detail"], answer.text
        for tool, arguments in HELD:
            url = f"{origin}/v1/tools/{quote(tool, safe='')}?timeout=0.01"
            answer = await caller.http.post(url, json={"held": True, **arguments})
            assert answer.json()["type"].endswith("approval_pending"), answer.text
        yield running


async def is_owned(page: Page) -> bool:
    owned: bool = await page.evaluate("() => 'owned' in document.documentElement.dataset")
    return owned


async def read_through(page: Page) -> None:
    """Scroll through every long list by keyboard, so that each row is drawn once."""
    for grid in await page.get_by_role("grid").all():
        total = int(await grid.get_attribute("aria-rowcount") or "0")
        last = grid.locator(f"[aria-rowindex='{total}']")
        await grid.focus()
        await page.keyboard.press("End")
        await expect(last).to_be_attached()
        await page.keyboard.press("Home")
        seen: set[str] = set()
        for _ in range(total):
            drawn = await grid.locator("[aria-rowindex]").evaluate_all("all => all.map(each => each.ariaRowIndex)")
            seen.update(drawn)
            if len(seen) >= total:
                break
            # A busy page draws only the last of several positions: what it left out is drawn on the next way down.
            await page.keyboard.press("Home" if str(total) in drawn else "PageDown")
            await page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))")
        assert len(seen) >= total


async def go(page: Page, view: str) -> None:
    """Go to another view of the open page. A script that ran in one of them is seen in all that follow."""
    await page.evaluate("view => { location.hash = `#/${view}`; }", view)
    await expect(page.get_by_role("heading", level=1)).to_have_text(view.partition("/")[0].capitalize())
    await expect(page.get_by_text("Loading")).to_have_count(0)


async def test_no_page_runs_foreign_scripts(browser: Browser, hub: HubProcess) -> None:
    async with console(browser, hub.port, may_fail=True) as page:
        await expect(page.get_by_role("navigation")).to_contain_text(re.compile(r"Tools[1-9]"))
        for view in VIEWS:
            await go(page, view)
            if view.startswith("access"):
                await page.get_by_label("Filter tools").fill("owned")
                await expect(page.locator("th.leaf").first).to_contain_text(RUN)
            if view in PAGES:
                await read_through(page)
            if view in ("overview", "activity", "approvals", "definitions", "doctor", "servers/dead", "tools/evil.t0"):
                await expect(page.get_by_role("main")).to_contain_text(RUN)
            assert not await is_owned(page), view


async def test_a_tool_with_a_script_as_its_name_is_opened_and_called(browser: Browser, hub: HubProcess) -> None:
    name = f"evil.{PAYLOADS[15]}"
    async with console(browser, hub.port, f"tools/{quote(name, safe='')}", may_fail=True) as page:
        form = page.get_by_role("region", name=name, exact=True)
        await form.get_by_role("button", name="Call", exact=True).click()
        await expect(form.get_by_role("alert")).to_contain_text(PAYLOADS[15])
        for each in ("curl", "Python", "A2A"):
            await form.get_by_role("button", name=each, exact=True).click()
        assert not await is_owned(page)


async def test_held_calls_and_the_reasons_of_decisions_are_text(browser: Browser, hub: HubProcess) -> None:
    async with console(browser, hub.port, "approvals", may_fail=True) as page, Raw(hub.url) as caller:
        cards = page.get_by_role("main").locator("section.panel")
        await expect(cards).to_have_count(len(HELD))
        await expect(cards.first.get_by_role("heading")).to_contain_text([RUN, "Arguments"])
        shown = [json.loads(each) for each in await page.get_by_role("region", name="Arguments").all_inner_texts()]
        # Characters that a reader would not see are written out, so these are the very arguments.
        assert shown == [{"held": True, **arguments} for _, arguments in HELD]
        await cards.first.get_by_label("Reason for denying").fill(PAYLOADS[1])
        await cards.first.get_by_role("button", name="Deny").click()
        await expect(cards.first).to_contain_text(f"It was denied by local: {PAYLOADS[1]}")
        origin = hub.url.removesuffix("/mcp")
        waiting = (await caller.http.get(f"{origin}/v1/approvals?state=pending")).json()["approvals"]
        await caller.http.post(f"{origin}/v1/approvals/deny/{waiting[0]['id']}", json={"reason": PAYLOADS[2]})
        await expect(cards.nth(1)).to_contain_text(f"It was denied by local: {PAYLOADS[2]}")
        await expect(page.get_by_role("status")).to_contain_text(RUN)
        assert not await is_owned(page)


async def test_the_docs_run_nothing(browser: Browser, hub: HubProcess) -> None:
    async with console(browser, hub.port, may_fail=True) as page:
        await page.goto(f"http://127.0.0.1:{hub.port}/docs#{PAYLOADS[0]}")
        await expect(page.get_by_role("heading", name="REST API")).to_be_visible()
        await page.evaluate("() => document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        await page.get_by_label("Filter operations").fill(PAYLOADS[0])
        await expect(page.get_by_text("No operation has all these words.")).to_be_visible()
        assert not await is_owned(page)


@pytest.mark.parametrize("tool", ["evil.t0", "evil.t1"])
async def test_results_and_errors_are_text(browser: Browser, hub: HubProcess, tool: str) -> None:
    async with console(browser, hub.port, f"tools/{tool}", may_fail=True) as page:
        await page.get_by_role("button", name="Call", exact=True).click()
        await expect(page.locator(".out").first).to_contain_text(RUN)
        assert not await is_owned(page)
        links = await page.eval_on_selector_all("a", "all => all.map(each => each.protocol)")
        assert set(links) <= {"http:", "https:"}


async def test_tasks_and_sessions_are_text(browser: Browser, hub: HubProcess) -> None:
    async with client(hub) as http, Raw(hub.url) as caller:
        about = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": PAYLOADS[0], "version": RUN},
        }
        await caller.post({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about})
        ids = [await start(http, tool, text=PAYLOADS[1]) for tool in ("evil.t0", "evil.t1", TAGS[0])]
    async with console(browser, hub.port, may_fail=True) as page:
        for id in ids:
            await go(page, f"tasks/{id}")
            task = page.get_by_role("region", name=f"Task {id}")
            await expect(task.get_by_role("list", name="Timeline")).to_contain_text(RUN)
            await expect(task).to_contain_text("Tool ran")
            assert not await is_owned(page)
        await go(page, "devices")
        await expect(page.get_by_role("row").filter(has_text=RUN)).to_be_visible()
        assert not await is_owned(page)


async def test_results_can_be_saved_and_opened_without_running(browser: Browser, hub: HubProcess) -> None:
    async with console(browser, hub.port, "tools/evil.t0", may_fail=True) as page:
        await page.get_by_role("button", name="Call", exact=True).click()
        for button in await page.get_by_role("button", name="Download").all():
            async with page.expect_download():
                await button.click()
        await page.get_by_role("button", name="Open", exact=True).click()
        await expect(page.get_by_role("alert").filter(has_text="Resource not found")).to_be_visible()
        assert not await is_owned(page)
        assert len(page.context.pages) == 1


async def test_captured_arguments_and_results_are_text(browser: Browser, hub: HubProcess) -> None:
    given: list[dict[str, Any]] = [
        {PAYLOADS[0]: PAYLOADS[0]},
        *({"more": PAYLOADS[at : at + 40]} for at in range(0, len(PAYLOADS), 40)),
    ]
    async with Raw(hub.url) as caller:
        origin = hub.url.removesuffix("/mcp")
        await caller.http.post(f"{origin}/v1/activity/capture", json={"seconds": 600, "server": "evil"})
        for arguments in given:
            assert "result" in await caller.call("evil.t0", arguments)
        last = (await caller.http.get(f"{origin}/v1/activity?limit=1")).json()["calls"][0]["number"]
    async with console(browser, hub.port, "activity", may_fail=True) as page:
        await expect(page.get_by_text("are being captured")).to_be_visible()
        for number in range(last, last - len(given), -1):
            await page.evaluate("number => { location.hash = `#/activity/${number}`; }", number)
            one = page.get_by_role("region", name=f"Call {number}", exact=True)
            for name in ("Arguments", "Result"):
                await expect(one.get_by_role("region", name=name)).to_contain_text(RUN)
            assert not await is_owned(page)
        await page.get_by_role("button", name="Open the form with these arguments").click()
        await expect(page.get_by_role("region", name="evil.t0")).to_contain_text(RUN)
        assert not await is_owned(page)


async def test_the_policy_would_stop_a_script_that_got_in(browser: Browser, hub: HubProcess) -> None:
    async with console(browser, hub.port, may_fail=True) as page:
        await expect(page.get_by_role("heading", level=1)).to_be_visible()
        await page.evaluate(
            """run => {
              const element = document.createElement("div");
              element.innerHTML = `<img src=x onerror="${run}">`;
              document.body.append(element);
              const script = document.createElement("script");
              script.textContent = run;
              document.body.append(script);
            }""",
            RUN,
        )
        assert not await is_owned(page)
        policy = (await page.request.get(f"http://127.0.0.1:{hub.port}/console/")).headers["content-security-policy"]
        assert "unsafe" not in policy
