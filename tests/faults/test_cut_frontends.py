"""The wire between a caller and the hub is cut, on REST, A2A in three bindings, and the relay (R17, R18).

Nothing is lost, doubled or invented. An A2A message whose answer was lost is sent again, and joins its task. Callers of
MCP are in `test_cut`. `ISTHMUS_CUT_STEP=1` cuts at every byte; here it is fewer.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast
from urllib.parse import urlsplit

import grpc
import pytest
import pytest_asyncio
from google.protobuf import json_format
from websockets.exceptions import WebSocketException

from tests.conftest import Ledger
from tests.faults import quick_server
from tests.faults.caller import Broken, Caller
from tests.faults.chaos import ChaosProxy
from tests.faults.oracle import Record, ReportedOutcome, judge
from tests.faults.test_cut import DEADLINE, ENDINGS, STEP, WAYS, complaints, note_cuts, offsets, steady
from tests.faults.watching import eventually, open_descriptors
from tests.frontends.test_a2a_grpc import address, call
from tests.hubs import PATIENT, HubProcess, serving, stdio
from tests.relay.peers import INITIALIZE, INITIALIZED, TOOLS_LIST, agent_call_url, wired
from tests.relay.tokens import KEY

TOOL = "quick.pay"
Outcome = tuple[ReportedOutcome, str | None]
"""The outcome that a caller got, and the text of its result."""

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300 if STEP >= 16 else 3600)]


class LostAnswer(Exception):
    """The connection ended before the answer did."""


class CutCaller:
    """A caller of one frontend, behind a wire that is cut."""

    resends = False
    """Whether the same request may be sent again without running twice."""
    step = STEP
    """Bytes from one cut to the next."""

    async def call(self, port: int, nonce: str) -> Outcome:
        """Call the tool.

        Raises:
            LostAnswer: The wire was cut.
        """
        raise NotImplementedError


class HttpCaller(CutCaller):
    """Sends one POST on a connection of its own, so that each cut falls on the same bytes."""

    path = f"/v1/tools/{TOOL}"
    headers: ClassVar[Mapping[str, str]] = {}

    def body(self, nonce: str) -> Any:
        return {"nonce": nonce}

    def read(self, status: int, answer: Any) -> Outcome:
        return ("ok", answer["content"][0]["text"]) if status == 200 else (answer["executed"], None)

    async def call(self, port: int, nonce: str) -> Outcome:
        body = json.dumps(self.body(nonce)).encode()
        fields = {"host": "localhost", "content-type": "application/json", **self.headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        request = f"POST {self.path} HTTP/1.1\r\n{head}content-length: {len(body)}\r\n\r\n".encode() + body
        async with Caller(port) as caller:
            try:
                answer = await caller.send(request)
            except (Broken, ConnectionError) as error:
                raise LostAnswer from error
        return self.read(answer.status, json.loads(answer.body))


class A2aCaller(HttpCaller):
    """Sends a message over HTTP+JSON."""

    path = "/a2a/rest/message:send"
    headers: ClassVar[Mapping[str, str]] = {"a2a-version": "1.0"}
    resends = True
    step = 4 * STEP if STEP >= 16 else STEP

    def body(self, nonce: str) -> Any:
        return message(nonce)

    def read(self, status: int, answer: Any) -> Outcome:
        assert status == 200, answer
        return outcome_of(answer["task"])


class A2aRpcCaller(A2aCaller):
    """Sends a message over JSON-RPC."""

    path = "/a2a"

    def body(self, nonce: str) -> Any:
        return {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message(nonce)}

    def read(self, status: int, answer: Any) -> Outcome:
        assert "result" in answer, (status, answer)
        return outcome_of(answer["result"]["task"])


class GrpcCaller(CutCaller):
    """Sends a message over gRPC, each on a channel of its own."""

    resends = True
    step = 16 * STEP if STEP >= 16 else STEP

    async def call(self, port: int, nonce: str) -> Outcome:
        # A channel is shared by all of a process to the same address unless it is told otherwise.
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            try:
                sent = await call(channel, "SendMessage", message(nonce))
            except grpc.aio.AioRpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL):
                    raise
                raise LostAnswer from error
        return outcome_of(json_format.MessageToDict(sent)["task"])


class DeviceCaller(CutCaller):
    """A device of the relay that connects, says hello and calls."""

    async def call(self, port: int, nonce: str) -> Outcome:
        try:
            async with wired(agent_call_url(port, "lamp"), ping_interval=None) as wire:
                for frame in (INITIALIZE, INITIALIZED, TOOLS_LIST):
                    await wire.say(frame)
                await wire.answer(2)
                answer = await wire.ask("tools/call", {"name": "pay", "arguments": {"nonce": nonce}})
        except (OSError, WebSocketException, AssertionError, EOFError) as error:
            raise LostAnswer from error
        if "error" in answer:
            return cast(ReportedOutcome, answer["error"]["data"]["executed"]), None
        return "ok", answer["result"]["content"][0]["text"]


def message(nonce: str) -> dict[str, Any]:
    """A message that has the tool run and is answered when it has; its id is the nonce."""
    server, tool = TOOL.split(".")
    asked = {"target_mcp_server_id": server, "tool_name": tool, "arguments": {"nonce": nonce}}
    parts = [{"data": asked}]
    return {"message": {"messageId": nonce, "role": "ROLE_USER", "parts": parts}}


def outcome_of(task: Any) -> Outcome:
    """How a task ended."""
    output = task["artifacts"][0]["parts"][0]["data"]
    if task["status"]["state"] == "TASK_STATE_COMPLETED":
        return "ok", output["mcp_result"]["content"][0]["text"]
    return output["error"]["details"]["executed"], None


CALLERS: dict[str, CutCaller] = {
    "REST": HttpCaller(),
    "A2A JSON-RPC": A2aRpcCaller(),
    "A2A HTTP+JSON": A2aCaller(),
    "A2A gRPC": GrpcCaller(),
    "relay": DeviceCaller(),
}


@dataclass(frozen=True, slots=True)
class Front:
    """A hub and what ran behind it."""

    hub: HubProcess
    ledger: Ledger
    ports: Mapping[str, int]
    """Of frontends that have their own."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Front]:
    folder = tmp_path_factory.mktemp("front")
    ledger = Ledger(folder / "ledger")
    relay = {"key": KEY, "agents": {"lamp": {"allow": [TOOL]}}}
    servers = {"quick": stdio(quick_server.command(ledger.path))}
    async with serving(folder, servers, limits=PATIENT, relay=relay, a2a={"grpc_port": 0}) as hub:
        port = urlsplit(f"//{(await address(hub)).rpartition('/')[2]}").port
        assert port is not None
        yield Front(hub, ledger, {"A2A gRPC": port})


@pytest.mark.parametrize("name", CALLERS)
async def test_a_caller_that_is_cut_off_anywhere_harms_no_other_caller_and_may_ask_again(
    front: Front, name: str
) -> None:
    history: list[Record] = []
    neighbour: list[Record] = []
    numbers = itertools.count()
    caller = CALLERS[name]
    async with ChaosProxy(front.ports.get(name, front.hub.port)) as proxy, Caller(front.hub.port) as other:

        async def pay(*, is_cut: bool) -> Record:
            clock = asyncio.get_running_loop().time
            nonce, started = f"{name} {next(numbers)}", clock()
            received: Outcome = "unknown", None
            try:
                received = await caller.call(proxy.port, nonce)
            except LostAnswer:
                assert is_cut, "the wire is whole"
                await proxy.clear()
                if caller.resends:
                    received = await caller.call(proxy.port, nonce)
                    assert received == ("ok", nonce), "a message that is sent again joins its task"
            history.append(Record(nonce, *received, started, clock(), DEADLINE))
            return history[-1]

        await pay(is_cut=False)
        descriptors = open_descriptors(front.hub.pid)
        async with steady(other, TOOL, neighbour, f"beside {name}"):
            for way, ending in itertools.product(WAYS, ENDINGS):
                await proxy.clear()
                assert (await pay(is_cut=False)).reported == "ok"
                for offset in offsets(proxy.passed[way], caller.step):
                    (proxy.reset_after if ending == "reset" else proxy.close_after)(offset, way)
                    await pay(is_cut=True)
                    await proxy.clear()
        assert {record.reported for record in neighbour} == {"ok"}
        ran = {nonce: times for nonce, times in front.ledger.ran().items() if name in nonce}
        assert judge([*history, *neighbour], ran) == []
        assert proxy.cuts > 10
        note_cuts(f"caller over {name}", dict(Counter(record.reported for record in history)), caller.step)
    await eventually(lambda: open_descriptors(front.hub.pid) <= descriptors + 2, "the broken connections are closed")
    assert not complaints(front.hub)
