"""Task status notifications to legacy callers: visible tasks only, and bounded."""

from __future__ import annotations

from isthmus.core.watch.server_tasks import LinkSession, ServerTask
from isthmus.frontends.mcp.subscriptions import McpClient, TaskStatusNotifier
from isthmus.frontends.mcp.tasks import public_id
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING, Surface
from isthmus.model.features import Ability
from isthmus.model.names import ServerName
from isthmus.model.tasks import ServerTaskState
from tests.unit.core.doubles import ANYONE, SERVER, raw, ready, tool
from tests.unit.frontends.mcp.doubles import Hosted, Talk

ABLE: frozenset[Ability] = frozenset({"tools", "tasks"})
HERE = LinkSession()
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


def state(status: str = "working") -> ServerTaskState:
    members = {"taskId": raw("t"), "status": raw(status)}
    return ServerTaskState("t", status, status == "completed", None, members)


def hosted(caller: Caller = ANYONE) -> Hosted:
    host = Hosted(ready(tool(), abilities=ABLE))
    host.hub.tasks.created(caller, SERVER, HERE, state())
    return host


async def test_a_caller_gets_the_status_of_its_tasks_until_it_leaves() -> None:
    host, received = hosted(), list[ServerTask]()
    news = TaskStatusNotifier(McpClient(host.hub, ANYONE, EVERYTHING), received.append)
    host.hub.tasks.notified(SERVER, HERE, state())
    news.close()
    host.hub.tasks.notified(SERVER, HERE, state("completed"))
    assert len(received) == 1


async def test_a_task_of_a_server_outside_this_surface_is_not_notified() -> None:
    blind = Caller(ANYONE.name, ANYONE.tenant, Grants(("other.*",)))
    host, received = hosted(), list[ServerTask]()
    TaskStatusNotifier(McpClient(host.hub, ANYONE, Surface("own", ServerName("other"))), received.append)
    TaskStatusNotifier(McpClient(host.hub, blind, EVERYTHING), received.append)
    host.hub.tasks.notified(SERVER, HERE, state("completed"))
    assert received == []


async def test_a_slow_reader_gets_changes() -> None:
    host, received = hosted(), list[str]()
    TaskStatusNotifier(
        McpClient(host.hub, ANYONE, EVERYTHING), lambda task: received.append(task.state.status), lambda: True
    )
    for status in ("working", "input_required", "input_required", "working", "completed"):
        host.hub.tasks.notified(SERVER, HERE, state(status))
    assert received == ["input_required", "working", "completed"]


async def test_a_conversation_is_notified_from_its_beginning_to_its_end() -> None:
    host = hosted()
    talk = Talk(host)
    await talk.ask("initialize", HELLO)
    host.hub.tasks.notified(SERVER, HERE, state())
    talk.say("notifications/initialized")
    host.hub.tasks.notified(SERVER, HERE, state("input_required"))
    talk.conversation.stop_notifying()
    host.hub.tasks.notified(SERVER, HERE, state("completed"))
    (received,) = talk.notifications()
    assert received["method"] == "notifications/tasks/status"
    assert received["params"] == {"taskId": public_id(ANYONE, SERVER, "t"), "status": "input_required"}
