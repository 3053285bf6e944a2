"""A server that requires a login first: the task waits, shows the address, and continues with the next message."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw

from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.tasks.engine import TaskEngine
from isthmus.frontends.a2a.push_notifications import PushNotifications
from isthmus.frontends.a2a.service import A2aService
from isthmus.frontends.a2a.settings import A2aSettings
from isthmus.model.calls import Answered, Question, Reply
from isthmus.model.fault_table import Fault, NotConnected, ServerError
from isthmus.model.names import ServerName
from tests.unit.core.doubles import raw, ready, tool
from tests.unit.frontends.a2a.doubles import Hall, hall, message, run

URL = "https://bank.example/in"
VISIT = {"mode": "url", "message": "Please log in", "url": URL, "elicitationId": "e1"}
FILES = ServerName("files")

TURNED_AWAY = [
    ServerError(FILES, -32042, "Log in first", raw({"elicitations": [VISIT]})),
    NotConnected(FILES, "HTTP 401", status=401, login=URL),
]


async def turned_away(here: Hall, fault: Fault, params: Any = None) -> Any:
    """A task whose call was refused for want of a login."""
    here.office.stage.link.at_once = lambda inflight: inflight.finish(fault)
    task = await here.task("SendMessage", params or run(arguments={"path": "/x"}))
    here.office.stage.link.at_once = None
    assert task["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
    return task


def next_message(task: Any, what: Any = "done", id: str = "m2") -> dict[str, Any]:
    return message(what, id, said={"taskId": task["id"]})


@pytest.mark.parametrize("fault", TURNED_AWAY)
async def test_the_login_address_is_sent_for_people_and_for_programs(fault: Fault) -> None:
    async with hall() as here:
        words, data = (await turned_away(here, fault))["status"]["message"]["parts"]
        assert words["text"].endswith(URL)
        assert (data["data"]["params"]["mode"], data["data"]["params"]["url"]) == ("url", URL)


@pytest.mark.parametrize("fault", TURNED_AWAY)
@pytest.mark.parametrize("answer", ["done", "I did", {"action": "accept"}])
async def test_the_next_message_has_the_same_done_once_more(fault: Fault, answer: Any) -> None:
    async with hall() as here:
        task = await turned_away(here, fault)
        here.office.answer_at_once()
        done = await here.task("SendMessage", next_message(task, answer))
        assert (done["id"], done["status"]["state"]) == (task["id"], "TASK_STATE_COMPLETED")
        assert [bytes(inflight.call.arguments) for inflight in here.office.sent] == [b'{"path": "/x"}'] * 2
        assert [said["messageId"] for said in done["history"]] == ["m1", f"{task['id']}-question-1", "m2"]


async def test_another_instruction_takes_the_place_of_the_one_that_waited() -> None:
    async with hall() as here:
        task = await turned_away(here, TURNED_AWAY[0])
        here.office.answer_at_once()
        await here.task("SendMessage", next_message(task, {"tool": "files.write", "arguments": {"a": 1}}))
        assert [inflight.name for inflight in here.office.sent] == ["read", "write"]


async def test_a_server_that_lists_nothing_before_is_waited_for_too() -> None:
    async with hall() as here:
        hub = here.office.hub
        bank = ServerQueue(ServerName("bank"), hub.limits)
        hub.open_server_queue(bank, ServerStatus(bank.server, "retrying", is_settled=True))
        bank.detach("nobody is there", is_failure=True)
        gone = await here.task("SendMessage", run("bank.pay"))
        assert gone["status"]["state"] == "TASK_STATE_FAILED"
        bank.detach("HTTP 401", is_failure=True, login=URL)
        task = await here.task("SendMessage", run("bank.pay", "m2"))
        assert task["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
        assert task["status"]["message"]["parts"][1]["data"]["params"]["url"] == URL
        again = await here.task("SendMessage", next_message(task, id="m3"))
        assert again["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
        bank.attach(here.office.stage.link)
        hub.publish(ready(tool("pay", "bank"), server="bank"))
        here.office.answer_at_once()
        done = await here.task("SendMessage", next_message(task, id="m4"))
        assert done["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_caller_without_a_login_is_asked_again() -> None:
    async with hall() as here:
        task = await turned_away(here, TURNED_AWAY[0])
        again = await turned_away(here, TURNED_AWAY[0], next_message(task))
        assert again["id"] == task["id"]
        assert len(here.office.sent) == 2


@pytest.mark.parametrize("answer", ["no", {"action": "decline"}, {"action": "cancel"}])
async def test_a_caller_that_declines_the_login_ends_the_task(answer: Any) -> None:
    async with hall() as here:
        task = await turned_away(here, TURNED_AWAY[0])
        done = await here.task("SendMessage", next_message(task, answer))
        assert done["status"]["state"] == "TASK_STATE_CANCELED"
        assert len(here.office.sent) == 1


async def test_it_can_be_given_up() -> None:
    async with hall() as here:
        task = await turned_away(here, TURNED_AWAY[0])
        assert (await here.task("CancelTask", {"id": task["id"]}))["status"]["state"] == "TASK_STATE_CANCELED"


async def test_it_waits_longer_than_the_hub_lives() -> None:
    async with hall() as here:
        office = here.office
        task = await turned_away(here, TURNED_AWAY[0])
        office.engine = TaskEngine(office.hub, office.journal, office.now)
        assert await office.engine.recover() == []
        pushing = PushNotifications(office.engine, office.courier, lambda _: False)
        here.frontend.service = A2aService(
            office.hub, office.engine, office.journal, A2aSettings(), office.now, pushing
        )
        office.answer_at_once()
        done = await here.task("SendMessage", next_message(task))
        assert done["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_server_that_asks_for_it_while_it_works_is_answered() -> None:
    async with hall() as here:
        replies: list[Reply] = []
        async with here.following("SendStreamingMessage", run()) as events:
            task = (await events.item())["task"]
            here.office.sent[0].ask(Question("elicitation/create", raw(VISIT)), replies.append)
            (_, last), *_ = reversed(await events.rest())
            assert last["result"]["statusUpdate"]["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
        async with here.following("SendStreamingMessage", next_message(task)) as events:
            await events.item()
            assert replies == [Answered(Raw(b'{"action":"accept"}'))]
            here.office.finish()
            await events.rest()
        assert len(here.office.sent) == 1
