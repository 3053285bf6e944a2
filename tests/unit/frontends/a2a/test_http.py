"""The frontend behind a listener: requests of every generation in, exact answers and the specified errors out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.frontends.a2a.settings import A2aSettings
from tests.unit.frontends.a2a.doubles import NOW, envelope, hall, message, run

JSON = "Content-Type: application/json"
KIND = {"kind": "data", "data": {"tool": "files.read", "arguments": {}}}
SAID_0_3 = {"messageId": "m1", "kind": "message", "role": "user", "parts": [KIND]}
SAID_0_1 = {"role": "user", "parts": [{"type": "data", "data": {"tool": "files.read"}}]}
SAID_VAULT = {"role": "user", "parts": [{"type": "data", "content": {"tool": "files.read"}}]}


@pytest.mark.parametrize(
    ("method", "params", "done"),
    [
        ("SendMessage", run(), ("task", "status", "state", "TASK_STATE_COMPLETED")),
        ("message/send", {"message": SAID_0_3, "configuration": {"blocking": True}}, ("status", "state", "completed")),
        ("tasks/send", {"id": "mine", "message": SAID_0_1}, ("status", "state", "completed")),
    ],
)
async def test_each_generation_is_answered_in_its_own_words(method: str, params: Any, done: tuple[str, ...]) -> None:
    async with hall() as here:
        here.office.answer_at_once()
        found = (await here.rpc(method, params))["result"]
        for key in done[:-1]:
            found = found[key]
        assert found == done[-1]


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("SendMessage", {"message": {**run()["message"], "role": "ROLE_AGENT"}}),
        ("message/send", {"message": {**SAID_0_3, "role": "agent"}}),
        ("message/stream", {"message": {**SAID_0_3, "role": "agent"}}),
        ("tasks/send", {"id": "mine", "message": {**SAID_0_1, "role": "agent"}}),
        ("tasks/send", {"message": {**SAID_VAULT, "role": "assistant"}}),
    ],
)
async def test_a_message_of_the_agent_is_not_carried_out(method: str, params: Any) -> None:
    async with hall() as here:
        here.office.answer_at_once()
        assert (await here.rpc(method, params))["error"]["code"] == -32602
        assert here.office.sent == []


async def test_agentvault_is_answered_with_an_id_and_asks_for_the_rest() -> None:
    async with hall() as here:
        here.office.answer_at_once()
        sent = (await here.rpc("tasks/send", {"message": SAID_VAULT}))["result"]
        assert list(sent) == ["id"]
        await here.office.engine.wait_idle()
        found = (await here.rpc("tasks/get", sent))["result"]
        assert (found["state"], len(found["messages"])) == ("COMPLETED", 2)


async def test_an_ambiguous_method_is_answered_in_the_dialect_of_its_task() -> None:
    async with hall() as here:
        here.office.answer_at_once()
        await here.rpc("tasks/send", {"id": "mine", "message": SAID_0_1})
        assert "kind" not in (await here.rpc("tasks/get", {"id": "mine"}))["result"]
        three = (await here.rpc("message/send", {"message": SAID_0_3}))["result"]["id"]
        assert (await here.rpc("tasks/get", {"id": three}))["result"]["kind"] == "task"


async def test_numbers_and_the_order_of_keys_come_back_as_they_were() -> None:
    exact = '{"z":1,"a":1234567890123456789012345,"f":1.50,"e":1E5}'
    text = json.dumps(envelope("SendMessage", run())).replace('"arguments": {}', f'"arguments": {exact}')
    async with hall() as here:
        here.office.stage.link.at_once = None
        answer = here.post(text.encode(), "Accept: application/json")
        here.office.answer_at_once()
        assert (await answer).status == 200
        assert bytes(here.office.sent[0].call.arguments) == exact.encode()
        assert exact.encode() in (await here.post(envelope("ListTasks", {}))).body


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b"[]", -32600),
        (b'{"jsonrpc":"2.0","id":7}', -32600),
        (b'{"jsonrpc":"1.0","id":7,"method":"GetTask"}', -32600),
        (b'{"jsonrpc":"2.0","id":7,"method":{"a":1},"params":{}}', -32601),
        (b'{"jsonrpc":"2.0","id":7,"method":5}', -32601),
        (b'{"jsonrpc":"2.0","id":7,"method":"no/such"}', -32601),
        (b'{"jsonrpc":"2.0","id":7,"method":"GetTask","params":{}}', -32602),
        (b'{"jsonrpc":"2.0","id":7,"method":"GetTask","params":{"id":"none"}}', -32001),
        (b'{"jsonrpc":"2.0","id":7,"method":"CancelTask","params":{"id":"none"}}', -32001),
        (b'{"jsonrpc":"2.0","id":7,"method":"SubscribeToTask","params":{"id":"none"}}', -32001),
        (b'{"jsonrpc":"2.0","method":"GetTask","params":{"id":"none"}}', -32600),
        (b'{"jsonrpc":"2.0","method":"tasks/get","params":{"id":"none"}}', -32600),
        (b'{"jsonrpc":"2.0","method":"GetTask","params":{}}', -32602),
        (b'{"jsonrpc":"2.0","method":"no/such"}', -32601),
        (b'{"jsonrpc":"2.0","id":7,"result":{}}', -32600),
    ],
)
async def test_invalid_requests_have_their_codes_and_the_next_request_works(body: bytes, code: int) -> None:
    async with hall() as here:
        here.office.answer_at_once()
        response = json.loads((await here.post(body)).body)
        assert response["error"]["code"] == code
        assert "result" not in response
        assert (await here.task("SendMessage", run()))["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize(
    ("method", "params", "received"),
    [
        ("message/stream", {"message": {}}, b'data: {"jsonrpc":"2.0","id":7,"error":{"code":-32602,'),
        ("tasks/resubscribe", {"id": "none"}, b'data: {"jsonrpc":"2.0","id":7,"error":{"code":-32001,'),
        ("tasks/sendSubscribe", {"id": "none"}, b'event: error\ndata: {"error":'),
    ],
)
async def test_a_client_that_only_reads_streams_gets_its_error_in_one(
    method: str, params: Any, received: bytes
) -> None:
    async with hall() as here:
        for lines in (
            ["Accept: text/event-stream"],
            ["accept: */*", "Accept: text/event-stream"],
            ["Accept: Text/Event-Stream;q=1, */*;q=0.5"],
        ):
            answer = await here.post(envelope(method, params), *lines)
            assert (answer.status, answer.header(b"content-type")) == (200, b"text/event-stream")
            assert answer.body.startswith(received)
        for lines in ([], ["Accept: */*"], ["Accept: application/json", "Accept: text/event-stream"]):
            answer = await here.post(envelope(method, params), *lines)
            assert answer.header(b"content-type") == b"application/json"


async def test_a_body_that_is_not_said_to_be_json_is_refused() -> None:
    async with hall() as here:
        answer = await here.ask("/a2a", "Content-Type: text/plain", method="POST", body=b"{'repr': True}")
        assert json.loads(answer.body)["error"]["code"] == -32005
        rest = await here.ask("/a2a/rest/message:send", "Content-Type: text/plain", method="POST", body=b"{}")
        assert rest.status == 415


@pytest.mark.parametrize("line", ["A2A-Version: 9.0", "X-Nothing: 1"])
async def test_a_version_is_asked_for_by_header_or_query(line: str) -> None:
    async with hall() as here:
        here.office.answer_at_once()
        path = "/a2a" if "Version" in line else "/a2a?A2A-Version=9.0"
        answer = await here.post(envelope("SendMessage", run()), line, path=path)
        assert json.loads(answer.body)["error"]["code"] == -32009
        for fine in ("/a2a?A2A-Version=1.0", "/", "/a2a/"):
            answer = await here.post(envelope("SendMessage", run()), path=fine)
            assert "result" in json.loads(answer.body)


@pytest.mark.parametrize("path", ["/", "/a2a", "/a2a/", "/a2a/rest/tasks", "/agent-card.json"])
async def test_paths_of_this_frontend(path: str) -> None:
    async with hall() as here:
        assert here.frontend.is_at(path)
        assert not here.frontend.is_at(f"/x{path}")


async def test_other_methods_of_http_are_not_for_it() -> None:
    async with hall() as here:
        answer = await here.ask("/a2a", JSON, method="PUT", body=b"{}")
        assert (answer.status, answer.header(b"allow")) == (405, b"GET, POST")


async def test_a_caller_without_a_key_gets_a_challenge() -> None:
    async with hall() as here:
        answer = await here.post(envelope("ListTasks", {}), "X-Api-Key: nobody")
        assert answer.status == 401
        assert json.loads(answer.body)["error"]["code"] == -32600
        response = json.loads((await here.post(run(), "X-Api-Key: nobody", path="/a2a/rest/message:send")).body)[
            "error"
        ]
        assert (response["code"], response["status"]) == (401, "UNAUTHENTICATED")
        old = json.loads((await here.post(run(), "X-Api-Key: nobody", path="/a2a/rest/v1/message:send")).body)
        assert old["error"] == "InvalidRequestError"
        assert answer.header(b"www-authenticate") is not None


async def test_a_caller_that_cannot_be_verified_now_gets_retry_after() -> None:
    async with hall() as here:
        answer = await here.post(envelope("ListTasks", {}), "X-Api-Key: later")
        assert (answer.status, answer.header(b"retry-after")) == (503, b"5")
        assert "cannot be checked" in json.loads(answer.body)["error"]["message"]
        response = json.loads((await here.post(run(), "X-Api-Key: later", path="/a2a/rest/message:send")).body)["error"]
        assert (response["code"], response["status"]) == (503, "UNAVAILABLE")


async def test_cancelling_is_answered_once_it_is_done() -> None:
    async with hall() as here:
        task = await here.task("SendMessage", run(**NOW))
        cancelled = await here.task("CancelTask", {"id": task["id"]})
        assert cancelled["status"]["state"] == "TASK_STATE_CANCELED"
        assert (await here.rpc("CancelTask", {"id": task["id"]}))["error"]["code"] == -32002


async def test_push_for_a_missing_task_is_refused() -> None:
    async with hall() as here:
        config = {"taskId": "t", "url": "https://example.com"}
        response = await here.rpc("CreateTaskPushNotificationConfig", config)
        assert response["error"]["code"] == -32001


# -- the plain binding -----------------------------------------------------------------------------------------------


async def test_the_plain_binding_does_the_same() -> None:
    async with hall() as here:
        here.office.answer_at_once()
        sent = await here.post(run(), path="/a2a/rest/message:send")
        assert (sent.status, sent.header(b"content-type")) == (200, b"application/json")
        task = json.loads(sent.body)["task"]["id"]
        got = await here.ask(f"/a2a/rest/tasks/{task}?historyLength=0")
        assert "history" not in json.loads(got.body)
        listed = json.loads((await here.ask("/a2a/rest/tasks?pageSize=1")).body)
        assert [each["id"] for each in listed["tasks"]] == [task]
        missing = await here.ask("/a2a/rest/tasks/none")
        assert (missing.status, json.loads(missing.body)["error"]["status"]) == (404, "NOT_FOUND")
        named = await here.ask(f"/a2a/rest/tasks/{task}", "Accept: application/a2a+json")
        assert named.header(b"content-type") == b"application/a2a+json"
        old = await here.post({"message": {**SAID_0_3, "kind": "message"}}, path="/a2a/rest/v1/message:send")
        assert old.status in (200, 400, 422)


async def test_a_stream_of_the_plain_binding_has_no_envelope() -> None:
    async with hall() as here:
        here.office.answer_at_once()
        answer = await here.post(run(), path="/a2a/rest/message:stream")
        items = [json.loads(line[6:]) for line in answer.body.split(b"\n") if line.startswith(b"data: ")]
        assert "task" in items[0]
        assert "jsonrpc" not in items[0]


# -- settings that change --------------------------------------------------------------------------------------------


async def test_new_settings_hold_from_the_next_request_on() -> None:
    async with hall() as here:
        first = await here.task("SendMessage", message("hello"))
        assert first["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        here.frontend.change(A2aSettings(name="Other", text_tool="files.hear"))
        here.office.answer_at_once()
        second = await here.task("SendMessage", message("hello", "m2"))
        assert second["status"]["state"] == "TASK_STATE_COMPLETED"
        assert json.loads((await here.ask("/.well-known/agent-card.json")).body)["name"] == "Other"
