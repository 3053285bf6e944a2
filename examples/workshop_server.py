"""An MCP server whose tools take their time and ask back, in plain Python: what agents are made to talk to.

`survey` reports its progress, `measure` is quick, `publish` asks its caller before it does anything. Each call runs in
a thread of its own, so that one which waits keeps nobody else waiting.
"""

import json
import sys
import threading
import time
from queue import Queue
from typing import Any

SOURCES = ("the library", "the archive", "the field notes")
STEP_SECONDS = 0.2

TEXT = {"type": "string"}
TOOLS = [
    {
        "name": "survey",
        "description": "Look a topic up in every source.",
        "inputSchema": {"type": "object", "properties": {"topic": TEXT}, "required": ["topic"]},
    },
    {
        "name": "measure",
        "description": "Count the words of a text, and give its weight times as many.",
        "inputSchema": {
            "type": "object",
            "properties": {"text": TEXT, "weight": {"type": "integer"}},
            "required": ["text"],
        },
    },
    {
        "name": "publish",
        "description": "Publish findings under a title, once somebody has agreed.",
        "inputSchema": {
            "type": "object",
            "properties": {"title": TEXT, "findings": {"type": "array", "items": TEXT}},
            "required": ["title", "findings"],
        },
    },
]
SIGNATURE = {"type": "object", "properties": {"signed_by": TEXT}, "required": ["signed_by"]}

waiting: dict[str, Queue] = {}
"""Questions of ours that have no answer yet."""

pen = threading.Lock()


def say(**message: Any) -> None:
    """Write one message."""
    with pen:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def ask(question: str, schema: dict) -> dict:
    """Ask the caller, and wait for what it says."""
    id = f"q{time.monotonic_ns()}"
    answer = waiting[id] = Queue()
    say(id=id, method="elicitation/create", params={"message": question, "requestedSchema": schema})
    return answer.get()


def survey(token: Any, topic: str) -> dict:
    """Go through the sources one by one."""
    for number, source in enumerate(SOURCES, 1):
        time.sleep(STEP_SECONDS)
        progress = {"progressToken": token, "progress": number, "total": len(SOURCES), "message": f"reading {source}"}
        if token is not None:
            say(method="notifications/progress", params=progress)
    return text(f"{topic}: mentioned in {', '.join(SOURCES)}")


def measure(_token: Any, text: str, weight: int = 1) -> dict:
    """Numbers stay exact, however large."""
    counted = {"words": len(text.split()), "weight": weight * len(text.split())}
    return {"content": [{"type": "text", "text": json.dumps(counted)}], "structuredContent": counted}


def publish(_token: Any, title: str, findings: list) -> dict:
    """Nothing is published that nobody signed."""
    answer = ask(f"Who signs “{title}” with its {len(findings)} findings?", SIGNATURE)
    if answer.get("action") != "accept":
        return text(f"“{title}” was not published") | {"isError": True}
    return text(f"“{title}”, signed by {answer['content']['signed_by']}: " + "; ".join(findings))


def text(said: str) -> dict:
    """A result of one text."""
    return {"content": [{"type": "text", "text": said}]}


def call(id: Any, params: dict) -> None:
    """Run a tool and say what came of it."""
    tool = {"survey": survey, "measure": measure, "publish": publish}[params["name"]]
    token = params.get("_meta", {}).get("progressToken")
    say(id=id, result=tool(token, **params.get("arguments", {})))


def answer(id: Any, method: str, params: dict) -> None:
    """Do what is asked."""
    match method:
        case "initialize":
            about = {"name": "workshop", "version": "1.0"}
            say(id=id, result={"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": about})
        case "ping":
            say(id=id, result={})
        case "tools/list":
            say(id=id, result={"tools": TOOLS})
        case "tools/call":
            threading.Thread(target=call, args=(id, params), daemon=True).start()
        case _:
            say(id=id, error={"code": -32601, "message": "no such method"})


for line in sys.stdin:
    message = json.loads(line)
    if "method" not in message:
        waiting.pop(message["id"]).put(message.get("result", {}))
    elif "id" in message:
        answer(message["id"], message["method"], message.get("params") or {})
