"""The console's page of servers, and the REST API's page at /docs, as a person uses them."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.console.conftest import SERVER
from tests.console.pages import WIDTHS, console, is_too_wide, serious_findings
from tests.fork_server import quick_isthmus
from tests.hubs import PATIENT, TRUSTED, HubProcess, environment, serving, stdio, write_config
from tests.security.authority import Authority, Protected, entry_of, visit

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("console_servers")]

OPERATOR = "the-key-of-ops-0123456789"
PASTED = {"mcpServers": {"my notes": {"command": "npx", "args": ["-y", "notes"], "env": {"API_KEY": "0123456789abc"}}}}


ENDS = "import sys; sys.exit('DB_URL is not set')"
"""A server that says why it ends."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def own(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    """A hub whose servers these tests may switch."""
    servers = {"desk": stdio([sys.executable, str(SERVER)]), "ends": stdio([sys.executable, "-c", ENDS])}
    async with serving(tmp_path_factory.mktemp("own"), servers, limits=PATIENT) as running:
        yield running


async def test_a_paste_is_previewed_as_it_is_typed_and_its_text_is_copied(browser: Browser, own: HubProcess) -> None:
    async with console(browser, own.port, "servers", may_fail=True) as page:
        await page.get_by_role("link", name="Add a server").click()
        add = page.get_by_role("region", name="Add a server")
        box = add.get_by_label("Paste the entry of any client")
        await box.fill('{"mcpServers": {')
        await expect(add.get_by_role("status")).to_contain_text("is not JSON")
        await box.fill(json.dumps(PASTED))
        await expect(add.get_by_role("status")).to_contain_text("JSON: 1 server.")
        await expect(add).to_contain_text("so the server is called my-notes")
        await expect(add).to_contain_text("It contains a secret in plain text.")
        await expect(add).to_contain_text("isthmus.json")
        await add.get_by_label("Name").fill("memo")
        await expect(add.locator(".cmd code")).to_contain_text("isthmus add memo --env API_KEY=0123456789abc")
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await add.get_by_role("button", name="Copy the text").click()
        await expect(add.get_by_role("button", name="Copied")).to_be_visible()
        copied = await page.evaluate("navigator.clipboard.readText()")
        assert json.loads(f"{{{copied}}}") == {"memo": PASTED["mcpServers"]["my notes"]}
        assert await serious_findings(page) == []


async def test_an_address_and_a_command_are_pasted_too(browser: Browser, own: HubProcess) -> None:
    async with console(browser, own.port, "servers/+") as page:
        add = page.get_by_role("region", name="Add a server")
        box = add.get_by_label("Paste the entry of any client")
        await box.fill("https://mcp.example.com/mcp")
        await expect(add.get_by_role("status")).to_contain_text("An address: 1 server.")
        await box.fill("npx -y @modelcontextprotocol/server-memory")
        await expect(add.get_by_role("heading", name="memory")).to_be_visible()
        await box.fill("")
        await expect(add.get_by_role("status")).to_be_empty()


async def test_a_server_added_to_the_file_appears(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "isthmus.json"
    async with serving(tmp_path) as hub, console(browser, hub.port, "servers/+") as page:
        entry = stdio([sys.executable, str(SERVER)])
        add = page.get_by_role("region", name="Add a server")
        await add.get_by_label("Paste the entry of any client").fill(json.dumps({"desk": entry}))
        text = await add.get_by_role("region", name="Text for the file").text_content()
        content = json.loads(file.read_text())
        file.write_text(json.dumps({**content, "servers": json.loads(f"{{{text}}}")}))
        await expect(add).to_contain_text("The hub has desk.")
        await add.get_by_role("link", name="desk").click()
        await expect(page.get_by_role("region", name="desk")).to_contain_text("ready")


async def test_a_server_that_ends_has_its_reason_and_the_command_to_copy(browser: Browser, own: HubProcess) -> None:
    async with console(browser, own.port, "overview") as page:
        attention = page.get_by_role("complementary", name="Needs attention")
        await expect(attention).to_contain_text("It wrote: DB_URL is not set. Fix: run it by hand and read its output:")
        await expect(attention.locator(".cmd code")).to_have_text(shlex.join([sys.executable, "-c", ENDS]))
        await attention.get_by_role("link", name="ends is not connected").click()
        await expect(page.get_by_role("region", name="ends", exact=True)).to_contain_text("Exited with code 1")


async def test_a_server_is_disabled_and_enabled_again(browser: Browser, own: HubProcess) -> None:
    async with console(browser, own.port, "servers/desk") as page:
        about = page.get_by_role("region", name="desk", exact=True)
        await about.get_by_role("button", name="Disable").click()
        await expect(about.get_by_role("status")).to_contain_text("Saved in ")
        await expect(about.locator(".bar .state")).to_have_text("disabled")
        await expect(page.get_by_role("navigation")).to_contain_text("Tools3Activity")
        await expect(about.get_by_role("button", name="Restart")).to_have_count(0)
        await about.get_by_role("button", name="Enable").click()
        await expect(about.locator(".bar .state")).to_have_text("ready")
        await expect(page.get_by_role("navigation")).not_to_contain_text("Tools3Activity")


async def test_a_login_is_seen_to_arrive(browser: Browser, tmp_path: Path) -> None:
    async with Authority() as authority, Protected(authority) as server:
        config = write_config(tmp_path, {"search": entry_of(server)})
        async with (
            serving(tmp_path, {"search": entry_of(server)}) as hub,
            console(browser, hub.port, "servers/search") as page,
        ):
            about = page.get_by_role("region", name="search", exact=True)
            await expect(about.locator(".cmd code")).to_have_text("isthmus login search")
            process = await asyncio.create_subprocess_exec(
                *quick_isthmus("login", "search", "--config", str(config)),
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, env=environment(), cwd=tmp_path,
            )  # fmt: skip
            assert process.stdout is not None
            await visit((await process.stdout.readline()).decode().strip())
            assert await process.wait() == 0
            await expect(about.get_by_role("status")).to_have_text("The login has arrived: the server is connected.")
            await expect(about.locator(".cmd")).to_have_count(0)


async def test_callers_without_operator_rights_see_neither_switch_nor_paste(browser: Browser, tmp_path: Path) -> None:
    callers = {"cal": {"key": OPERATOR, "allow": ["*"]}}
    servers = {"desk": stdio([sys.executable, str(SERVER)])}
    async with (
        serving(tmp_path, servers, callers=callers, limits=PATIENT) as hub,
        console(browser, hub.port, "servers/desk", may_fail=True) as page,
    ):
        await page.get_by_label("Key").fill(OPERATOR)
        await page.keyboard.press("Enter")
        about = page.get_by_role("region", name="desk", exact=True)
        await expect(about).to_contain_text("ready")
        await expect(about.get_by_role("button")).to_have_count(0)
        await expect(page.get_by_role("link", name="Add a server")).to_have_count(0)


# -- the page at /docs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
async def test_the_rest_api_is_readable_at_docs(browser: Browser, own: HubProcess, width: int) -> None:
    async with console(browser, own.port, width=width) as page:
        await page.goto(f"http://127.0.0.1:{own.port}/docs#call_tool")
        tool = page.locator("#call_tool")
        command = f"curl -X POST 'http://127.0.0.1:{own.port}/v1/tools/NAME' -H 'Content-Type: application/json'"
        await expect(tool.locator(".cmd code")).to_contain_text(command)
        await expect(tool).to_contain_text("With Accept: text/event-stream")
        await page.locator("#get_server summary").click()
        await expect(page.locator("#get_server")).to_contain_text("resourceTemplates")
        await tool.get_by_role("link", name="problem").click()
        await expect(page.get_by_role("region", name="Reasons")).to_contain_text("unknown_tool")
        await page.locator("#schema-Server summary").click()
        if width == WIDTHS[0]:  # axe looks at all widths
            assert await serious_findings(page) == []
        assert await is_too_wide(page) == []
        await page.get_by_label("Filter operations").fill("restart")
        await expect(page.locator("#restart_server")).to_be_visible()
        await expect(tool).to_have_count(0)


async def test_an_operator_sees_the_tools_that_the_key_may_use(browser: Browser, tmp_path: Path) -> None:
    callers = {"ops": {"key": OPERATOR, "operator": True}}
    servers = {"desk": stdio([sys.executable, str(SERVER)])}
    async with (
        serving(tmp_path, servers, callers=callers, limits=PATIENT) as hub,
        console(browser, hub.port, "servers/desk", may_fail=True) as page,
    ):
        await page.get_by_label("Key").fill(OPERATOR)
        await page.keyboard.press("Enter")
        about = page.get_by_role("region", name="desk")
        await expect(about.get_by_role("log")).to_contain_text("tools")
        await expect(about.locator("dl")).to_contain_text("Your key may use0 tools")
        await expect(about).not_to_contain_text("Offers")
        await expect(page.get_by_role("columnheader", name="Your tools")).to_be_visible()


async def test_the_docs_ask_for_a_key_where_the_hub_needs_one(browser: Browser, tmp_path: Path) -> None:
    callers = {"cal": {"key": OPERATOR, "allow": ["*"]}}
    async with serving(tmp_path, callers=callers) as hub, console(browser, hub.port, may_fail=True) as page:
        await page.goto(f"http://127.0.0.1:{hub.port}/docs")
        await page.get_by_label("Key").fill("a-key-that-is-wrong-0123456789")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("alert")).to_have_text("This key is not valid, or it has expired.")
        await page.get_by_label("Key").fill(OPERATOR)
        await page.get_by_role("button", name="Sign in").click()
        await page.locator("#call_tool summary").click()
        await expect(page.locator("#call_tool .cmd code")).to_contain_text('-H "Authorization: Bearer $KEY"')


async def test_the_docs_are_as_strict_as_the_console_and_switched_off_with_it(own: HubProcess, tmp_path: Path) -> None:
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{own.port}", verify=TRUSTED) as http:
        page = await http.get("/docs")
        policy = page.headers["content-security-policy"]
        assert policy == (await http.get("/console/")).headers["content-security-policy"]
        assert "unsafe" not in policy
        assert (await http.post("/docs")).status_code == 405
    async with (
        serving(tmp_path, hub={"console": False}) as hub,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", verify=TRUSTED) as http,
    ):
        assert (await http.get("/docs")).status_code == 404
