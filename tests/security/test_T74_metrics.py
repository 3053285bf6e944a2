"""T74: `/metrics` discloses the hub's work to a stranger, or lies or grows because of names that others choose.

The answer: operators only, or a key that opens nothing else, or configured callers; a web page never. Label
values are escaped, and callers, URIs and names that no server has are no labels.
"""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from tests.hubs import PATIENT, TRUSTED, serving
from tests.telemetry.test_health import ANN, BOSS, CALLERS, get
from tests.telemetry.test_traces import call, traced
from tests.telemetry.traced_server import ODD

SCRAPER = "the-key-of-the-scraper-1"


async def test_metrics_need_an_operator_or_the_key_of_the_scraper(tmp_path: Path) -> None:
    async with serving(tmp_path, callers=CALLERS, telemetry={"metrics_key": SCRAPER}) as hub:
        statuses = {
            key: (await get(hub, "/metrics", key)).status_code for key in (None, "wrong" * 5, ANN, BOSS, SCRAPER)
        }
        assert statuses == {None: 401, "wrong" * 5: 401, ANN: 403, BOSS: 200, SCRAPER: 200}
        for key in (None, ANN):
            assert "`isthmus token create NAME --operator`" in (await get(hub, "/metrics", key)).text
        # The scraper's key opens nothing else.
        assert (await get(hub, "/v1/tools", SCRAPER)).status_code == 401
        response = (await get(hub, "/readyz?verbose", SCRAPER)).json()
        assert response == {"status": "ok"}
        text = (await get(hub, "/metrics", SCRAPER)).text
        assert 'isthmus_rejected_requests_total{frontend="metrics",status="401"} 3' in text
        assert 'isthmus_rejected_requests_total{frontend="rest",status="401"} 1' in text
        assert "ann" not in text
        assert "boss" not in text


@pytest.mark.parametrize(("access", "status"), [("open", 200), ("off", 404)])
async def test_the_operator_may_open_metrics_or_switch_them_off(tmp_path: Path, access: str, status: int) -> None:
    async with serving(tmp_path, callers=CALLERS, telemetry={"metrics": access}) as hub:
        assert (await get(hub, "/metrics")).status_code == status
        # A page of another site must not read them, even where anybody may.
        refused = await get(hub, "/metrics", origin="https://evil.test")
        assert refused.status_code == (403 if status == 200 else 404)


async def test_an_open_hub_on_loopback_shows_its_metrics(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub:
        assert (await get(hub, "/metrics")).status_code == 200
        assert (await get(hub, "/metrics", host="evil.test")).status_code == 421
        async with httpx2.AsyncClient(verify=TRUSTED) as http:
            assert (await http.post(f"http://127.0.0.1:{hub.port}/metrics")).status_code == 405
            head = await http.head(f"http://127.0.0.1:{hub.port}/metrics")
            assert (head.status_code, head.content) == (200, b"")


async def test_names_that_others_choose_neither_forge_a_sample_nor_make_one(tmp_path: Path) -> None:
    async with serving(tmp_path, {"tools": traced()}, limits=PATIENT) as hub:
        await call(hub, f"tools.{ODD}", {})
        before = (await get(hub, "/metrics")).text
        assert 'tool="odd \\"name\\" \\\\ <script>alert(1)</script>"' in before
        async with httpx2.AsyncClient(verify=TRUSTED) as http:
            for number in range(50):
                name = f'tools.invented{number}"}} 1%0Aisthmus_forged 1'
                answer = await http.post(f"http://127.0.0.1:{hub.port}/v1/tools/{name}", json={})
                assert answer.status_code == 404
        after = (await get(hub, "/metrics")).text
        assert "invented" not in after
        assert "forged" not in after
        new = {line.rpartition(" ")[0] for line in after.splitlines()} - {
            line.rpartition(" ")[0] for line in before.splitlines()
        }
        assert {line.partition("{")[2].partition(",le=")[0].rstrip("}") for line in new if "isthmus_call" in line} == {
            'method="tools/call",frontend="rest",outcome="unknown_tool",executed="no"'
        }
