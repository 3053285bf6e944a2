"""Following tasks of a running hub: how soon, by how many, through questions, and where a stream ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.faults.watching import eventually
from tests.frontends.test_a2a import SECONDS, Agent, envelope, run
from tests.hubs import PATIENT, HubProcess, serving, stdio
from tests.tck.server import command

pytestmark = pytest.mark.asyncio(loop_scope="module")

TRIES = 5
"""How often something is timed: a busy machine may be late, and not every time."""
LISTENERS = 25


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("ledger") / "cancelled"
    path.touch()
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory, ledger: Path) -> AsyncIterator[HubProcess]:
    # Cancelled calls have a server of their own: a cancelled call may still ask, and its caller would be ambiguous.
    servers = {"s": stdio(command()), "h": stdio(command(ledger=ledger))}
    async with serving(tmp_path_factory.mktemp("hub"), servers, limits=PATIENT, a2a={"text_tool": "s.tck"}) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def agent(hub: HubProcess) -> AsyncIterator[Agent]:
    async with Agent(hub) as client, asyncio.timeout(SECONDS):
        yield client


# -- how soon ------------------------------------------------------------------------------------------------------


async def lags(agent: Agent) -> list[float]:
    """How long reports of a server were under way, by the clocks of its process and of this one."""
    found: list[float] = []
    async with agent.following("SendStreamingMessage", run("s.tick", steps=10, pause=0.02)) as stream:
        async for _, data in stream:
            received = data["result"].get("statusUpdate", {}).get("status", {}).get("message")
            if received is not None:
                found.append(time.time() - float(received["parts"][0]["text"]))
    assert len(found) == 10
    return sorted(found)


async def test_a_report_is_there_within_50_ms_of_its_making(agent: Agent) -> None:
    medians = [(await lags(agent))[5] for _ in range(TRIES)]
    print(f"a report was there after {1000 * min(medians):.1f} ms")
    assert min(medians) < 0.05, medians


def moments(ledger: Path) -> list[float]:
    """When the server received a cancellation; a line that is still being written does not count."""
    return [float(line) for line in ledger.read_text().splitlines(keepends=True) if line.endswith("\n")]


async def test_a_task_that_is_given_up_is_given_up_at_its_server_within_100_ms(agent: Agent, ledger: Path) -> None:
    await agent.ask("SendMessage", run("h.tck", message_id="warm"))
    taken: list[float] = []
    for number in range(TRIES):
        before = len(moments(ledger))
        async with agent.following("SendStreamingMessage", run("h.hold", number=number)) as stream:
            task = (await anext(stream))[1]["result"]["task"]["id"]
            asked = time.time()
            assert (await agent.ask("CancelTask", {"id": task}))["status"]["state"] == "TASK_STATE_CANCELED"
            await eventually(lambda: len(moments(ledger)) > before, "the server was cancelled")  # noqa: B023
            taken.append(moments(ledger)[-1] - asked)
            last = [data async for _, data in stream][-1]
            assert last["result"]["statusUpdate"]["status"]["state"] == "TASK_STATE_CANCELED"
    print(f"the server was told to give up after {1000 * min(taken):.1f} ms")
    assert min(taken) < 0.1, taken


# -- by how many ---------------------------------------------------------------------------------------------------


async def test_any_number_of_listeners_get_the_same_events_from_the_start(agent: Agent) -> None:
    """Each gets the state of the task, and then the same updates as all others."""
    task = await agent.begin("s.ask", method="elicitation/create", params=NAME)
    await eventually(lambda: waits(agent, task), "it asks")

    async def hear() -> list[Any]:
        async with agent.following("SubscribeToTask", {"id": task}) as stream:
            received = [(await anext(stream))[1]["result"]]
            ready.release()
            return [*received, *[data["result"] async for _, data in stream]]

    ready = asyncio.Semaphore(0)
    listening = [asyncio.ensure_future(hear()) for _ in range(LISTENERS)]
    for _ in range(LISTENERS):
        await ready.acquire()
    await agent.ask("SendMessage", {"message": answering(task, {"data": {"name": "Ann"}})})
    first, *others = await asyncio.gather(*listening)
    assert [next(iter(item)) for item in first] == ["task", "statusUpdate", "artifactUpdate", "statusUpdate"]
    assert first[0]["task"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert all(received == first for received in others)


async def test_one_that_leaves_costs_the_others_nothing_and_the_task_less(agent: Agent) -> None:
    async with agent.following("SendStreamingMessage", run("s.tick", steps=10, pause=0.05)) as first:
        task = (await anext(first))[1]["result"]["task"]["id"]
        async with agent.following("SubscribeToTask", {"id": task}) as second:
            await anext(second)
        assert [data async for _, data in first][-1]["result"]["statusUpdate"]["status"]["state"].endswith("COMPLETED")
    assert await agent.state(task) == "TASK_STATE_COMPLETED"


# -- questions -----------------------------------------------------------------------------------------------------

NAME = {
    "message": "Who?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}
AGE = {
    "message": "How old?",
    "requestedSchema": {
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 0}, "name": {"type": "string"}},
        "required": ["age"],
    },
}
SAMPLE = {"messages": [{"role": "user", "content": {"type": "text", "text": "2+2?"}}], "maxTokens": 5}


async def waits(agent: Agent, task: str) -> bool:
    return await agent.state(task) == "TASK_STATE_INPUT_REQUIRED"


def answering(task: str, *parts: Any) -> dict[str, Any]:
    """A message that goes on with a task."""
    return {"messageId": f"answer-{parts}", "role": "ROLE_USER", "taskId": task, "parts": list(parts)}


async def asked(agent: Agent, method: str, params: Any) -> Any:
    """A task that waits for an answer to this."""
    task = (await agent.ask("SendMessage", run("s.ask", method=method, params=params)))["task"]
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    return task


async def answered(agent: Agent, task: str, *parts: Any) -> Any:
    """What the server heard, by its own word."""
    done = (await agent.ask("SendMessage", {"message": answering(task, *parts)}))["task"]
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    return done["artifacts"][0]["parts"][0]["data"]


@pytest.mark.parametrize(
    ("params", "part", "received"),
    [
        (AGE, {"data": {"age": 3}}, {"action": "accept", "content": {"age": 3}}),
        (AGE, {"data": {"action": "accept", "content": {"age": 3}}}, {"action": "accept", "content": {"age": 3}}),
        (AGE, {"text": '{"age": 3}'}, {"action": "accept", "content": {"age": 3}}),
        (AGE, {"data": {"action": "decline"}}, {"action": "decline"}),
        (AGE, {"data": {"action": "cancel"}}, {"action": "cancel"}),
        (AGE, {"text": "No."}, {"action": "decline"}),
        (AGE, {"text": "cancel"}, {"action": "cancel"}),
        (NAME, {"text": "Ann of Arran"}, {"action": "accept", "content": {"name": "Ann of Arran"}}),
        ({"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}}, {"text": "yes"},
         {"action": "accept", "content": {}}),
    ],
)  # fmt: skip
async def test_a_question_is_answered_declined_or_cancelled(
    agent: Agent, params: Any, part: Any, received: Any
) -> None:
    task = await asked(agent, "elicitation/create", params)
    said, whole = task["status"]["message"]["parts"]
    assert (said, whole["data"]) == ({"text": params["message"]}, {"method": "elicitation/create", "params": params})
    assert await answered(agent, task["id"], part) == received


@pytest.mark.parametrize("part", [{"data": {"age": -1}}, {"data": {}}, {"text": "three"}, {"data": [3]}])
async def test_an_answer_that_does_not_fit_leaves_the_question_open(agent: Agent, part: Any) -> None:
    task = (await asked(agent, "elicitation/create", AGE))["id"]
    body = envelope("SendMessage", {"message": answering(task, part)})
    assert (await agent.http.post("/a2a", json=body)).json()["error"]["code"] == -32602
    assert await waits(agent, task)
    assert await answered(agent, task, {"data": {"age": 3}}) == {"action": "accept", "content": {"age": 3}}


async def test_a_model_that_is_asked_for_is_the_caller_s(agent: Agent) -> None:
    task = await asked(agent, "sampling/createMessage", SAMPLE)
    assert task["status"]["message"]["parts"][0]["data"] == {"method": "sampling/createMessage", "params": SAMPLE}
    answer = {"role": "assistant", "content": {"type": "text", "text": "4"}, "model": "m", "stopReason": "endTurn"}
    assert await answered(agent, task["id"], {"data": answer}) == answer


async def test_a_model_may_be_refused(agent: Agent) -> None:
    task = await asked(agent, "sampling/createMessage", SAMPLE)
    assert (await answered(agent, task["id"], {"text": "no"}))["code"] == -1


async def test_a_stream_of_a_message_ends_with_a_question_and_a_subscription_goes_on(agent: Agent) -> None:
    begin = run("s.ask", method="elicitation/create", params=NAME, once="more")
    async with agent.following("SendStreamingMessage", begin) as stream:
        received = [data["result"] async for _, data in stream]
    task = received[0]["task"]["id"]
    assert received[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    async with agent.following("SubscribeToTask", {"id": task}) as stream:
        assert (await anext(stream))[1]["result"]["task"]["id"] == task
        await answered(agent, task, {"data": {"name": "Ann"}})
        states = [data["result"]["statusUpdate"]["status"]["state"] async for _, data in stream
                  if "statusUpdate" in data["result"]]  # fmt: skip
        assert states[-1] == "TASK_STATE_COMPLETED"


async def test_a_follower_of_a_question_does_not_delay_the_shutdown(tmp_path: Path) -> None:
    async with asyncio.timeout(SECONDS):
        async with serving(tmp_path, {"s": stdio(command())}, limits=PATIENT) as hub, Agent(hub) as agent:
            task = (await asked(agent, "elicitation/create", NAME))["id"]
            async with agent.following("SubscribeToTask", {"id": task}) as stream:
                await anext(stream)
                hub.terminate()
                assert [data async for _, data in stream] == []


# -- after the end -------------------------------------------------------------------------------------------------

KIND = {"kind": "data", "data": {"tool": "s.tck", "arguments": {"message_id": "x"}}}
TYPE = {"type": "data", "data": KIND["data"]}
VAULT = {"type": "data", "content": KIND["data"]}


async def test_subscribing_to_an_ended_task_is_refused_since_0_3_and_replayed_before(agent: Agent) -> None:
    latest = (await agent.ask("SendMessage", run("s.tck", message_id="y")))["task"]["id"]
    said = {"kind": "message", "messageId": "m", "role": "user", "parts": [KIND]}
    earlier = await agent.ask("message/send", {"message": said, "configuration": {"blocking": True}})
    first = await agent.ask("tasks/send", {"id": "mine", "message": {"role": "user", "parts": [TYPE]}})
    vault = await agent.ask("tasks/send", {"message": {"role": "user", "parts": [VAULT]}})
    for method, task in (("SubscribeToTask", latest), ("tasks/resubscribe", earlier["id"])):
        answer = (await agent.http.post("/a2a", json=envelope(method, {"id": task}))).json()
        assert answer["error"]["code"] == -32004
    async with agent.following("tasks/resubscribe", {"id": first["id"]}) as stream:
        items = [data["result"] async for _, data in stream]
        assert items[0]["artifact"]["parts"] == [{"type": "text", "text": "You said: "}]
        assert (items[-1]["status"]["state"], items[-1]["final"]) == ("completed", True)
    async with agent.following("tasks/sendSubscribe", vault) as stream:
        assert [name async for name, _ in stream][-2:] == ["task_message", "task_status"]


# -- questions -----------------------------------------------------------------------------------------------------

WHO = {
    "message": "Who?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}


async def test_an_answer_on_a_stream_of_0_3_shows_how_the_task_ends_and_the_question_stays(agent: Agent) -> None:
    asking = {"tool": "s.ask", "arguments": {"method": "elicitation/create", "params": WHO}}
    said = {"kind": "message", "messageId": "q1", "role": "user", "parts": [{"kind": "data", "data": asking}]}
    async with agent.following("message/stream", {"message": said}) as stream:
        begun = [data["result"] async for _, data in stream]
    assert (begun[-1]["status"]["state"], begun[-1]["final"]) == ("input-required", True)
    question = begun[-1]["status"]["message"]
    answer = {**said, "messageId": "q2", "taskId": begun[0]["id"], "parts": [{"kind": "data", "data": {"name": "Ann"}}]}
    async with agent.following("message/stream", {"message": answer}) as stream:
        ended = [data["result"] async for _, data in stream]
    assert (ended[0]["kind"], ended[-1]["kind"]) == ("task", "status-update")
    # The sender knows it, and Google's ADK would show it as the answer.
    assert [each["messageId"] for each in ended[0]["history"]] == ["q1", "q2"]
    assert (ended[-1]["status"]["state"], ended[-1]["final"]) == ("completed", True)
    history = (await agent.ask("tasks/get", {"id": begun[0]["id"]}))["history"]
    assert [each["messageId"] for each in history] == ["q1", question["messageId"], "q2"]
    assert (history[1]["role"], history[1]["parts"]) == ("agent", question["parts"])


# -- words ---------------------------------------------------------------------------------------------------------


async def test_a_tool_may_have_its_answer_said_without_a_task(agent: Agent) -> None:
    said = {"messageId": "tck-message-response", "role": "ROLE_USER", "contextId": "talk", "parts": [{"text": "hi"}]}
    message = (await agent.ask("SendMessage", {"message": said}))["message"]
    assert message["parts"] == [{"text": "Direct message response"}]
    assert (message["role"], message["contextId"]) == ("ROLE_AGENT", "talk")


async def test_messages_while_the_tool_runs_are_stored_and_instructions_are_refused(agent: Agent) -> None:
    task = await agent.begin("h.hold")
    await agent.ask("SendMessage", {"message": answering(task, {"text": "hurry"}), **NOT_WAITING})
    body = envelope("SendMessage", {"message": answering(task, {"data": {"tool": "s.tick", "arguments": {}}})})
    assert (await agent.http.post("/a2a", json=body)).json()["error"]["code"] == -32004
    found = await agent.ask("GetTask", {"id": task})
    assert [message["parts"] for message in found["history"]][1:] == [[{"text": "hurry"}]]
    await agent.ask("CancelTask", {"id": task})


async def test_tasks_that_a_message_speaks_of_are_kept_with_it(agent: Agent) -> None:
    before = (await agent.ask("SendMessage", run("s.tck", message_id="z")))["task"]["id"]
    params = run("s.tck", message_id="w")
    params["message"]["referenceTaskIds"] = [before]
    task = (await agent.ask("SendMessage", params))["task"]
    assert task["history"][0]["referenceTaskIds"] == [before]
    assert (await agent.ask("GetTask", {"id": task["id"]}))["history"] == task["history"]


# -- histories and lists -------------------------------------------------------------------------------------------

NOT_WAITING = {"configuration": {"returnImmediately": True}}


async def test_a_history_is_as_long_as_requested(agent: Agent) -> None:
    task = (await asked(agent, "elicitation/create", AGE))["id"]
    await answered(agent, task, {"data": {"age": 3}})
    whole = (await agent.ask("GetTask", {"id": task}))["history"]
    assert len(whole) == 3
    for length in (1, 2, 9):
        assert (await agent.ask("GetTask", {"id": task, "historyLength": length}))["history"] == whole[-length:]
    assert "history" not in await agent.ask("GetTask", {"id": task, "historyLength": 0})
    sent = run("s.tck", message_id="v") | {"configuration": {"historyLength": 0}}
    assert "history" not in (await agent.ask("SendMessage", sent))["task"]


async def test_lists_are_paged_and_narrowed(agent: Agent) -> None:
    made: list[str] = []
    for number in range(7):
        params = run("s.tck", message_id=f"l{number}")
        params["message"]["contextId"] = "listed"
        made.insert(0, (await agent.ask("SendMessage", params))["task"]["id"])
    running = run("h.hold", of="list")
    running["message"]["contextId"] = "listed"
    made.insert(0, (await agent.ask("SendMessage", running | NOT_WAITING))["task"]["id"])

    async def is_working() -> bool:
        task = await agent.ask("GetTask", {"id": made[0]})
        return bool(task["status"]["state"] == "TASK_STATE_WORKING")  # submitted until its server takes the call

    await eventually(is_working, "the task works")
    assert await ids(agent, contextId="listed") == made
    assert await paged(agent, 3, contextId="listed") == [made[:3], made[3:6], made[6:]]
    assert await paged(agent, 4, contextId="listed") == [made[:4], made[4:]]
    assert await ids(agent, contextId="listed", status="TASK_STATE_WORKING") == made[:1]
    assert await ids(agent, contextId="listed", status="TASK_STATE_COMPLETED") == made[1:]
    fourth = (await agent.ask("GetTask", {"id": made[3]}))["status"]["timestamp"]
    later = await ids(agent, contextId="listed", statusTimestampAfter=fourth)
    assert made[:3] == later[:3]
    assert set(later) <= set(made[:4])
    assert await ids(agent, contextId="nobody's") == []
    await agent.ask("CancelTask", {"id": made[0]})


async def ids(agent: Agent, **asked_for: Any) -> list[str]:
    page = await agent.ask("ListTasks", asked_for)
    assert page["totalSize"] == len(page["tasks"])
    assert page["nextPageToken"] == ""
    assert not any("artifacts" in task for task in page["tasks"])
    whole = await agent.ask("ListTasks", {**asked_for, "includeArtifacts": True})
    assert all("artifacts" in task for task in whole["tasks"])
    return [task["id"] for task in page["tasks"]]


async def paged(agent: Agent, size: int, **asked_for: Any) -> list[list[str]]:
    pages: list[list[str]] = []
    token: str | None = ""
    while token is not None:
        page = await agent.ask("ListTasks", {**asked_for, "pageSize": size, "pageToken": token})
        assert (page["totalSize"], page["pageSize"]) == (8, size)
        pages.append([task["id"] for task in page["tasks"]])
        token = page["nextPageToken"] or None
    return pages
