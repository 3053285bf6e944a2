"""A plain JSON-RPC server at /rpc, which knows nothing of MCP: a method is a tool and `params` are its arguments.

`python tests/peers rpc_server --listed`: with `--listed` it answers `tools/list`, without it does not know the method.
With `--statuses` errors have HTTP statuses of their own, as with some servers of the field, and `--path` says where it
is. Each execution of `pay(nonce)` is in the ledger before it is answered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable
from typing import Any

from tests.peers.raw_connection import Connection, Request, response, status_of
from tests.peers.raw_protocol import METHOD_NOT_FOUND, Json, Ledger, error, method_of, params_of, tool

REFUSED = {"code": -32050, "message": "the shop is closed", "data": {"opens": "tomorrow"}}

TOOLS = [
    tool("add", "Add two numbers.", a="integer", b="integer"),
    tool("text", "Give a text back.", text="string"),
    tool("tell", "Give a value back, in an object.", value="object"),
    tool("readFile", "Give back a text that names the path.", path="string"),
    tool("slow", "Take a while.", seconds="number"),
    tool("pay", "Write the nonce to the ledger, then give it back.", nonce="string"),
    tool("refuse", "Answer a JSON-RPC error."),
    tool("crash", "Answer 500 and no JSON-RPC."),
    tool("mumble", "Answer 200 and no JSON."),
    tool("hang_up", "Close the connection instead of answering."),
    tool("code.run", "Give back content of a kind that MCP does not have.", code="string"),
    tool("envelope", "Give back the id and the method of the request."),
]


PLAIN: dict[str, Callable[[Json, Json], Any]] = {
    "add": lambda _, given: {"sum": given["a"] + given["b"]},
    "text": lambda _, given: given["text"],
    "tell": lambda _, given: {"value": given["value"]},
    "readFile": lambda _, given: f"the text of {given['path']}",
    "code.run": lambda _, given: {"content": [{"type": "code_output", "stdout": f"{given['code']}\n", "stderr": ""}]},
    "envelope": lambda message, _: {"id": message.get("id"), "method": message["method"]},
}
"""Methods whose results follow from the request alone."""


class RpcServer:
    """Answers POSTs at /rpc."""

    def __init__(self, ledger: Ledger, path: str = "/rpc", *, is_listed: bool, has_statuses: bool = False) -> None:
        self._ledger = ledger
        self._path = path
        self._is_listed = is_listed
        self._has_statuses = has_statuses

    async def serve(self, port: int) -> None:
        """Listen on loopback for ever; the first line on stdout is `PORT n`."""
        server = await asyncio.get_running_loop().create_server(lambda: Connection(self.respond), "127.0.0.1", port)
        print("PORT", server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    async def respond(self, request: Request, connection: Connection) -> None:
        """Answer one request of a connection."""
        if request.path != self._path or request.method != "POST":
            await connection.write(response(405 if request.path == self._path else 404, b"Nothing is here."))
            return
        message: Json = json.loads(request.body)
        match method_of(message):
            case "crash":
                await connection.write(response(500, b"<h1>Sorry</h1>", b"content-type: text/html\r\n"))
            case "mumble":
                await connection.write(response(200, b"hm"))
            case "hang_up":
                connection.abort()
            case _:
                body = {"jsonrpc": "2.0", "id": message.get("id"), **await self._outcome(message)}
                status = status_of(body["error"]) if self._has_statuses and "error" in body else 200
                await connection.write(response(status, json.dumps(body).encode()))

    async def _outcome(self, message: Json) -> Json:
        given = params_of(message)
        match method_of(message):
            case "tools/list" if self._is_listed:
                return {"result": {"tools": TOOLS}}
            case "slow":
                await asyncio.sleep(given["seconds"])
                return {"result": None}
            case "pay":
                self._ledger.record(nonce=given["nonce"])
                return {"result": given["nonce"]}
            case "refuse":
                return {"error": REFUSED}
            case method if method in PLAIN:
                return {"result": PLAIN[method](message, given)}
            case method:
                return {"error": error(METHOD_NOT_FOUND, f"Method not found: {method}")}


async def main() -> None:
    """Serve as asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", choices=("http",), default="http")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ledger")
    parser.add_argument("--listed", action="store_true")
    parser.add_argument("--statuses", action="store_true")
    parser.add_argument("--path", default="/rpc")
    options = parser.parse_args()
    server = RpcServer(Ledger(options.ledger), options.path, is_listed=options.listed, has_statuses=options.statuses)
    await server.serve(options.port)


if __name__ == "__main__":
    asyncio.run(main())
