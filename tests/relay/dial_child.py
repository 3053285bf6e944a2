"""A small MCP server on stdin and stdout for `isthmus dial`; it imports only fast modules.

`dial_child.py NAME`: `echo` gives its `text` back, `pid` its process, `hold` never answers (and makes a `file` if it is
named one), `ask` asks the caller for a colour (with `after`, once that file is there) and gives back what it said,
`count` says how often it was greeted, how many calls it holds and how many calls and tasks were withdrawn, `steps`
reports progress, `stick` stops reading for good. `work` is run as a task only, which is over when its result is asked
for; with `for_ever`, it is not. `touch` tells of an update of its one resource, if that is followed, and is `pid` else.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TOOLS = ("echo", "pid", "hold", "ask", "count", "steps", "stick", "touch")
MEMO = "memo://one"
WORK = {"name": "work", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}}
CAPABILITIES: dict[str, Any] = {
    "tools": {},
    "resources": {"subscribe": True},
    "tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}},
}
SCHEMA = {"type": "object", "properties": {"colour": {"type": "string"}}}


class Child:
    """One session."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.greeted = self.held = self.withdrawn = self.cancelled = 0
        self.asked: dict[str, Any] = {}
        self.is_followed = False

    def take(self, message: dict[str, Any]) -> None:
        """Handle a message of the parent."""
        if message.get("method") == "notifications/cancelled":
            self.withdrawn += 1
        elif "method" not in message:
            self.answered(message)
        elif "id" in message and (said := self.answer(message)) is not None:
            say({"id": message["id"], **said})

    def answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """What it says to a request; None for nothing now."""
        method, params = message["method"], message.get("params") or {}
        if method == "initialize":
            self.greeted += 1
            info = {"name": self.name, "version": "1.0"}
            version = params["protocolVersion"]
            return {"result": {"protocolVersion": version, "capabilities": CAPABILITIES, "serverInfo": info}}
        if method == "tools/list":
            return {"result": {"tools": [*({"name": tool, "inputSchema": {"type": "object"}} for tool in TOOLS), WORK]}}
        if method == "tools/call":
            return self.call(message["id"], params)
        if method in ("resources/list", "resources/templates/list"):
            return {"result": {"resources": [{"uri": MEMO, "name": "one"}], "resourceTemplates": []}}
        if method == "resources/subscribe":
            self.is_followed = True
        if method.startswith("tasks/"):
            return self.about_task(method, params["taskId"])
        return {"error": {"code": -32601, "message": f"no {method}"}} if method == "server/discover" else {"result": {}}

    def call(self, id: Any, params: dict[str, Any]) -> dict[str, Any] | None:
        """Run a tool."""
        match params["name"]:
            case "echo":
                return text(str(params.get("arguments", {}).get("text", "")))
            case "pid":
                return text(str(os.getpid()))
            case "count":
                received = f"greeted {self.greeted}, held {self.held}, withdrawn {self.withdrawn}"
                return text(f"{received}, cancelled {self.cancelled}" if self.cancelled else received)
            case "steps":
                for done in (1, 2):
                    report = {"progressToken": params["_meta"]["progressToken"], "progress": done}
                    say({"method": "notifications/progress", "params": report})
                return text("done")
            case "touch":
                if self.is_followed:
                    say({"method": "notifications/resources/updated", "params": {"uri": MEMO}})
                return text(str(os.getpid()))
            case "hold":
                self.held += 1
                if file := params.get("arguments", {}).get("file"):
                    open(file, "w").close()
            case "ask":
                self.asked[f"q{id}"] = id
                if after := params.get("arguments", {}).get("after"):
                    threading.Thread(target=ask_after, args=(f"q{id}", after), daemon=True).start()
                else:
                    ask(f"q{id}")
            case "work" if "task" not in params:
                return {"error": {"code": -32601, "message": "work is run as a task only"}}
            case "work":
                id = "for ever" if params.get("arguments") else "work"
                return {"result": {"task": {"taskId": id, "status": "working", "ttl": None}}}
            case "stick":
                time.sleep(600)
            case _:
                pass
        return None

    def about_task(self, method: str, id: str) -> dict[str, Any] | None:
        """What it says of a task."""
        if method == "tasks/cancel":
            self.cancelled += 1
            return {"result": {"taskId": id, "status": "cancelled"}}
        return None if id == "for ever" else text(f"{id} is done")

    def answered(self, message: dict[str, Any]) -> None:
        """The caller said something to a question."""
        said = message.get("result", message.get("error"))
        say({"id": self.asked.pop(message["id"]), **text(json.dumps(said))})


def ask(id: str) -> None:
    """Ask the caller for a colour."""
    question = {"message": "Which colour?", "requestedSchema": SCHEMA}
    say({"id": id, "method": "elicitation/create", "params": question})


def ask_after(id: str, file: str) -> None:
    """Say by a file beside it that this is waited for, and ask once it is there."""
    open(f"{file}.awaited", "w").close()
    while not os.path.exists(file):
        time.sleep(0.01)
    ask(id)


def text(said: str) -> dict[str, Any]:
    """A result that is this text."""
    return {"result": {"content": [{"type": "text", "text": said}]}}


def say(message: dict[str, Any]) -> None:
    """Write one message."""
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def main() -> None:
    """Serve until stdin ends."""
    child = Child(sys.argv[1])
    for line in sys.stdin:
        child.take(json.loads(line))


main()
