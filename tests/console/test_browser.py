"""The browsers of the tests: no process of them survives, however a test ends."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from pathlib import Path

import pytest

from tests.browser import program, site
from tests.faults.watching import eventually
from tests.hubs import CHECKOUT

MARK = "ISTHMUS_BROWSER_OF_A_TEST"
OPEN = {
    "alone": """
        async with browsing(url):
            await asyncio.to_thread(input)
            raise SystemExit("the test failed")
    """,
    "playwright": """
        async with chromium() as browser:
            page = await browser.new_page()
            await page.goto(url)
            await asyncio.to_thread(input)
            raise SystemExit("the test failed")
    """,
}
PROGRAM = """
import asyncio, sys
from tests.browser import browsing
from tests.console.pages import chromium
async def main(url):
    {}
asyncio.run(main(sys.argv[1]))
"""


def marked(mark: str) -> set[str]:
    """The processes with this mark in their environment."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.add(f"{folder.name} {(folder / 'cmdline').read_bytes()[:80]!r}")
        except OSError:  # it has ended, or belongs to another user
            continue
    return found


@pytest.mark.parametrize("is_killed", [False, True], ids=["the test fails", "the worker is killed"])
@pytest.mark.parametrize("opened", OPEN)
async def test_no_process_of_a_browser_survives(opened: str, *, is_killed: bool) -> None:
    program()  # skips without a browser
    mark = uuid.uuid4().hex
    with site() as pages:
        pages.script = "await fetch('/report', {method: 'POST', body: '1'})"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM.format(OPEN[opened]), f"http://127.0.0.1:{pages.port}/"),
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=CHECKOUT,
            env={**os.environ, MARK: mark},
        )
        await asyncio.to_thread(pages.reported.get, timeout=60.0)
        assert len(marked(mark)) > 1
        if is_killed:
            process.kill()
            await process.wait()
        else:
            await process.communicate(b"\n")
        await eventually(lambda: not marked(mark), "every process has ended")
