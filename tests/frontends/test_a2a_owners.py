"""Owners of tasks and ids: others find nothing on any frontend, and servers never see callers' ids."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
import pytest_asyncio

from tests.faults.scripted import ReceivedRequest, Scripted, reply
from tests.frontends.test_a2a import envelope
from tests.frontends.test_a2a_grpc import address, call
from tests.hubs import PATIENT, TRUSTED, HubProcess, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECONDS = 60.0
OWNER, OTHER = "owner-key-0123456789abcdef", "other-key-0123456789abcdef"
CALLERS = {name: {"key": key, "allow": ["*"]} for name, key in {"owner": OWNER, "other": OTHER}.items()}
NOBODY = "no-such-task"
HOOK = "https://198.41.0.4/hook"
WORDS = "which tools are there?"
SAID_1_0 = {"messageId": "m1", "role": "ROLE_USER", "contextId": "mine", "parts": [{"text": WORDS}]}
SAID_0_3 = {"kind": "message", "messageId": "m2", "role": "user", "parts": [{"kind": "text", "text": WORDS}]}
SAID_0_1 = {"role": "user", "parts": [{"type": "text", "text": WORDS}]}
SAID_VAULT = {"role": "user", "parts": [{"type": "text", "content": WORDS}]}

MADE: dict[str, tuple[str, dict[str, Any]]] = {
    "1.0": ("SendMessage", {"message": SAID_1_0}),
    "0.3": ("message/send", {"message": SAID_0_3}),
    "0.1": ("tasks/send", {"id": "first", "message": SAID_0_1}),
    "AgentVault": ("tasks/send", {"message": SAID_VAULT}),
}
"""How a task comes about that waits for its caller, in each generation."""

AGAIN = {"messageId": "m9", "role": "ROLE_USER", "parts": [{"text": "no"}]}
PUSH = {"url": HOOK, "id": "p"}
RPC: dict[str, dict[str, dict[str, Any]]] = {
    "1.0": {
        "GetTask": {"id": ""},
        "CancelTask": {"id": ""},
        "SubscribeToTask": {"id": ""},
        "SendMessage": {"message": {**AGAIN, "taskId": ""}},
        "SendStreamingMessage": {"message": {**AGAIN, "taskId": ""}},
        "CreateTaskPushNotificationConfig": {"taskId": "", **PUSH},
        "GetTaskPushNotificationConfig": {"taskId": "", "id": "p"},
        "ListTaskPushNotificationConfigs": {"taskId": ""},
        "DeleteTaskPushNotificationConfig": {"taskId": "", "id": "p"},
    },
    "0.3": {
        "tasks/get": {"id": ""},
        "tasks/cancel": {"id": ""},
        "tasks/resubscribe": {"id": ""},
        "message/send": {"message": {**SAID_0_3, "messageId": "m9", "taskId": ""}},
        "tasks/pushNotificationConfig/set": {"taskId": "", "pushNotificationConfig": PUSH},
        "tasks/pushNotificationConfig/get": {"id": "", "pushNotificationConfigId": "p"},
        "tasks/pushNotificationConfig/list": {"id": ""},
        "tasks/pushNotificationConfig/delete": {"id": "", "pushNotificationConfigId": "p"},
    },
    "0.1": {
        "tasks/pushNotification/set": {"id": "", "pushNotificationConfig": {"url": HOOK}},
        "tasks/pushNotification/get": {"id": ""},
    },
    "AgentVault": {"tasks/sendSubscribe": {"id": ""}, "tasks/send": {"id": "", "message": SAID_VAULT}},
}
PLAIN: dict[str, dict[str, Any]] = {
    "GET tasks/{}": {},
    "POST tasks/{}:cancel": {},
    "GET tasks/{}:subscribe": {},
    "POST tasks/{}/pushNotificationConfigs": PUSH,
    "GET tasks/{}/pushNotificationConfigs": {},
    "GET tasks/{}/pushNotificationConfigs/p": {},
    "DELETE tasks/{}/pushNotificationConfigs/p": {},
}


def about(task: str, node: Any) -> Any:
    """Parameters with the id of a task where it belongs."""
    if isinstance(node, dict):
        return {key: about(task, value) for key, value in node.items()}
    return task if node == "" else node


class Scene:
    """A hub, a client for each of its two callers, and the owner's tasks by the generation that made them."""

    def __init__(self, hub: HubProcess) -> None:
        at = f"http://127.0.0.1:{hub.port}"
        self.owner = httpx2.AsyncClient(base_url=at, timeout=SECONDS, headers={"x-api-key": OWNER}, verify=TRUSTED)
        self.other = httpx2.AsyncClient(base_url=at, timeout=SECONDS, headers={"x-api-key": OTHER}, verify=TRUSTED)
        self.hub = hub
        self.tasks: dict[str, str] = {}

    async def fill(self) -> None:
        for name, (method, params) in MADE.items():
            response = (await self.owner.post("/a2a", json=envelope(method, params))).json()["result"]
            self.tasks[name] = response.get("task", response)["id"]
            push = {"taskId": self.tasks[name], **PUSH}
            set_up = await self.owner.post("/a2a", json=envelope("CreateTaskPushNotificationConfig", push))
            assert "result" in set_up.json(), set_up.text

    async def server_status(self) -> list[Any]:
        """All that the owner knows of its tasks."""
        asked = [("GetTask", "id"), ("ListTaskPushNotificationConfigs", "taskId")]
        bodies = [envelope(method, {name: task}) for task in self.tasks.values() for method, name in asked]
        received = [(await self.owner.post("/a2a", json=body)).json() for body in bodies]
        assert all("result" in each for each in received), received
        return received


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    folder = tmp_path_factory.mktemp("owners")
    async with serving(folder, limits=PATIENT, callers=CALLERS, a2a={"grpc_port": 0}) as hub:
        made = Scene(hub)
        async with made.owner, made.other:
            await made.fill()
            yield made


def seen(answer: httpx2.Response, task: str) -> tuple[int, str, str]:
    """The parts of an answer that a caller can compare, without its own id."""
    return answer.status_code, answer.headers["content-type"], answer.text.replace(task, "…")


@pytest.mark.parametrize(
    ("generation", "method"), [(generation, method) for generation, methods in RPC.items() for method in methods]
)
async def test_to_others_a_task_is_as_one_that_never_was(scene: Scene, generation: str, method: str) -> None:
    before = await scene.server_status()

    async def asked(task: str, accept: str) -> tuple[int, str, str]:
        body = envelope(method, about(task, RPC[generation][method]))
        return seen(await scene.other.post("/a2a", json=body, headers={"accept": accept}), task)

    for accept in ("application/json", "text/event-stream"):
        unknown = await asked(NOBODY, accept)
        assert '"error"' in unknown[2], unknown
        assert [await asked(task, accept) for task in scene.tasks.values()] == [unknown] * len(scene.tasks)
    assert await scene.server_status() == before


@pytest.mark.parametrize("prefix", ["", "v1/"])
@pytest.mark.parametrize("line", PLAIN)
async def test_nor_is_there_one_by_a_path(scene: Scene, prefix: str, line: str) -> None:
    before = await scene.server_status()

    async def asked(task: str) -> tuple[int, str, str]:
        verb, path = line.format(task).split(" ")
        body = PLAIN[line] or None
        if prefix and body is not None:
            body = {"config": {"pushNotificationConfig": body}}
        return seen(await scene.other.request(verb, f"/a2a/rest/{prefix}{path}", json=body), task)

    unknown = await asked(NOBODY)
    assert unknown[0] == 404, unknown
    assert [await asked(task) for task in scene.tasks.values()] == [unknown] * len(scene.tasks)
    assert await scene.server_status() == before


async def test_nor_in_any_list(scene: Scene) -> None:
    for asked in ({}, {"contextId": "mine"}, {"contextId": "nobody's"}, {"status": "TASK_STATE_INPUT_REQUIRED"}):
        page = (await scene.other.post("/a2a", json=envelope("ListTasks", asked))).json()["result"]
        assert (page["tasks"], page["totalSize"]) == ([], 0)
        assert (await scene.other.get("/a2a/rest/tasks", params=asked)).json() == page
    mine = (await scene.owner.post("/a2a", json=envelope("ListTasks", {}))).json()["result"]
    assert {task["id"] for task in mine["tasks"]} == set(scene.tasks.values())


async def test_nor_over_grpc(scene: Scene) -> None:
    async with grpc.aio.insecure_channel(await address(scene.hub)) as channel:

        async def asked(method: str, task: str) -> tuple[Any, str]:
            made = call(channel, method, about(task, RPC["1.0"][method]), OTHER)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await (made.read() if hasattr(made, "read") else made)
            return refused.value.code(), str(refused.value.details()).replace(task, "…")

        for method in RPC["1.0"]:
            unknown = await asked(method, NOBODY)
            assert unknown[0] is grpc.StatusCode.NOT_FOUND, unknown
            assert [await asked(method, task) for task in scene.tasks.values()] == [unknown] * len(scene.tasks)
        empty = await call(channel, "ListTasks", {}, OTHER)
        assert (len(empty.tasks), empty.total_size) == (0, 0)


# -- ids -----------------------------------------------------------------------------------------------------------


class Patient(Scripted):
    """A server that answers nobody until four have asked."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[Any] = []
        self.all_are_here = asyncio.Event()

    async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        self.ids.append(request.message["id"])
        if len(self.ids) == 4:
            self.all_are_here.set()
        await self.all_are_here.wait()
        out.write(reply(request.result({"content": [{"type": "text", "text": request.arguments["who"]}]})))


@pytest.mark.one_process("ids are unique on a link, and each node has a link of its own")
async def test_requests_to_servers_have_the_hubs_own_ids(tmp_path: Path) -> None:
    async with (
        Patient() as server,
        serving(tmp_path, {"s": server.entry}, limits=PATIENT, callers=CALLERS) as hub,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", timeout=SECONDS, verify=TRUSTED) as http,
        asyncio.timeout(SECONDS),
    ):

        async def told(key: str, id: int | str) -> Any:
            params = {"name": "t", "arguments": {"who": f"{key} {id}"}}
            data = {"mcp_target_url": "s", "mcp_method": "tools/call", "mcp_params": params, "mcp_request_id": id}
            message = {"messageId": f"m-{id}", "role": "ROLE_USER", "parts": [{"data": data}]}
            body = envelope("SendMessage", {"message": message})
            task = (await http.post("/a2a", json=body, headers={"x-api-key": key})).json()["result"]["task"]
            return task["artifacts"][0]["parts"][0]["data"]

        asked = [(key, id) for key in (OWNER, OTHER) for id in (7, "x")]
        answers = await asyncio.gather(*(told(key, id) for key, id in asked))
    for (key, id), answer in zip(asked, answers, strict=True):
        assert (answer["mcp_request_id_echo"], answer["mcp_response_id"]) == (id, id)
        assert answer["mcp_result"]["content"] == [{"type": "text", "text": f"{key} {id}"}]
    assert len(set(server.ids)) == len(asked)
    assert "x" not in server.ids
