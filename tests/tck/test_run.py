"""The verdict on a kit's run: no unknown failure passes, and no passing test is listed as a gap."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.tck.run import Counts, Gap, judge, read_gaps, read_report, relay, tables_for

KNOWN = Gap("why", ("1.0",), ("a.b::test_known[[]*",))
REPORT = """<testsuites><testsuite>
<testcase classname="a.b" name="test_known[x]"><failure>no</failure></testcase>
<testcase classname="a.b" name="test_new"><error>no</error></testcase>
<testcase classname="a.b" name="test_left_out"><skipped/></testcase>
<testcase classname="a.b" name="test_fine"/>
</testsuite></testsuites>"""


def test_a_report_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    path.write_text(REPORT)
    assert read_report(path) == Counts(1, 1, frozenset({"a.b::test_known[x]", "a.b::test_new"}))


@pytest.mark.parametrize(
    ("failed", "surprising", "is_mended"),
    [
        ({"a.b::test_known[x]"}, [], False),
        ({"a.b::test_known[x]", "a.b::test_new"}, ["a.b::test_new"], False),
        ({"a.b::test_new"}, ["a.b::test_new"], True),
        (set(), [], True),
    ],
)
def test_only_known_gaps_may_fail_and_they_must(failed: set[str], surprising: list[str], *, is_mended: bool) -> None:
    assert judge(Counts(1, 0, frozenset(failed)), "1.0", [KNOWN]) == (surprising, [KNOWN] if is_mended else [])


def test_a_gap_is_one_of_its_own_generation() -> None:
    failed = frozenset({"a.b::test_known[x]"})
    assert judge(Counts(1, 0, failed), "0.3", [KNOWN]) == (["a.b::test_known[x]"], [])
    assert judge(Counts(1, 0, failed), "1.0 grpc", [KNOWN]) == ([], [])
    only = Gap("why", ("1.0 grpc",), KNOWN.tests)
    assert judge(Counts(1, 0, frozenset()), "1.0", [only]) == ([], [])


def test_every_gap_says_why() -> None:
    gaps = read_gaps()
    assert all(gap.why and gap.kits and gap.tests for gap in gaps)
    assert {kit for gap in gaps for kit in gap.kits} == {"1.0", "1.0 grpc", "0.3"}


def test_the_agent_is_configured_as_it_is_by_default() -> None:
    assert tables_for(1, 2)["a2a"] == {"text_tool": "tck.tck", "grpc_port": 2}
    assert tables_for(1, None)["a2a"] == {"text_tool": "tck.tck"}


async def test_pushes_are_forwarded_to_the_port_in_their_path() -> None:
    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.set_result(await reader.readuntil(b"{}"))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(receive, "127.0.0.1", 0)
    async with server, relay() as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        target = server.sockets[0].getsockname()[1]
        writer.write(b"POST /relay:%d/webhook HTTP/1.1\r\nx-a: b\r\nContent-Length: 2\r\n\r\n{}" % target)
        assert await reader.read() == b"HTTP/1.1 204 No Content\r\n\r\n"
        said = await received
        assert said.startswith(b"POST /webhook HTTP/1.1\r\n")
        assert b"x-a: b\r\n" in said
        writer.close()
