"""Servers that ask questions, as `Scripted` ones in the test's own process, and callers that answer them.

Every request of a caller has the same id; its questions and its answers contain its name.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Literal, Self

from tests.faults.eliciting_server import FORM, tool_result
from tests.faults.scripted import EVENTS, ReceivedRequest, Scripted, events, reply, tool
from tests.hubs import META, MODERN

Era = Literal["legacy", "modern"]
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
CAN: dict[str, Any] = {"elicitation": {}}
SECONDS = 60.0
"""A wait that takes longer is a hang."""


class ElicitingServer(Scripted):
    """A server of the earlier era: every call asks on its own stream; the answer is a POST."""

    def __init__(self) -> None:
        super().__init__()
        self.tools = [tool("ask"), tool("other"), tool("look", annotations={"idempotentHint": True})]
        self.calls = 0
        self.answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.cancelled: list[Any] = []

    async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        """Ask, wait for the answer and return it."""
        self.calls += 1
        number, nonce = self.calls, request.arguments["nonce"]
        answer = self.answers[number] = asyncio.get_running_loop().create_future()
        params = {"message": nonce, "requestedSchema": FORM}
        asked = {"jsonrpc": "2.0", "id": number, "method": "elicitation/create", "params": params}
        out.write(EVENTS + events(asked))
        result = request.result(tool_result(nonce, await answer))
        if request.arguments.get("hang"):
            await asyncio.Event().wait()
        out.write(events(result) + b"0\r\n\r\n")

    async def on_refused(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        """Receive an answer, or the cancellation of a call."""
        if request.method == "notifications/cancelled":
            self.cancelled.append(request.message["params"]["requestId"])
        elif (answer := self.answers.pop(request.message.get("id", 0), None)) is not None:
            answer.set_result(request.message)
        await super().on_refused(request, out)


class ModernElicitingServer(ElicitingServer):
    """A modern server: every call asks by its result, and is called again."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.entry["era"] = "modern"
        return self

    async def on(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        """Answer `server/discover` and `tools/list` in the modern form."""
        if request.method == "server/discover":
            response = {
                "resultType": "complete",
                "supportedVersions": [MODERN],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "x", "version": "1"},
                "ttlMs": 0,
                "cacheScope": "private",
            }
            out.write(reply(request.result(response)))
        elif request.method == "tools/list":
            listed = {"resultType": "complete", "tools": self.tools, "ttlMs": 60_000, "cacheScope": "private"}
            out.write(reply(request.result(listed)))
        else:
            await super().on(request, out)

    async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        """Ask, or continue with the answer."""
        self.calls += 1
        params, nonce = request.message["params"], request.arguments["nonce"]
        if "inputResponses" not in params:
            asked = {"method": "elicitation/create", "params": {"message": nonce, "requestedSchema": FORM}}
            result: dict[str, Any] = {
                "resultType": "input_required",
                "inputRequests": {"q": asked},
                "requestState": f"state of {nonce}",
            }
        else:
            assert params["requestState"] == f"state of {nonce}"
            result = {"resultType": "complete", **tool_result(nonce, {"result": params["inputResponses"]["q"]})}
        out.write(reply(request.result(result)))


class Line:
    """One connection to the hub; one request at a time, read as it comes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Line:
        """Connect."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def close(self) -> None:
        """Abort the connection."""
        self._writer.transport.abort()

    def delete(self, path: str, headers: Mapping[str, str]) -> None:
        """Send a DELETE."""
        head = "".join(f"{name}: {value}\r\n" for name, value in {"host": "127.0.0.1", **headers}.items())
        self._writer.write(f"DELETE {path} HTTP/1.1\r\n{head}\r\n".encode())

    def get(self, path: str, headers: Mapping[str, str]) -> None:
        """Ask for a stream."""
        named = {"host": "127.0.0.1", "accept": "text/event-stream", **headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        self._writer.write(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())

    async def endpoint(self) -> str:
        """The address that a stream begins with."""
        size = int(await self._reader.readuntil(b"\r\n"), 16)
        chunk = (await self._reader.readexactly(size + 2))[:-2]
        return chunk.partition(b"data: ")[2].strip().decode()

    def write(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> None:
        """Send a POST."""
        content = json.dumps({"jsonrpc": "2.0", **body}).encode()
        lines = {
            "host": "127.0.0.1",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "content-length": str(len(content)),
            **headers,
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._writer.write(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + content)

    async def head(self) -> dict[str, str]:
        """The headers of the answer, and its status as `:status`."""
        text = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text.strip().split("\r\n")
        cut = (line.partition(": ") for line in lines)
        return {":status": first.split()[1], **{name.lower(): value for name, _, value in cut}}

    async def body(self, head: Mapping[str, str]) -> Any:
        """The body of an answer that is no stream; None if it is empty."""
        content = await self._reader.readexactly(int(head.get("content-length", "0")))
        return json.loads(content) if content else None

    async def event(self) -> Any:
        """The next message of a stream; None at its end."""
        while True:
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            chunk = (await self._reader.readexactly(size + 2))[:-2]
            if not size:
                return None
            if (at := chunk.find(b"data: ")) >= 0 and chunk[at + 6 :].strip():
                return json.loads(chunk[at + 6 :])


class AnsweringCaller:
    """A caller that answers every question with its own name and the question."""

    def __init__(self, port: int, name: str, key: str, era: Era) -> None:
        self.name, self.era = name, era
        self._port = port
        self._headers = {"authorization": f"Bearer {key}"}
        self.questions: list[str] = []
        """The messages of the questions that it received."""

    async def enter(self) -> None:
        """Open a session, where the era has them."""
        if self.era == "legacy":
            line = await Line.open(self._port)
            params = {
                "protocolVersion": "2025-11-25",
                "capabilities": CAN,
                "clientInfo": {"name": "t", "version": "1"},
            }
            line.write("/mcp", self._headers, {"id": 1, "method": "initialize", "params": params})
            head = await line.head()
            self._headers = {**self._headers, "mcp-session-id": head["mcp-session-id"]}
            line.close()

    @property
    def session(self) -> dict[str, str]:
        """The headers with its key and session."""
        return dict(self._headers)

    def request(self, tool: str, nonce: str, **more: Any) -> tuple[dict[str, str], dict[str, Any]]:
        """The headers and the message of a call; its id is always the same."""
        params: dict[str, Any] = {"name": tool, "arguments": {"nonce": nonce}, **more}
        headers = self._headers
        if self.era == "modern":
            params["_meta"] = {**META, CAPABILITIES_KEY: CAN}
            headers = {**headers, "mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": tool}
        return headers, {"id": 1, "method": "tools/call", "params": params}

    async def once(self, line: Line, tool: str, nonce: str, *, path: str = "/mcp", **more: Any) -> Any:
        """One request of the modern era; returns the JSON-RPC answer."""
        line.write(path, *self.request(tool, nonce, **more))
        async with asyncio.timeout(SECONDS):
            return await line.body(await line.head())

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Its answer to a question."""
        self.questions.append(question["params"]["message"])
        return {"action": "accept", "content": {"said": f"{self.name}:{question['params']['message']}"}}

    async def call(self, lines: tuple[Line, Line], tool: str, nonce: str) -> tuple[Any, list[str]]:
        """Call, and answer questions on the second line; returns the JSON-RPC answer and the questions."""
        ask = self._call_modern if self.era == "modern" else self._call_legacy
        asked: list[str] = []
        async with asyncio.timeout(SECONDS):
            return await ask(lines, tool, nonce, asked), asked

    async def _call_modern(self, lines: tuple[Line, Line], tool: str, nonce: str, asked: list[str]) -> Any:
        response = await self.once(lines[0], tool, nonce)
        while response.get("result", {}).get("resultType") == "input_required":
            questions = response["result"]["inputRequests"]
            asked += (question["params"]["message"] for question in questions.values())
            responses = {key: self.answer(question) for key, question in questions.items()}
            more = {"inputResponses": responses, "requestState": response["result"]["requestState"]}
            response = await self.once(lines[0], tool, nonce, **more)
        return response

    async def _call_legacy(self, lines: tuple[Line, Line], tool: str, nonce: str, asked: list[str]) -> Any:
        lines[0].write("/mcp", *self.request(tool, nonce))
        head = await lines[0].head()
        if "content-length" in head:
            return await lines[0].body(head)
        answer = None
        while (message := await lines[0].event()) is not None:
            if "method" in message:
                asked.append(message["params"]["message"])
                lines[1].write("/mcp", self._headers, {"id": message["id"], "result": self.answer(message)})
                assert (await lines[1].head())[":status"] == "202"
            else:
                answer = message
        return answer


def text_of(response: Any) -> str:
    """The text of a result."""
    return str(response["result"]["content"][0]["text"]) if "result" in response else json.dumps(response)
