"""A server over stdio of 2025-11-25 without tasks, with slow tools.

`hold` is answered when `release` is called, wherever that comes from: it is told by a file. `seen` says what was begun,
given up and answered. Everything is one process's own, but for the files in the folder that it is started with.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

SCHEMA = {"type": "object", "properties": {"nonce": {"type": "string"}}}
FORM = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
NAMES = ("echo", "fail", "refuse", "hold", "ask", "late", "step")
STRICT = {"name": "strict", "inputSchema": {"type": "object", "required": ["much"]}}
WAIT_SECONDS = 0.01


class Server:
    """What was asked, and what goes on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        self.given_up: set[Any] = set()
        self.answers: dict[str, dict[str, Any]] = {}
        self.changed = threading.Condition()

    def say(self, **message: Any) -> None:
        """Write one message."""
        with self.lock:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            sys.stdout.flush()

    def note(self, word: str, nonce: str) -> None:
        """Write down that something happened, for tests to see."""
        with self.lock, (self.folder / "ledger").open("a") as ledger:
            ledger.write(f"{word} {nonce}\n")

    def take(self, message: dict[str, Any]) -> None:
        """Take one message."""
        if "method" not in message:
            with self.changed:
                self.answers[message["id"]] = message
                self.changed.notify_all()
        elif message["method"] == "notifications/cancelled":
            self.note("cancelled", str(message["params"].get("reason", "")))
            self.given_up.add(message["params"]["requestId"])
        elif message["method"] == "tools/call":
            threading.Thread(target=self.call, args=(message,), daemon=True).start()
        elif "id" in message:
            self.answer(message["id"], message["method"])

    def answer(self, id: Any, method: str) -> None:
        """Answer what is no call."""
        info = {"name": "plain", "version": "1"}
        results: dict[str, Any] = {
            "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info},
            "tools/list": {"tools": [*({"name": name, "inputSchema": SCHEMA} for name in NAMES), STRICT]},
            "ping": {},
        }
        if method in results:
            self.say(id=id, result=results[method])
        else:
            self.say(id=id, error={"code": -32601, "message": "no"})

    def call(self, message: dict[str, Any]) -> None:
        """Run a tool."""
        id, params = message["id"], message["params"]
        nonce = params.get("arguments", {}).get("nonce", "")
        self.note(params["name"], nonce)
        done: dict[str, Any] = {"content": [{"type": "text", "text": nonce}]}
        match params["name"]:
            case "refuse":
                self.say(id=id, error={"code": -32099, "message": "not today", "data": {"why": "holiday"}})
                return
            case "fail":
                done["isError"] = True
            case "hold":
                self.wait(id, nonce)
            case "ask" | "late":
                if params["name"] == "late":
                    self.wait(id, nonce)
                done["structuredContent"] = {"heard": self.ask(nonce)}
            case "step":
                token = params.get("_meta", {}).get("progressToken")
                self.say(method="notifications/progress", params={"progressToken": token, "progress": 1, "total": 2})
                self.wait(id, nonce)
            case _:
                pass
        if id not in self.given_up:
            self.say(id=id, result=done)

    def wait(self, id: Any, nonce: str) -> None:
        """Until it is released, or given up."""
        event = threading.Event()
        while not (self.folder / f"release-{nonce}").exists() and id not in self.given_up:
            event.wait(WAIT_SECONDS)

    def ask(self, nonce: str) -> Any:
        """Ask the caller, and return its answer."""
        key = f"question-{nonce}"
        self.say(id=key, method="elicitation/create", params={"message": f"go on, {nonce}?", "requestedSchema": FORM})
        with self.changed:
            self.changed.wait_for(lambda: key in self.answers)
        answer = self.answers[key]
        return answer.get("result", answer.get("error"))


def main() -> None:
    """Answer until stdin ends."""
    server = Server(Path(sys.argv[1]))
    for line in sys.stdin:
        server.take(json.loads(line))


if __name__ == "__main__":
    main()
