"""T33: a result or a list for one caller is given to another from a cache.

Answer: a kept result belongs to one tenant, caller, set of headers and arguments. What a server calls public is
shared only if the operator trusts that server; what it asks, what is an error or names a task is never kept; lists
are made for each permission set and marked private. By whose grants a view is made is its key, and so are the bounds
of a tenant and of a frontend. More of what is kept, and for how long: `tests/unit/core/calls/test_recall.py`.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING
from tests.faults.eliciting_servers import ModernElicitingServer
from tests.faults.scripted import ReceivedRequest, reply, tool
from tests.frontends.wire import connected, encoded, key_header, modern, modern_headers, until
from tests.hubs import serving
from tests.unit.core.doubles import Stage, ready
from tests.unit.core.doubles import tool as feature

KEYS = {"ann": "the-key-of-ann-0123456789", "ben": "the-key-of-ben-0123456789"}
CALLERS = {name: {"key": key, "tenant": f"of-{name}", "allow": ["*"]} for name, key in KEYS.items()}


class Telling(ModernElicitingServer):
    """A modern server whose every answer is another, and which says of it whatever a test wants."""

    def __init__(self, uri: str, scope: str) -> None:
        super().__init__()
        self.tools = [tool("t")]
        self.uri, self.scope = uri, scope
        self.reads = 0

    async def on(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        """Answer what is read; everything else as others do."""
        held: dict[str, Any] = {"resultType": "complete", "ttlMs": 60_000, "cacheScope": self.scope}
        if request.method == "server/discover":
            able: dict[str, Any] = {"tools": {}, "resources": {}}
            received = {
                "supportedVersions": ["2026-07-28"],
                "capabilities": able,
                "serverInfo": {"name": "x", "version": "1"},
            }
            out.write(reply(request.result({**held, "cacheScope": "private", **received})))
        elif request.method == "resources/list":
            out.write(reply(request.result({**held, "resources": [{"uri": self.uri, "name": "a"}]})))
        elif request.method == "resources/templates/list":
            out.write(reply(request.result({**held, "resourceTemplates": []})))
        elif request.method == "resources/read":
            self.reads += 1
            text = {"uri": self.uri, "text": f"answer {self.reads}"}
            out.write(reply(request.result({**held, "contents": [text]})))
        else:
            await super().on(request, out)


CASES = {
    "private, trusted": ("private", True, False),
    "private": ("private", False, False),
    "mislabelled public": ("public", False, False),
    "public, trusted": ("public", True, True),
}
"""What a server says, whether the operator trusts it, and whether one caller's answer is then another's."""


async def test_a_result_is_shared_between_callers_only_if_a_trusted_server_says_so(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        servers: dict[str, Any] = {}
        for number, (scope, is_trusted, _) in enumerate(CASES.values()):
            telling = await stack.enter_async_context(Telling(f"note:{number}", scope))
            servers[f"s{number}"] = {**telling.entry, "trusted": is_trusted}
        hub = await stack.enter_async_context(serving(tmp_path, servers, callers=CALLERS))
        wire = await stack.enter_async_context(connected(hub.port))

        async def ask(name: str, method: str, **params: str) -> Any:
            headers = [*modern_headers(method, params.get("uri")), *key_header(KEYS[name])]
            return (await wire.request(encoded(modern(method, params)), headers)).json

        async def read(name: str, uri: str) -> str | None:
            result = (await ask(name, "resources/read", uri=uri)).get("result")
            return None if result is None else str(result["contents"][0]["text"])

        async def are_there() -> bool:
            return all([await read("ann", f"note:{number}") is not None for number in range(len(CASES))])

        await until(are_there)
        for number, (label, (_, _, is_shared)) in enumerate(CASES.items()):
            first, others = await read("ann", f"note:{number}"), await read("ben", f"note:{number}")
            assert (others == first) == is_shared, label
            assert (await read("ann", f"note:{number}"), await read("ben", f"note:{number}")) == (first, others)
        assert (await ask("ann", "tools/list"))["result"]["cacheScope"] == "private", "lists are their callers' own"


async def test_a_list_is_cached_only_for_callers_with_the_same_grants_and_bounds() -> None:
    hub = Stage.of(ready(feature("read"), feature("write"))).hub
    own, bounds = Grants(("*",)), Grants(("*",), ("files.write",))
    free, bound = Caller("a", "x", own), Caller("a", "y", own.bounded_by(bounds))
    held = Caller("a", "x", own, frontends=(("rest", Grants(("files.write",))),))
    views = {name: hub.snapshot.view(who.grants, EVERYTHING) for name, who in {
        "free": free, "bound": bound, "on mcp": held.on("mcp"), "on rest": held.on("rest")
    }.items()}  # fmt: skip
    assert {name: list(view.routes) for name, view in views.items()} == {
        "free": ["files.read", "files.write"],
        "bound": ["files.read"],
        "on mcp": ["files.read", "files.write"],
        "on rest": ["files.write"],
    }
    assert views["free"] is views["on mcp"]
