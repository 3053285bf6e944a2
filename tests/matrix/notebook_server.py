"""A server of the earlier era over stdio with pages that belong to one process; other processes do not see them.

`touch` writes on a page, tells so if it was asked to, and only then answers. On SIGUSR1 it tells of its first page as
if that had changed for everybody. What each process is asked is written to a file, in order, with its pid.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

PAGE = "notebook://page"
MARK = "notebook://mark"


class Notebook:
    """One process."""

    def __init__(self, ledger: str) -> None:
        self._ledger = ledger
        self._written = {PAGE: 0, MARK: 0}
        self._watched: set[str] = set()

    def say(self, **message: Any) -> None:
        """Write a message."""
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

    def note(self, *words: str) -> None:
        """Write down what happens here."""
        with open(self._ledger, "a", encoding="utf-8") as file:
            file.write(" ".join([str(os.getpid()), *words]) + "\n")

    def announce(self, uri: str) -> None:
        """Say that a page was written on, to who wants to know."""
        if uri in self._watched:
            self.say(method="notifications/resources/updated", params={"uri": uri})

    def take(self, message: dict[str, Any]) -> None:
        """Answer a request; there is nothing to do for anything else."""
        if "id" in message:
            result = self.answer(message["method"], message.get("params", {}))
            refusal = {"error": {"code": -32601, "message": "no such method"}}
            self.say(id=message["id"], **(refusal if result is None else {"result": result}))

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        """What a method results in; None if there is none of that name."""
        match method:
            case "initialize":
                info = {"protocolVersion": "2025-06-18", "serverInfo": {"name": "notebook", "version": "1"}}
                return {**info, "capabilities": {"tools": {}, "resources": {"subscribe": True}}}
            case "tools/list":
                return {"tools": [{"name": "touch", "inputSchema": {"type": "object"}}]}
            case "resources/list":
                return {"resources": [{"uri": uri, "name": uri} for uri in self._written]}
            case "resources/read":
                self.note("read", params["uri"])
                return {"contents": [{"uri": params["uri"], "text": str(self._written[params["uri"]])}]}
            case "resources/subscribe":
                self.note("subscribe", params["uri"])
                self._watched.add(params["uri"])
                return {}
            case "resources/unsubscribe":
                self.note("unsubscribe", params["uri"])
                self._watched.discard(params["uri"])
                return {}
            case "tools/call":
                return self.touch(params.get("arguments", {}).get("uri", PAGE))
            case "ping":
                return {}
            case _:
                return None

    def touch(self, uri: str) -> dict[str, Any]:
        """Write on a page."""
        self.note("touch", uri)
        self._written[uri] += 1
        self.announce(uri)
        return {"content": [{"type": "text", "text": str(os.getpid())}]}


if __name__ == "__main__":
    notebook = Notebook(sys.argv[1])
    signal.signal(signal.SIGUSR1, lambda *_: notebook.announce(PAGE))
    notebook.note("start", PAGE)
    for line in sys.stdin:
        notebook.take(json.loads(line))
