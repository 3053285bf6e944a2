"""Task updates reach their push receivers in order, whatever happens to receivers or to the hub."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import jwt
import pytest
from jwt import PyJWKSet

from tests.cluster_hubs.balanced import database, schema_of
from tests.conftest import Ledger
from tests.faults import quick_server
from tests.faults.progress_server import ProgressServer
from tests.faults.test_tasks_crash import killed
from tests.faults.watching import eventually
from tests.frontends.receiver import Posted, Receiver
from tests.frontends.test_a2a import SECONDS, Agent, envelope, run
from tests.frontends.test_keys import is_in, is_out, token
from tests.frontends.wire import until
from tests.hubs import NODES, PATIENT, serving, stdio, write_config

NOW = {"returnImmediately": True}
BUSY = "503 Service Unavailable"


def with_push(push: Any, tool: str = "no.such", **arguments: Any) -> dict[str, Any]:
    """The parameters that have a tool run, and its changes sent somewhere."""
    return {**run(tool, **arguments), "configuration": {**NOW, "taskPushNotificationConfig": push}}


def states(posted: list[Posted]) -> list[str]:
    """How the task stood, by what was posted of it in 1.0."""
    found = [each.body.get("statusUpdate") or each.body.get("task") for each in posted]
    return [each["status"]["state"].removeprefix("TASK_STATE_") for each in found if each is not None]


def have_passed(posted: list[Posted], *wanted: str) -> bool:
    """Whether a task has gone through these states; a slow database may skip one in between."""
    found = states(posted)
    if NODES == 1:
        return found == list(wanted)
    return found[-1:] == [wanted[-1]] and found == [state for state in wanted if state in found]


async def test_refused_pushes_are_sent_again_in_order_with_the_same_id(tmp_path: Path, ledger: Ledger) -> None:
    servers = {"quick": stdio(quick_server.command(ledger.path))}
    async with (
        Receiver() as receiver,
        serving(tmp_path, servers, limits=PATIENT, targets=receiver.allowed) as hub,
        Agent(hub) as agent,
    ):
        receiver.words["/hook?key=in-the-url"].append(f"{BUSY}\r\nRetry-After: 0")
        proof = {"scheme": "Bearer", "credentials": "a-credential"}
        push = {"url": receiver.url("/hook?key=in-the-url"), "token": "a-token", "authentication": proof}
        task = (await agent.ask("SendMessage", with_push(push, "quick.pay", nonce="1")))["task"]["id"]
        await receiver.until(lambda: len(receiver.posted) == 4)
        assert states(receiver.posted) == ["SUBMITTED"] * 2 + ["COMPLETED"]
        assert receiver.posted[2].body["artifactUpdate"]["artifact"]["parts"] == [{"text": "1"}]
        ids = [each.id for each in receiver.posted]
        assert len(set(ids)) == 3
        assert ids[:2] == [ids[0]] * 2
        for each in receiver.posted:
            assert each.headers["x-a2a-notification-token"] == "a-token"
            assert each.headers["authorization"] == "Bearer a-credential"
            assert each.headers["content-type"] == "application/a2a+json"
        await eventually(lambda: deliveries(tmp_path, task) == ["delivered"] * 2, "it is kept that both arrived")
        await eventually(lambda: sum("push notification" in line for line in hub.said) == 4, "all attempts are logged")
        for secret in ("a-token", "a-credential", "in-the-url"):
            assert not any(secret in line for line in hub.said)


def deliveries(folder: Path, task: str) -> list[str]:
    """How the deliveries of a task stand in the journal."""
    if NODES > 1:
        wanted = f"""kind = 'delivery' AND "group" = convert_to('{task}', 'UTF8')"""
        text = f"SELECT state FROM {schema_of(folder)}.documents WHERE {wanted} ORDER BY at"
        return database().psql(text).splitlines()
    with closing(sqlite3.connect(f"file:{folder / 'state' / 'journal.db'}?mode=ro", uri=True)) as file:
        found = file.execute("""SELECT state FROM documents WHERE kind = 'delivery' AND "group" = ?""", (task,))
        return [str(state) for (state,) in found]


async def test_a_push_receiver_that_hangs_or_is_absent_delays_no_other(tmp_path: Path) -> None:
    async with Receiver() as receiver, Receiver() as slow:
        async with Receiver() as dead:
            everybody = [receiver, slow, dead]
        allow = [address for each in everybody for address in each.allowed["allow"]]
        slow.hanging.add("/")
        async with serving(tmp_path, {}, targets={"allow": allow}) as hub, Agent(hub) as agent:
            for number in range(20):
                for each in (slow, dead):
                    await agent.ask("SendMessage", with_push({"url": each.url("/")}, number=number, port=each.port))
            await slow.until(lambda: len(slow.posted) >= 8)
            await agent.ask("SendMessage", with_push({"url": receiver.url("/")}))
            await receiver.until(lambda: states(receiver.posted) == ["FAILED"])
            await eventually(lambda: any("connection refused" in line for line in hub.said), "the reason is logged")


@pytest.mark.one_process("it kills a hub with SQLite; tests/cluster_database/test_frontends.py kills a node")
async def test_pushes_due_when_the_hub_was_killed_are_sent_by_the_next_hub(tmp_path: Path, ledger: Ledger) -> None:
    async with Receiver() as receiver:
        receiver.hanging.add("/hook")
        servers = {"quick": stdio(quick_server.command(ledger.path))}
        config = write_config(tmp_path, servers, limits=PATIENT, targets=receiver.allowed)
        async with killed(config) as hub, Agent(hub) as agent:
            push = {"url": receiver.url("/hook"), "token": "a-token"}
            done = (await agent.ask("SendMessage", with_push(push, "quick.pay", nonce="1")))["task"]["id"]
            lost = (await agent.ask("SendMessage", with_push(push, "quick.hold", nonce="2")))["task"]["id"]
            await eventually(lambda: deliveries(tmp_path, done) == ["due", "due"], "the task has ended")
            await receiver.until(lambda: len(receiver.posted) == 2)
        receiver.hanging.clear()
        before = {each.id for each in receiver.posted}
        receiver.posted.clear()
        async with serving(tmp_path, servers, limits=PATIENT, targets=receiver.allowed):
            await receiver.until(lambda: len(receiver.posted) == 5)
            assert sorted(map(task_of, receiver.posted)) == sorted([done] * 3 + [lost] * 2)
            assert states(posted_of(receiver, done)) == ["SUBMITTED", "COMPLETED"]
            assert states(posted_of(receiver, lost)) == ["SUBMITTED", "FAILED"]
            assert before < {each.id for each in receiver.posted}
            assert {each.headers["x-a2a-notification-token"] for each in receiver.posted} == {"a-token"}
        posted = len(receiver.posted)
        async with serving(tmp_path, servers, limits=PATIENT, targets=receiver.allowed) as hub, Agent(hub) as agent:
            await agent.ask("SendMessage", with_push(push))
            await receiver.until(lambda: len(receiver.posted) > posted)
            assert states(receiver.posted[posted:]) == ["FAILED"]


def task_of(posted: Posted) -> str:
    """Which task something was posted of."""
    [told_of] = posted.body.values()
    return str(told_of.get("taskId") or told_of["id"])


def posted_of(receiver: Receiver, task: str) -> list[Posted]:
    """What was posted of a task."""
    return [each for each in receiver.posted if task_of(each) == task]


async def test_a_question_is_sent_too_and_its_answer_may_come_from_elsewhere(tmp_path: Path) -> None:
    async with (
        ProgressServer() as server,
        Receiver() as receiver,
        serving(tmp_path, {"s": server.entry}, limits=PATIENT, targets=receiver.allowed) as hub,
        Agent(hub) as agent,
    ):
        server.may_work.set()
        server.may_end.set()
        task = (await agent.ask("SendMessage", with_push({"url": receiver.url("/")}, "s.t", asks=True)))["task"]["id"]
        await receiver.until(lambda: have_passed(receiver.posted, "SUBMITTED", "WORKING", "INPUT_REQUIRED"))
        asked = receiver.posted[-1].body["statusUpdate"]["status"]["message"]
        assert asked["parts"][0] == {"text": "Who?"}
        said = {"messageId": "m2", "role": "ROLE_USER", "taskId": task, "parts": [{"data": {"name": "Ann"}}]}
        already = len(receiver.posted)
        await agent.ask("SendMessage", {"message": said})
        await receiver.until(lambda: have_passed(receiver.posted[already:], "WORKING", "COMPLETED"))


def is_accepted(authorization: str, keys: Any, body: Any) -> bool:
    """Whether the first listener takes it: as `verify_push_notification` of its samples decides."""
    token = authorization.removeprefix("Bearer ")
    key = PyJWKSet.from_dict(keys)[jwt.get_unverified_header(token)["kid"]]
    claims = jwt.decode(token, key, algorithms=["RS256"], options={"require": ["iat", "request_body_sha256"]})
    text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    is_new = time.time() - claims["iat"] <= 300
    return is_new and bool(claims["request_body_sha256"] == hashlib.sha256(text.encode()).hexdigest())


async def test_each_generation_gets_notifications_in_its_own_form(tmp_path: Path, ledger: Ledger) -> None:
    servers = {"quick": stdio(quick_server.command(ledger.path))}
    data = {"tool": "quick.pay", "arguments": {"nonce": "1"}}
    async with (
        Receiver() as receiver,
        serving(tmp_path, servers, limits=PATIENT, targets=receiver.allowed) as hub,
        Agent(hub) as agent,
    ):
        message = {"kind": "message", "messageId": "m", "role": "user", "parts": [{"kind": "data", "data": data}]}
        third = {"pushNotificationConfig": {"url": receiver.url("/0.3")}}
        await agent.ask("message/send", {"message": message, "configuration": third})
        first = {"role": "user", "parts": [{"type": "data", "data": data}]}
        push = {"url": receiver.url("/0.1"), "token": "t"}
        await agent.ask("tasks/send", {"id": "mine", "sessionId": "s", "message": first, "pushNotification": push})
        vault = {"role": "user", "parts": [{"type": "data", "content": data, "mediaType": "application/json"}]}
        await agent.ask("tasks/send", {"message": vault, "webhookUrl": receiver.url("/vault")})
        await receiver.until(lambda: [len(receiver.at(path)) for path in ("/0.3", "/0.1", "/vault")] == [2, 2, 2])
        assert {each.headers["content-type"] for each in receiver.posted} == {"application/json"}
        then = {path: [each.body for each in receiver.at(path)] for path in ("/0.3", "/0.1", "/vault")}
        assert [body["status"]["state"] for body in then["/0.3"]] == ["submitted", "completed"]
        assert then["/0.3"][1]["artifacts"][0]["parts"] == [{"kind": "text", "text": "1"}]
        assert [body["status"]["state"] for body in then["/0.1"]] == ["submitted", "completed"]
        assert then["/0.1"][1]["id"] == "mine"
        assert [body["state"] for body in then["/vault"]] == ["SUBMITTED", "COMPLETED"]
        keys = (await agent.http.get("/.well-known/jwks.json")).json()
        for each in receiver.at("/0.1"):
            assert is_accepted(each.headers["authorization"], keys, each.body)
        assert {"authorization" in each.headers for path in ("/0.3", "/vault") for each in receiver.at(path)} == {False}
        assert await agent.ask("tasks/pushNotification/get", {"id": "mine"}) == {
            "id": "mine",
            "pushNotificationConfig": push,
        }


ANN, BOB = "key-of-ann-0123456789", "key-of-bob-0123456789"
CALLERS = {"ann": {"key": ANN, "allow": ["*"], "targets": True}, "bob": {"key": BOB, "allow": ["*"]}}


async def asking(agent: Agent, key: str, method: str, params: Any) -> Any:
    """The answer to a caller."""
    answer = await agent.http.post("/a2a", json=envelope(method, params), headers={"x-api-key": key})
    return answer.json()


async def test_another_caller_sees_and_changes_nothing(tmp_path: Path) -> None:
    async with (
        Receiver() as receiver,
        serving(tmp_path, {}, callers=CALLERS, targets=receiver.allowed) as hub,
        Agent(hub) as agent,
        asyncio.timeout(SECONDS),
    ):
        push = {"url": receiver.url("/ann"), "id": "c", "token": "a-token"}
        sent = await asking(agent, ANN, "SendMessage", with_push(push))
        task = sent["result"]["task"]["id"]
        names = {"taskId": task, "id": "c"}
        for method, params in (
            ("CreateTaskPushNotificationConfig", {**names, "url": receiver.url("/bob")}),
            ("GetTaskPushNotificationConfig", names),
            ("ListTaskPushNotificationConfigs", {"taskId": task}),
            ("DeleteTaskPushNotificationConfig", names),
        ):
            theirs = await asking(agent, BOB, method, params)
            nobodys = await asking(agent, BOB, method, {**params, "taskId": "t" * len(task)})
            assert theirs["error"]["code"] == -32001
            assert str(theirs).replace(task, "t" * len(task)) == str(nobodys)
        kept = (await asking(agent, ANN, "GetTaskPushNotificationConfig", names))["result"]
        assert kept == {**push, "taskId": task}
        await receiver.until(lambda: len(receiver.posted) == 1)
        assert receiver.at("/bob") == []
        # Who may not name targets cannot have anything sent to one of these either.
        refused = await asking(agent, BOB, "SendMessage", with_push({"url": receiver.url("/bob")}))
        assert refused["error"]["code"] == -32602


REFUSED = {
    "http://127.0.0.1:9/": "loopback",
    "http://[::ffff:10.0.0.1]/": "private",
    "http://2130706433/": "loopback",
    "http://localhost/": "private network",
    "http://169.254.169.254/latest/": "link-local",
    "file:///etc/passwd": "must start with http",
    "https://u:p@example.com/": "user name",
}


async def test_an_address_that_may_not_be_dialled_is_refused_when_it_is_named(tmp_path: Path) -> None:
    async with serving(tmp_path, {}) as hub, Agent(hub) as agent, asyncio.timeout(SECONDS):
        task = (await agent.ask("SendMessage", run("no.such")))["task"]["id"]
        for url, why in REFUSED.items():
            for method, params in (
                ("SendMessage", with_push({"url": url})),
                ("CreateTaskPushNotificationConfig", {"taskId": task, "url": url}),
            ):
                error = (await agent.http.post("/a2a", json=envelope(method, params))).json()["error"]
                assert error["code"] == -32602
                assert why in error["message"]
        assert await agent.ask("ListTaskPushNotificationConfigs", {"taskId": task}) == {"configs": []}
        assert (await agent.ask("ListTasks", {}))["totalSize"] == 1


async def test_where_a_recipient_points_to_is_not_gone(tmp_path: Path) -> None:
    async with (
        Receiver() as receiver,
        serving(tmp_path, {}, targets=receiver.allowed) as hub,
        Agent(hub) as agent,
    ):
        receiver.words["/"].append(f"307 Temporary Redirect\r\nLocation: {receiver.url('/elsewhere')}")
        task = (await agent.ask("SendMessage", with_push({"url": receiver.url("/")})))["task"]["id"]
        await eventually(lambda: deliveries(tmp_path, task) == ["failed"], "it was given up")
        assert [each.path for each in receiver.posted] == ["/"]


async def test_a_push_receiver_that_is_gone_gets_no_more_notifications(tmp_path: Path) -> None:
    async with (
        ProgressServer() as server,
        Receiver() as receiver,
        serving(tmp_path, {"s": server.entry}, limits=PATIENT, targets=receiver.allowed, callers=CALLERS) as hub,
        Agent(hub) as agent,
    ):
        made = token(tmp_path, "create", "guest", "--allow", "*", "--targets", "--json")["key"]
        await until(lambda: is_in(hub, made))
        pushed = {name: with_push({"url": receiver.url(name)}, "s.t") for name in ("/guest", "/ann")}
        gone = (await asking(agent, made, "SendMessage", pushed["/guest"]))["result"]["task"]["id"]
        await asking(agent, ANN, "SendMessage", pushed["/ann"])

        async def is_working() -> bool:
            found = await asking(agent, made, "GetTask", {"id": gone})
            return bool(found["result"]["status"]["state"] == "TASK_STATE_WORKING")

        await until(is_working)
        await eventually(lambda: set(deliveries(tmp_path, gone)) == {"delivered"}, "what happened was sent")
        token(tmp_path, "revoke", "guest")
        await until(lambda: is_out(hub, made))
        server.may_work.set()
        server.may_end.set()
        await receiver.until(lambda: states(receiver.at("/ann"))[-1:] == ["COMPLETED"])
        await eventually(lambda: "dropped" in deliveries(tmp_path, gone), "it is given up")
        assert {"SUBMITTED"} <= set(states(receiver.at("/guest"))) <= {"SUBMITTED", "WORKING"}
