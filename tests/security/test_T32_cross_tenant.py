"""T32: callers of one tenant see, change or find out about tasks, sessions and settings of another's.

Answer: whatever a caller leaves in the hub is filed under its tenant and its name, and looked up by these first; an id
of somebody else's is one that does not exist, byte for byte; lists, their totals and their cursors are of one owner.
Shown by a machine that makes up programs of callers of three tenants, with namesakes in each, against a model that says
who may see what: 300 programs here, 10,000 with ISTHMUS_SOAK=1. It runs the hub in this process, with its real
frontends; what happens over sockets is shown beside it (`tests/frontends/test_a2a_owners.py`, T07).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.security.tenants import Said, World

PROGRAMS = 10_000 if os.environ.get("ISTHMUS_SOAK") == "1" else 300
STEPS = 8

V1 = {"a2a-version": "1.0"}
TENANTS, NAMES = ("red", "blue", "green"), ("ann", "bob")
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
NOBODYS = "f" * 32

actors = st.integers(0, len(TENANTS) * len(NAMES) - 1)
picks = st.integers(0, 63)
"""Which of all that there is so far, if there is anything."""


def rpc(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


class Callers(RuleBasedStateMachine):
    """Programs of six callers; all of each program's callers are new to the hub."""

    world: ClassVar[World]
    programs: ClassVar[int] = 0

    @initialize()
    def come(self) -> None:
        Callers.programs += 1
        self.people = [f"{tenant}/{name}{Callers.programs}" for tenant in TENANTS for name in NAMES]
        self.tasks: list[tuple[str, str]] = []
        """Tasks of the agent: whose, and by which id."""
        self.kept: list[tuple[str, str]] = []
        """The same of MCP."""
        self.sessions: list[tuple[str, str]] = []
        self.contexts: list[str] = []
        self.pushes: set[tuple[str, str]] = set()
        """Those tasks that have a recipient."""
        self.cursors: list[str] = []
        self.lines: dict[str, list[str]] = {}

    # -- helpers -----------------------------------------------------------------------------------------------------

    def agent(self, who: str, method: str, params: dict[str, Any]) -> Said:
        return self.world.request(who, "/a2a", rpc(method, params), headers=V1)

    def mcp(self, who: str, method: str, params: dict[str, Any], session: str | None = None) -> Said:
        headers = {} if session is None else {"mcp-session-id": session}
        return self.world.request(who, "/mcp", rpc(method, params), headers=headers)

    def as_unknown(self, said: Said, id: str, ask: Callable[[str], Said]) -> None:
        """Another caller's object gets the same answer as a missing one."""
        assert said.without(id) == ask(NOBODYS).without(NOBODYS)
        assert said.result is None

    def own(self, things: list[tuple[str, str]], who: str) -> list[str]:
        return [id for owner, id in things if owner == who]

    # -- tasks of the agent ------------------------------------------------------------------------------------------

    @rule(at=actors, is_run=st.booleans(), pick=picks)
    def begin(self, at: int, pick: int, *, is_run: bool) -> None:
        who = self.people[at]
        word = self.world.word(who)
        run = {"data": {"tool": "builtin.echo", "arguments": {"text": word}}}
        message: dict[str, Any] = {"messageId": "m1", "role": "ROLE_USER", "parts": [run if is_run else {"text": word}]}
        if self.contexts and pick % 2:
            message["contextId"] = self.contexts[pick % len(self.contexts)]  # perhaps another's
        task = self.agent(who, "SendMessage", {"message": {**message, "messageId": word}}).result["task"]
        self.tasks.append((who, task["id"]))
        self.contexts.append(task["contextId"])

    @rule(at=actors, pick=picks)
    def begin_by_a_name_of_ones_own(self, at: int, pick: int) -> None:
        """The first generation names its tasks itself: also like a task of another caller."""
        who = self.people[at]
        id = self.tasks[pick % len(self.tasks)][1] if self.tasks and pick % 2 else f"task-{pick}"
        said = {"role": "user", "parts": [{"type": "text", "text": self.world.word(who)}]}
        answer = self.world.request(who, "/a2a", rpc("tasks/send", {"id": id, "message": said}))
        if answer.result is not None and (who, id) not in self.tasks:
            self.tasks.append((who, id))

    @rule(at=actors, pick=picks, method=st.sampled_from(["GetTask", "CancelTask", "SubscribeToTask"]))
    def ask_about(self, at: int, pick: int, method: str) -> None:
        if not self.tasks:
            return
        who, (_, id) = self.people[at], self.tasks[pick % len(self.tasks)]
        said = self.agent(who, method, {"id": id})
        if (who, id) not in self.tasks:
            self.as_unknown(said, id, lambda nobodys: self.agent(who, method, {"id": nobodys}))
        elif method == "GetTask":
            assert said.result["id"] == id

    @rule(at=actors, size=st.integers(1, 3), pick=picks)
    def list_all(self, at: int, size: int, pick: int) -> None:
        who = self.people[at]
        pages = list(self.pages(who, {"pageSize": size}))
        assert sorted(task["id"] for page in pages for task in page["tasks"]) == sorted(self.own(self.tasks, who))
        assert {page["totalSize"] for page in pages} == {len(self.own(self.tasks, who))}
        if self.contexts:
            context = self.contexts[pick % len(self.contexts)]
            found = self.agent(who, "ListTasks", {"contextId": context}).result["tasks"]
            assert {task["id"] for task in found} <= set(self.own(self.tasks, who))

    def pages(self, who: str, params: dict[str, Any]) -> Iterator[Any]:
        token = ""
        while True:
            page = self.agent(who, "ListTasks", {**params, **({"pageToken": token} if token else {})}).result
            yield page
            token = page.get("nextPageToken", "")
            if not token:
                return
            self.cursors.append(token)

    @rule(at=actors, pick=picks)
    def list_by_a_cursor_of_anybodys(self, at: int, pick: int) -> None:
        if self.cursors:
            who = self.people[at]
            said = self.agent(who, "ListTasks", {"pageToken": self.cursors[pick % len(self.cursors)]})
            if said.result is not None:
                assert {task["id"] for task in said.result["tasks"]} <= set(self.own(self.tasks, who))
                assert said.result["totalSize"] == len(self.own(self.tasks, who))

    @rule(at=actors, pick=picks, what=st.sampled_from(["Create", "Get", "List", "Delete"]))
    def push(self, at: int, pick: int, what: str) -> None:
        if not self.tasks:
            return
        who, (_, id) = self.people[at], self.tasks[pick % len(self.tasks)]

        def ask(task: str) -> Said:
            params = {"taskId": task} if what == "List" else {"taskId": task, "id": "p"}
            if what == "Create":
                params["url"] = f"https://hook.example/{who.replace('/', '-')}"
            return self.agent(who, f"{what}TaskPushNotificationConfig{'s' if what == 'List' else ''}", params)

        said = ask(id)
        if (who, id) not in self.tasks:
            self.as_unknown(said, id, ask)
        elif what == "Create" and said.result is not None:
            self.pushes.add((who, id))
        elif what == "Delete":
            self.pushes.discard((who, id))
        elif what == "List":
            assert len(said.result.get("configs", [])) == ((who, id) in self.pushes)

    # -- sessions and tasks of MCP -----------------------------------------------------------------------------------

    @rule(at=actors)
    def open_session(self, at: int) -> None:
        who = self.people[at]
        said = self.mcp(who, "initialize", HELLO)
        (line,) = (line for line in said.lines.split(b"\r\n") if line.startswith(b"mcp-session-id: "))
        self.sessions.append((who, line.partition(b": ")[2].decode()))

    def session_for(self, who: str, pick: int) -> str | None:
        """A session, perhaps another's; None if there is none, or it is: then nothing is done by it."""
        if not self.sessions:
            return None
        owner, session = self.sessions[pick % len(self.sessions)]
        if owner == who:
            return session
        said = self.mcp(who, "tools/list", {}, session)
        assert said == self.mcp(who, "tools/list", {}, NOBODYS)
        assert said.status == 404
        ended = self.world.request(who, "/mcp", method="DELETE", headers={"mcp-session-id": session})
        assert ended == self.world.request(who, "/mcp", method="DELETE", headers={"mcp-session-id": NOBODYS})
        assert "result" in self.mcp(owner, "tools/list", {}, session).json, "it is its owner's still"
        return None

    @rule(at=actors, pick=picks)
    def begin_task(self, at: int, pick: int) -> None:
        who = self.people[at]
        if (session := self.session_for(who, pick)) is not None:
            arguments = {"text": self.world.word(who)}
            params = {"name": "builtin.echo", "arguments": arguments, "task": {"ttl": 60_000}}
            self.kept.append((who, self.mcp(who, "tools/call", params, session).result["task"]["taskId"]))

    @rule(at=actors, pick=picks, method=st.sampled_from(["tasks/get", "tasks/result", "tasks/cancel"]))
    def ask_about_kept(self, at: int, pick: int, method: str) -> None:
        who = self.people[at]
        if self.kept and (session := self.session_for(who, pick)) is not None:
            owner, id = self.kept[pick % len(self.kept)]
            said = self.mcp(who, method, {"taskId": id}, session)
            if owner != who:
                self.as_unknown(said, id, lambda nobodys: self.mcp(who, method, {"taskId": nobodys}, session))

    @rule(at=actors, pick=picks)
    def list_kept(self, at: int, pick: int) -> None:
        who = self.people[at]
        if (session := self.session_for(who, pick)) is not None:
            listed = [task["taskId"] for task in self.mcp(who, "tasks/list", {}, session).result["tasks"]]
            assert sorted(listed) == sorted(self.own(self.kept, who))

    # -- what a tool keeps -------------------------------------------------------------------------------------------

    @rule(at=actors, does_write=st.booleans(), by_rest=st.booleans())
    def keep_a_line(self, at: int, *, does_write: bool, by_rest: bool) -> None:
        who = self.people[at]
        lines = self.lines.setdefault(who, [])
        arguments: dict[str, Any] = {}
        if does_write:
            arguments["message"] = self.world.word(who)
            lines.append(arguments["message"])
        if by_rest:
            received = self.world.request(who, "/v1/tools/builtin.chat_log", arguments).json
        else:
            received = self.mcp(who, "tools/call", {"name": "builtin.chat_log", "arguments": arguments}).result
        assert [line["message"] for line in received["structuredContent"]["lines"]] == lines[-20:]


@pytest.mark.timeout(3600 if PROGRAMS > 300 else 120)
def test_no_program_of_callers_of_three_tenants_finds_out_anything_of_anothers() -> None:
    Callers.world, Callers.programs = World(), 0
    try:
        run_state_machine_as_test(
            Callers,
            settings=settings(
                max_examples=PROGRAMS,
                stateful_step_count=STEPS,
                deadline=None,
                derandomize=True,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        Callers.world.close()
    assert Callers.programs >= PROGRAMS


def test_the_machine_finds_a_leak() -> None:
    """A word of another's in an answer is noticed, so that what is shown above could have failed."""
    world = World()
    try:
        word = world.word("red/ann")
        with pytest.raises(AssertionError, match="was told a word of red/ann"):
            world.request("blue/ann", "/v1/tools/builtin.echo", {"text": word})
    finally:
        world.close()
