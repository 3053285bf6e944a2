"""A server that repeats its credentials in an error message does not disclose them to callers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec

from isthmus.app.hub import LOCAL
from isthmus.model.calls import Call, Outcome, Result
from isthmus.model.fault_table import Fault, ServerError
from tests.faults.scripted import Ending, ReceivedRequest, Scripted, hub_of, reply

SECRET = 'sh0wn-"to\\the-server'


class Parrot(Scripted):
    """Fails as it is asked to, with what it was shown in its words."""

    async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        shown = request.headers["authorization"][0]
        how, said = request.arguments["how"], f"Not good: {shown}"
        error = {"code": -32050, "message": said, "data": {"sent": [shown], "n": 1}}
        if how == "error":
            out.write(reply({"jsonrpc": "2.0", "id": request.message["id"], "error": error}))
        elif how == "status":
            out.write(reply({"jsonrpc": "2.0", "id": request.message["id"], "error": error}, status=400))
        else:
            result = {"content": [{"type": "text", "text": said}], "isError": how == "tool"}
            out.write(reply(request.result(result)))


async def test_failures_do_not_repeat_credentials_sent_to_the_server(tmp_path: Path) -> None:
    async with Parrot() as parrot:
        entry = {**parrot.entry, "headers": {"Authorization": f"Bearer {SECRET}"}}
        servers = {"p": entry, "q": {**entry, "isolation": "caller"}}
        async with hub_of(tmp_path, servers) as hub:
            await hub.ready("p", "q")
            for name in ("p.t", "q.t"):
                error = await hub.call(name, how="error")
                assert isinstance(error, ServerError)
                assert (error.message, bytes(error.data or b"")) == ("Not good: ***", b'{"sent": ["***"], "n": 1}')
                refused = await hub.call(name, how="status")
                assert isinstance(refused, Fault)
                assert "***" in refused.message
                assert SECRET not in refused.message
                assert _text_of(await hub.call(name, how="tool")) == "Not good: ***"
                # What a tool returns is its own affair, and reaches its caller as it is.
                assert _text_of(await hub.call(name, how="result")) == f"Not good: Bearer {SECRET}"


async def test_nor_with_the_failure_of_a_call_that_says_more_than_its_arguments(tmp_path: Path) -> None:
    async with Parrot() as parrot:
        entry = {**parrot.entry, "headers": {"Authorization": f"Bearer {SECRET}"}}
        async with hub_of(tmp_path, {"p": entry}) as hub:
            await hub.ready("p")
            ending, how = Ending(), msgspec.Raw(b'{"how":"tool"}')
            more = {"more": msgspec.Raw(b"1")}
            hub.running.hub.start(Call(LOCAL, hub.running.surface, "p.t", how, extra=more), ending)
            assert _text_of(await asyncio.wait_for(ending.outcome, 20.0)) == "Not good: ***"


def _text_of(outcome: Outcome) -> str:
    assert isinstance(outcome, Result)
    return str(json.loads(bytes(outcome.payload))["content"][0]["text"])
