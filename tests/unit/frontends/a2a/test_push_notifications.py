"""Push settings as callers send them in each generation, and the notifications sent."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from isthmus.core.tasks.live_task import LiveTask
from isthmus.core.tasks.push_delivery import DELIVERY, delivery_of
from isthmus.core.tasks.record import PushRecipient, StoredOutcome, TaskRecord, owner_of, record_of
from isthmus.credentials.sealing import ProcessSealer
from isthmus.frontends.a2a.push_notifications import (
    RECIPIENTS_MAX,
    SECRET_LENGTH_MAX,
    URL_LENGTH_MAX,
    PushNotifications,
    flaw_in,
    write_letters,
)
from isthmus.model.tasks import Message, TextPart
from isthmus.transport.http_client import header_lines
from isthmus.wire.a2a.operations import (
    A2aProblem,
    CreatePushConfig,
    DeletePushConfig,
    GetPushConfig,
    ListPushConfigs,
    PushConfig,
    PushConfigPage,
)
from tests.unit.core.doubles import ANYONE, raw
from tests.unit.core.tasks.doubles import HeldJournal, turns, until
from tests.unit.frontends.a2a.doubles import NOW, OTHER, Hall, Office, hall, message, run
from tests.unit.frontends.a2a.test_service import RUN, saying

URL = "https://ann.example/hook"
ANN = PushConfig(URL, "ann", "a-token", "Bearer", "a-credential")
KEPT = PushRecipient("ann", URL, "1.0", "a-token", "Bearer", "a-credential")


async def begun(office: Office, **more: Any) -> LiveTask:
    live = await office.a2a_service.send(ANYONE, "1.0", saying(RUN, **more))
    assert isinstance(live, LiveTask), live
    return live


async def named(office: Office, live: LiveTask, target: PushConfig) -> PushConfig | A2aProblem:
    return await office.pushing.set(ANYONE, "1.0", CreatePushConfig(live.record.id, target))


async def listed(office: Office, live: LiveTask, **more: Any) -> list[str]:
    page = await office.pushing.list(ANYONE, ListPushConfigs(live.record.id, **more))
    assert isinstance(page, PushConfigPage), page
    return [target.id for target in page.targets]


# -- saying where ------------------------------------------------------------------------------------------------------


async def test_a_push_configuration_is_found_listed_and_deleted() -> None:
    office = Office()
    live = await begun(office)
    assert await named(office, live, ANN) == ANN
    assert await office.pushing.get(ANYONE, GetPushConfig(live.record.id, "ann")) == ANN
    assert await listed(office, live) == ["ann"]
    for _ in range(2):
        assert await office.pushing.delete(ANYONE, DeletePushConfig(live.record.id, "ann")) is None
        assert await listed(office, live) == []
    gone = await office.pushing.get(ANYONE, GetPushConfig(live.record.id, "ann"))
    assert isinstance(gone, A2aProblem)
    assert gone.kind == "task_not_found"


async def test_a_configuration_without_an_id_has_the_tasks_and_replaces_the_last_such() -> None:
    office = Office()
    live = await begun(office)
    first = await named(office, live, PushConfig(URL))
    assert first == PushConfig(URL, live.record.id)
    again = PushConfig("https://other.example/")
    await named(office, live, again)
    assert await office.pushing.get(ANYONE, GetPushConfig(live.record.id)) == replace(again, id=live.record.id)
    assert await listed(office, live) == [live.record.id]


async def test_of_two_concurrent_configurations_with_one_id_both_succeed_and_the_last_stays() -> None:
    office = Office()
    live = await begun(office)
    await turns()
    first, last = PushConfig(URL, "c"), PushConfig("https://other.example/", "c")
    assert [*await asyncio.gather(named(office, live, first), named(office, live, last))] == [first, last]
    assert await office.pushing.get(ANYONE, GetPushConfig(live.record.id, "c")) == last


async def test_a_task_that_has_ended_can_have_recipients_too() -> None:
    office = Office()
    live = await begun(office)
    office.finish()
    await turns()
    assert await named(office, live, ANN) == ANN
    found = await office.engine.find(owner_of(ANYONE), live.record.id)
    assert found is not None
    assert found.record.recipients == (KEPT,)
    assert (await office.journal.page(DELIVERY, live.record.owner.key, limit=9)).total == 0


async def test_a_task_that_is_called_back_as_another_while_an_address_is_looked_at_keeps_it_and_goes_on() -> None:
    async with hall() as here:
        office, looked = here.office, asyncio.Event()
        task = (await here.task("SendMessage", message("hm", "m0")))["id"]

        async def look(url: str, *, is_trusted: bool) -> str | None:
            await looked.wait()
            return None

        office.courier.refusal = look  # type: ignore[method-assign]
        setting = asyncio.ensure_future(office.pushing.set(ANYONE, "1.0", CreatePushConfig(task, ANN)))
        await turns()
        office.engine._store._cache.drop((owner_of(ANYONE).key, task))
        await here.task("SendMessage", run(id="m1", said={"taskId": task}, **NOW))
        await office.until_sent()
        looked.set()
        assert await setting == ANN
        await here.rpc("CancelTask", {"id": task})
        await turns()
        assert office.sent[0].outcome is not None
        found = await office.journal.read("task", owner_of(ANYONE).key, task)
        assert found is not None
        assert (found.state, record_of(found).recipients) == ("canceled", (KEPT,))


async def test_there_is_a_number_that_is_enough() -> None:
    office = Office()
    live = await begun(office)
    for number in range(RECIPIENTS_MAX):
        assert isinstance(await named(office, live, PushConfig(URL, str(number))), PushConfig)
    refused = await named(office, live, ANN)
    assert isinstance(refused, A2aProblem)
    assert (refused.kind, await listed(office, live)) == ("invalid_params", [str(each) for each in range(10)])
    # One of them may still be replaced.
    assert await named(office, live, replace(ANN, id="3")) == replace(ANN, id="3")


async def test_lists_come_in_pages() -> None:
    office = Office()
    live = await begun(office)
    for number in range(5):
        await named(office, live, PushConfig(URL, str(number)))
    pages, token = [], ""
    while True:
        page = await office.pushing.list(ANYONE, ListPushConfigs(live.record.id, 2, token))
        assert isinstance(page, PushConfigPage)
        pages.append([target.id for target in page.targets])
        if not (token := page.next_token):
            break
    assert pages == [["0", "1"], ["2", "3"], ["4"]]
    for odd in ("x", "-1", "٣", "999999999"):
        refused = await office.pushing.list(ANYONE, ListPushConfigs(live.record.id, 2, odd))
        assert isinstance(refused, A2aProblem)
        assert refused.kind == "invalid_params"


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (PushConfig("https://no.example/"), "may not be dialled"),
        (PushConfig("https://a/" + "x" * URL_LENGTH_MAX), "longer than"),
        (replace(ANN, token="x" * (SECRET_LENGTH_MAX + 1)), "token is longer"),
        (replace(ANN, credentials="x" * (SECRET_LENGTH_MAX + 1)), "credentials is longer"),
        (replace(ANN, token="a\r\nx-evil: 1"), "token has characters"),
        (replace(ANN, credentials="a\nb"), "credentials has characters"),
        (replace(ANN, credentials="snow ☃"), "credentials has characters"),
        (replace(ANN, scheme="Bearer x"), "not a valid name"),
        (replace(ANN, scheme="B:\r\nx"), "not a valid name"),
    ],
)
async def test_an_unusable_push_target_is_refused_and_no_task_begins(target: PushConfig, why: str) -> None:
    office = Office()
    sent = await office.a2a_service.send(ANYONE, "1.0", saying(RUN, push=target))
    assert isinstance(sent, A2aProblem)
    assert office.sent == []
    live = await begun(office)
    response = await named(office, live, target)
    for problem in (sent, response):
        assert isinstance(problem, A2aProblem)
        assert problem.kind == "invalid_params"
        assert why in problem.message
        assert "evil" not in problem.message
    assert await listed(office, live) == []


SECRETS = some.text(some.characters(max_codepoint=300), max_size=20)


@given(SECRETS, SECRETS, SECRETS)
def test_accepted_push_settings_stay_on_their_header_lines(token: str, scheme: str, credentials: str) -> None:
    target = PushConfig(URL, "i", token or None, scheme or None, credentials or None)
    if flaw_in(target) is None:
        [letter] = write_letters(PushRecipient("i", URL, "0.3", token, scheme, credentials), RECORD, "mark")
        assert len(header_lines(letter.headers).split(b"\r\n")) == len(letter.headers) + 1


async def test_a_listed_private_address_is_for_callers_that_may_name_targets() -> None:
    office = Office()
    live = await begun(office)
    private = PushConfig("http://private.example/", "i")
    assert isinstance(await named(office, live, private), A2aProblem)
    trusted = replace(ANYONE, may_name_targets=True)
    assert await office.pushing.set(trusted, "1.0", CreatePushConfig(live.record.id, private)) == private
    assert [each.is_trusted for each in live.record.recipients] == [True]


async def test_another_callers_task_is_not_found() -> None:
    office = Office()
    live = await begun(office)
    await named(office, live, ANN)
    task = live.record.id
    pushing = office.pushing
    for problem in (
        await pushing.set(OTHER, "1.0", CreatePushConfig(task, ANN)),
        await pushing.get(OTHER, GetPushConfig(task, "ann")),
        await pushing.list(OTHER, ListPushConfigs(task)),
        await pushing.delete(OTHER, DeletePushConfig(task, "ann")),
    ):
        assert isinstance(problem, A2aProblem)
        assert (problem.kind, problem.message) == ("task_not_found", f"Task not found: {task}")
    assert await listed(office, live) == ["ann"]


async def test_a_push_setting_that_cannot_be_stored_is_not_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = HeldJournal()
    journal.is_held = False
    office = Office(journal=journal)
    live = await begun(office)
    journal.is_held = True
    monkeypatch.setattr("isthmus.core.tasks.engine.STORE_SECONDS", 0.0)
    refused = await named(office, live, ANN)
    assert isinstance(refused, A2aProblem)
    assert refused.kind == "internal"
    assert await listed(office, live) == []


# -- with a message ----------------------------------------------------------------------------------------------------


async def due(office: Office) -> list[tuple[str, int]]:
    found = await office.journal.all_in(DELIVERY, ("due",), limit=99)
    return [(delivery_of(each).recipient, delivery_of(each).number) for each in found]


async def test_a_message_may_name_the_push_address_of_its_task() -> None:
    office = Office()
    live = await begun(office, push=PushConfig(URL))
    assert live.record.recipients == (PushRecipient(live.record.id, URL, "1.0"),)
    office.finish()
    await turns()
    assert await due(office) == [(live.record.id, 1), (live.record.id, 2)]


async def test_a_later_message_of_the_task_may_say_so_too() -> None:
    office = Office()
    waiting = await office.a2a_service.send(ANYONE, "1.0", saying("please"))
    assert isinstance(waiting, LiveTask)
    went_on = await office.a2a_service.send(ANYONE, "0.3", saying(RUN, "m2", task=waiting.record.id, push=ANN))
    assert went_on is waiting
    assert waiting.record.recipients == (replace(KEPT, form="0.3"),)
    await until(lambda: bool(office.sent))
    office.finish()
    await turns()
    assert [recipient for recipient, _ in await due(office)] == ["ann"]


# -- over the wire -----------------------------------------------------------------------------------------------------


async def test_the_words_of_1_0() -> None:
    async with hall() as here:
        task = (await here.task("SendMessage", run(**NOW)))["id"]
        proof = {"scheme": "Bearer", "credentials": "c"}
        config = {"taskId": task, "id": "i", "url": URL, "token": "t", "authentication": proof}
        assert (await here.rpc("CreateTaskPushNotificationConfig", config))["result"] == config
        names = {"taskId": task, "id": "i"}
        assert (await here.rpc("GetTaskPushNotificationConfig", names))["result"] == config
        page = (await here.rpc("ListTaskPushNotificationConfigs", {"taskId": task}))["result"]
        assert page == {"configs": [config]}
        assert (await here.rpc("DeleteTaskPushNotificationConfig", names))["result"] == {}
        assert (await here.rpc("GetTaskPushNotificationConfig", names))["error"]["code"] == -32001


async def test_the_words_of_1_0_over_plain_http() -> None:
    async with hall() as here:
        task = (await here.task("SendMessage", run(**NOW)))["id"]
        path = f"/a2a/rest/tasks/{task}/pushNotificationConfigs"
        made = await plain(here, path, {"url": URL, "id": "i"})
        assert made == {"url": URL, "id": "i", "taskId": task}
        assert await plain(here, f"{path}/i") == made
        assert await plain(here, path) == {"configs": [made]}
        answer = await here.ask(f"{path}/i", "A2A-Version: 1.0", method="DELETE")
        assert (answer.status, json.loads(answer.body)) == (200, {})


async def plain(here: Hall, path: str, body: Any = None) -> Any:
    """The answer to a request of the plain binding."""
    content = b"" if body is None else json.dumps(body).encode()
    lines = ("A2A-Version: 1.0", "Content-Type: application/json")
    answer = await here.ask(path, *lines, method="GET" if body is None else "POST", body=content)
    assert answer.status == 200, answer
    return json.loads(answer.body)


async def test_the_words_of_0_3() -> None:
    async with hall() as here:
        task = (await here.task("SendMessage", run(**NOW)))["id"]
        config = {"url": URL, "id": "i", "authentication": {"schemes": ["Bearer"], "credentials": "c"}}
        whole = {"taskId": task, "pushNotificationConfig": config}
        verb = "tasks/pushNotificationConfig"
        assert (await here.rpc(f"{verb}/set", whole))["result"] == whole
        assert (await here.rpc(f"{verb}/get", {"id": task}))["result"] == whole
        assert (await here.rpc(f"{verb}/list", {"id": task}))["result"] == [whole]
        names = {"id": task, "pushNotificationConfigId": "i"}
        assert (await here.rpc(f"{verb}/delete", names))["result"] is None
        assert (await here.rpc(f"{verb}/get", {"id": task}))["error"]["code"] == -32001


async def test_the_words_of_0_1() -> None:
    async with hall() as here:
        task = (await here.task("SendMessage", run(**NOW)))["id"]
        whole = {"id": task, "pushNotificationConfig": {"url": URL, "token": "t"}}
        assert (await here.rpc("tasks/pushNotification/set", whole))["result"] == whole
        assert (await here.rpc("tasks/pushNotification/get", {"id": task}))["result"] == whole


async def test_the_card_says_that_it_can() -> None:
    async with hall() as here:
        for path in ("/.well-known/agent-card.json", "/.well-known/agent.json"):
            card = json.loads((await here.ask(path)).body)
            assert card["capabilities"]["pushNotifications"] is True
        vault = json.loads((await here.ask("/agent-card.json")).body)
        assert vault["capabilities"]["supportsPushNotifications"] is True


# -- what is sent ------------------------------------------------------------------------------------------------------

SAID = (Message("m", "user", (TextPart("please"),)),)
RECORD = TaskRecord("t", owner_of(ANYONE), "talk", "1.0", "submitted", 1.0, 1.0, said=SAID)
DONE = replace(
    RECORD,
    state="completed",
    updated=2.0,
    version=2,
    phase="over",
    ending=StoredOutcome(raw({"content": [{"type": "text", "text": "done"}], "n": 12345678901234567890})),
)


def letters(form: str, record: TaskRecord, *secrets: str) -> list[tuple[dict[str, str], Any]]:
    token, scheme, credentials = secrets or ("", "", "")
    recipient = PushRecipient("i", URL, form, token, scheme, credentials)
    return [(dict(each.headers), json.loads(each.body)) for each in write_letters(recipient, record, "mark")]


def test_since_1_0_each_change_is_sent_as_a_stream_would() -> None:
    [(headers, first)] = letters("1.0", RECORD)
    assert headers == {
        "content-type": "application/a2a+json",
        "x-a2a-notification-id": "mark-0",
        "x-a2a-notification-time": "1970-01-01T00:00:01.000+00:00",
    }
    assert list(first) == ["task"]
    (_, made), (second, status) = letters("1.0", DONE)
    assert made["artifactUpdate"]["artifact"]["parts"][0] == {"text": "done"}
    assert made["artifactUpdate"]["lastChunk"] is True
    assert status["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert second["x-a2a-notification-id"] == "mark-1"


@pytest.mark.parametrize("form", ["0.3", "0.1", "agentvault"])
def test_before_that_the_whole_task_is_sent(form: str) -> None:
    [(headers, received)] = letters(form, DONE)
    assert headers["content-type"] == "application/json"
    assert received["id"] == "t"
    assert (received.get("state") or received["status"]["state"]).lower() == "completed"


def test_pushes_carry_their_token_and_credentials() -> None:
    [(headers, _)] = letters("0.3", DONE, "t", "Bearer", "c")
    assert (headers["x-a2a-notification-token"], headers["authorization"]) == ("t", "Bearer c")
    [(bare, _)] = letters("0.3", DONE, "", "Bearer", "")
    assert bare.keys() == {"content-type", "x-a2a-notification-id", "x-a2a-notification-time"}


def test_an_unsupported_generation_is_notified_in_another_form() -> None:
    [(_, received)] = letters("0.0", DONE)
    assert received["kind"] == "task"


# -- what is kept of it ------------------------------------------------------------------------------------------------


async def test_a_push_credential_is_stored_sealed_and_sent_to_its_caller_and_recipient_unchanged() -> None:
    office = Office()
    pushing = PushNotifications(office.engine, office.courier, lambda _: False, ProcessSealer())
    live = await begun(office)
    assert await pushing.set(ANYONE, "1.0", CreatePushConfig(live.record.id, ANN)) == ANN
    document = await office.journal.read("task", *live.key)
    assert document is not None
    assert b"a-token" not in (document.body or b"")
    assert b"a-credential" not in (document.body or b"")
    assert b"/hook" not in (document.body or b"")
    assert await pushing.get(ANYONE, GetPushConfig(live.record.id, "ann")) == ANN
    (kept,) = record_of(document).recipients
    assert replace(pushing.opened(kept, live.record.id), host="") == KEPT
    assert kept.host == "ann.example"


def test_a_proof_that_was_moved_to_another_address_is_sent_nowhere() -> None:
    office_less: Any = None
    pushing = PushNotifications(office_less, office_less, lambda _: False, ProcessSealer())
    kept = pushing.recipient(ANYONE, "1.0", ANN, "t")
    moved = pushing.opened(replace(kept, url="https://eve.example/hook"), "t")
    assert (moved.token, moved.credentials) == ("", "")


def test_a_push_address_moved_to_another_task_does_not_open() -> None:
    office_less: Any = None
    pushing = PushNotifications(office_less, office_less, lambda _: False, ProcessSealer())
    kept = pushing.recipient(ANYONE, "1.0", ANN, "t")
    assert pushing.opened(kept, "t").url == URL
    moved = pushing.opened(kept, "u")
    assert (moved.url, moved.token, moved.credentials) == ("", "", "")


def test_push_settings_stored_unsealed_by_earlier_hubs_still_work() -> None:
    office_less: Any = None
    assert PushNotifications(office_less, office_less, lambda _: False, ProcessSealer()).opened(KEPT, "t") == KEPT
