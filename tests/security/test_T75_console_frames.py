"""T75: another site frames the console, so that a signed-in person clicks on hidden controls.

No response of the console may be framed, errors and files included.
"""

from __future__ import annotations

from pathlib import Path

import httpx2

from isthmus.frontends.console.http import static_files
from tests.hubs import TRUSTED, serving


async def test_no_response_of_the_console_may_be_framed(tmp_path: Path) -> None:
    paths = (
        *(f"/console/{name}" for name in static_files()),
        "/console/",
        "/console/session",
        "/console/none",
        "/docs",
    )
    async with (
        serving(tmp_path) as hub,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", timeout=30.0, verify=TRUSTED) as http,
    ):
        for path in (*paths, "/docs"):
            headers = (await http.get(path)).headers
            assert headers["x-frame-options"] == "DENY", path
            assert "frame-ancestors 'none'" in headers["content-security-policy"], path
            assert headers["x-content-type-options"] == "nosniff", path
