"""Calls in the console: the waterfall, captured arguments, running a call again, and forms and results of all kinds."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.console.pages import call, console, is_too_wide, serious_findings
from tests.console.test_pages import named
from tests.hubs import HubProcess

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("console_calls")]


def form_of(page: Page, tool: str) -> Locator:
    return page.get_by_role("region", name=tool, exact=True)


async def run(page: Page) -> None:
    await page.get_by_role("button", name="Call", exact=True).click()


async def open_last(page: Page, tool: str) -> Locator:
    """Open the newest call of a tool on the page of calls."""
    await page.get_by_role("row").filter(has_text=tool).first.click()
    one = page.get_by_role("region", name=re.compile("^Call "))
    await expect(one).to_contain_text(tool)
    return one


# -- one call ----------------------------------------------------------------------------------------------------------


async def test_a_call_is_shown_as_a_waterfall(browser: Browser, hub: HubProcess, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    async with console(browser, hub.port, "tools/narrow.steps") as page:
        form = form_of(page, "narrow.steps")
        await form.get_by_label(named("gate")).fill(str(gate))
        await run(page)
        writer = await asyncio.to_thread(open, gate, "wb", 0)
        await expect(form).to_contain_text("step 1")
        waiting = asyncio.ensure_future(call(hub, "narrow.add", a=1, b=2))
        async with console(browser, hub.port, "servers/narrow") as other:
            await expect(other.get_by_role("region", name="narrow")).to_contain_text("1 queued")
        writer.write(b"..")
        writer.close()
        await waiting
        await page.get_by_role("link", name="Activity").click()
        way = (await open_last(page, "narrow.add")).get_by_role("list", name="The way of the call")
        await expect(way.get_by_role("listitem").filter(has_text="Queue").locator("i.wait")).to_be_visible()
        await expect(way).to_contain_text("narrow works")
        way = (await open_last(page, "narrow.steps")).get_by_role("list", name="The way of the call")
        await expect(way.get_by_role("listitem").filter(has_text="Progress").locator("i")).to_have_count(2)
        await expect(way).to_contain_text("first byte")
        assert await serious_findings(page) == []


@pytest.mark.parametrize("width", [360, 1440])
async def test_one_call_fits_the_page(browser: Browser, hub: HubProcess, width: int) -> None:
    await call(hub, "desk.look", text="x" * 300)
    async with console(browser, hub.port, "activity", width=width) as page:
        await open_last(page, "desk.look")
        await expect(page.get_by_role("list", name="The way of the call")).to_be_visible()
        assert await is_too_wide(page) == []


async def test_calls_are_filtered_by_caller_server_tool_frontend_and_text(browser: Browser, hub: HubProcess) -> None:
    await call(hub, "desk.look", text="one")
    await call(hub, "builtin.echo", text="two")
    await call(hub, "desk.fail")
    async with console(browser, hub.port, "activity") as page:
        rows = page.get_by_role("grid", name="Calls").get_by_role("row")
        looks, echoes = rows.filter(has_text="desk.look"), rows.filter(has_text="builtin.echo")
        await expect(looks.first).to_be_visible()
        for label, choice in (("Tool", "desk.look"), ("Server", "desk")):
            await page.get_by_label(label, exact=True).select_option(choice)
            await expect(looks.first).to_be_visible()
            await expect(echoes).to_have_count(0)
            await page.get_by_label(label, exact=True).select_option("")
            await expect(echoes.first).to_be_visible()
        await page.get_by_label("Frontend", exact=True).select_option("MCP")
        await page.get_by_label("Caller", exact=True).select_option("local")
        await expect(looks.first).to_be_visible()
        await page.get_by_role("searchbox", name="Filter by").fill("FAIL")
        await expect(looks).to_have_count(0)
        await expect(rows.filter(has_text="desk.fail").first).to_be_visible()
        await page.get_by_role("button", name="Pause").click()
        await page.get_by_role("searchbox", name="Filter by").fill("")
        before = await looks.count()
        await call(hub, "desk.look", text="three")
        async with console(browser, hub.port, "activity") as other:  # it has seen the call
            await expect(other.get_by_role("row").filter(has_text="desk.look")).to_have_count(before + 1)
        await expect(looks).to_have_count(before)
        await page.get_by_role("button", name="Resume").click()
        await expect(looks).to_have_count(before + 1)


async def test_arguments_are_captured_while_everybody_sees_it_and_a_reading_call_is_run_again(
    browser: Browser, hub: HubProcess
) -> None:
    async with console(browser, hub.port, "activity") as page, console(browser, hub.port, "activity") as other:
        await expect(page.get_by_text("are being captured")).to_have_count(0)
        await page.get_by_text("Capture arguments and results").click()
        await page.get_by_role("button", name="Start capturing").click()
        for each in (page, other):
            await expect(each.get_by_role("status").filter(has_text="are being captured: by local")).to_be_visible()
        await call(hub, "desk.look", text="a needle", count=3, deep={"flags": [True, False]})
        await call(hub, "desk.add", a=1, b=2)
        await expect(other.get_by_role("status").first).to_contain_text("2 of 200 calls")
        await other.get_by_role("button", name="Stop capturing").click()
        await expect(page.get_by_role("status").first).to_contain_text("of 2 calls were captured by local")
        one = await open_last(page, "desk.add")
        await expect(one.get_by_role("button", name="Run again")).to_have_count(0)
        await one.get_by_role("button", name="Open the form with these arguments").click()
        form = form_of(page, "desk.add")
        await expect(form.get_by_label(named("b"))).to_have_value("2")
        await expect(form.get_by_role("button", name="Call", exact=True)).to_be_enabled()
        await expect(form.get_by_text("ok", exact=True)).to_have_count(0)
        await page.get_by_role("link", name="Activity").click()
        one = await open_last(page, "desk.look")
        await expect(one.get_by_role("region", name="Arguments")).to_contain_text("a needle")
        await expect(one.get_by_role("region", name="Result")).to_contain_text("a needle")
        await one.get_by_role("button", name="Run again").click()
        form = form_of(page, "desk.look")
        await expect(form.get_by_label(named("text"))).to_have_value("a needle")
        await expect(form.get_by_label(named("count"))).to_have_value("3")
        await expect(form.locator(".out .tree")).to_contain_text("flags")
        await page.get_by_role("link", name="Activity").click()
        await page.get_by_role("button", name="Delete what was captured").click()
        await expect(other.get_by_role("status")).to_have_count(0)
        one = await open_last(page, "desk.add")
        await expect(one).to_contain_text("were not captured")


# -- forms and results -------------------------------------------------------------------------------------------------


async def test_a_file_is_sent_as_base64_and_a_long_one_is_refused(
    browser: Browser, hub: HubProcess, tmp_path: Path
) -> None:
    short, long = tmp_path / "scan.png", tmp_path / "long.png"
    short.write_bytes(bytes(range(256)) * 500)
    long.write_bytes(bytes(3_000_001))
    async with console(browser, hub.port, "tools/desk.upload") as page:
        form = form_of(page, "desk.upload")
        await run(page)
        await expect(form.get_by_role("alert")).to_have_text("Choose a file for scan.")
        await form.get_by_label(named("scan")).set_input_files(long)
        await expect(form.get_by_role("alert").first).to_contain_text("long.png has 3,000,001 bytes")
        await form.get_by_label(named("scan")).set_input_files(short)
        await expect(form).to_contain_text("128,000 bytes, sent as base64")
        await expect(form.locator(".cmd code")).to_contain_text("--args @arguments.json")
        await run(page)
        await expect(form.locator(".out pre").first).to_have_text("128000 bytes")


async def test_a_sound_can_be_played_and_saved(browser: Browser, hub: HubProcess) -> None:
    async with console(browser, hub.port, "tools/desk.sound") as page:
        await run(page)
        sound = page.locator("audio")
        await expect(sound).to_be_visible()
        await page.wait_for_function("() => document.querySelector('audio').duration > 0")
        async with page.expect_download() as saved:
            await page.get_by_role("button", name="Download").click()
        file = await (await saved.value).path()
        assert (await saved.value).suggested_filename == "audio.wav"
        assert file.read_bytes()[:4] == b"RIFF"


async def test_resources_are_shown_saved_and_opened(browser: Browser, hub: HubProcess) -> None:
    # The first try fails, which Chromium logs: two servers list the letter.
    async with console(browser, hub.port, "tools/desk.papers", may_fail=True) as page:
        await run(page)
        out = page.locator(".out").first
        await expect(out).to_contain_text("Buy ink.")
        async with page.expect_download() as saved:
            await out.get_by_role("button", name="Download").click()
        assert (await saved.value).suggested_filename == "scan.pdf"
        assert (await (await saved.value).path()).read_bytes() == b"%PDF-1.4"
        await out.get_by_role("button", name="Open").click()
        await expect(out).to_contain_text("Dear Ada")
        await out.get_by_text("Structured result").click()
        tree = out.locator(".tree")
        await expect(tree.get_by_text('"memo"')).to_be_visible()
        await tree.locator("summary").filter(has_text="papers").click()
        await expect(tree.get_by_text('"memo"')).to_be_hidden()


# -- the same call elsewhere -------------------------------------------------------------------------------------------

ODD = 'it\'s "odd" $HOME `x` \\ é\n@'


async def typed(command: list[str] | str, folder: Path) -> str:
    """What a command prints, typed into a shell with the programs of this environment."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    words = ["sh", "-c", command] if isinstance(command, str) else command
    process = await asyncio.create_subprocess_exec(
        *words,
        cwd=folder,
        env={"PATH": programs, "HOME": str(folder)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, (command, err.decode())
    return out.decode()


@pytest.mark.parametrize("text", [ODD, "x" * 40_000], ids=["odd", "long"])
async def test_every_copied_call_works(browser: Browser, hub: HubProcess, tmp_path: Path, text: str) -> None:
    given: dict[str, Any] = {"text": text, "count": 3, "deep": {"flags": [True]}}
    copied: dict[str, str] = {}
    async with console(browser, hub.port, "tools/desk.look") as page:
        form = form_of(page, "desk.look")
        await form.get_by_label(named("text")).fill(text)
        await form.get_by_label(named("count")).fill("3")
        await form.get_by_role("button", name="Add flags").click()
        await form.get_by_label(named("1")).select_option(label="yes")
        for name in ("Command line", "curl", "Python", "A2A"):
            await form.get_by_role("button", name=name, exact=True).click()
            copied[name] = await form.locator(".cmd code").inner_text()
        if len(text) > 30_000:
            async with page.expect_download() as saved:
                await form.get_by_role("button", name="Save them as arguments.json").click()
            await (await saved.value).save_as(tmp_path / "arguments.json")
    program = [sys.executable, "-c", copied["Python"]]
    printed, answer, shown, task = await asyncio.gather(
        *(typed(each, tmp_path) for each in (copied["Command line"], copied["curl"], program, copied["A2A"]))
    )
    assert json.loads(printed) == given
    assert json.loads(json.loads(answer)["content"][0]["text"]) == given
    assert "count" in shown
    assert json.loads(task)["result"]["status"]["state"] == "completed"


@pytest.mark.parametrize("number", ["9007199254740993", "-123456789012345678901234567890", "0.12345678901234567890123"])
async def test_a_number_is_sent_and_shown_with_the_digits_that_were_typed(
    browser: Browser, hub: HubProcess, tmp_path: Path, number: str
) -> None:
    copied: dict[str, str] = {}
    async with console(browser, hub.port, "tools/desk.add") as page:
        form = form_of(page, "desk.add")
        await form.get_by_label(named("a")).fill(number)
        await form.get_by_label(named("b")).fill("0")
        for name in ("Command line", "curl", "Python", "A2A"):
            await form.get_by_role("button", name=name, exact=True).click()
            copied[name] = await form.locator(".cmd code").inner_text()
        async with page.expect_request(lambda request: "/v1/tools/desk.add?" in request.url) as sent:
            await run(page)
        assert (await sent.value).post_data == f'{{"a":{number},"b":0}}'
        await expect(form.locator(".out pre").first).to_have_text(str(json.loads(number)))
    assert all(number in each for each in copied.values()), copied
    assert (await typed(copied["Command line"], tmp_path)).strip() == str(json.loads(number))


async def test_long_numbers_in_json_and_in_results_keep_their_digits(browser: Browser, hub: HubProcess) -> None:
    given = '{"id": 9007199254740993, "huge": 1e400, "plain": [1, 2.5, 9007199254740991]}'
    async with console(browser, hub.port, "tools/desk.book") as page:
        form = form_of(page, "desk.book")
        await form.get_by_label(named("room")).select_option("small")
        await form.get_by_label(named("extra")).fill('{"id": 9007199254740993, "plain": [1, 2.5, 9007199254740991]}')
        await expect(form.locator(".cmd code")).to_contain_text(
            '{"id":9007199254740993,"plain":[1,2.5,9007199254740991]}'
        )
        await run(page)
        await expect(form.locator(".out .tree")).to_contain_text("id: 9007199254740993")
        shown = await page.evaluate(
            "async text => { const { parse, toJson } = await import('/console/api.js'); return toJson(parse(text)); }",
            given,
        )
        assert shown == given.replace(": ", ":").replace(", ", ",")
