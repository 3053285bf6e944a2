"""A device, as small as one can be: it greets, lists and calls over one WebSocket, as xiaozhi's do.

`.venv/bin/python examples/relay/device.py 'ws://…/mcp_endpoint/call/?token=…'`, with the address that
`isthmus token relay` prints.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

HELLO = {
    "protocolVersion": "2024-11-05",
    "capabilities": {"roots": {"listChanged": True}, "sampling": {}},
    "clientInfo": {"name": "ExampleDevice", "version": "1.0"},
}


class Device:
    """One connection. Calls are numbered from 1 again, whatever the greeting was numbered with."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._calls = 0
        self._send({"id": 1, "method": "initialize", "params": HELLO})
        self._send({"method": "notifications/initialized", "params": {}})
        self._send({"id": 2, "method": "tools/list"})
        self._answer(1)
        listed = self._answer(2)
        if "error" in listed:
            raise SystemExit(f"the hub lists no tools: {listed['error']['message']}. Is this the address for devices?")
        self.tools: list[dict[str, Any]] = listed["result"]["tools"]

    def call(self, tool: str, **arguments: object) -> str:
        """Call a tool; return its text, or why there is none."""
        self._calls += 1
        self._send({"id": self._calls, "method": "tools/call", "params": {"name": tool, "arguments": arguments}})
        answer = self._answer(self._calls)
        if "error" in answer:
            return f"failed ({answer['error']['code']}): {answer['error']['message']}"
        result = answer["result"]
        return f"the tool says no: {result['error']}" if result.get("isError") else result["content"][0]["text"]

    def _send(self, message: dict[str, Any]) -> None:
        self._socket.send(json.dumps({"jsonrpc": "2.0", **message}))

    def _answer(self, id: int) -> dict[str, Any]:
        """Wait for the answer to a request; what else comes is news that this device has no use for."""
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == id:
                return message


@contextmanager
def opened(address: str) -> Iterator[Device]:
    """A device that is connected, for as long as it is needed."""
    with connect(address) as socket:
        yield Device(socket)


def main() -> None:
    """List everything, and call one tool of each server."""
    if len(sys.argv) != 2 or not sys.argv[1].startswith(("ws://", "wss://")):
        raise SystemExit(f"usage: python3 {sys.argv[0]} 'ws://…/mcp_endpoint/call/?token=…'")
    with opened(sys.argv[1]) as device:
        for tool in device.tools:
            print(f"{tool['name']:<28} {tool['server_id']}")
        print("2 + 3 * 4 =", device.call("calculator", expression="2 + 3 * 4"))
        print(device.call("forecast", city="Oslo", days=2))
        print(device.call("translate", text="sun rain"))
        print(device.call("weather", city="Atlantis"))
        print(device.call("nonexistent_tool"))


if __name__ == "__main__":
    try:
        main()
    except (OSError, WebSocketException) as error:
        raise SystemExit(f"no connection: {error}. Does the hub run, and is the token one of this hub?") from None
