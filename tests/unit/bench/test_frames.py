"""The bench's own WebSocket frames, read by an independent library."""

from __future__ import annotations

import pytest
from websockets.frames import Frame, Opcode
from websockets.protocol import CLIENT, SERVER, Protocol
from websockets.server import ServerProtocol

from bench.frames import PING, TEXT, FrameReader, NotWebSocket, frame, request, welcome

SIZES = (0, 1, 125, 126, 65535, 65536)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("is_client", [True, False])
def test_a_library_reads_the_written_frames(size: int, is_client: bool) -> None:  # noqa: FBT001
    reader = Protocol(SERVER if is_client else CLIENT)
    reader.receive_data(frame(TEXT, b"x" * size, is_client=is_client))
    (event,) = reader.events_received()
    assert isinstance(event, Frame)
    assert (event.opcode, bytes(event.data)) == (Opcode.TEXT, b"x" * size)


@pytest.mark.parametrize("size", SIZES)
def test_frames_of_a_library_are_read_with_any_cut(size: int) -> None:
    wire = Frame(Opcode.TEXT, b"y" * size).serialize(mask=False) + Frame(Opcode.PING, b"beat").serialize(mask=False)
    for cut in {1, 2, 3, 9, 10, len(wire) // 2, len(wire) - 1}:
        reader = FrameReader()
        assert reader.feed(wire[:cut]) + reader.feed(wire[cut:]) == [(TEXT, b"y" * size), (PING, b"beat")]


def test_a_message_in_pieces_or_masked_in_earnest_is_not_taken_for_another() -> None:
    with pytest.raises(NotWebSocket):
        FrameReader().feed(Frame(Opcode.TEXT, b"half", fin=False).serialize(mask=False))
    with pytest.raises(NotWebSocket):
        FrameReader().feed(b"\x81\x82\x01\x02\x03\x04ab")


def test_a_library_is_content_with_the_handshake() -> None:
    server = ServerProtocol()
    server.receive_data(request(80, "/mcp_endpoint/mcp/?token=abc"))
    (asked,) = server.events_received()
    server.send_response(server.accept(asked))  # type: ignore[arg-type]
    answer = b"".join(server.data_to_send())
    said = answer.lower().partition(b"sec-websocket-accept: ")[2].partition(b"\r\n")[0]
    assert said
    assert said in welcome(request(80, "/")).lower()
