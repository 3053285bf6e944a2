"""Pages in a real browser: a test serves them, they call the hub, and report what they could read.

Without Chromium on this machine such a test is skipped, loudly; in CI it fails.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any

import pytest

SECONDS = 60.0
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""Chromium without windows first: the same pages take it two thirds of the CPU."""
WITHOUT = (
    # Each window of a recent Chromium loads pages for its address bar, and starts a process to spare: half of what it
    # takes to open one.
    "WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "WebUIOmniboxFullPopup", "SpareRendererForSitePerProcess",
    # Playwright's own list, which ours replaces: Chromium makes no requests of its own, and leaves pages unchanged.
    "AvoidUnnecessaryBeforeUnloadCheckSync", "DestroyProfileOnBrowserClose", "HttpsUpgrades",
    "HttpsFirstBalancedModeAutoEnable", "LensOverlay", "MediaRouter", "PaintHolding", "ThirdPartyStoragePartitioning",
    "AvoidCorsURLLoaderRestartOnRedirect", "OptimizationHints", "NetworkTimeServiceQuerying", "AimEnabled",
    "PreconnectToSearch",
)  # fmt: skip
"""Features of Chromium that the tests do without."""
FLAGS = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP *.test 127.0.0.1",
    f"--disable-features={','.join(WITHOUT)}",
)


def program() -> str:
    """The browser; without one a test is skipped with the reason, and in CI it fails."""
    found = next((path for name in NAMES if (path := shutil.which(name)) is not None), None)
    if found is not None:
        return found
    reason = "no Chromium on this machine; install it: sudo apt-get install chromium"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


class Site:
    """One page under every path and host, which runs a script; `reported` has what it sent back."""

    def __init__(self, server: ThreadingHTTPServer, reported: Queue[Any]) -> None:
        self.port: int = server.server_address[1]
        self.script = ""
        self.reported = reported

    def origin(self, host: str) -> str:
        """The origin of the page under this host, which ends in `.test`."""
        return f"http://{host}:{self.port}"


@contextmanager
def site() -> Iterator[Site]:
    """A site that is served for as long as the block lasts."""
    reported: Queue[Any] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(f"<!doctype html><script type=module>{it.script}</script>".encode())

        def do_POST(self) -> None:
            reported.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self._answer(b"")

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    it = Site(server, reported)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield it
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@asynccontextmanager
async def browsing(url: str) -> AsyncIterator[None]:
    """A browser at this page. It ends with the block, and also when this process is killed.

    The program on the PATH may be a script that starts the browser, so killing that process is not enough: the group
    is killed. A browser that is controlled through a pipe quits when the other end closes.
    """
    flags = [*FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    folder = tempfile.mkdtemp(prefix="chromium-")
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", 'exec "$@" 3<&0 4>&1 </dev/null', "sh", program()),
        *flags,
        f"--user-data-dir={folder}",
        "--remote-debugging-pipe",  # reads 3 and writes 4; without it a headless browser ends once the page is loaded
        url,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        shutil.rmtree(folder, ignore_errors=True)


async def visited(it: Site, host: str, script: str) -> Any:
    """What a script reports that a page under this host runs: it is the body of an async function."""
    it.script = (
        f"const run = async () => {{ {script} }};"
        "const told = await run().catch(error => ({failed: String(error)}));"
        "await fetch('/report', {method: 'POST', body: JSON.stringify(told ?? null)});"
    )
    async with browsing(f"{it.origin(host)}/"):
        return await asyncio.to_thread(it.reported.get, timeout=SECONDS)
