"""T17: an address in a card, an icon, a file part or a resource has the hub fetch it.

The answer: the hub fetches none of them. A resource is read from the server that lists it, under its name; links, icons
and web sites are passed on as they are; file parts of callers are not taken. What a card says of where its agent is
spoken to is believed within the card's own host (`tests/unit/upstream/agent/test_contacts.py`), and all else in it is
shown or left. Addresses of callers' file parts and of cards: `test_ssrf_matrix.py`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from isthmus.model.calls import Result
from tests.faults.scripted import SESSION, ReceivedRequest, Scripted, hub_of, listening, reply
from tests.hubs import Raw
from tests.security.sink import Sink, dialled
from tests.security.vectors import vectors


class Linking(Scripted):
    """A server that has an address wherever it may have one."""

    def __init__(self, urls: list[str]) -> None:
        super().__init__()
        self.urls = urls
        icons = [{"src": url} for url in urls]
        meta = {"ui": {"resourceUri": urls[0]}, "io.example/url": urls}
        self.tools = [{"name": "t", "inputSchema": {"type": "object"}, "icons": icons, "_meta": meta}]

    async def on_initialize(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        self.greetings += 1
        me = {"name": "x", "version": "1", "websiteUrl": self.urls[0], "icons": self.tools[0]["icons"]}
        received = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}, "resources": {}, "prompts": {}},
            "serverInfo": me,
            "instructions": f"See {self.urls[0]}",
        }
        out.write(reply(request.result(received), headers={SESSION: self.session}))

    async def on(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        lists: dict[str, Any] = {
            "resources/list": {"resources": [{"uri": url, "name": url} for url in self.urls]},
            "resources/templates/list": {"resourceTemplates": [{"uriTemplate": f"{self.urls[0]}{{x}}", "name": "n"}]},
            "prompts/list": {"prompts": [{"name": "p", "icons": self.tools[0]["icons"]}]},
            "resources/read": {"contents": [{"uri": url, "text": url} for url in self.urls]},
            "prompts/get": {"messages": [{"role": "user", "content": content} for content in self._contents()]},
        }
        if request.method in lists:
            out.write(reply(request.result(lists[request.method])))
        else:
            await super().on(request, out)

    async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        out.write(reply(request.result({"content": self._contents(), "structuredContent": {"url": self.urls}})))

    def _contents(self) -> list[dict[str, Any]]:
        links = [{"type": "resource_link", "uri": url, "name": "n"} for url in self.urls]
        return [*links, {"type": "resource", "resource": {"uri": self.urls[0], "text": "t"}}]


async def test_nothing_that_a_server_points_to_is_fetched(tmp_path: Path) -> None:
    with Sink() as sink, dialled() as whom:
        urls = [url for url in vectors(sink.port) if url.isprintable()]
        async with (
            Linking(urls) as server,
            hub_of(tmp_path, {"s": server.entry}) as hub,
            listening(hub) as port,
            Raw(f"http://127.0.0.1:{port}/mcp") as caller,
        ):
            await hub.ready("s")
            for method in ("tools/list", "resources/list", "resources/templates/list", "prompts/list"):
                assert "result" in await caller.ask(method), method
            outcome = await hub.call("s.t")
            assert isinstance(outcome, Result)
            assert len(msgspec.json.decode(outcome.payload)["content"]) == len(urls) + 1
            for url in urls[:3]:
                read = f"http://127.0.0.1:{port}/v1/resources/read"
                assert (await caller.http.get(read, params={"uri": url})).status_code == 200
        assert server.count("resources/read") == 3  # the server's own word, under the name that it gave
        here = {f"127.0.0.1:{port}", str(server.entry["url"]).removeprefix("http://").removesuffix("/mcp")}
        assert set(whom) == here
