"""Every odd address in every place that takes one: on a frontend, from a server, or behind a changing name.

What counts is not what is answered but who is dialled. Everything that a process connects to is noted before a packet
leaves it (`sink.dialled`), and a sink listens on this machine's own addresses. Which places take an address is found by
walking the package: one that nobody has thought of fails `test_ssrf_places`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from isthmus.app.links import Links
from isthmus.core.background import BackgroundTasks
from isthmus.core.settings import Limits
from isthmus.core.watch.server_tasks import ServerTasks
from isthmus.credentials.fetch import Fetcher, FetchFailed, UrlRefused
from isthmus.model.fault_table import Fault
from isthmus.model.names import ServerName
from isthmus.transport.egress import Egress
from isthmus.upstream.base_link import ConnectFailed, WrongCarrier
from isthmus.upstream.server_settings import (
    AgentSettings,
    Carrier,
    HttpSettings,
    Reach,
    ServerSettings,
    WebSocketSettings,
)
from tests.faults.scripted import ReceivedRequest, Scripted, reply
from tests.faults.watching import eventually
from tests.frontends.test_a2a_grpc import GRPC, address, call
from tests.frontends.wire import BASE, Reply, Wire, connected
from tests.hubs import PATIENT, HubProcess, serving
from tests.security.rebinding import PUBLIC, Names
from tests.security.sink import Sink, dialled, recorded, watched_environment
from tests.security.vectors import NAMES, vectors

KEY = "key-of-ann-0123456789abcdef"
CALLERS = {"ann": {"key": KEY, "allow": ["*"], "targets": True}}
HEADERS = [*BASE, ("x-api-key", KEY)]
AT_ONCE = 8
REBINDING = "rebinding.example"
Request = tuple[str, Any]
"""A path and a body."""


# -- what callers write ------------------------------------------------------------------------------------------------


_numbers = itertools.count()


def command(url: str) -> dict[str, Any]:
    """An instruction that names a server by its address."""
    return {"mcp_target_url": url, "mcp_method": "tools/list", "mcp_params": {}}


def rpc(method: str, params: Any) -> Request:
    """A request of the agent's frontend."""
    return "/a2a", {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def message_with(part: Any, **more: Any) -> dict[str, Any]:
    """A message with one part; each has an id of its own, else it would be taken for the one before."""
    return {"messageId": f"m{next(_numbers)}", "parts": [part], **more}


NOTHING = {"tool": "no.such", "arguments": {}}
NOW, LATER = {"returnImmediately": True}, {"returnImmediately": False}


def send_1_0(data: Any, **configuration: Any) -> dict[str, Any]:
    """The parameters of `SendMessage`."""
    return {"message": message_with({"data": data}, role="ROLE_USER"), "configuration": {**NOW, **configuration}}


def send_0_3(data: Any, **configuration: Any) -> dict[str, Any]:
    """The parameters of `message/send`."""
    message = message_with({"kind": "data", "data": data}, kind="message", role="user")
    return {"message": message, "configuration": {"blocking": False, **configuration}}


def send_0_1(data: Any, **more: Any) -> dict[str, Any]:
    """The parameters of the first `tasks/send`."""
    id = f"t{next(_numbers)}"
    return {"id": id, "sessionId": id, "message": {"role": "user", "parts": [{"type": "data", "data": data}]}, **more}


def send_vault(data: Any, **more: Any) -> dict[str, Any]:
    """The parameters of AgentVault's."""
    part = {"type": "data", "content": data, "mediaType": "application/json"}
    return {"message": {"role": "user", "parts": [part]}, **more}


FIELDS: dict[str, Callable[[str, str], Request]] = {
    "mcp_target_url, 1.0": lambda url, _: rpc("SendMessage", send_1_0(command(url), **LATER)),
    "mcp_target_url, in a text": lambda url, _: rpc(
        "SendMessage",
        {"message": message_with({"text": json.dumps(command(url))}, role="ROLE_USER"), "configuration": LATER},
    ),
    "mcp_target_url, 1.0 plain": lambda url, _: ("/a2a/rest/message:send", send_1_0(command(url), **LATER)),
    "mcp_target_url, 0.3": lambda url, _: rpc("message/send", send_0_3(command(url), blocking=True)),
    "mcp_target_url, 0.1": lambda url, _: rpc("tasks/send", send_0_1(command(url))),
    "mcp_target_url, agentvault": lambda url, _: rpc("tasks/send", send_vault(command(url))),
    "mcp_request_path": lambda url, _: rpc(
        "SendMessage", send_1_0({**command("http://good.example"), "mcp_request_path": url}, **LATER)
    ),
    "push, 1.0, with a message": lambda url, _: rpc(
        "SendMessage", send_1_0(NOTHING, taskPushNotificationConfig={"url": url})
    ),
    "push, 1.0, for a task": lambda url, task: rpc("CreateTaskPushNotificationConfig", {"taskId": task, "url": url}),
    "push, 1.0 plain": lambda url, task: (f"/a2a/rest/tasks/{task}/pushNotificationConfigs", {"url": url}),
    "push, 0.3, with a message": lambda url, _: rpc(
        "message/send", send_0_3(NOTHING, pushNotificationConfig={"url": url})
    ),
    "push, 0.3, for a task": lambda url, task: rpc(
        "tasks/pushNotificationConfig/set", {"taskId": task, "pushNotificationConfig": {"url": url}}
    ),
    "push, 0.1, with a message": lambda url, _: rpc("tasks/send", send_0_1(NOTHING, pushNotification={"url": url})),
    "push, 0.1, for a task": lambda url, task: rpc(
        "tasks/pushNotification/set", {"id": task, "pushNotificationConfig": {"url": url}}
    ),
    "push, agentvault": lambda url, _: rpc("tasks/send", send_vault(NOTHING, webhookUrl=url)),
    "file part, 1.0": lambda url, _: rpc(
        "SendMessage",
        {"message": message_with({"url": url, "mediaType": "image/png"}, role="ROLE_USER"), "configuration": NOW},
    ),
    "file part, 0.3": lambda url, _: rpc(
        "message/send",
        {"message": message_with({"kind": "file", "file": {"uri": url}}, kind="message", role="user")},
    ),
    "argument of a tool": lambda url, _: ("/v1/tools/s.t", {"url": url}),
}
"""By the place that takes it: how an address is put there. The second argument is a task of the caller's."""

GUARDED = [
    field
    for field in FIELDS
    if field.startswith(("mcp_target_url", "push")) and field != "mcp_target_url, agentvault"  # which is told an id
]
"""Those that are answered with the guard's own words, so that it is seen that they come as far as that."""


class Caller:
    """Who writes all that, over a few connections at once."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def task(self) -> str:
        """A task that has ended."""
        async with connected(self._port) as wire:
            return str((await self._post(wire, rpc("SendMessage", send_1_0(NOTHING)))).json["result"]["task"]["id"])

    async def answer_to(self, field: str, url: str, task: str) -> str:
        """The answer to an address in a place."""
        async with connected(self._port) as wire:
            return (await self._post(wire, FIELDS[field](url, task))).body.decode()

    async def put(self, pairs: Iterable[tuple[str, str]], task: str) -> None:
        """Put addresses into places: one pair after the other, as soon as one of the connections is free."""
        left = iter(pairs)
        await asyncio.gather(*(self._put_some(left, task) for _ in range(AT_ONCE)))

    async def _put_some(self, left: Iterator[tuple[str, str]], task: str) -> None:
        async with connected(self._port) as wire:
            for field, url in left:
                reply = await self._post(wire, FIELDS[field](url, task))
                assert reply.status < 500, (field, url, reply.body)

    async def _post(self, wire: Wire, request: Request) -> Reply:
        path, body = request
        version = [("a2a-version", "1.0")] if path.startswith("/a2a/rest/") else []
        return await wire.request(json.dumps(body).encode(), [*HEADERS, *version], path=path)


@asynccontextmanager
async def watched_hub(folder: Path, port: int, names: Any) -> AsyncIterator[tuple[HubProcess, Caller, Scripted]]:
    """A hub that lets its caller name any address at all, as far as patterns go."""
    allow = [f"{scheme}://*{at}" for scheme in ("http", "https") for at in ("", f":{port}")]
    async with (
        Scripted() as server,
        serving(
            folder,
            {"s": server.entry},
            callers=CALLERS,
            targets={"allow": allow},
            a2a=GRPC,
            limits={**PATIENT, "connect_seconds": 2.0, "call_seconds": 5.0},
            env=watched_environment(folder / "dialled", names),
        ) as hub,
    ):
        yield hub, Caller(hub.port), server


async def test_no_caller_has_the_hub_dial_where_it_must_not(tmp_path: Path) -> None:
    with Sink() as sink:
        async with watched_hub(tmp_path, sink.port, NAMES) as (hub, caller, server):
            task = await caller.task()
            urls = vectors(sink.port)
            for field in GUARDED:
                assert "may not be dialled: its address is loopback" in await caller.answer_to(field, urls[0], task), (
                    field
                )
            await caller.put(itertools.product(FIELDS, urls), task)
            await put_by_grpc(hub, urls, task)
            assert sink.connections() == []
            assert len(server.heard) > len(urls)  # the server sees its calls, and the sink saw none
    assert set(recorded(tmp_path / "dialled")) == {at(server)}


async def put_by_grpc(hub: HubProcess, urls: list[str], task: str) -> None:
    """The same in messages of gRPC, which are refused by the same words."""
    places = asyncio.Semaphore(AT_ONCE)

    async def told(method: str, params: Any) -> str:
        async with places:
            try:
                return str(await call(channel, method, params, KEY))
            except grpc.aio.AioRpcError as error:
                return str(error.details())

    async with grpc.aio.insecure_channel(await address(hub)) as channel:
        for url in urls[:1]:
            assert "may not be dialled" in await told("CreateTaskPushNotificationConfig", {"taskId": task, "url": url})
        await asyncio.gather(
            *(told("CreateTaskPushNotificationConfig", {"taskId": task, "url": url}) for url in urls),
            *(told("SendMessage", send_1_0(NOTHING, taskPushNotificationConfig={"url": url})) for url in urls),
            *(told("SendMessage", send_1_0(command(url), **LATER)) for url in urls),
        )


def at(server: Scripted) -> str:
    """Where a server is."""
    return str(server.entry["url"]).removeprefix("http://").removesuffix("/mcp")


async def test_a_name_with_changing_addresses_admits_no_connection(tmp_path: Path) -> None:
    """The first answer is public and lets the address pass; the next one, when it is dialled, is not."""
    turns = [[PUBLIC], ["127.0.0.1"], [PUBLIC, "127.0.0.1"], ["::1", "169.254.169.254"]]
    with Sink() as sink:
        async with watched_hub(tmp_path, sink.port, {REBINDING: turns}) as (hub, caller, server):
            for _ in turns:
                task = await caller.task()
                await caller.put(itertools.product(FIELDS, [f"http://{REBINDING}:{sink.port}/"]), task)
            await eventually(lambda: _pushed(hub), "something was pushed")
            assert sink.connections() == []
    assert set(recorded(tmp_path / "dialled")) == {at(server), f"{PUBLIC}:{sink.port}"}


def _pushed(hub: HubProcess) -> bool:
    return any("push notification" in line and REBINDING in line for line in hub.said)


# -- what servers say --------------------------------------------------------------------------------------------------

AWAY = "agent.example"
"""A server that is not on this machine, as far as its name goes: what it says is then not about its own neighbours."""


class Pointing(Scripted):
    """A server that points to an address in every way that there is; which one is in the path of the request."""

    def __init__(self, urls: list[str]) -> None:
        super().__init__()
        self.urls = urls

    async def on(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        _, way, number, *_ = request.path.split("/")
        url = self.urls[int(number)]
        out.write(getattr(self, f"say_{way}")(_in_a_header(url), url))

    def say_redirect(self, header: str, url: str) -> bytes:
        """Move there."""
        return reply(None, status=307, headers={"location": header, "refresh": f"0; url={header}"})

    def say_found(self, header: str, url: str) -> bytes:
        """The same for a GET."""
        return reply(None, status=302, headers={"location": header, "link": f"<{header}>; rel=next"})

    def say_endpoint(self, header: str, url: str) -> bytes:
        """Send your messages there."""
        data = f"event: endpoint\ndata: {header}\n\n".encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
        return head % len(data) + data

    def say_challenge(self, header: str, url: str) -> bytes:
        """Log in there."""
        challenge = f'Bearer resource_metadata="{header}", error_uri="{header}"'
        return reply(None, status=401, headers={"www-authenticate": challenge})

    def say_card(self, header: str, url: str) -> bytes:
        """Speak to me there."""
        place = {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0", "transport": "JSONRPC"}
        card = {
            "name": "a",
            "description": "",
            "version": "1",
            "protocolVersion": "0.3.0",
            "url": url,
            "preferredTransport": "JSONRPC",
            "iconUrl": url,
            "documentationUrl": url,
            "provider": {"organization": "o", "url": url},
            "supportedInterfaces": [place],
            "additionalInterfaces": [place],
            "capabilities": {"extensions": [{"uri": url}]},
            "skills": [{"id": "s", "name": "s", "description": "", "tags": []}],
            "defaultInputModes": [],
            "defaultOutputModes": [],
        }
        return reply(card)


def _in_a_header(url: str) -> str:
    return url.replace("\r", "").replace("\n", "").replace("\x00", "").encode().decode("latin-1")


WAYS: dict[str, tuple[Carrier, Callable[[str], Reach]]] = {
    "redirect": ("http", HttpSettings),
    "found": ("sse", HttpSettings),
    "endpoint": ("sse", HttpSettings),
    "challenge": ("http", HttpSettings),
    "card": ("auto", lambda url: AgentSettings(f"{url}/card.json")),
}


@contextmanager
def resolving() -> Iterator[Egress]:
    """A guard that knows where the pointing server and the names of the vectors lead."""
    yield Egress(resolver=Names({AWAY: [["127.0.0.1"]], **NAMES}))


async def point(links: Links, way: str, number: int, port: int) -> None:
    """Connect to a server that points somewhere; that must fail, and lead nowhere."""
    carrier, make = WAYS[way]
    settings = ServerSettings(ServerName("s"), make(f"http://{AWAY}:{port}/{way}/{number}"))
    link = await links.connect(settings, carrier)
    try:
        with pytest.raises((ConnectFailed, WrongCarrier, Fault)):
            await link.handshake("legacy")
    finally:
        await link.aclose()


@pytest.mark.parametrize("way", WAYS)
async def test_no_server_leads_the_hub_elsewhere(way: str) -> None:
    with Sink() as sink, resolving() as egress:
        urls = vectors(sink.port)
        async with Pointing(urls) as server:
            background = BackgroundTasks("links")
            links = Links(Limits(connect_seconds=2.0), {}, background, ServerTasks(lambda: 0.0), egress)
            port = int(at(server).rpartition(":")[2])
            with dialled() as whom:
                for number in range(len(urls)):
                    await point(links, way, number, port)
            await background.aclose()
        assert set(whom) == {f"127.0.0.1:{port}"}
        assert len(server.heard) >= len(urls)


async def test_a_socket_that_is_sent_elsewhere_does_not_go_there() -> None:
    with Sink() as sink, resolving() as egress:
        async with Pointing([f"ws://127.0.0.1:{sink.port}/"]) as server:
            background = BackgroundTasks("links")
            links = Links(Limits(connect_seconds=2.0), {}, background, ServerTasks(lambda: 0.0), egress)
            port = int(at(server).rpartition(":")[2])
            settings = ServerSettings(ServerName("s"), WebSocketSettings(f"ws://{AWAY}:{port}/redirect/0"))
            with dialled() as whom, pytest.raises(ConnectFailed, match="307"):
                await links.connect(settings, "auto")
            await background.aclose()
        assert whom == [f"127.0.0.1:{port}"]


async def test_no_document_of_a_login_is_fetched_where_it_must_not_be() -> None:
    """All that a login fetches goes by one `Fetcher`; whatever named the address, its rules are the same."""
    background = BackgroundTasks("fetches")
    with Sink() as sink, resolving() as egress, dialled() as whom:
        fetcher = Fetcher(egress, background, lambda _: False)
        for url in (each.replace("http://", "https://") for each in vectors(sink.port)):
            for fetch in (fetcher.get("it", url), fetcher.post("it", url, {}, {}), fetcher.post_json("it", url, b"")):
                with pytest.raises((UrlRefused, FetchFailed)):
                    await fetch
        assert whom == []
    await background.aclose()
