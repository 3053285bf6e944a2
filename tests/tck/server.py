"""An MCP server that reports, asks and waits on request, and behaves as the compatibility kits of A2A expect.

`python server.py OTHERS LEDGER` speaks MCP over its standard streams. A kit says by the id of a message what its
agent is to do, and the tool `tck` gets that id. Everything comes out of ordinary results and questions, so what a kit
then sees of tasks, artifacts and states is the hub's work. `OTHERS` says what becomes of other messages: `complete`
answers them at once, `ask` asks what else there is, again and again. The kit for 0.3 continues and cancels the tasks
that it begins, so they have to stay open. When a call is cancelled, the moment is written to `LEDGER`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Literal

HELD_SECONDS = 2 * float(os.environ.get("TCK_STREAMING_TIMEOUT", "2.0")) + 1.0
"""Longer than the kits want a task to last that they listen to twice."""

ASKS_AGAIN = "history message"
"""What is in the words of a caller that has more to say."""

TOOLS = [
    {
        "name": "tck",
        "description": "Does what the compatibility kits expect of an agent.",
        "inputSchema": {
            "type": "object",
            "properties": {"text": {"type": "string"}, "message_id": {"type": "string"}},
            "required": ["message_id"],
        },
    },
    {"name": "tick", "description": "Reports the time every so often.", "inputSchema": {"type": "object"}},
    {"name": "hold", "description": "Ends when it is given up.", "inputSchema": {"type": "object"}},
    {"name": "ask", "description": "Asks its caller and says the answer.", "inputSchema": {"type": "object"}},
]
QUESTION = {
    "message": "What else?",
    "requestedSchema": {"type": "object", "properties": {"said": {"type": "string"}}, "required": ["said"]},
}

Json = dict[str, Any]


Others = Literal["complete", "ask"]


def command(others: Others = "complete", ledger: Path | str = "") -> list[str]:
    """The words that start it."""
    return [sys.executable, str(Path(__file__).resolve()), others, str(ledger)]


def text(*words: str) -> Json:
    """A result of texts."""
    return {"content": [{"type": "text", "text": each} for each in words]}


FILE = {"uri": "file:///output.txt", "mimeType": "text/plain", "blob": base64.b64encode(b"tck").decode()}
LINK = {
    "type": "resource_link",
    "uri": "https://example.com/output.txt",
    "name": "output.txt",
    "mimeType": "text/plain",
}

RESULTS: dict[str, Json] = {
    "tck-complete-task": text("Hello from TCK"),
    "tck-artifact-text": text("Generated text content"),
    "tck-artifact-file-url": {"content": [LINK]},
    "tck-artifact-file": {"content": [{"type": "resource", "resource": FILE}]},
    "tck-artifact-data": {"content": [], "structuredContent": {"key": "value", "count": 42}},
    "tck-message-response": {**text("Direct message response"), "_meta": {"isthmus/answer": "message"}},
    "tck-reject-task": {**text("rejected"), "isError": True},
    "tck-stream-001": text("Stream hello from TCK"),
    "tck-stream-003": text("Stream task lifecycle"),
    "tck-stream-ordering-001": text("Ordered output"),
    "tck-stream-artifact-text": text("Streamed text content"),
    "tck-stream-artifact-file": {"content": [{"type": "resource", "resource": FILE}]},
    "tck-stream-artifact-chunked": text("chunk-1 ", "chunk-2"),
}
"""Results by the beginnings of ids; of those that fit, the first counts."""


class Server:
    """Answers requests, each in a task of its own, and asks what it wants to know."""

    def __init__(self, others: str, ledger: str) -> None:
        self._others = others
        self._ledger = ledger
        self._running: dict[str, asyncio.Task[None]] = {}
        self._asked: dict[str, asyncio.Future[Json]] = {}
        self._questions = 0

    def hear(self, message: Json) -> None:
        """Take one message."""
        match message:
            case {"method": "notifications/cancelled", "params": {"requestId": id}}:
                self._give_up(json.dumps(id))
            case {"method": str(), "id": id}:
                self._begin(json.dumps(id), message)
            case {"id": str(id)} if id in self._asked:
                self._asked.pop(id).set_result(message)

    def _begin(self, key: str, message: Json) -> None:
        self._running[key] = asyncio.ensure_future(self._answer(message))
        self._running[key].add_done_callback(lambda _: self._running.pop(key, None))

    def _give_up(self, key: str) -> None:
        if self._ledger:
            with Path(self._ledger).open("a") as file:
                file.write(f"{time.time()}\n")
        if (running := self._running.get(key)) is not None:
            running.cancel()

    async def _answer(self, request: Json) -> None:
        result = await self._result(request["method"], request.get("params") or {})
        self._say({"id": request["id"], "result": result})

    async def _result(self, method: str, params: Json) -> Json:
        match method:
            case "initialize":
                me = {"name": "tck", "version": "1"}
                return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": me}
            case "tools/list":
                return {"tools": TOOLS}
            case "tools/call":
                return await self._run(params["name"], params["arguments"], params.get("_meta") or {})
            case _:
                return {}

    async def _run(self, tool: str, arguments: Json, meta: Json) -> Json:
        match tool:
            case "tick":
                return await self._tick(arguments, meta.get("progressToken"))
            case "hold":
                await asyncio.Event().wait()
                return {}
            case "ask":
                answer = await self._ask(arguments["method"], arguments["params"])
                return {"content": [], "structuredContent": answer.get("result") or answer["error"]}
            case _:
                return await self._obey(arguments["message_id"], arguments.get("text", ""))

    async def _tick(self, arguments: Json, token: Any) -> Json:
        for step in range(arguments["steps"]):
            await asyncio.sleep(arguments["pause"])
            report = {"progressToken": token, "progress": step + 1, "message": repr(time.time())}
            self._say({"method": "notifications/progress", "params": report})
        return text("done")

    async def _obey(self, id: str, words: str) -> Json:
        if id.startswith("tck-input-required"):
            return await self._converse()
        if id.startswith("test-resubscribe-message-id"):
            await asyncio.sleep(HELD_SECONDS)
            return text("done")
        for prefix, result in RESULTS.items():
            if id.startswith(prefix):
                return result
        return text(f"You said: {words}") if self._others == "complete" else await self._converse()

    async def _converse(self) -> Json:
        while True:
            answer = await self._ask("elicitation/create", QUESTION)
            said = str(answer.get("result", {}).get("content", {}).get("said", ""))
            if ASKS_AGAIN not in said and self._others == "complete":
                return text(f"You said: {said}")

    async def _ask(self, method: str, params: Json) -> Json:
        self._questions += 1
        id = f"q{self._questions}"
        answered: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._asked[id] = answered
        self._say({"id": id, "method": method, "params": params})
        return await answered

    def _say(self, message: Json) -> None:
        os.write(1, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


async def main(others: str, ledger: str) -> None:
    """Serve until the input ends."""
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    server = Server(others, ledger)
    while line := await reader.readline():
        server.hear(json.loads(line))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
