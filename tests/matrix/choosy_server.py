"""A modern server over stdio that does not announce updates of every resource it lists.

Its arguments are how it says no to a request that names one which it leaves out (`refuse` it, or acknowledge the
`rest`), and a file that holds their URIs. The tool `touch` tells of a resource on every subscription that has it, and
then answers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

URIS = ("choosy://good", "choosy://other", "choosy://bad")
LISTS = {"tools": {}, "resources": {"subscribe": True, "listChanged": True}}
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
RESULTS: dict[str, dict[str, Any]] = {
    "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": LISTS},
    "tools/list": {"tools": [{"name": "touch", "inputSchema": {"type": "object"}}]},
    "resources/list": {"resources": [{"uri": uri, "name": uri} for uri in URIS]},
    "resources/templates/list": {"resourceTemplates": []},
    "tools/call": {"content": []},
}


class Choosy:
    """One process."""

    def __init__(self, manner: str, unwanted: str) -> None:
        self._manner = manner
        self._unwanted = Path(unwanted)
        self._told: dict[int, list[str]] = {}

    def say(self, **message: Any) -> None:
        """Write a message."""
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

    def take(self, message: dict[str, Any]) -> None:
        """Answer a request, or hear that a subscription is over."""
        params = message.get("params", {})
        match message.get("method"):
            case "subscriptions/listen":
                self.listen(message["id"], params["notifications"])
            case "notifications/cancelled":
                self._told.pop(params["requestId"], None)
            case method if "id" in message:
                if method == "tools/call":
                    self.touch(params["arguments"]["uri"])
                self.answer(message["id"], method or "")
            case _:
                pass

    def listen(self, id: int, asked: dict[str, Any]) -> None:
        """Agree to some of it or to nothing."""
        uris: list[str] = asked.get("resourceSubscriptions", [])
        agreed = [uri for uri in uris if uri not in self._unwanted.read_text(encoding="utf-8").split()]
        if len(agreed) < len(uris) and self._manner == "refuse":
            self.say(id=id, error={"code": -32602, "message": "not all of these are there"})
            return
        self._told[id] = agreed
        params = {"notifications": {**asked, "resourceSubscriptions": agreed}, "_meta": {SUBSCRIPTION: id}}
        self.say(method="notifications/subscriptions/acknowledged", params=params)

    def touch(self, uri: str) -> None:
        """Tell that a resource was updated."""
        for id, uris in self._told.items():
            if uri in uris:
                params = {"uri": uri, "_meta": {SUBSCRIPTION: id}}
                self.say(method="notifications/resources/updated", params=params)

    def answer(self, id: Any, method: str) -> None:
        """Give the only answer that there is to a method."""
        if method in RESULTS:
            self.say(id=id, result={"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **RESULTS[method]})
        else:
            self.say(id=id, error={"code": -32601, "message": "no such method"})


def main() -> None:
    """Serve until the input ends."""
    choosy = Choosy(*sys.argv[1:])
    for line in sys.stdin:
        choosy.take(json.loads(line))


if __name__ == "__main__":
    main()
