"""A server over stdio that runs its tool as a task, in the era that it is started in; ids are counted from one.

In the legacy era it has another one, `only`, which it runs in no other way.
Two of them give the same ids, and each says when asked what it was asked before. Its tool `do` makes it tell how a task
stands, say nothing more about tasks, forget them all, or die.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

TASKS = "io.modelcontextprotocol/tasks"
RELATED = "io.modelcontextprotocol/related-task"
VERSION = "2026-07-28"
TIMES = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z"}
TOOL = {"name": "slow", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "optional"}}
ONLY = {"name": "only", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}}
SEEN = {"name": "seen", "inputSchema": {"type": "object"}}
DO = {"name": "do", "inputSchema": {"type": "object"}}
STATUS = "notifications/tasks/status"
DONE = {"content": [{"type": "text", "text": "done"}]}
INFO = {"name": "tasks", "version": "1"}
LEGACY_TASKS: dict[str, Any] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
FORM = {"type": "object", "properties": {"ok": {"type": "boolean"}}}


class Refusal(Exception):
    """An error to answer with."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Server:
    """What both eras share: the tasks, and what was asked about them."""

    def __init__(self) -> None:
        self.tasks: dict[str, str] = {}
        self.seen: list[list[Any]] = []
        self.is_mute = False
        self.tokens: dict[str, Any] = {}
        """Of the progress that was asked for with each task."""

    def take(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """The answer to one message; None if there is none."""
        if "method" not in message or "id" not in message:
            return None
        params = message.get("params", {})
        if message["method"].startswith("tasks/"):
            self.seen.append([message["method"], params.get("taskId"), params.get("inputResponses")])
            if self.is_mute:
                return None
        try:
            end = {"result": self.answer(message["method"], params)}
        except Refusal as refusal:
            end = {"error": {"code": refusal.code, "message": str(refusal)}}
        return {"jsonrpc": "2.0", "id": message["id"], **end}

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result of a request."""
        raise NotImplementedError

    def created(self, params: dict[str, Any]) -> str:
        """A new task's id."""
        id = f"task-{len(self.tasks) + 1}"
        self.tokens[id] = params.get("_meta", {}).get("progressToken")
        self.tasks[id] = "working"
        return id

    def known(self, params: dict[str, Any]) -> str:
        """The task that a request is about."""
        if params["taskId"] not in self.tasks:
            raise Refusal(-32602, "no such task here")
        return str(params["taskId"])

    def do(self, arguments: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
        """Do what is wanted, and say with what `_meta` that was asked."""
        match arguments["what"]:
            case "hush":
                self.is_mute = True
            case "forget":
                self.tasks.clear()
            case "die":
                os._exit(1)
            case "tell":
                self.set_status(arguments["taskId"], arguments["status"], meta.get("progressToken"))
            case what:
                raise Refusal(-32602, f"do {what}?")
        return {"content": [], "structuredContent": {"meta": meta}}

    def set_status(self, id: str, status: str, token: Any) -> None:
        """Set a task's status, and report progress that relates to it."""
        self.tasks[id] = status

    def seen_result(self) -> dict[str, Any]:
        """The requests about tasks so far."""
        return {"content": [], "structuredContent": {"seen": self.seen}}


class LegacyServer(Server):
    """2025-11-25: the caller asks for a task."""

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """See `Server`."""
        match method:
            case "initialize":
                capabilities = {"tools": {}, "tasks": LEGACY_TASKS}
                return {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": INFO}
            case "tools/list":
                return {"tools": [TOOL, ONLY, SEEN, DO]}
            case "tools/call" if params["name"] == "seen":
                return self.seen_result()
            case "tools/call" if params["name"] == "do":
                return self.do(params["arguments"], params.get("_meta", {}))
            case "tools/call" if params["name"] == "only" and "task" not in params:
                raise Refusal(-32601, "only as a task")
            case "tools/call":
                return {"task": self.state(self.created(params))} if "task" in params else DONE
            case "tasks/get":
                return self.state(self.known(params))
            case "tasks/cancel":
                self.tasks[self.known(params)] = "cancelled"
                return self.state(params["taskId"])
            case "tasks/result":
                return self.result(self.known(params))
            case "ping":
                return {}
            case _:
                raise Refusal(-32601, "no")

    def set_status(self, id: str, status: str, token: Any) -> None:
        """See `Server`."""
        super().set_status(id, status, token)
        say({"jsonrpc": "2.0", "method": STATUS, "params": self.state(id)})
        for name in {token, self.tokens[id]} - {None}:
            params = {"progressToken": name, "progress": 1, "_meta": {RELATED: {"taskId": id}}}
            say({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})

    def state(self, id: str) -> dict[str, Any]:
        """A task as it is sent."""
        return {"taskId": id, "status": self.tasks[id], "ttl": 600_000, "pollInterval": 10, **TIMES}

    def result(self, id: str) -> dict[str, Any]:
        """Ask before the result is given, and give the answer with it."""
        meta = {RELATED: {"taskId": id}}
        params = {"message": "go on?", "requestedSchema": FORM, "_meta": meta}
        say({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": params})
        answer = self.answer_to("q")
        self.tasks[id] = "completed"
        return {**DONE, "structuredContent": {"heard": answer.get("result", "nothing")}, "_meta": meta}

    def answer_to(self, id: str) -> dict[str, Any]:
        """Wait for the answer to a question; other messages are handled meanwhile."""
        for line in sys.stdin:
            message: dict[str, Any] = json.loads(line)
            if message.get("id") == id and "method" not in message:
                return message
            if (answer := self.take(message)) is not None:
                say(answer)
        return {}


class ModernServer(Server):
    """2026-07-28 with the extension: the server decides."""

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """See `Server`."""
        if method == "server/discover":
            capabilities: dict[str, Any] = {"tools": {}, "extensions": {TASKS: {}}}
            kept = {"ttlMs": 0, "cacheScope": "private"}
            return typed({"supportedVersions": [VERSION], "capabilities": capabilities, **kept})
        if method == "tools/list":
            return typed({"tools": [TOOL, SEEN, DO], "ttlMs": 60_000, "cacheScope": "private"})
        if method == "tools/call" and params["name"] == "do":
            return typed(self.do(params["arguments"], params.get("_meta", {})))
        if method == "tools/call" and params["name"] == "seen":
            return typed(self.seen_result())
        received = params["_meta"]["io.modelcontextprotocol/clientCapabilities"].get("extensions", {})
        if method == "tools/call":
            return self.state(self.created(params), "task") if TASKS in received else typed(DONE)
        if TASKS not in received:
            raise Refusal(-32021, "the extension is needed")
        return self.about(method, self.known(params))

    def about(self, method: str, id: str) -> dict[str, Any]:
        """The result of a request about a task."""
        match method:
            case "tasks/get":
                return self.state(id, "complete")
            case "tasks/update":
                self.tasks[id] = "completed"
            case "tasks/cancel":
                self.tasks[id] = "cancelled"
            case _:
                raise Refusal(-32601, "no")
        return typed({})

    def state(self, id: str, kind: str) -> dict[str, Any]:
        """A task as it is sent."""
        received = {"taskId": id, "status": self.tasks[id], "ttlMs": 600_000, "pollIntervalMs": 10, **TIMES}
        end = {"result": typed(DONE)} if self.tasks[id] == "completed" else {}
        return {"resultType": kind, **received, **end}


def typed(result: dict[str, Any]) -> dict[str, Any]:
    """A modern result."""
    return {"resultType": "complete", **result}


def say(message: dict[str, Any]) -> None:
    """Write one message."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Answer until stdin ends."""
    server = ModernServer() if sys.argv[1] == "modern" else LegacyServer()
    for line in sys.stdin:
        if (answer := server.take(json.loads(line))) is not None:
            say(answer)


if __name__ == "__main__":
    main()
