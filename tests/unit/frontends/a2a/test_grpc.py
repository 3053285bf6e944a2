"""gRPC on a port of its own: every method, statuses that say why, and calls that end without ending tasks."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import grpc
import msgspec
import pytest
from google.protobuf import json_format

from isthmus.core.background import BackgroundTasks
from isthmus.frontends.a2a import grpc as service_module
from isthmus.frontends.a2a.grpc import DETAILS, A2aGrpc, GrpcSettings
from isthmus.frontends.http.auth import Authenticator, Fields, Identify, OriginGuard
from isthmus.frontends.http.listener import ListenError
from isthmus.frontends.http.request_cycle import CROWDED_BYTES
from isthmus.model.calls import Progress
from isthmus.wire.a2a.protobuf import CLASSES, METHODS, SERVICE, STREAMS
from tests.unit.core.doubles import raw
from tests.unit.frontends.a2a.doubles import NOW, Hall, hall, identify, message, run
from tests.unit.frontends.http.raw_client import PATIENCE_SECONDS

BODY_BYTES = 64 * 1024
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65536)]
"""A client that takes no more in advance than it has to."""


class Caller:
    """A client that writes and reads the messages of the service as JSON."""

    def __init__(self, here: Hall, service: A2aGrpc, channel: Any, port: int) -> None:
        self.here = here
        self.service = service
        self.port = port
        self._channel = channel

    def call(self, method: str, params: Any, seconds: float = PATIENCE_SECONDS, **metadata: str) -> Any:
        """A call under way."""
        kind = self._channel.unary_stream if method in STREAMS else self._channel.unary_unary
        given, got = (CLASSES[name] for name in METHODS[method])
        made = kind(f"/{SERVICE}/{method}", lambda sent: sent.SerializeToString(), got.FromString)
        sent = json_format.ParseDict(params, given())
        named = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
        return made(sent, metadata=named, timeout=seconds)

    def call_without_a_word(self, method: str, **metadata: str) -> Any:
        """A call under way whose message has not been sent."""
        kind = self._channel.stream_stream if method in STREAMS else self._channel.stream_unary
        named = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
        return kind(f"/{SERVICE}/{method}")(metadata=named, timeout=PATIENCE_SECONDS)

    async def ask(self, method: str, params: Any, **metadata: str) -> Any:
        """The answer to a call, as JSON."""
        return json_format.MessageToDict(await self.call(method, params, PATIENCE_SECONDS, **metadata))

    async def refused(self, method: str, params: Any, **metadata: str) -> tuple[str, str]:
        """The status of a call that is refused, and why it was."""
        call = self.call(method, params, PATIENCE_SECONDS, **metadata)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await (call.read() if method in STREAMS else call)
        details = next(value for name, value in refused.value.trailing_metadata() or () if name == DETAILS)
        assert isinstance(details, bytes)
        status = CLASSES["Status"].FromString(details)
        assert (status.code, status.message) == (refused.value.code().value[0], refused.value.details())
        return refused.value.code().name, CLASSES["ErrorInfo"].FromString(status.details[0].value).reason

    async def items(self, call: Any) -> list[Any]:
        """What is left of a stream."""
        found: list[Any] = []
        while (item := await call.read()) is not grpc.aio.EOF:
            found.append(json_format.MessageToDict(item))
        return found


@asynccontextmanager
async def counter(
    stall_seconds: float = PATIENCE_SECONDS,
    message_seconds: float = PATIENCE_SECONDS,
    *,
    identify: Identify = identify,
    **more: Any,
) -> AsyncIterator[Caller]:
    """The agent behind gRPC, and a client before it."""
    background = BackgroundTasks("test")
    auth = Authenticator(OriginGuard(bind_host="127.0.0.1"), identify)
    async with hall() as here:
        settings = GrpcSettings("127.0.0.1", 0, BODY_BYTES, stall_seconds, message_seconds, **more)
        service = A2aGrpc(here.frontend, auth, background, settings)
        port = await service.open()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=SMALL_WINDOW) as channel:
                yield Caller(here, service, channel, port)
        finally:
            await service.close()
            await background.aclose()


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.1:50000", "192.0.2.1"),
        ("ipv6:%5B2001:db8::1%5D:50000", "2001:db8::1"),
        ("ipv6:[::1]:50000", "::1"),
        ("unix:/run/hub.sock", ""),
    ],
)
def test_an_address_is_known_as_over_http(peer: str, address: str) -> None:
    assert service_module._address(peer) == address


async def test_a_message_is_answered_by_its_task() -> None:
    async with counter() as caller:
        caller.here.office.answer_at_once()
        task = (await caller.ask("SendMessage", run(arguments={"path": "/x", "n": 5})))["task"]
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        (part,) = task["artifacts"][0]["parts"]
        assert json.loads(part["text"]) == {"path": "/x", "n": 5}
        assert "5.0" not in part["text"]
        assert await caller.ask("GetTask", {"id": task["id"]}) == task
        listed = await caller.ask("ListTasks", {"pageSize": 10})
        assert [each["id"] for each in listed["tasks"]] == [task["id"]]


async def test_a_stream_reports_events_as_they_happen() -> None:
    async with counter() as caller:
        call = caller.call("SendStreamingMessage", run())
        first = json_format.MessageToDict(await call.read())
        caller.here.office.sent[0].emit(Progress({"progress": raw(1), "message": raw("step 1")}))
        report = json_format.MessageToDict(await call.read())
        assert report["statusUpdate"]["status"]["message"]["parts"][0] == {"text": "step 1"}
        other = caller.call("SubscribeToTask", {"id": first["task"]["id"]})
        await other.read()
        # A later subscriber gets the same again.
        assert json_format.MessageToDict(await other.read()) == report
        caller.here.office.finish()
        for stream in (call, other):
            assert [next(iter(item)) for item in await caller.items(stream)] == ["artifactUpdate", "statusUpdate"]


async def test_a_task_can_be_given_up() -> None:
    async with counter() as caller:
        task = (await caller.ask("SendMessage", run(**NOW)))["task"]
        given_up = await caller.ask("CancelTask", {"id": task["id"]})
        assert given_up["status"]["state"] == "TASK_STATE_CANCELED"
        assert await caller.refused("CancelTask", {"id": task["id"]}) == (
            "FAILED_PRECONDITION",
            "TASK_NOT_CANCELABLE",
        )


async def test_the_extended_card_is_the_caller_s() -> None:
    async with counter() as caller:
        card = await caller.ask("GetExtendedAgentCard", {}, x_api_key="some")
        assert [skill["id"] for skill in card["skills"]][2:] == ["files.read"]


@pytest.mark.parametrize(
    ("method", "params", "metadata", "status"),
    [
        ("GetTask", {"id": "nope"}, {}, ("NOT_FOUND", "TASK_NOT_FOUND")),
        ("SubscribeToTask", {"id": "nope"}, {}, ("NOT_FOUND", "TASK_NOT_FOUND")),
        ("GetTask", {}, {}, ("INVALID_ARGUMENT", "INVALID_PARAMS")),
        ("SendStreamingMessage", {}, {}, ("INVALID_ARGUMENT", "INVALID_PARAMS")),
        ("GetTask", {"id": "x"}, {"a2a_version": "99.0"}, ("FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED")),
        ("GetTask", {"id": "x"}, {"a2a_version": "0.3"}, ("FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED")),
        ("GetTask", {"id": "x"}, {"a2a_version": "1.0"}, ("NOT_FOUND", "TASK_NOT_FOUND")),
    ],
)
async def test_refusals_have_a_status_and_a_reason(
    method: str, params: Any, metadata: dict[str, str], status: tuple[str, str]
) -> None:
    async with counter() as caller:
        assert await caller.refused(method, params, **metadata) == status


async def test_requests_without_a_key_are_rejected_and_callers_see_only_their_tasks() -> None:
    async with counter() as caller:
        caller.here.office.answer_at_once()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await caller.ask("ListTasks", {}, x_api_key="nobody")
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.aio.AioRpcError) as put_off:
            await caller.ask("ListTasks", {}, x_api_key="later")
        assert put_off.value.code() is grpc.StatusCode.UNAVAILABLE
        task = (await caller.ask("SendMessage", run()))["task"]
        assert await caller.refused("GetTask", {"id": task["id"]}, x_api_key="other") == (
            "NOT_FOUND",
            "TASK_NOT_FOUND",
        )


@pytest.mark.parametrize("method", ["ListTasks", "SendStreamingMessage"])
async def test_a_caller_without_a_key_is_rejected_before_its_message_is_read(method: str) -> None:
    async with counter() as caller:
        call = caller.call_without_a_word(method, x_api_key="nobody")
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("method", ["ListTasks", "SendStreamingMessage"])
async def test_a_message_that_does_not_come_is_waited_for_only_so_long(method: str) -> None:
    async with counter(message_seconds=0.05) as caller:
        call = caller.call_without_a_word(method)
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert await call.details() == "The request did not arrive within 0.05 s"


GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""How a client of HTTP/2 begins, with no settings of its own."""


async def until_cut(reader: asyncio.StreamReader) -> None:
    """Wait until the service has closed a connection, whatever it says before that."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await reader.read(4096):
            pass


@pytest.mark.parametrize("said", [b"", GREETING[:20], GREETING])
async def test_a_client_that_connects_and_asks_nothing_is_disconnected(said: bytes) -> None:
    async with counter(greeting_seconds=0.1, idle_seconds=0.1) as caller:
        reader, writer = await asyncio.open_connection("127.0.0.1", caller.port)
        writer.write(said)
        await until_cut(reader)
        writer.close()


async def test_a_connection_over_the_limit_is_closed() -> None:
    async with counter(connections=3) as caller:
        held = [await asyncio.open_connection("127.0.0.1", caller.port) for _ in range(3)]
        for reader, writer in held:
            writer.write(GREETING)
            assert await reader.read(1)
        reader, one_more = await asyncio.open_connection("127.0.0.1", caller.port)
        await until_cut(reader)
        assert not any(reader.at_eof() for reader, _ in held)
        for _, writer in [*held, (reader, one_more)]:
            writer.close()


@pytest.mark.parametrize("method", ["ListTasks", "SendStreamingMessage"])
async def test_a_key_revoked_during_a_message_admits_no_caller(method: str) -> None:
    """A message may take half a minute; its sender must not have that long after its key has ended."""
    given = CLASSES[METHODS[method][0]]
    params = run() if method in STREAMS else {}
    asked = asyncio.Event()
    known = [identify]

    def identify_once(fields: Fields) -> Any:
        asked.set()
        return known.pop()(fields) if known else None

    async with counter(identify=identify_once) as caller:
        call = caller.call_without_a_word(method)
        await asked.wait()
        await call.write(json_format.ParseDict(params, given()).SerializeToString())
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
        assert (await caller.here.rpc("ListTasks", {}))["result"]["tasks"] == []


@pytest.mark.parametrize("method", ["ListTasks", "SendStreamingMessage"])
async def test_a_call_without_a_message_is_refused(method: str) -> None:
    async with counter() as caller:
        call = caller.call_without_a_word(method)
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await call.details() == "The call has no request message"


async def test_an_answer_that_protobuf_cannot_hold_is_no_silence() -> None:
    async with counter() as caller:
        stream = caller.call("SendStreamingMessage", run())
        await stream.read()
        deep: Any = 1
        for _ in range(100):
            deep = [deep]
        caller.here.office.finish(structuredContent={"deep": deep})
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await caller.items(stream)
        assert refused.value.code() is grpc.StatusCode.INTERNAL
        assert "protobuf" in (refused.value.details() or "")
        task = (await caller.here.rpc("ListTasks", {}))["result"]["tasks"][0]["id"]
        assert await caller.refused("GetTask", {"id": task}) == ("INTERNAL", "INVALID_AGENT_RESPONSE")


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
async def test_a_client_that_leaves_leaves_its_task_to_go_on(method: str) -> None:
    async with counter() as caller:
        call = caller.call(method, run())
        await caller.here.office.until_sent()
        await caller.here.office.until_followed()
        call.cancel()
        await caller.here.office.until_alone()
        assert caller.here.office.stage.link.withdrawn == []
        caller.here.office.finish()
        await caller.here.office.engine.wait_idle()
        # Its answer was not handed over, so that the same message is no new one.
        again = (await caller.ask("SendMessage", run()))["task"]
        assert again["status"]["state"] == "TASK_STATE_COMPLETED"
        assert len(caller.here.office.sent) == 1


async def test_a_deadline_ends_the_wait_and_not_the_task() -> None:
    async with counter() as caller:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await caller.call("SendMessage", run(), seconds=0.2)
        assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await caller.here.office.until_sent()
        caller.here.office.finish()
        await caller.here.office.engine.wait_idle()
        assert caller.here.office.stage.link.withdrawn == []


async def test_a_message_that_is_sent_again_joins_its_task_in_every_binding() -> None:
    async with counter() as caller:
        caller.here.office.answer_at_once()
        first = (await caller.ask("SendMessage", run()))["task"]["id"]
        assert (await caller.ask("SendMessage", run()))["task"]["id"] == first
        assert (await caller.here.task("SendMessage", run()))["id"] == first
        assert len(caller.here.office.sent) == 1


async def test_a_key_has_a_message_done_once() -> None:
    async with counter() as caller:
        caller.here.office.answer_at_once()
        ids = [(await caller.ask("SendMessage", run(), idempotency_key="k"))["task"]["id"] for _ in range(3)]
        assert len(set(ids)) == 1
        assert len(caller.here.office.sent) == 1


async def test_a_request_that_is_too_long_is_refused() -> None:
    async with counter() as caller:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await caller.ask("SendMessage", message("x" * BODY_BYTES))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await caller.ask("ListTasks", {})).get("tasks", []) == []


async def test_a_drain_lets_calls_end_and_takes_no_new_ones() -> None:
    async with counter() as caller:
        call = caller.call("SendStreamingMessage", run())
        await call.read()
        draining = asyncio.ensure_future(caller.service.drain(PATIENCE_SECONDS))
        await asyncio.sleep(0)
        caller.here.office.finish()
        assert [next(iter(item)) for item in await caller.items(call)] == ["artifactUpdate", "statusUpdate"]
        await draining
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await caller.ask("ListTasks", {})
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_the_stream_of_a_caller_without_permission_is_refused() -> None:
    async with counter() as caller:
        call = caller.call("SendStreamingMessage", run())
        await call.read()
        caller.here.frontend.retain(())
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await caller.items(call)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with hall() as here:
            auth = Authenticator(OriginGuard(bind_host="127.0.0.1"), identify)
            service = A2aGrpc(here.frontend, auth, BackgroundTasks("test"), GrpcSettings("127.0.0.1", port, BODY_BYTES))
            with pytest.raises(ListenError, match=rf"127\.0\.0\.1:{port}.*a2a\.grpc_port"):
                await service.open()


async def test_a_large_answer_comes_in_pieces_and_is_not_made_before_it_is_read() -> None:
    async with counter() as caller:
        call = caller.call("SendStreamingMessage", run())
        await call.read()
        [telling] = next(iter(caller.here.office.engine._store._running.values())).listeners
        text = "0123456789abcdef" * (256 * 1024)
        caller.here.office.finish(content=[{"type": "text", "text": text}])
        await caller.here.office.engine.wait_idle()
        # One piece at a time is held, however slowly it is read.
        assert telling._peer.buffered_bytes() <= CROWDED_BYTES + 2 * 1024 * 1024  # type: ignore[attr-defined]
        items = await caller.items(call)
        pieces = [item["artifactUpdate"] for item in items if "artifactUpdate" in item]
        assert len(pieces) == 16
        assert "".join(piece["artifact"]["parts"][0]["text"] for piece in pieces) == text
        assert [piece.get("append", False) for piece in pieces] == [False] + [True] * 15
        assert [piece.get("lastChunk", False) for piece in pieces] == [False] * 15 + [True]


LARGE = 5_000_000
"""Longer than what a client of gRPC takes as one message, unless it was told to."""


async def test_json_that_is_too_long_for_a_message_comes_as_a_file_in_pieces() -> None:
    async with counter() as caller:
        for position in range(2):
            call = caller.call("SendStreamingMessage", run(), idempotency_key="k")
            first = json_format.MessageToDict(await call.read())
            assert first["task"]["status"]["state"] == "TASK_STATE_WORKING"
            if position == 0:
                caller.here.office.finish(content=[], structuredContent={"result": "x" * LARGE})
            *updates, last = await caller.items(call)
            parts = [item["artifactUpdate"]["artifact"]["parts"][0] for item in updates]
            assert {part["mediaType"] for part in parts} == {"application/json"}
            whole = b"".join(base64.b64decode(part["raw"]) for part in parts)
            assert json.loads(whole) == {"result": "x" * LARGE}
            assert last["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_json_that_fits_into_a_message_comes_as_it_is() -> None:
    async with counter() as caller:
        call = caller.call("SendStreamingMessage", run())
        await call.read()
        caller.here.office.finish(content=[], structuredContent={"result": "x" * 2_000_000})
        update, _ = await caller.items(call)
        (part,) = update["artifactUpdate"]["artifact"]["parts"]
        assert part["data"] == {"result": "x" * 2_000_000}


async def test_a_client_that_does_not_read_is_disconnected_and_affects_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    was_cut = asyncio.Event()
    abort = service_module._abort

    async def heard_abort(context: Any, code: grpc.StatusCode, message: str) -> NoReturn:
        was_cut.set()
        await abort(context, code, message)

    monkeypatch.setattr(service_module, "_abort", heard_abort)
    async with counter() as caller, asyncio.timeout(PATIENCE_SECONDS):
        idle = caller.call("SendStreamingMessage", run())
        await idle.read()
        # Only now: on a busy machine even a client that reads takes longer.
        caller.service._settings = msgspec.structs.replace(caller.service._settings, stall_seconds=0.1)
        text = "0123456789abcdef" * (256 * 1024)
        caller.here.office.finish(content=[{"type": "text", "text": text}])
        await was_cut.wait()
        with pytest.raises(grpc.aio.AioRpcError) as cut:
            await caller.items(idle)
        assert cut.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len((await caller.ask("ListTasks", {}))["tasks"]) == 1
