"""Resources followed with callers' own credentials: nobody is notified by another caller's subscription."""

from __future__ import annotations

import asyncio
from pathlib import Path

from isthmus.core.ports import Subscriber
from isthmus.model.fault_table import NotConnected
from isthmus.model.names import ServerName
from tests.faults.scripted import SESSION, ReceivedRequest, Scripted, hub_of, reply
from tests.faults.watching import eventually
from tests.unit.credentials.test_server_logins import OTHER, PLANNER, S, called

URI = "note:///inbox"
KEY = (ServerName("s"), URI)


class Notes(Scripted):
    """Tells of its one resource."""

    async def on_initialize(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        self.greetings += 1
        received = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}, "resources": {"subscribe": True}},
            "serverInfo": {"name": "x", "version": "1"},
        }
        out.write(reply(request.result(received), headers={SESSION: self.session}))

    async def on(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        match request.method:
            case "resources/list":
                out.write(reply(request.result({"resources": [{"uri": URI, "name": "inbox"}]})))
            case "resources/templates/list":
                out.write(reply(request.result({"resourceTemplates": []})))
            case "resources/subscribe" | "resources/unsubscribe":
                out.write(reply(request.result({})))
            case _:
                await super().on(request, out)

    @property
    def asked(self) -> list[str]:
        """The credential of each subscription request."""
        return [
            request.headers["authorization"][0] for request in self.heard if request.method == "resources/subscribe"
        ]


def entry_of(server: Scripted, **more: object) -> dict[str, object]:
    own = {"planner": {"headers": {"Authorization": "planners"}}}
    return {**server.entry, "headers": {"Authorization": "common"}, "callers": own, **more}


async def test_a_caller_with_its_own_credentials_follows_with_these_alone(tmp_path: Path) -> None:
    async with Notes() as server, hub_of(tmp_path, {"s": entry_of(server)}) as hub:
        await hub.ready("s")
        received: list[str] = []
        subscriptions = hub.running.hub.subscriptions
        assert await subscriptions.add(KEY, lambda: received.append("planner"), Subscriber(PLANNER)) is None
        assert server.asked == [], "nobody asks in everybody's name what one caller wants to know"
        subscriptions.updated(S, URI)
        assert received == [], "nor does it get notifications of others"
        await called(hub, PLANNER)
        await eventually(lambda: server.asked == ["planners"], "its own link asks")
        subscriptions.updated(S, URI)
        assert received == [], "common notifications do not concern its own"
        assert await subscriptions.add(KEY, lambda: received.append("other"), Subscriber(OTHER)) is None
        assert server.asked == ["planners", "common"]
        subscriptions.updated(S, URI)
        assert received == ["other"]


async def test_a_caller_without_credentials_follows_nothing_where_each_needs_its_own(tmp_path: Path) -> None:
    async with Notes() as server, hub_of(tmp_path, {"s": entry_of(server, credentials="caller")}) as hub:
        await hub.ready("s")
        received: list[str] = []
        refused = await hub.running.hub.subscriptions.add(KEY, lambda: received.append("other"), Subscriber(OTHER))
        assert isinstance(refused, NotConnected)
        assert "other has none" in refused.why
        hub.running.hub.subscriptions.updated(S, URI)
        assert (server.asked, received) == ([], [])
