"""Endless questions and calls do not hurt others: slots, processes and lists have quotas."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from tests.faults.eliciting_server import FORM
from tests.faults.eliciting_servers import CAPABILITIES_KEY, AnsweringCaller, ElicitingServer, Line, text_of
from tests.faults.scripted import EVENTS, SESSION, ReceivedRequest, events, reply, tool
from tests.faults.watching import eventually, with_mark
from tests.hubs import META, Raw, serving, stdio

KEYS = {name: f"{name}-0123456789abcdef" for name in ("ann", "ben")}
CALLERS = {name: {"key": key, "allow": ["*"]} for name, key in KEYS.items()}
SECONDS = 60.0


def modern(port: int, name: str) -> AnsweringCaller:
    return AnsweringCaller(port, name, KEYS[name], "modern")


async def is_there(port: int, tool: str) -> bool:
    async with Raw(f"http://127.0.0.1:{port}/mcp", key=KEYS["ben"]) as ben:
        return tool in await ben.names()


async def asked(port: int, name: str, tool: str, nonce: str) -> dict[str, Any]:
    """A modern caller's call that it was asked something about: the result that asks."""
    line = await Line.open(port)
    response = await modern(port, name).once(line, tool, nonce)
    line.close()
    assert response["result"]["resultType"] == "input_required", response
    return dict(response["result"])


class Exhaustive(ElicitingServer):
    """A server that asks a hundred things at once, and takes its time to acknowledge each answer."""

    async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        """Ask, and wait for all answers."""
        self.calls += 1
        numbers = range(self.calls * 1000, self.calls * 1000 + 100)
        for number in numbers:
            self.answers[number] = asyncio.get_running_loop().create_future()
        waited_for = [self.answers[number] for number in numbers]
        params = {"message": "?", "requestedSchema": FORM}
        ask = {"jsonrpc": "2.0", "method": "elicitation/create", "params": params}
        out.write(EVENTS + b"".join(events({**ask, "id": number}) for number in numbers))
        await asyncio.gather(*waited_for)
        out.write(events(request.result({"content": [{"type": "text", "text": "all answered"}]})) + b"0\r\n\r\n")

    async def on_refused(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        """Take one, later."""
        await asyncio.sleep(0.01)
        await super().on_refused(request, out)


async def test_every_answer_reaches_a_server_that_takes_them_slowly(tmp_path: Path) -> None:
    async with Exhaustive() as server, serving(tmp_path, {"s": server.entry}, callers=CALLERS) as hub:
        await eventually(lambda: is_there(hub.port, "s.ask"), "the server is there")
        questions = [await asked(hub.port, "ann", "s.ask", str(number)) for number in range(4)]

        async def come_back(number: int, question: dict[str, Any]) -> str:
            line, results = await Line.open(hub.port), {"result": question}
            while results.get("result", {}).get("resultType") == "input_required":
                answers = {key: {"action": "accept", "content": {}} for key in results["result"]["inputRequests"]}
                more = {"inputResponses": answers, "requestState": results["result"]["requestState"]}
                results = await modern(hub.port, "ann").once(line, "s.ask", str(number), **more)
            line.close()
            return text_of(results)

        results = await asyncio.gather(*(come_back(*each) for each in enumerate(questions)))
        assert results == ["all answered"] * 4


async def test_a_caller_that_comes_back_to_nothing_gives_way_to_another(tmp_path: Path) -> None:
    async with (
        ElicitingServer() as server,
        serving(tmp_path, {"s": {**server.entry, "max_calls": 4}}, callers=CALLERS) as hub,
    ):
        await eventually(lambda: is_there(hub.port, "s.ask"), "the server is there")
        questions = [await asked(hub.port, "ann", "s.ask", str(number)) for number in range(4)]
        await asked(hub.port, "ben", "s.look", "ben")
        line = await Line.open(hub.port)
        answers = {"q1": {"action": "accept", "content": {"said": "x"}}}
        received = [
            await modern(hub.port, "ann").once(
                line, "s.ask", str(number), inputResponses=answers, requestState=question["requestState"]
            )
            for number, question in enumerate(questions)
        ]
        line.close()
        assert [each.get("error", {}).get("data", {}).get("reason") for each in received] == [
            "unanswered",
            None,
            None,
            None,
        ]


class Endless(ElicitingServer):
    """A server that asks one thing after the other."""

    async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        """Ask until there is no answer."""
        out.write(EVENTS)
        while True:
            self.calls += 1
            number = self.calls
            answer = self.answers[number] = asyncio.get_running_loop().create_future()
            params = {"message": "?", "requestedSchema": FORM}
            ask = {"jsonrpc": "2.0", "id": number, "method": "elicitation/create", "params": params}
            out.write(events(ask))
            await answer


async def test_a_server_that_asks_for_ever_ends_with_the_longest_call(tmp_path: Path) -> None:
    limits = {"call_seconds": 1, "hard_seconds": 2}
    async with Endless() as server, serving(tmp_path, {"s": server.entry}, callers=CALLERS, limits=limits) as hub:
        await eventually(lambda: is_there(hub.port, "s.ask"), "the server is there")
        ann = AnsweringCaller(hub.port, "ann", KEYS["ann"], "legacy")
        await ann.enter()
        lines = await Line.open(hub.port), await Line.open(hub.port)
        received, _ = await ann.call(lines, "s.ask", "?")
        for line in lines:
            line.close()
        assert received["error"]["data"]["executed"] == "unknown"


async def test_a_session_that_is_ended_leaves_no_process(tmp_path: Path) -> None:
    curious = stdio([sys.executable, str(Path(__file__).with_name("eliciting_server.py"))], era="legacy")
    async with serving(tmp_path, {"p": curious}, callers=CALLERS) as hub:
        await eventually(lambda: is_there(hub.port, "p.ask"), "the server is there")
        for _ in range(3):
            ann = AnsweringCaller(hub.port, "ann", KEYS["ann"], "legacy")
            await ann.enter()
            lines = await Line.open(hub.port), await Line.open(hub.port)
            received, questions = await ann.call(lines, "p.ask", "n")
            assert ("result" in received, questions) == (True, ["n"])
            lines[1].delete("/mcp", ann.session)
            assert (await lines[1].head())[":status"] == "204"
            for line in lines:
                line.close()
        await eventually(lambda: len(with_mark(hub.pid, "eliciting_server")) == 1, "only the hub's own is left")


class Partial(ElicitingServer):
    """A server that lists one tool more to those who sample."""

    def __init__(self) -> None:
        super().__init__()
        self._able: set[str] = set()

    async def on_initialize(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        """Give every client a session of its own, and remember what it can be asked."""
        self.greetings += 1
        session = f"session-{self.greetings}"
        if "sampling" in request.message["params"]["capabilities"]:
            self._able.add(session)
        received = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "x", "version": "1"},
        }
        out.write(reply(request.result(received), headers={SESSION: session}))

    async def on(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        """List what the client is to see."""
        if request.method == "tools/list":
            more = [tool("extra")] if request.headers.get(SESSION, [""])[0] in self._able else []
            out.write(reply(request.result({"tools": [*self.tools, *more]})))
        else:
            await super().on(request, out)


async def names(port: int, name: str, can: dict[str, Any]) -> list[str]:
    """What a modern caller that can be asked this is listed."""
    line = await Line.open(port)
    headers = {
        "authorization": f"Bearer {KEYS[name]}",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/list",
    }
    line.write("/mcp", headers, {"id": 1, "method": "tools/list", "params": {"_meta": {**META, CAPABILITIES_KEY: can}}})
    async with asyncio.timeout(SECONDS):
        response = await line.body(await line.head())
    line.close()
    return [each["name"] for each in response["result"]["tools"]]


async def test_profiles_that_one_caller_makes_up_hide_nothing_from_another(tmp_path: Path) -> None:
    async with Partial() as server, serving(tmp_path, {"s": server.entry}, callers=CALLERS) as hub:
        await eventually(lambda: is_there(hub.port, "s.ask"), "the server is there")
        words: list[dict[str, Any]] = [{"form": {}}, {"url": {}}, {"form": {}, "url": {}}, {}]
        for number in range(20):
            can = {"elicitation": {f"x{number}": {}, **words[number % 4]}, **({"roots": {}} if number % 3 else {})}
            await names(hub.port, "ann", can)

        async def is_extra_listed() -> bool:
            return "s.extra" in await names(hub.port, "ben", {"sampling": {}})

        await eventually(is_extra_listed, "ben is listed what is his")
