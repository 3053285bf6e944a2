"""The bus over NATS when NATS is away, slow, strict or lies."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import os
import random
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nats.aio.client import Client

from isthmus.cluster.bus import NodeAway, NodeId, NoResponse
from isthmus.cluster.frames import HEADER, Hello, Kind, encode_hello
from isthmus.cluster.nats import EPOCH, OVERHEAD_BYTES, MessageReader, NatsBus, NatsSettings, from_subject, in_subject
from isthmus.cluster.sessions import BaseBus
from isthmus.cluster.settings import BusSettings
from tests.cluster.nodes import CALM, Cluster, EchoInbox, Inbox, connected, open_channel, present, until
from tests.cluster.servers import BUSY, NatsServer, Proxy

LIVELY = BusSettings(beat_seconds=0.1, silence_seconds=30.0)


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Callable[..., NatsServer]]:
    made: list[NatsServer] = []

    def make(config: str = "", *, scheme: str = "nats") -> NatsServer:
        made.append(NatsServer(tmp_path, config, scheme=scheme).start())
        return made[-1]

    yield make
    for server in made:
        server.kill()


async def reason_of(nats: NatsSettings, node: str = "a") -> str:
    """Why a bus is not as it should be."""
    bus = await NatsBus.start(nats, NodeId(node), settings=CALM)
    await until(lambda: bool(bus.state.reason))
    reason = bus.state.reason
    await bus.aclose()
    return reason


# -- NATS is away ------------------------------------------------------------------------------------------------------


async def test_without_nats_nothing_is_sent_and_with_it_all_is_well_again(own_nats_server: NatsServer) -> None:
    cluster = Cluster("nats", own_nats_server.url)
    try:
        a, b = await cluster.pair(BusSettings())
        before = b.peers()[NodeId("a")].epoch
        here, there = await open_channel(a, b)
        inbox, other = Inbox(), Inbox()
        here.start(inbox)
        there.start(other)

        async def hang(_node: NodeId, _payload: bytes) -> bytes:
            await asyncio.Event().wait()
            return b""

        b.respond("hang", hang)
        b.respond("echo", lambda _node, payload: payload)
        hanging = asyncio.create_task(a.request(b.node, "hang", b"", within=60))
        await a.request(b.node, "echo", b"", within=10)
        began = time.monotonic()
        own_nats_server.kill()
        assert (await inbox.ended()).how == (await other.ended()).how == "broken"
        with pytest.raises(NoResponse):
            await hanging
        assert time.monotonic() - began < 3.0 * BUSY
        await connected(a, is_connected=False, within=3)
        assert "127.0.0.1" in a.state.reason
        assert a.state.since <= time.time()
        assert a.peers() == {}
        began = time.monotonic()
        with pytest.raises(NodeAway, match="not connected"):
            await a.request(b.node, "echo", b"", within=60)
        with pytest.raises(NodeAway, match="not connected"):
            await a.connect(b.node, "talk", within=60)
        a.publish("news", b"lost")
        assert time.monotonic() - began < 1.0 * BUSY
        own_nats_server.start()
        began = time.monotonic()
        await present(a, "b")
        await present(b, "a")
        assert await a.request(b.node, "echo", b"again", within=10) == b"again"
        assert time.monotonic() - began < 5.0 * BUSY
        assert b.peers()[NodeId("a")].epoch > before
        assert a.state.is_connected
        assert a.state.reason == ""
    finally:
        await cluster.aclose()


async def test_a_nats_server_that_stands_still_counts_as_away(own_nats_server: NatsServer) -> None:
    cluster = Cluster("nats", own_nats_server.url)
    try:
        a, b = await cluster.pair(BusSettings(window_bytes=16 * 1024 * 1024, unsent_bytes_max=64 * 1024 * 1024))
        b.respond("echo", lambda _node, payload: payload)
        here, there = await open_channel(a, b)
        inbox, other = Inbox(), Inbox()
        here.start(inbox)
        there.start(other)
        own_nats_server.signal(signal.SIGSTOP)
        began = time.monotonic()
        offset = here.send(os.urandom(40_000_000))  # more than any socket's buffer
        with pytest.raises((NoResponse, NodeAway)):
            await a.request(b.node, "echo", b"", within=60)
        assert (await inbox.ended()).how == (await other.ended()).how == "broken"
        assert time.monotonic() - began < 4.0 * BUSY
        assert not here.has_left(offset)
        began = time.monotonic()
        with pytest.raises(NodeAway):
            await a.request(b.node, "echo", b"", within=60)
        assert time.monotonic() - began < 1.0 * BUSY
        own_nats_server.signal(signal.SIGCONT)
        began = time.monotonic()
        await present(a, "b")
        await present(b, "a")
        assert await a.request(b.node, "echo", b"again", within=10) == b"again"
        assert (
            time.monotonic() - began < (5.0 + 2 * 2.0) * BUSY
        )  # a connection attempt to the stopped server may be under way
    finally:
        own_nats_server.signal(signal.SIGCONT)
        await cluster.aclose()


async def test_a_bus_starts_without_nats_and_finds_it_later(own_nats_server: NatsServer) -> None:
    own_nats_server.kill()
    cluster = Cluster("nats", own_nats_server.url)
    try:
        a = await cluster.node("a")
        assert not a.state.is_connected
        assert a.state.reason
        own_nats_server.start()
        await connected(a, is_connected=True, within=10)
    finally:
        await cluster.aclose()


async def test_another_server_is_taken_when_one_is_away(make_server: Callable[..., NatsServer], deaf_port: int) -> None:
    server = make_server()
    nats = NatsSettings((f"nats://127.0.0.1:{deaf_port}", server.url))
    bus = await NatsBus.start(nats, NodeId("a"))
    await connected(bus, is_connected=True, within=10)
    await bus.aclose()


async def test_the_next_server_is_tried_after_one_that_is_silent(
    make_server: Callable[..., NatsServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "shuffle", lambda _servers: None)
    server = make_server()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts connections and sends nothing
        nats = NatsSettings((f"nats://127.0.0.1:{silent.getsockname()[1]}", server.url), connect_seconds=2.2)
        bus = await NatsBus.start(nats, NodeId("a"))
        await connected(bus, is_connected=True, within=10)
        await bus.aclose()


# -- NATS loses, repeats and reorders ----------------------------------------------------------------------------------


def is_data(message: bytes, marker: bytes) -> bool:
    body = message.split(b"\r\n", 1)[1]
    return len(body) > OVERHEAD_BYTES and body[8] == Kind.DATA and marker in body


def lose(marker: bytes) -> Callable[[bytes, bytes], list[bytes]]:
    return lambda _subject, message: [] if is_data(message, marker) else [message]


def repeat(marker: bytes) -> Callable[[bytes, bytes], list[bytes]]:
    return lambda _subject, message: [message, message] if is_data(message, marker) else [message]


def swap(marker: bytes) -> Callable[[bytes, bytes], list[bytes]]:
    held: list[bytes] = []

    def change(_subject: bytes, message: bytes) -> list[bytes]:
        if is_data(message, marker):
            held.append(message)
            return []
        if held and is_data(message, b""):
            return [message, held.pop()]
        return [message]

    return change


@pytest.mark.parametrize("how", [lose, repeat, swap])
async def test_a_channel_whose_frame_is_lost_repeated_or_reordered_breaks_for_both(
    nats_cluster: Cluster, nats_server: NatsServer, how: Callable[[bytes], Callable[[bytes, bytes], list[bytes]]]
) -> None:
    async with Proxy(nats_server.port) as proxy:
        a = await nats_cluster.node("a", settings=LIVELY)
        b = await nats_cluster.node("b", settings=LIVELY, where=proxy.url)
        await present(a, "b")
        await present(b, "a")
        here, there = await open_channel(a, b)
        inbox, reader = Inbox(), Inbox()
        here.start(inbox)
        there.start(reader)
        proxy.change = how(b"marked")
        for message in (b"one", b"two", b"marked", b"three", b"four"):
            here.send(message)
        end = await reader.ended()
        assert end.how == "broken"
        assert "frames were" in end.reason
        assert (await inbox.ended()).reason == end.reason
        received = [reader.messages.get_nowait() for _ in range(reader.messages.qsize())]
        assert received == ([b"one", b"two", b"marked"] if how is repeat else [b"one", b"two"])
        proxy.change = lambda _subject, message: [message]
        other_here, other_there = await open_channel(a, b)
        other_there.start(EchoInbox(other_there))
        other_here.start(answers := Inbox())
        other_here.send(b"well")
        assert await answers.next() == b"well"
        await nats_cluster.aclose()


async def test_the_loss_of_a_channels_last_frame_is_noticed(nats_cluster: Cluster, nats_server: NatsServer) -> None:
    async with Proxy(nats_server.port) as proxy:
        a = await nats_cluster.node("a", settings=LIVELY)
        b = await nats_cluster.node("b", settings=LIVELY, where=proxy.url)
        await present(a, "b")
        await present(b, "a")
        here, there = await open_channel(a, b)
        inbox, reader = Inbox(), Inbox()
        here.start(inbox)
        there.start(reader)
        proxy.change = lose(b"marked")
        here.send(b"marked")
        assert "lost" in (await reader.ended()).reason
        assert "lost" in (await inbox.ended()).reason
        await nats_cluster.aclose()


@pytest.mark.parametrize("kind", [Kind.CLOSE, Kind.BREAK, Kind.CLOSED, Kind.CREDIT, Kind.SYNC])
async def test_a_lost_frame_of_the_protocol_is_made_good(
    nats_cluster: Cluster, nats_server: NatsServer, kind: Kind
) -> None:
    """Endings are repeated until they are confirmed, credit counts from the beginning, and SYNC has numbers."""
    lost = 0

    def change(_subject: bytes, message: bytes) -> list[bytes]:
        nonlocal lost
        body = message.split(b"\r\n", 1)[1]
        if len(body) > OVERHEAD_BYTES and body[8] == kind and lost < 2:
            lost += 1
            return []
        return [message]

    async with Proxy(nats_server.port) as proxy:
        a = await nats_cluster.node("a", settings=LIVELY, where=proxy.url)
        b = await nats_cluster.node("b", settings=LIVELY, where=proxy.url)
        await present(a, "b")
        await present(b, "a")
        here, there = await open_channel(a, b)
        spare_here, spare_there = await open_channel(a, b)
        inbox, reader, spare = Inbox(), Inbox(), Inbox()
        here.start(inbox)
        there.start(reader)
        spare_there.start(spare)
        proxy.change = change
        big = os.urandom(3_000_000)
        here.send(big)
        assert await reader.next() == big
        if kind == Kind.SYNC:
            await until(lambda: lost == 2)
        here.close("done")
        assert (await reader.ended()).how == "peer"
        assert (await inbox.ended()).how == "here"
        spare_here.abort("enough")
        assert (await spare.ended()).reason == "enough"
        await nats_cluster.aclose()
    assert lost


async def test_frames_of_another_epoch_or_an_unknown_node_are_ignored(
    nats_cluster: Cluster, nats_server: NatsServer
) -> None:
    a = await nats_cluster.node("a")
    b = await nats_cluster.node("b")
    assert isinstance(a, NatsBus)
    assert isinstance(b, NatsBus)
    await present(a, "b")
    await present(b, "a")
    here, there = await open_channel(a, b)
    there.start(EchoInbox(there))
    here.start(answers := Inbox())
    rogue = Client()
    await rogue.connect(nats_server.url)
    prefix = nats_cluster.prefix
    inbox = f"{prefix}.n.{in_subject('b')}.{b.epoch}"
    data = HEADER.pack(Kind.DATA, 0, here.id, 7) + b"forged"  # type: ignore[attr-defined]
    for epoch in (0, a.epoch - 1, a.epoch + 1, 2**64 - 1):
        await rogue.publish(f"{inbox}.{in_subject('a')}", EPOCH.pack(epoch) + data)
    for subject in (f"{inbox}.{in_subject('nobody')}", f"{inbox}.1", f"{inbox}.{in_subject('a').upper()}"):
        await rogue.publish(subject, EPOCH.pack(a.epoch) + data)
        await rogue.publish(subject, b"")
        await rogue.publish(subject, os.urandom(200))
    old = encode_hello(Hello("a", a.epoch - 1, "old", {}))
    everybody = f"{prefix}.b.{in_subject('a')}"
    await rogue.publish(everybody, EPOCH.pack(a.epoch - 1) + HEADER.pack(Kind.HELLO, 0, 0, 0) + old)
    await rogue.publish(everybody, EPOCH.pack(a.epoch - 1) + HEADER.pack(Kind.BYE, 0, 0, 0))
    await rogue.publish(everybody, EPOCH.pack(a.epoch + 1) + HEADER.pack(Kind.BYE, 0, 0, 0))
    await rogue.flush()
    await rogue.close()
    here.send(b"still here")
    assert await answers.next() == b"still here"
    assert b.peers()[NodeId("a")].epoch == a.epoch


async def test_a_node_refuses_requests_of_a_node_that_it_has_not_seen(
    nats_cluster: Cluster, nats_server: NatsServer
) -> None:
    handled: list[bytes] = []

    def count(_node: NodeId, payload: bytes) -> bytes:
        handled.append(payload)
        return b""

    def change(subject: bytes, message: bytes) -> list[bytes]:
        return [] if subject.endswith(f".b.{in_subject('a')}".encode()) else [message]

    async with Proxy(nats_server.port) as proxy:
        proxy.change = change
        b = await nats_cluster.node("b", settings=LIVELY, where=proxy.url)
        b.respond("count", count)
        a = await nats_cluster.node("a", settings=LIVELY)
        await present(a, "b")
        with pytest.raises(NodeAway, match="not seen this node"):
            await a.request(b.node, "count", b"", within=20)
        with pytest.raises(NodeAway, match="not seen this node"):
            await a.connect(b.node, "count", within=20)
        assert handled == []
        await nats_cluster.aclose()


async def test_two_processes_with_one_node_id_are_reported(nats_cluster: Cluster) -> None:
    first = await nats_cluster.node("a", settings=LIVELY)
    second = await nats_cluster.node("a", settings=LIVELY)
    await until(lambda: bool(first.state.reason and second.state.reason))
    assert "another process uses the node id 'a'" in first.state.reason


# -- NATS is slow or strict --------------------------------------------------------------------------------------------


async def test_messages_longer_than_the_servers_limit_are_cut_into_chunks(
    make_server: Callable[..., NatsServer],
) -> None:
    cluster = Cluster("nats", make_server("max_payload: 16384").url)
    try:
        a, b = await cluster.pair()
        here, there = await open_channel(a, b)
        there.start(reader := Inbox())
        big = os.urandom(3_000_000)
        here.send(big)
        assert await reader.next() == big
        b.respond("echo", lambda _node, payload: payload)
        assert await a.request(b.node, "echo", big[:1_000_000], within=20) == big[:1_000_000]
    finally:
        await cluster.aclose()


async def test_a_server_whose_limit_is_too_small_is_not_used(make_server: Callable[..., NatsServer]) -> None:
    assert "max_payload" in await reason_of(NatsSettings((make_server("max_payload: 1024").url,)))


async def test_a_node_that_reads_too_slowly_is_dropped_by_nats_and_comes_back_anew(
    make_server: Callable[..., NatsServer],
) -> None:
    cluster = Cluster("nats", make_server('max_pending: 2097152\nwrite_deadline: "1s"').url)
    try:
        a = await cluster.node("a", settings=BusSettings(window_bytes=32 * 1024 * 1024))
        program = await cluster.program("b", {"window_bytes": 32 * 1024 * 1024})
        await present(a, "b")
        before = a.peers()[NodeId("b")].epoch
        channel = await a.connect(NodeId("b"), "echo", within=20)
        channel.start(inbox := Inbox())
        program.send_signal(signal.SIGSTOP)
        channel.send(os.urandom(30_000_000))
        assert (await inbox.ended()).how == "broken"
        program.send_signal(signal.SIGCONT)
        await until(lambda: NodeId("b") in a.peers() and a.peers()[NodeId("b")].epoch != before)
        assert await a.request(NodeId("b"), "echo", b"again", within=10) == b"again"
    finally:
        await cluster.aclose()


class Stream(asyncio.Transport):
    """A transport that only remembers what was done to it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[bytes] = []
        self.is_aborted = False

    def get_protocol(self) -> asyncio.BaseProtocol:
        lines = self.lines

        class Inner(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                lines.append(data)

        return Inner()

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


def test_messages_are_found_wherever_the_stream_is_cut() -> None:
    stream = (
        b"PING\r\nMSG a 1 5\r\nx\r\nMS\r\nMSG b.c 2 to 0\r\n\r\n"
        b"HMSG d 1 4 8\r\nMSG \r\n\r\n\r\nPONG\r\nMSG e 1 1\r\n!\r\n"
    )
    for cut in range(len(stream) + 1):
        transport, messages = Stream(), dict[bytes, bytes]()
        reader = MessageReader(transport, messages.__setitem__, pytest.fail)
        reader.data_received(stream[:cut])
        reader.data_received(stream[cut:])
        assert messages == {b"a": b"x\r\nMS", b"b.c": b"", b"e": b"!"}
        assert transport.lines == [b"PING\r\n", b"PONG\r\n"]


@pytest.mark.parametrize("line", [b"MSG \r\n", b"MSG a 1 -5\r\n", b"MSG a 1 999999999\r\n", b"x" * 70_000])
async def test_a_server_that_does_not_speak_the_protocol_is_disconnected(line: bytes) -> None:
    transport, reasons = Stream(), list[str]()
    reader = MessageReader(transport, lambda _subject, _data: None, reasons.append)
    for at in range(0, len(line), 10_000):
        reader.data_received(line[at : at + 10_000])
    await until(lambda: transport.is_aborted)
    assert reasons == ["it does not speak the protocol of NATS"]


# -- who may connect ---------------------------------------------------------------------------------------------------


async def test_tls_is_used_or_nothing_is_sent(
    make_server: Callable[..., NatsServer], nats_server: NatsServer, tmp_path: Path
) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    server = make_server(f'tls {{ cert_file: "{tmp_path}/cert.pem", key_file: "{tmp_path}/key.pem" }}', scheme="tls")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    bus = await NatsBus.start(NatsSettings((server.url,), tls=trusting), NodeId("a"))
    assert bus.state.is_connected
    await bus.aclose()
    assert "certificate" in (await reason_of(NatsSettings((server.url,)))).lower()
    plain = nats_server.url.replace("nats://", "tls://user:secret@")
    reason = await reason_of(NatsSettings((plain,)))
    assert "does not offer TLS" in reason
    assert "secret" not in reason


async def test_a_wrong_password_is_reported_without_the_password(make_server: Callable[..., NatsServer]) -> None:
    server = make_server('authorization { user: "hub", password: "right" }')
    bus = await NatsBus.start(NatsSettings((server.url.replace("//", "//hub:right@"),)), NodeId("a"))
    assert bus.state.is_connected
    await bus.aclose()
    reason = await reason_of(NatsSettings((server.url.replace("//", "//hub:wr0ng@"),)))
    assert "uthorization" in reason
    assert "wr0ng" not in reason


def nkey(prefix: int, key: Ed25519PrivateKey, *, is_seed: bool = False) -> str:
    """A key as NATS writes it: base32 of a type, the key and a CRC-16."""
    if is_seed:
        raw = bytes(((18 << 3) | (prefix >> 5), (prefix & 31) << 3)) + key.private_bytes_raw()
    else:
        raw = bytes((prefix,)) + key.public_key().public_bytes_raw()
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")


OPERATOR, ACCOUNT, USER = 14 << 3, 0, 20 << 3


def signed(issuer: Ed25519PrivateKey, issuer_kind: int, subject: str, kind: str, nats: dict[str, object]) -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    claims = {"jti": "1", "iat": 1, "iss": nkey(issuer_kind, issuer), "sub": subject, "name": kind}
    claims["nats"] = {"type": kind, "version": 2, **nats}
    text = f"{part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{part(claims)}"
    return f"{text}.{base64.urlsafe_b64encode(issuer.sign(text.encode())).decode().rstrip('=')}"


async def test_a_credentials_file_authenticates_the_node(
    make_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    operator, account, user = (Ed25519PrivateKey.generate() for _ in range(3))
    unlimited = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
    account_jwt = signed(
        operator, OPERATOR, nkey(ACCOUNT, account), "account", {"limits": {**unlimited, "wildcards": True}}
    )
    user_jwt = signed(
        account, ACCOUNT, nkey(USER, user), "user", {"subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {}}
    )
    server = make_server(
        f"operator: {signed(operator, OPERATOR, nkey(OPERATOR, operator), 'operator', {})}\n"
        f"resolver: MEMORY\nresolver_preload: {{ {nkey(ACCOUNT, account)}: {account_jwt} }}"
    )
    path = tmp_path / "hub.creds"
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{nkey(USER, user, is_seed=True)}\n------END USER NKEY SEED------\n"
    )
    bus = await NatsBus.start(NatsSettings((server.url,), credentials=path), NodeId("a"))
    assert bus.state.is_connected, bus.state
    await bus.aclose()
    assert "uthorization" in await reason_of(NatsSettings((server.url,)))
    path.write_text("nothing of the kind")
    with pytest.raises(ValueError, match="not a credentials file"):
        await NatsBus.start(NatsSettings((server.url,), credentials=path), NodeId("a"))


async def test_permissions_can_bind_a_node_to_its_id(make_server: Callable[..., NatsServer]) -> None:
    def user(node: str) -> str:
        mine, wild = in_subject(node), "{p}.n.{me}.*.*, {p}.b.*".format(p="isthmus", me=in_subject(node))
        publish = f'"isthmus.b.{mine}", "isthmus.n.*.*.{mine}"'
        subscribe = ", ".join(f'"{each}"' for each in wild.split(", "))
        permissions = f"permissions: {{ publish: [{publish}], subscribe: [{subscribe}] }}"
        return f'{{ user: "{node}", password: "secret", {permissions} }}'

    server = make_server(f"authorization {{ users: [ {user('a')}, {user('b')} ] }}")

    def settings(node: str) -> NatsSettings:
        return NatsSettings((server.url.replace("//", f"//{node}:secret@"),))

    buses: list[BaseBus] = [await NatsBus.start(settings(node), NodeId(node), settings=CALM) for node in ("a", "b")]
    await present(buses[0], "b")
    await present(buses[1], "a")
    buses[1].respond("echo", lambda _node, payload: payload)
    assert await buses[0].request(NodeId("b"), "echo", b"well", within=20) == b"well"
    assert "ermissions" in await reason_of(settings("a"), node="b")
    assert set(buses[0].peers()) == {"b"}
    for bus in buses:
        await bus.aclose()


@pytest.mark.parametrize("id", ["a", "a.b", "*", ">", " ", "\r\nPUB x 1\r\nx", "ß" * 60, "x" * 128])
def test_every_id_is_one_token_of_a_subject(id: str) -> None:
    token = in_subject(id)
    assert token.isalnum()
    assert from_subject(token) == id


@pytest.mark.parametrize("token", ["1", "ä", "a", "aaaaaaaaa", "", "********"])
def test_a_token_that_is_no_id_is_refused(token: str) -> None:
    assert in_subject(from_subject(token) or "") != token or token == ""


@pytest.mark.parametrize(
    ("servers", "prefix"),
    [((), "x"), (("http://a",), "x"), (("nats://",), "x"), (("nats://a",), "a.*"), (("nats://a",), "")],
)
def test_settings_that_cannot_work_are_refused(servers: tuple[str, ...], prefix: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        NatsSettings(servers, prefix)
