"""Prometheus scrapes the hub, loads the project's rules, and answers every query of its dashboard."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any
from urllib.error import URLError

import httpx2

from tests.frontends.wire import until
from tests.hubs import CHECKOUT, PATIENT, TRUSTED, serving
from tests.telemetry.prometheus import RULES, expressions, program, prometheus
from tests.telemetry.test_traces import call, traced
from tests.telemetry.traced_server import ODD

DASHBOARD = CHECKOUT / "deploy" / "grafana" / "isthmus.json"
NOTHING_HAPPENED = (
    "isthmus_late_replies",
    "isthmus_queue_wait",
    "isthmus_rejected",
    "isthmus_tasks",
    "isthmus_traced",
    "outcome!~",
    'executed="unknown"',
)
"""What a hub without such events has no series of."""


async def test_prometheus_scrapes_the_hub_and_evaluates_its_rules_without_complaint(tmp_path: Path) -> None:
    key = "the-key-of-the-scraper-1"
    tables: dict[str, Any] = {
        "callers": {"ann": {"key": "the-key-of-ann-0000001", "operator": True, "allow": ["*"]}},
        "telemetry": {"metrics_key": key},
        "limits": PATIENT,
    }
    servers = {"tools": traced(), "broken": {"command": "there-is-no-such-program"}}
    async with serving(tmp_path, servers, **tables) as hub:
        for tool, arguments in (("echo", {"text": "x"}), ("fail", {}), (ODD, {})):
            await call(hub, f"tools.{tool}", arguments, authorization="Bearer the-key-of-ann-0000001")
        with prometheus(tmp_path / "prometheus", hub.port, key=key) as server:

            async def has_scraped() -> bool:
                try:
                    # A rate needs two samples.
                    often = await asyncio.to_thread(server.query, "count_over_time(isthmus_build_info[5m]) > 2")
                    return bool(often) and len(await asyncio.to_thread(server.query, "isthmus_server_up")) == 3
                except URLError:
                    return False

            await until(has_scraped)
            await until(lambda: evaluated(server))
            [target] = server.ask("targets")["activeTargets"]
            assert (target["health"], target["lastError"]) == ("up", "")
            up = {each["metric"]["server"]: each["value"][1] for each in server.query("isthmus_server_up")}
            assert up == {"builtin": "1", "tools": "1", "broken": "0"}
            [odd] = server.query('isthmus_calls_total{tool=~"odd.*"}')
            assert odd["metric"]["tool"] == ODD
            for rule in rules(server):
                assert (rule["health"], rule.get("lastError", "")) == ("ok", ""), rule["name"]
            for expression in expressions(DASHBOARD):
                found = await asyncio.to_thread(server.query, expression)
                assert found or any(name in expression for name in NOTHING_HAPPENED), expression
            said = server.log.read_text()
            assert "level=error" not in said
            assert "level=warn" not in said


def run(words: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(words, check=False, capture_output=True, timeout=60, **options)


def rules(server: Any) -> list[dict[str, Any]]:
    [group] = server.ask("rules")["groups"]
    return list(group["rules"])


async def evaluated(server: Any) -> bool:
    return all(rule["health"] != "unknown" for rule in await asyncio.to_thread(rules, server))


def test_the_rules_fire_when_they_should_and_only_then() -> None:
    promtool = program("promtool")
    tests = RULES.with_name("isthmus.rules.test.yml")
    done = run([promtool, "test", "rules", tests.name], cwd=tests.parent)
    assert done.returncode == 0, done.stdout + done.stderr


async def test_both_formats_pass_the_linter(tmp_path: Path) -> None:
    promtool = program("promtool")
    async with serving(tmp_path, {"tools": traced()}, limits=PATIENT) as hub:
        await call(hub, f"tools.{ODD}", {})
        async with httpx2.AsyncClient(verify=TRUSTED) as http:
            plain = await http.get(f"http://127.0.0.1:{hub.port}/metrics")
            wanted = {"accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"}
            newer = await http.get(f"http://127.0.0.1:{hub.port}/metrics", headers=wanted)
    done = await asyncio.to_thread(run, [promtool, "check", "metrics"], input=plain.content)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert newer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert newer.text.endswith("\n# EOF\n")
    assert "# TYPE isthmus_calls counter" in newer.text
