"""`run_code` over MCP: a script that is a task continues after `kill -9`, and waits for people as long as they need."""

from __future__ import annotations

import asyncio
import json
import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.code.script_server import command
from tests.conftest import Ledger
from tests.faults.test_scripts_crash import result_of
from tests.faults.test_tasks_crash import killed
from tests.faults.watching import eventually
from tests.frontends.task_server import TASKS
from tests.hubs import META, MODERN, PATIENT, TRUSTED, HubProcess, stdio, write_config

SECONDS = 60.0
AFTER = 0.3
"""When a modern call becomes a task."""
KEYS = {name: f"key-of-{name}-0123456789" for name in ("agent", "attended", "boss")}
CALLERS: dict[str, Any] = {
    "agent": {"key": KEYS["agent"], "allow": ["*"], "max_result_bytes": 4096},
    "attended": {"key": KEYS["attended"], "allow": ["*"]},
    "boss": {"key": KEYS["boss"], "allow": [], "operator": True},
}
PAYS = """
import asyncio
told = []
for nonce in ['a', 'b', 'c']:
    try:
        told.append(await shop_pay(nonce=nonce))
    except RuntimeError as error:
        told.append(str(error))
    await asyncio.sleep(1)
told
"""
KNOWS_TASKS = {**META, "io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}}}


class Agent:
    """A caller in both eras of MCP, and over A2A."""

    def __init__(self, hub: HubProcess, who: str) -> None:
        self.hub = hub
        headers = {"authorization": f"Bearer {KEYS[who]}", "accept": "application/json, text/event-stream"}
        self.http = httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{hub.port}", headers=headers, timeout=SECONDS, verify=TRUSTED
        )

    async def legacy(self, method: str, **params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = (await self.http.post("/mcp", json=body, headers={"mcp-protocol-version": "2025-11-25"})).json()
        assert "result" in answer, answer
        return answer["result"]

    async def modern(self, method: str, meta: Any = KNOWS_TASKS, **params: Any) -> Any:
        headers = {"mcp-protocol-version": MODERN, "mcp-method": method}
        headers |= {"mcp-name": params.get("name") or params["taskId"]}
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        answer = (await self.http.post("/mcp", json=body, headers=headers)).json()
        assert "result" in answer, answer
        return answer["result"]

    async def run(self, code: str) -> Any:
        """Run a script in the modern era."""
        return await self.modern("tools/call", name="run_code", arguments={"code": code})

    async def has(self, task: str, status: str) -> bool:
        """Whether a modern task has this status."""
        return bool((await self.modern("tasks/get", taskId=task))["status"] == status)

    async def allow(self, task: str) -> Any:
        """The A2A task whose caller has allowed its call, once the hub asks for that."""
        done: Any = None

        async def is_accepted() -> bool:
            nonlocal done
            part = {"data": {"action": "accept", "content": {"decision": "once"}}}
            message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "taskId": task, "parts": [part]}
            body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
            answer = (await self.http.post("/a2a", json=body)).json()
            done = answer.get("result", {}).get("task")
            is_over = "has ended" in json.dumps(answer)
            assert not is_over, await self.a2a("GetTask", id=task)
            return done is not None

        await eventually(is_accepted, "the hub asks again", within=SECONDS)
        return done

    async def a2a(self, method: str, **params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = (await self.http.post("/a2a", json=body)).json()
        assert "result" in answer, answer
        return answer["result"]

    async def say(self, data: Any, **members: Any) -> Any:
        """The A2A task after a message with this data: `{"code": ...}`, or an answer."""
        message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"data": data}], **members}
        return (await self.a2a("SendMessage", message=message))["task"]

    async def is_asked(self, task: str) -> bool:
        """Whether an A2A task waits for an answer."""
        state = (await self.a2a("GetTask", id=task))["status"]["state"]
        return bool(state == "TASK_STATE_INPUT_REQUIRED")


@asynccontextmanager
async def opened(config: Path, who: str = "agent") -> AsyncIterator[Agent]:
    async with killed(config) as hub:
        agent = Agent(hub, who)
        async with agent.http:
            yield agent


@pytest.fixture
def config(tmp_path: Path, ledger: Ledger) -> Path:
    return written(tmp_path, ledger, AFTER)


def written(tmp_path: Path, ledger: Ledger, after: float, **limits: float) -> Path:
    rules: dict[str, Any] = {
        "attended": {"tools": ["shop.order"], "callers": ["attended"], "by": "caller"},
        "orders": {"tools": ["shop.order"]},
    }
    return write_config(
        tmp_path,
        {"shop": stdio(command(ledger.path))},
        hub={"expose": "code"},
        callers=CALLERS,
        approvals=rules,
        limits={**PATIENT, **limits},
        tasks={"after": after},
    )


def assert_paid_once(told: Any, ledger: Ledger) -> None:
    """The hub was killed around the second call: its outcome was stored, or is unknown."""
    first, second, third = told["result"]
    assert (first, third, told["calls"]) == ("a", "c", 3)
    assert second == "b" or "executed: unknown" in second
    assert ledger.ran() == {"a": 1, "b": 1, "c": 1}


def assert_cut(result: Any) -> None:
    """The caller's `max_result_bytes` holds for scripts."""
    text, link = result["content"]
    assert "[Cut by the hub: " in text["text"]
    assert (len(json.dumps(result)) < 5000, link["type"]) == (True, "resource_link")


async def test_a_legacy_task_of_a_killed_hub_continues_and_repeats_no_call(config: Path, ledger: Ledger) -> None:
    async with opened(config) as agent:
        listed = {tool["name"]: tool for tool in (await agent.legacy("tools/list"))["tools"]}
        assert listed["run_code"]["execution"] == {"taskSupport": "optional"}
        assert "execution" not in listed["search_tools"]
        script = {"code": PAYS}
        made = await agent.legacy("tools/call", name="run_code", arguments=script, task={"ttl": 600_000})
        task = made["task"]["taskId"]
        await eventually(lambda: ledger.ran() == {"a": 1, "b": 1}, "the second call", within=SECONDS)
        agent.hub.process.send_signal(signal.SIGKILL)
        await agent.hub.process.wait()
    async with opened(config) as agent:
        done = await agent.legacy("tasks/result", taskId=task)
    assert_paid_once(done["structuredContent"], ledger)


async def test_a_modern_script_that_does_not_end_soon_is_a_task_and_continues_too(config: Path, ledger: Ledger) -> None:
    async with opened(config) as agent:
        script = {"code": "'x' * 20_000"}
        long = await agent.legacy("tools/call", name="run_code", arguments=script, task={"ttl": 600_000})
        assert_cut(await agent.legacy("tasks/result", taskId=long["task"]["taskId"]))
        made = await agent.run(PAYS)
        assert (made["resultType"], made["status"]) == ("task", "working")
        await eventually(lambda: ledger.ran() == {"a": 1, "b": 1}, "the second call", within=SECONDS)
        agent.hub.process.send_signal(signal.SIGKILL)
        await agent.hub.process.wait()
    async with opened(config) as agent:
        await eventually(lambda: agent.has(made["taskId"], "completed"), "the script ends", within=SECONDS)
        ended = await agent.modern("tasks/get", taskId=made["taskId"])
    assert_paid_once(ended["result"]["structuredContent"], ledger)


async def test_a_modern_script_that_ends_soon_is_no_task_and_a_caller_that_leaves_ends_its_script(
    tmp_path: Path, ledger: Ledger
) -> None:
    # Long enough on a busy machine, too: for the scripts, and for the hub to see the caller leave.
    async with opened(written(tmp_path, ledger, 30.0)) as agent:
        quick = await agent.run("1 + 1")
        assert (quick["resultType"], quick["structuredContent"]["result"]) == ("complete", 2)
        assert (await agent.legacy("tasks/list"))["tasks"] == []
        refused = await agent.run("nothing_of_this_name()")
        assert (refused["isError"], refused["structuredContent"]["error"]) == (True, "refused")
        assert_cut(await agent.run("'x' * 20_000"))
        calling = asyncio.ensure_future(agent.run("await shop_hold(nonce='left')"))
        await eventually(lambda: ledger.ran() == {"left": 1} or calling.done(), "the script calls", within=SECONDS)
        if not calling.done():
            calling.cancel()
        else:  # on a busy machine the script had become a task before
            await agent.modern("tasks/cancel", taskId=calling.result()["taskId"])

        async def is_idle() -> bool:
            http = httpx2.AsyncClient(headers={"authorization": f"Bearer {KEYS['boss']}"}, verify=TRUSTED)
            async with http:
                seen = (await http.get(f"http://127.0.0.1:{agent.hub.port}/v1/activity")).json()["calls"]
            return any(call["name"] == "shop.hold" and call["outcome"] == "cancelled" for call in seen)

        await eventually(is_idle, "the call is cancelled", within=SECONDS)


async def test_a_call_that_waits_for_approval_survives_a_killed_hub_and_runs_once(config: Path, ledger: Ledger) -> None:
    async with opened(config) as agent:
        made = await agent.run("import asyncio\nawait shop_order(orders=[{'item': 'lamp'}])")
        assert made["resultType"] == "task"

        async def is_held() -> bool:
            state = await agent.modern("tasks/get", taskId=made["taskId"])
            return "waits for an operator's approval" in state.get("statusMessage", "")

        await eventually(is_held, "the call is held", within=SECONDS)
        agent.hub.process.send_signal(signal.SIGKILL)
        await agent.hub.process.wait()
    assert not ledger.ran()
    async with opened(config) as agent:

        async def is_allowed() -> bool:
            headers = {"authorization": f"Bearer {KEYS['boss']}"}
            async with httpx2.AsyncClient(
                base_url=f"http://127.0.0.1:{agent.hub.port}", headers=headers, verify=TRUSTED
            ) as boss:
                pending = (await boss.get("/v1/approvals?state=pending")).json()["approvals"]
                if not pending:
                    return False
                assert [(each["tool"], each["scriptLines"]) for each in pending] == [("shop.order", [2])]
                allowed = await boss.post(f"/v1/approvals/allow/{pending[0]['id']}", json={})
                return allowed.status_code == 200

        await eventually(is_allowed, "an operator allows it", within=SECONDS)
        await eventually(lambda: agent.has(made["taskId"], "completed"), "the script ends", within=SECONDS)
    assert ledger.ran() == {"order": 1}


async def test_a_script_waits_for_an_operator_for_longer_than_any_call_may_take(tmp_path: Path, ledger: Ledger) -> None:
    async with opened(written(tmp_path, ledger, AFTER, call_seconds=2.0, hard_seconds=2.0)) as agent:
        made = await agent.say({"code": "await shop_order(orders=[{'item': 'lamp'}])"})
        waiting = made["status"]
        assert waiting["state"] == "TASK_STATE_AUTH_REQUIRED"
        body = {"orders": [{"item": "lamp"}]}
        headers = {"accept": "application/json"}
        ordinary = (await agent.http.post("/v1/tools/shop.order", json=body, headers=headers)).json()
        assert ordinary["reason"] == "approval_pending", "an ordinary call has its deadline"
        assert (await agent.a2a("GetTask", id=made["id"]))["status"]["message"] == waiting["message"]
        headers = {"authorization": f"Bearer {KEYS['boss']}"}
        allowed = await agent.http.post(f"/v1/approvals/allow/{ordinary['approval']}", json={}, headers=headers)
        assert allowed.status_code == 200

        async def is_done() -> bool:
            state = (await agent.a2a("GetTask", id=made["id"]))["status"]["state"]
            return bool(state == "TASK_STATE_COMPLETED")

        await eventually(is_done, "the script ends", within=SECONDS)
    assert ledger.ran() == {"order": 1}


async def test_a_call_that_its_caller_must_allow_survives_a_killed_hub_and_runs_once(
    config: Path, ledger: Ledger
) -> None:
    async with opened(config, "attended") as agent:
        made = await agent.say({"code": "await shop_order(orders=[{'item': 'lamp'}])"})
        await eventually(lambda: agent.is_asked(made["id"]), "the caller is asked", within=SECONDS)
        agent.hub.process.send_signal(signal.SIGKILL)
        await agent.hub.process.wait()
    assert not ledger.ran()
    async with opened(config, "attended") as agent:
        done = await agent.allow(made["id"])
        assert result_of(done) == '{"orders": [{"item": "lamp"}]}'
        assert (await agent.http.get("/v1/approvals")).json()["approvals"] == []
    assert ledger.ran() == {"order": 1}


async def test_a_server_asks_inside_a_script_and_the_script_completes_with_the_answer(
    config: Path, ledger: Ledger
) -> None:
    async with opened(config, "attended") as agent:
        asked = await agent.say({"code": "colour = await shop_ask()\n[colour, await shop_pay(nonce='after')]"})
        assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        assert "Which colour?" in json.dumps(asked["status"]["message"])
        done = await agent.say({"action": "accept", "content": {"colour": "red"}}, taskId=asked["id"])
        assert result_of(done) == ["red", "after"]
    assert ledger.ran() == {"ask": 2, "after": 1}
