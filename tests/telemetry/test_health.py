"""The health probes report broken servers, to operators in detail and to others in brief."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import httpx2

from tests.frontends.wire import until
from tests.hubs import CHECKOUT, PATIENT, TRUSTED, HubProcess, serving, stdio
from tests.telemetry.test_traces import traced

BOSS, ANN = "the-key-of-the-boss-01", "the-key-of-ann-0000001"
CALLERS = {"boss": {"key": BOSS, "operator": True, "allow": ["*"]}, "ann": {"key": ANN, "allow": ["*"]}}
WORKING = f"""
import sys
sys.path.insert(0, {str(CHECKOUT)!r})
from tests.telemetry.traced_server import server
server.run("stdio")
"""
BROKEN = {"command": "there-is-no-such-program"}


async def get(hub: HubProcess, path: str, key: str | None = None, **headers: str) -> httpx2.Response:
    shown = {} if key is None else {"authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(verify=TRUSTED) as http:
        return await http.get(f"http://127.0.0.1:{hub.port}{path}", headers={**shown, **headers})


async def test_a_broken_server_makes_the_hub_degraded_and_keeps_it_in_rotation(tmp_path: Path) -> None:
    async with serving(tmp_path, {"tools": traced(), "broken": BROKEN}, callers=CALLERS, limits=PATIENT) as hub:

        async def is_ready() -> bool:
            return (await get(hub, "/readyz")).status_code == 200

        await until(is_ready)
        await until(lambda: is_reported(hub, "degraded"))
        assert (await get(hub, "/livez")).json() == {"status": "ok"}
        for path in ("/healthz", "/readyz", "/healthz?verbose", "/readyz?verbose"):
            for key in (None, ANN):
                answer = await get(hub, path, key)
                assert (answer.status_code, answer.json()) == (200, {"status": "degraded"})
        response = (await get(hub, "/readyz?verbose", BOSS)).json()
        assert response["storage"] == "ok"
        assert response["servers"]["tools"] == {"state": "ready", "reason": None, "required": False}
        assert response["servers"]["broken"]["state"] == "retrying"
        assert "there-is-no-such-program" in response["servers"]["broken"]["reason"]


async def is_reported(hub: HubProcess, status: str) -> bool:
    return bool((await get(hub, "/healthz")).json()["status"] == status)


async def test_a_required_server_that_is_broken_takes_the_hub_out_of_rotation(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    server: dict[str, Any] = stdio([sys.executable, str(script)], required=True)
    async with serving(tmp_path, {"needed": server}, callers=CALLERS, limits={"listing_seconds": 1.0}) as hub:

        async def is_failing() -> bool:
            answer = await get(hub, "/readyz")
            return (answer.status_code, answer.json()) == (503, {"status": "server_failing"})

        await until(is_failing)
        assert (await get(hub, "/healthz")).status_code == (await get(hub, "/livez")).status_code == 200
        assert (await get(hub, "/readyz?verbose", BOSS)).json()["servers"]["needed"]["required"]
        script.write_text(WORKING)

        async def is_ready() -> bool:
            return (await get(hub, "/readyz")).status_code == 200

        await until(is_ready)
