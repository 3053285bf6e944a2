"""A plain JSON-RPC server at /rpc, which knows nothing of MCP: a method is a tool and `params` are its arguments.

`python tests/peers rpc_server --listed`: with `--listed` it answers `tools/list`, without it does not know the method.
Each execution of `pay(nonce)` is in the ledger before it is answered.
"""

from __future__ import annotations

import argparse
import asyncio
import json

from tests.peers.raw_connection import Connection, Request, response
from tests.peers.raw_desk import METHOD_NOT_FOUND, Json, Ledger, error, method_of, params_of, tool

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
]


class RpcServer:
    """Answers POSTs at /rpc."""

    def __init__(self, ledger: Ledger, *, is_listed: bool) -> None:
        self._ledger = ledger
        self._is_listed = is_listed

    async def serve(self, port: int) -> None:
        """Listen on loopback for ever; the first line on stdout is `PORT n`."""
        server = await asyncio.get_running_loop().create_server(lambda: Connection(self.respond), "127.0.0.1", port)
        print("PORT", server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    async def respond(self, request: Request, connection: Connection) -> None:
        """Answer one request of a connection."""
        if request.path != "/rpc" or request.method != "POST":
            await connection.write(response(405 if request.path == "/rpc" else 404, b""))
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
                await connection.write(response(200, json.dumps(body).encode()))

    async def _outcome(self, message: Json) -> Json:
        given = params_of(message)
        match method_of(message):
            case "tools/list" if self._is_listed:
                return {"result": {"tools": TOOLS}}
            case "add":
                return {"result": {"sum": given["a"] + given["b"]}}
            case "text":
                return {"result": given["text"]}
            case "tell":
                return {"result": {"value": given["value"]}}
            case "readFile":
                return {"result": f"the text of {given['path']}"}
            case "slow":
                await asyncio.sleep(given["seconds"])
                return {"result": None}
            case "pay":
                self._ledger.record(nonce=given["nonce"])
                return {"result": given["nonce"]}
            case "refuse":
                return {"error": REFUSED}
            case method:
                return {"error": error(METHOD_NOT_FOUND, f"Method not found: {method}")}


async def main() -> None:
    """Serve as asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", choices=("http",), default="http")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ledger")
    parser.add_argument("--listed", action="store_true")
    options = parser.parse_args()
    await RpcServer(Ledger(options.ledger), is_listed=options.listed).serve(options.port)


if __name__ == "__main__":
    asyncio.run(main())
