"""REST at a real hub with a real server of every capability, by a client that knows nothing of MCP."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from tests.conftest import Ledger
from tests.faults.watching import eventually
from tests.frontends.wire import connected, rendered
from tests.hubs import CHECKOUT, PATIENT, TRUSTED, HubProcess, serving, stdio
from tests.peers import content
from tests.peers.launch import command, quick_command

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECONDS = 30.0
PAGE = CHECKOUT / "docs" / "rest.md"
HOME = "http://127.0.0.1:8765"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return Ledger(tmp_path_factory.mktemp("ledger") / "ledger.jsonl")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory, ledger: Ledger) -> AsyncIterator[HubProcess]:
    servers = {
        "shelf": stdio(quick_command("full_sdk2")),
        "raw": stdio(command("raw_server", "--ledger", str(ledger.path))),
        "mortal": stdio(command("raw_server")),
        "workshop": stdio([sys.executable, str(CHECKOUT / "examples" / "workshop_server.py")], placement="node"),
        "away": {"command": "/no/such/program", "placement": "node"},
    }
    async with serving(tmp_path_factory.mktemp("hub"), servers, limits=PATIENT) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def http(hub: HubProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", timeout=SECONDS, verify=TRUSTED) as client:
        yield client


def events_in(text: str) -> list[tuple[str, Any]]:
    return [(name, json.loads(data)) for name, data in re.findall(r"event: (\w+)\ndata: (.*)\n\n", text)]


async def test_lists_contain_all_features_and_name_missing_servers(http: httpx2.AsyncClient) -> None:
    tools = (await http.get("/v1/tools", params={"server": "shelf"})).json()
    assert {tool["name"] for tool in tools["tools"]} == {f"shelf.{name}" for name in content.TOOLS}
    everything = (await http.get("/v1/resources")).json()
    assert {resource["uri"] for resource in everything["resources"]} == content.LISTED
    assert everything["missing"]["away"]["state"] == "retrying"
    templates = (await http.get("/v1/resources/templates")).json()["resourceTemplates"]
    assert [template["uriTemplate"] for template in templates] == [content.TEMPLATE_URI]
    prompts = (await http.get("/v1/prompts")).json()["prompts"]
    assert {prompt["name"] for prompt in prompts} == {f"shelf.{name}" for name in content.PROMPTS}


async def test_tools_are_called(http: httpx2.AsyncClient) -> None:
    assert (await http.get("/v1/tools/shelf.add")).json()["inputSchema"]["required"] == ["a", "b"]
    added = await http.post("/v1/tools/shelf.add", json={"a": 2, "b": 3})
    assert (added.status_code, added.json()["structuredContent"]) == (200, {"sum": 5})


async def test_resources_are_read_text_and_bytes_alike(http: httpx2.AsyncClient) -> None:
    for uri in (content.TEXT_URI, content.UNLISTED_URI, content.TEMPLATE_URI.replace("{id}", "alpha")):
        assert (await http.get("/v1/resources/read", params={"uri": uri})).status_code == 200
    text = (await http.get("/v1/resources/read", params={"uri": content.TEXT_URI})).json()["contents"][0]["text"]
    assert text == content.TEXT
    binary = (await http.get("/v1/resources/read", params={"uri": content.BINARY_URI})).json()["contents"][0]["blob"]
    assert base64.b64decode(binary) == content.BINARY


async def test_prompts_are_written_out_and_arguments_completed(http: httpx2.AsyncClient) -> None:
    written = (await http.post("/v1/prompts/shelf.greet", json={"name": "Ada", "tone": "dry"})).json()
    assert written["messages"][0]["content"]["text"] == content.greeting("Ada", "dry")
    ref = {"type": "ref/prompt", "name": "shelf.visit"}
    asked = {"ref": ref, "argument": {"name": "city", "value": "Pa"}, "context": {"arguments": {"country": "France"}}}
    assert (await http.post("/v1/completions", json=asked)).json()["completion"]["values"] == ["Paris", "Pau"]


async def test_a_stream_has_progress_and_log_and_ends_with_the_result(http: httpx2.AsyncClient) -> None:
    headers = {"accept": "text/event-stream"}
    slow = await http.post("/v1/tools/raw.echo", json={"text": "a", "mode": "progress:2"}, headers=headers)
    received = events_in(slow.text)
    assert [name for name, _ in received] == ["progress", "progress", "result"]
    assert [data["progress"] for name, data in received if name == "progress"] == [1, 2]
    logged = await http.post("/v1/tools/shelf.log_some?log=warning", json={}, headers=headers)
    received = events_in(logged.text)
    assert [data["level"] for name, data in received if name == "log"] == ["warning", "error"]
    assert received[-1][0] == "result"


PUBLISH = {"title": "Tides", "findings": ["two a day"]}


async def test_a_question_of_a_server_is_an_event_and_its_answer_a_request(http: httpx2.AsyncClient) -> None:
    wanted = {"Accept": "text/event-stream"}
    url = "/v1/tools/workshop.publish?questions=form,url"
    async with asyncio.timeout(SECONDS), http.stream("POST", url, json=PUBLISH, headers=wanted) as stream:
        received: list[tuple[str, Any]] = []
        text = ""
        async for chunk in stream.aiter_text():
            text += chunk
            if received or not (received := events_in(text)):
                continue
            name, asked = received[0]
            assert (name, asked["method"]) == ("question", "elicitation/create")
            assert asked["params"]["requestedSchema"]["required"] == ["signed_by"]
            path = f"/v1/questions/{asked['id']}"
            for body in ({}, {"action": "perhaps"}, {"action": "accept", "content": [1]}):
                assert (await http.post(path, json=body)).status_code == 400
            answered = await http.post(path, json={"action": "accept", "content": {"signed_by": "Ada"}})
            assert answered.json() == {"id": asked["id"], "action": "accept"}
            again = await http.post(path, json={"action": "decline"})
            assert (again.status_code, again.json()["reason"]) == (404, "unknown_question")
    name, result = events_in(text)[-1]
    assert (name, result["content"][0]["text"]) == ("result", "“Tides”, signed by Ada: two a day")


async def test_a_caller_that_answers_nothing_gets_the_question_in_the_error(http: httpx2.AsyncClient) -> None:
    streamed = await http.post("/v1/tools/workshop.publish", json=PUBLISH, headers={"Accept": "text/event-stream"})
    (name, asked), (last, result) = events_in(streamed.text)
    assert (name, asked["id"], last, result["isError"]) == ("question", None, "result", True)
    assert asked["params"]["message"].startswith("Who signs")
    for query in ("questions=form", "questions=sampling"):
        refused = await http.post(f"/v1/tools/workshop.publish?{query}", json=PUBLISH)
        assert (refused.status_code, refused.json()["reason"]) == (400, "bad_request")


async def test_a_question_is_answered_only_by_its_own_caller(tmp_path: Path) -> None:
    callers = {name: {"key": f"k3y-of-{name}-0123456789", "allow": ["*"]} for name in ("ada", "eve")}
    servers = {"workshop": stdio([sys.executable, str(CHECKOUT / "examples" / "workshop_server.py")])}
    keys = {name: f"Bearer {each['key']}" for name, each in callers.items()}
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(serving(tmp_path, servers, callers=callers, limits=PATIENT))
        client = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{running.port}", timeout=SECONDS, verify=TRUSTED)
        http = await stack.enter_async_context(client)
        headers = {"Accept": "text/event-stream", "Authorization": keys["ada"]}
        url = "/v1/tools/workshop.publish?questions=form"
        stream = await stack.enter_async_context(http.stream("POST", url, json=PUBLISH, headers=headers))
        chunks, text = stream.aiter_text(), ""
        while not events_in(text):
            text += await anext(chunks)
        path = f"/v1/questions/{events_in(text)[0][1]['id']}"
        for name, status in (("eve", 404), ("ada", 200)):
            body = {"action": "accept", "content": {"signed_by": name}}
            answered = await http.post(path, json=body, headers={"Authorization": keys[name]})
            assert answered.status_code == status
        text += "".join([chunk async for chunk in chunks])
    assert "signed by ada" in events_in(text)[-1][1]["content"][0]["text"]


async def test_a_fault_says_whether_the_tool_ran(http: httpx2.AsyncClient) -> None:
    lost = await http.post("/v1/tools/mortal.pay", json={"nonce": "lost", "mode": "die_after_ledger"})
    assert lost.status_code == 504
    assert lost.headers["content-type"] == "application/problem+json"
    response = lost.json()
    assert (response["reason"], response["executed"], response["server"]) == ("lost", "unknown", "mortal")


async def test_a_client_that_hangs_up_cancels_the_call(hub: HubProcess, ledger: Ledger) -> None:
    headers = [("host", "localhost"), ("content-type", "application/json"), ("content-length", "37")]
    body = b'{"nonce": "gone", "mode": "sleep:60"}'
    async with connected(hub.port) as wire:
        await wire.say(rendered("POST", "/v1/tools/raw.pay", headers, body))
        await noted(ledger, '"nonce": "gone"')
    await noted(ledger, '"cancelled": "gone"')


async def noted(ledger: Ledger, text: str) -> None:
    async with asyncio.timeout(SECONDS):
        while text not in "".join(ledger.lines()):  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)


async def test_a_body_that_is_too_long_is_a_problem_too(http: httpx2.AsyncClient) -> None:
    refused = await http.post("/v1/tools/raw.echo", json={"text": "x" * (5 << 20)})
    assert (refused.status_code, refused.headers["content-type"]) == (413, "application/problem+json")
    assert refused.json()["executed"] == "no"


async def test_only_an_operator_sees_operator_details(tmp_path: Path) -> None:
    callers: dict[str, dict[str, Any]] = {
        "operator": {"key": "k3y-of-operator-0123456789", "operator": True},
        "all": {"key": "k3y-of-all-0123456789", "allow": ["*"]},
        "some": {"key": "k3y-of-some-0123456789", "allow": ["builtin.echo"]},
    }
    async with (
        serving(tmp_path, {"off": {"command": "x", "disabled": True}}, callers=callers) as running,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{running.port}", timeout=SECONDS, verify=TRUSTED) as client,
    ):
        assert (await client.get("/v1/servers")).status_code == 401
        shown = {name: await client.get("/v1/servers", headers={"x-api-key": callers[name]["key"]}) for name in callers}
        servers = shown["operator"].json()["servers"]
        assert [(server["name"], server["tools"], "detail" in server) for server in servers] == [
            ("builtin", 0, True),
            ("off", 0, True),
        ]
        for name, tools in (("all", 3), ("some", 1)):
            (one,) = shown[name].json()["servers"]
            assert (one["name"], one["tools"], "detail" in one) == ("builtin", tools, False)


async def test_only_an_operator_sees_how_to_fix_a_server(tmp_path: Path) -> None:
    callers: dict[str, dict[str, Any]] = {
        "operator": {"key": "k3y-of-operator-0123456789", "operator": True},
        "all": {"key": "k3y-of-all-0123456789", "allow": ["*"]},
    }
    async with (
        serving(tmp_path, {"dead": {"command": "no-such-program", "placement": "node"}}, callers=callers) as running,
        # Each node names the file that it has read.
        httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{running.each[0].port}", timeout=SECONDS, verify=TRUSTED
        ) as client,
    ):
        operator, other = ({"x-api-key": callers[name]["key"]} for name in callers)

        async def has_failed() -> bool:
            return bool((await client.get("/v1/servers/dead", headers=operator)).json()["state"] == "retrying")

        await eventually(has_failed, "the server cannot be started")
        fix = f"in servers.dead of {tmp_path / 'isthmus.json'}, correct command, or install no-such-program"
        assert (await client.get("/v1/servers/dead", headers=operator)).json()["fix"] == fix
        listed = (await client.get("/v1/servers", headers=operator)).json()["servers"]
        assert {server["name"]: server["fix"] for server in listed} == {"builtin": None, "dead": fix}
        file = tmp_path / "isthmus.json"
        written = json.loads(file.read_text())
        line = json.dumps(written, indent=1).partition('"dead"')[0].count("\n") + 1

        async def has_place(place: str) -> bool:
            listed = (await client.get("/v1/servers", headers=operator)).json()["servers"]
            return [server["place"] for server in listed if server["name"] == "dead"] == [place]

        await eventually(partial(has_place, f"{file}:1"), "the file is one line")
        file.write_text(json.dumps(written, indent=1))
        await eventually(partial(has_place, f"{file}:{line}"), "the entry is on another line")
        for path in ("/v1/servers", "/v1/servers/dead"):
            seen = await client.get(path, headers=other)
            assert (seen.status_code, "fix" in seen.text, str(tmp_path) in seen.text) == (200, False, False)


# -- the page ------------------------------------------------------------------------------------------------------

EXAMPLES = re.findall(r"```sh\n(curl [^\n]*)\n```\n(?:\n```(json|text)\n(.*?)```)?", PAGE.read_text(), re.DOTALL)


async def test_every_example_of_the_page_is_known() -> None:
    assert len(EXAMPLES) == PAGE.read_text().count("\ncurl ")


@pytest.mark.skipif(shutil.which("curl") is None and not os.environ.get("CI"), reason="the examples are curl's")
@pytest.mark.parametrize(("example", "kind", "expected"), EXAMPLES)
async def test_the_examples_of_the_page_match_real_output(
    hub: HubProcess, example: str, kind: str, expected: str
) -> None:
    words = shlex.split(example.replace(HOME, f"http://127.0.0.1:{hub.port}"))
    process = await asyncio.create_subprocess_exec(
        words[0], "-sS", "--max-time", "30", *words[1:], stdout=asyncio.subprocess.PIPE
    )
    said = (await process.communicate())[0].decode()
    assert process.returncode == 0
    match kind:
        case "json":
            assert json.loads(said) == json.loads(expected)
        case "text":
            received, wanted = events_in(said), events_in(expected)
            assert [name for name, _ in received] == [name for name, _ in wanted]
            # Results of servers may say more than the page has room for.
            assert all(got.items() >= shown.items() for (_, got), (_, shown) in zip(received, wanted, strict=True))
        case _:
            assert "status" not in json.loads(said)
