"""The comparison with other gateways: tables, changes and charts; installing and calling them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from bench.charts import Series, apart, dots, lines, powers, short
from bench.growth import complaint_about_stream
from bench.load import complaint_about_event
from bench.messages import Ask
from bench.peers import (
    ALL_PARTS,
    PUBLISHED,
    TABLE,
    Peer,
    about_of,
    growing_of,
    install_commands,
    keys_of,
    read_history,
    read_peers,
    reason,
)
from bench.peers_report import (
    END,
    START,
    About,
    Figures,
    Measured,
    Part,
    Record,
    change,
    changes,
    charts,
    merged,
    quickest,
    size,
    tables,
    with_figures,
)

SVG = "{http://www.w3.org/2000/svg}"
ANSWER = b'{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"hello"}]}}'


def figures(cpu: float, relays: float | None = 2.0) -> Figures:
    return Figures(cpu, 1e6 / cpu, 0.5, 12.25, relays, 80.4)


def part(*settings: Measured) -> Part:
    return Part("2026-11-18", "abc1234", 3, 1.5, settings)


ROWS = {
    "direct": About("direct call", "", "", "yardstick"),
    "relay": About("bare relay", "", "", "yardstick"),
    "hub": About("Isthmus", "", "2026-07-28", "own"),
    "hub, legacy": About("Isthmus", "", "2025-11-25", "own"),
    "fast": About("Fast & <Light>", "1.2", "2025-11-25"),
    "slow": About("Slow", "3", "2025-11-25"),
}


def record(calls: Mapping[str, Figures], *, failed: Mapping[str, str] | None = None) -> Record:
    return Record("2 cores", ROWS, {"calls": part(Measured(16, 0, calls, failed or {}))})


WHOLE = record({"relay": figures(40, 1.0), "hub": figures(80), "hub, legacy": figures(90), "fast": figures(61.25, 1.5)})


def test_a_row_has_its_figures_or_the_reason_why_not() -> None:
    shown = tables(record({"hub": figures(80.04), "fast": figures(1234.5, None)}, failed={"slow": "HTTP 500"}))
    assert "2026-11-18, revision abc1234, medians of 3 rounds of 1.5 s" in shown
    assert "| **Isthmus** |  | 2026-07-28 | 80.0 | 2.00 | 12,494 | 0.50 | 12.25 | 80 |" in shown
    assert "| Fast & <Light> | 1.2 | 2025-11-25 | 1,234 |  | 810 | 0.50 | 12.25 | 80 |" in shown
    assert "| Slow | 3 | 2025-11-25 | failed: HTTP 500 |  |  |  |  |  |" in shown
    assert "direct call" not in shown  # did not take part


def test_every_row_of_a_table_has_as_many_cells_as_its_head() -> None:
    both = {"hub": figures(80), "fast": figures(60)}
    settings = [Measured(16, 64 * 1024, both), Measured(16, 1024 * 1024, {"hub": figures(900)}, {"fast": "too long"})]
    grown = [Measured(count, 0, both) for count in (1, 16, 64)]
    parts = {"payloads": part(*settings), "connections": part(*grown), "sizes": part(*settings)}
    shown = tables(Record("2 cores", ROWS, parts, {"Other": "there is no npm"}))
    blocks = [[line for line in block.splitlines() if line.startswith("|")] for block in shown.split("\n\n")]
    assert [{line.count("|") for line in block} for block in blocks if block] == [{11}, {6}, {5}]
    assert "failed: too long" in shown
    assert "Not measured: Other (there is no npm)." in shown


def test_growth_with_servers_and_events_has_a_column_for_each_setting() -> None:
    servers = part(
        *(Measured(16, 0, {"relay": figures(40), "hub": figures(80)}, servers=count) for count in (1, 1_000))
    )
    events = part(Measured(1, 0, {"hub": figures(12_345)}, events=10_000))
    shown = tables(Record("2 cores", ROWS, {"servers": servers, "events": events}))
    assert "| servers | 1 | 1,000 |\n|---|---:|---:|\n| bare relay | 40.0 / 12 / 80 | 40.0 / 12 / 80 |" in shown
    assert "| events | 10,000 |\n|---|---:|\n| **Isthmus** | 12,345 / 12 |" in shown


def test_a_change_is_shown_where_both_have_the_figure() -> None:
    now = record({"hub": figures(100, 2.5), "fast": figures(50)})
    published = record({"hub": figures(80, 2.0), "slow": figures(700)})
    assert changes(now, published) == [
        "Isthmus (2026-07-28), 16 connections, 15 bytes: 80.0 → 100 µs (+25 %), 2.00 → 2.50 relays"
    ]
    assert changes(now, None) == []
    assert changes(Record("2 cores", ROWS, {"sizes": now.parts["calls"]}), published) == []
    assert change(figures(80, None), figures(60)) == "80.0 → 60.0 µs (-25 %)"


def test_the_newest_of_each_part_counts_and_another_machine_begins_anew() -> None:
    older = Record("2 cores", ROWS, {"calls": part(), "sizes": part()}, {"Slow": "refused"})
    newer = Record("2 cores", {"slow": ROWS["slow"]}, {"sizes": part(Measured(1, 1, {}))})
    both = merged([older, newer])
    assert both is not None
    assert both.parts == {"calls": older.parts["calls"], "sizes": newer.parts["sizes"]}
    assert list(both.rows) == list(ROWS)
    assert merged([older, Record("4 cores", ROWS, {})]) == Record("4 cores", ROWS, {})
    assert merged([]) is None


def test_the_quickest_are_other_programs() -> None:
    whole = record({"hub": figures(1), "slow": figures(9), "fast": figures(3)})
    assert quickest(whole, 3) == ["fast", "slow"]
    assert quickest(whole, 1) == ["fast"]
    assert quickest(None, 3) == quickest(Record("2 cores", ROWS, {}), 3) == []


def test_growth_is_measured_with_the_quickest_of_those_that_are_asked_for() -> None:
    whole = record({"hub": figures(1), "slow": figures(9), "fast": figures(3)})
    assert growing_of(whole, ROWS) == {"direct", "relay", "hub", "hub, legacy", "fast", "slow"}
    chosen = {name: about for name, about in ROWS.items() if name != "fast"}
    assert growing_of(whole, chosen) == {"direct", "relay", "hub", "hub, legacy", "slow"}
    assert growing_of(None, chosen) == set(chosen)  # nobody knows the quickest


def test_figures_replace_those_between_the_marks() -> None:
    page = f"before\n{START}\nold\n{END}\nafter"
    assert with_figures(page, "new") == f"before\n{START}\n\nnew\n{END}\nafter"
    with pytest.raises(ValueError, match="has no"):
        with_figures("no marks", "new")


def test_charts_are_well_formed_and_name_every_row() -> None:
    grown = [Measured(count, 0, {"hub": figures(80 + count), "fast": figures(60)}) for count in (1, 16)]
    whole = Record("2 cores", ROWS, {**WHOLE.parts, "connections": part(*grown), "sizes": part(*grown)})
    made = charts(whole)
    assert set(made) == {"cpu.svg", "p99.svg", "connections.svg", "sizes.svg"}
    for text in made.values():
        tree = ElementTree.fromstring(text)
        assert tree.tag == f"{SVG}svg"
        shown = " ".join(each.text or "" for each in tree.iter(f"{SVG}text"))
        assert "Isthmus" in shown
        assert "Fast & <Light>" in shown
        assert "prefers-color-scheme: dark" in text
    assert ">Isthmus, MCP 2026<" in made["cpu.svg"]  # both eras are in it
    assert ">Isthmus, 96<" in made["sizes.svg"]  # the last figure; only one era is in it


def test_a_value_ten_times_as_large_is_one_step_further() -> None:
    tree = ElementTree.fromstring(dots("t", "µs", [("a", "own", 10), ("b", "other", 100), ("c", "other", 1000)]))
    first, second, third = (float(each.attrib["cx"]) for each in tree.iter(f"{SVG}circle"))
    assert second - first == pytest.approx(third - second, abs=0.2)
    assert [short(each) for each in (0.1234, 12.34, 12.0, 1234.5)] == ["0.123", "12.3", "12", "1,234"]
    assert powers([5]) == (1, 10)
    assert powers([8, 1100]) == (1, 10, 100, 1000, 10000)


def test_lines_end_where_a_program_failed_and_labels_do_not_cover_each_other() -> None:
    series = [Series("a", "own", [(0, 1), (1, 10)]), Series("b", "other", [(0, 1)])]
    tree = ElementTree.fromstring(lines("t", "µs", "text", ["1 KiB", "1 MiB"], series))
    assert len(list(tree.iter(f"{SVG}circle"))) == 3
    assert apart([10, 12, 100], 17) == [10, 27, 100]
    assert apart([30, 10], 17) == [30, 10]


def test_an_answer_without_all_its_events_is_wrong() -> None:
    event = b'data: {"method":"notifications/progress"}\n\n'
    last = b"data: " + ANSWER.replace(b"hello", b"2") + b"\n\n"
    assert complaint_about_stream(event * 2 + last, Ask(b"", 7, "2")) is None
    assert complaint_about_stream(event + last, Ask(b"", 7, "2")) == "1 of 2 events came"


@pytest.mark.parametrize(
    ("body", "is_right"),
    [
        (ANSWER, True),
        (b"event: message\r\ndata: " + ANSWER + b"\r\n\r\n", True),
        (b"id: 1\ndata:\n\ndata: " + ANSWER + b"\n\nid: 2\ndata: \n\n", True),
        (ANSWER.replace(b"hello", b"other"), False),
        (b"event: message\ndata: " + ANSWER.replace(b":7", b":8") + b"\n\n", False),
        (b"", False),
        (b"no such path", False),
    ],
)
def test_an_answer_is_checked_as_an_event_too(body: bytes, *, is_right: bool) -> None:
    assert (complaint_about_event(body, Ask(b"", 7, "hello")) is None) is is_right


def test_the_table_of_programs_is_whole() -> None:
    peers = read_peers(TABLE.read_text())
    assert [name for name, peer in peers.items() if peer.registry == "checkout"] == ["hub", "unaudited", "stdio"]
    bought = [peer for peer in peers.values() if peer.registry != "checkout"]
    assert all(peer.package and peer.version[-1].isdigit() for peer in bought)
    assert not any(
        "0.0.0.0" in argument for peer in peers.values() for argument in [*peer.arguments, *peer.files.values()]
    )
    rows = about_of(peers)
    assert list(rows)[:3] == ["direct", "relay", "hub"]
    assert [key for name, peer in peers.items() for key in keys_of(name, peer)] == list(rows)[2:]
    assert {about.kind for about in rows.values()} == {"own", "yardstick", "other"}


@pytest.mark.parametrize(
    ("registry", "last"),
    [
        ("pypi", "--no-input thing==1.0"),
        ("npm", "thing@1.0"),
        ("go", "build -o bin/ thing"),
        ("crates", "--version 1.0 thing"),
    ],
)
def test_each_registry_installs_the_exact_version_below_the_folder(registry: str, last: str) -> None:
    peer = msgspec.convert(
        {"title": "t", "registry": registry, "program": "p", "arguments": [], "package": "thing", "version": "1.0"},
        Peer,
    )
    commands = install_commands(peer, Path("/folder"))
    assert " ".join(commands[-1]).endswith(last)
    assert any("1.0" in word for command in commands for word in command)
    checkout = msgspec.structs.replace(peer, registry="checkout")
    assert install_commands(checkout, Path("/folder")) == []


def test_a_complaint_fits_into_a_cell() -> None:
    assert reason("HTTP 500:\n`a|b`  " + "x" * 200) == "HTTP 500: 'a/b' " + "x" * 84


def test_the_published_history_can_be_read_and_drawn() -> None:
    for published in read_history(PUBLISHED):
        assert set(published.parts) <= set(ALL_PARTS)
        assert tables(published)
        assert charts(published)
        assert json.loads(msgspec.json.encode(published))["machine"]
    assert read_history(PUBLISHED.with_name("no such file")) == []


def test_a_size_is_said_in_its_unit() -> None:
    assert [size(each) for each in (0, 1024, 64 * 1024, 3584 * 1024)] == ["15 bytes", "1 KiB", "64 KiB", "3.5 MiB"]
