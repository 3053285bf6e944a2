"""The conversation as lines: whatever way they are cut."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.core.background import BackgroundTasks
from isthmus.core.settings import Limits
from isthmus.frontends.mcp.duplex import McpStdio
from isthmus.frontends.mcp.methods import McpMethods
from isthmus.model.calls import EVERYTHING
from isthmus.wire.mcp.messages import Implementation
from tests.unit.core.doubles import ANYONE, Stage
from tests.unit.frontends.mcp.doubles import OFFER

CALL = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "file:///notes"}}).encode()


class Streams:
    def __init__(self) -> None:
        self.stage = Stage.of(OFFER, Limits(request_bytes=4096))
        self.background = BackgroundTasks("stdio")
        self.written: list[Any] = []
        mcp_methods = McpMethods(self.stage.hub, Implementation("isthmus", "1"))
        self.frontend = McpStdio(mcp_methods, ANYONE, EVERYTHING, self.background, self._write)

    def _write(self, line: bytes) -> None:
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        self.written.append(json.loads(line))


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_a_line_is_a_message_however_it_arrives(size: int) -> None:
    streams = Streams()
    text = CALL + b"\n\r\n" + CALL.replace(b'"id": 1', b'"id": 2') + b"\n"
    for start in range(0, len(text), size):
        streams.frontend.feed(text[start : start + size])
    assert len(streams.stage.link.sent) == 2
    streams.frontend.cancel_all("enough")
    assert {answer["id"] for answer in streams.written} == {1, 2}


async def test_an_invalid_message_is_refused_on_its_own_line() -> None:
    streams = Streams()
    streams.frontend.feed(b"nonsense\n" + b"x" * 5000 + b"\n" + CALL + b"\n")
    assert [answer["error"]["code"] for answer in streams.written] == [-32700, -32600]
    assert "4096 bytes" in streams.written[1]["error"]["message"]
    assert len(streams.stage.link.sent) == 1
    streams.frontend.cancel_all("enough")
    await streams.frontend.finish()
