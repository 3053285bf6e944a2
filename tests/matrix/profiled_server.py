"""A server over stdio, of either era, that lists more tools to clients with elicitation.

`plain` and `grow` are for everybody, `ask` for those with elicitation; `grow` adds a tool for the latter, and says so
to its client. Every process writes a line to the file it is given, so that tests can count them.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

MODERN = "2026-07-28"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


class Server:
    """One process."""

    def __init__(self, *, is_modern: bool) -> None:
        self._is_modern = is_modern
        self._greeted_with: dict[str, Any] = {}
        self._grown: list[str] = []
        self._listening: Any = None

    def say(self, **message: Any) -> None:
        """Write a message."""
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

    def take(self, message: dict[str, Any]) -> None:
        """Answer a request; there is nothing to do for anything else."""
        if "id" not in message:
            return
        params = message.get("params", {})
        client = params.get("_meta", {}).get(CAPABILITIES, {}) if self._is_modern else self._greeted_with
        match message["method"]:
            case "server/discover" if self._is_modern:
                self.say(id=message["id"], result={"supportedVersions": [MODERN], **self._abilities()})
            case "initialize" if not self._is_modern:
                self._greeted_with = params["capabilities"]
                version = {"protocolVersion": "2025-06-18", "serverInfo": {"name": "profiled", "version": "1"}}
                self.say(id=message["id"], result={**version, **self._abilities()})
            case "subscriptions/listen" if self._is_modern:
                self._listening = message["id"]
                self.notify("notifications/subscriptions/acknowledged", notifications={"toolsListChanged": True})
            case "tools/list":
                tools = [{"name": name, "inputSchema": {"type": "object"}} for name in self.names(client)]
                self.say(id=message["id"], result={"tools": tools, **self._complete()})
            case "tools/call":
                self.call(message["id"], params["name"], client)
            case "ping":
                self.say(id=message["id"], result={})
            case _:
                self.say(id=message["id"], error={"code": -32601, "message": "no such method"})

    def _abilities(self) -> dict[str, Any]:
        return {"capabilities": {"tools": {"listChanged": True}}, **self._complete()}

    def _complete(self) -> dict[str, Any]:
        return {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if self._is_modern else {}

    def names(self, client: dict[str, Any]) -> list[str]:
        """What a client with these capabilities is listed."""
        return ["plain", "grow", *(["ask", *self._grown] if "elicitation" in client else [])]

    def call(self, id: Any, name: str, client: dict[str, Any]) -> None:
        """Run a tool."""
        if name not in self.names(client):
            self.say(id=id, error={"code": -32602, "message": f"Unknown tool: {name}"})
            return
        if name == "grow":
            self._grown.append(f"grown{len(self._grown)}")
            self.notify("notifications/tools/list_changed")
        self.say(id=id, result={"content": [{"type": "text", "text": name}], **self._complete()})

    def notify(self, method: str, **params: Any) -> None:
        """Say something by itself."""
        mark = {"_meta": {SUBSCRIPTION: self._listening}} if self._is_modern else {}
        self.say(method=method, params={**params, **mark})


if __name__ == "__main__":
    era, ledger = sys.argv[1:]
    with open(ledger, "a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n")
    server = Server(is_modern=era == "modern")
    for line in sys.stdin:
        server.take(json.loads(line))
