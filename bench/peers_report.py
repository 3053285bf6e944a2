"""What `make bench-peers` writes of its figures: tables as Markdown, charts, and changes against published figures.

Plain functions over `Record`; `bench.peers` measures and does all input and output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from bench.charts import Kind, Series, dots, lines

KIB = 1024
START = "<!-- figures of make bench-peers -->"
END = "<!-- end of these figures -->"


class Figures(msgspec.Struct, frozen=True):
    """One row's medians over the rounds."""

    cpu_microseconds: float
    calls_per_second: float
    p50_milliseconds: float
    p99_milliseconds: float
    times_relay: float | None
    memory_mib: float


class Measured(msgspec.Struct, frozen=True):
    """All rows at one setting."""

    connections: int
    text_bytes: int
    figures: Mapping[str, Figures]
    failed: Mapping[str, str] = {}
    """Why a row has no figures."""
    servers: int = 1
    events: int = 0
    """How many events an answer has."""


class Part(msgspec.Struct, frozen=True):
    """One part of a run."""

    date: str
    commit: str
    rounds: int
    seconds: float
    settings: Sequence[Measured]


class About(msgspec.Struct, frozen=True):
    """How a row is shown."""

    title: str
    version: str
    protocol: str
    kind: Kind = "other"


class Record(msgspec.Struct, frozen=True):
    """What one run found, or the newest of each part of several."""

    machine: str
    rows: Mapping[str, About]
    parts: Mapping[str, Part]
    absent: Mapping[str, str] = {}
    """Programs that could not be measured at all, and why."""


def merged(records: Iterable[Record]) -> Record | None:
    """Return the newest of each part, rows included; records come in the order of their runs."""
    whole: Record | None = None
    for record in records:
        if whole is None or whole.machine != record.machine:
            whole = record
            continue
        absent = {name: why for name, why in {**whole.absent, **record.absent}.items() if name not in record.rows}
        whole = Record(record.machine, {**whole.rows, **record.rows}, {**whole.parts, **record.parts}, absent)
    return whole


def quickest(record: Record | None, count: int) -> list[str]:
    """Return the other programs' rows with the least CPU for a short call, cheapest first."""
    if record is None or "calls" not in record.parts:
        return []
    figures = record.parts["calls"].settings[0].figures
    others = [name for name in figures if record.rows[name].kind == "other"]
    return sorted(others, key=lambda name: figures[name].cpu_microseconds)[:count]


def changes(now: Record, published: Record | None) -> list[str]:
    """Return a sentence for each figure that both have: CPU for a call, and how many relays that is."""
    if published is None:
        return []
    said: list[str] = []
    for part, fresh in now.parts.items():
        old = {setting_of(each): each for each in published.parts[part].settings} if part in published.parts else {}
        for each in fresh.settings:
            before = old[setting_of(each)].figures if setting_of(each) in old else {}
            for name, figures in each.figures.items():
                if name in before:
                    what = f"{now.rows[name].title} ({now.rows[name].protocol or 'echo'}), {setting_of(each)}"
                    said.append(f"{what}: {change(before[name], figures)}")
    return said


def change(before: Figures, now: Figures) -> str:
    """Return the change of one row; a ratio to the relay of the same run moves less than CPU between machines."""
    share = 100 * (now.cpu_microseconds / before.cpu_microseconds - 1)
    said = f"{microseconds(before.cpu_microseconds)} → {microseconds(now.cpu_microseconds)} µs ({share:+.0f} %)"
    if before.times_relay is None or now.times_relay is None:
        return said
    return f"{said}, {before.times_relay:.2f} → {now.times_relay:.2f} relays"


def setting_of(each: Measured) -> str:
    """Return a setting in words."""
    setting = f"{each.connections} connections, {size(each.text_bytes)}"
    setting += f", {each.servers} servers" if each.servers > 1 else ""
    return setting + (f", {each.events} events" if each.events else "")


def size(text_bytes: int) -> str:
    """Return a length in words."""
    if text_bytes >= KIB * KIB:
        return f"{text_bytes / KIB / KIB:g} MiB"
    return f"{text_bytes / KIB:g} KiB" if text_bytes else "15 bytes"


def microseconds(value: float) -> str:
    """Return a cost with about three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def tables(record: Record) -> str:
    """Return all tables as Markdown, each with a line that says when and from what it is."""
    makers = {
        "calls": calls_table,
        "payloads": payloads_table,
        "connections": growth_table,
        "sizes": growth_table,
        "servers": servers_table,
        "events": events_table,
    }
    texts = [f"Measured on {record.machine}."]
    for name, maker in makers.items():
        if name in record.parts:
            texts.append(maker(record, record.parts[name]))
    if record.absent:
        texts.append("Not measured: " + "; ".join(f"{name} ({why})" for name, why in record.absent.items()) + ".")
    return "\n\n".join(texts) + "\n"


def caption(what: str, part: Part) -> str:
    """Return the line above a table."""
    return f"{what} {part.date}, revision {part.commit}, medians of {part.rounds} rounds of {part.seconds:g} s."


def calls_table(record: Record, part: Part) -> str:
    """Return the table of short calls."""
    each = part.settings[0]
    head = "| | version | MCP | CPU, µs per call | × relay | calls/s | p50 ms | p99 ms | memory, MiB |"
    rows = [
        f"| {named(about)} | {about.version} | {about.protocol} | {cells(each, name, CALL_CELLS)} |"
        for name, about in record.rows.items()
        if is_in(each, name)
    ]
    says = caption(f"**Short calls**, {each.connections} connections.", part)
    return "\n".join([says, "", head, "|---|---|---|" + "---:|" * len(CALL_CELLS), *rows])


def payloads_table(record: Record, part: Part) -> str:
    """Return the table of long texts, a group of columns for each length."""
    lengths = [size(each.text_bytes) for each in part.settings]
    head = "".join(f" {length}: CPU, µs | × relay | calls/s | p99 ms |" for length in lengths)
    rows = [
        f"| {named(about)} | {about.protocol} | "
        + " | ".join(cells(each, name, LONG_CELLS) for each in part.settings)
        + " |"
        for name, about in record.rows.items()
        if any(is_in(each, name) for each in part.settings)
    ]
    says = caption(f"**Long texts** there and back, {part.settings[0].connections} connections.", part)
    return "\n".join([says, "", "| | MCP |" + head, "|---|---|" + "---:|" * (4 * len(lengths)), *rows])


def growth_table(record: Record, part: Part) -> str:
    """Return the table of growth: CPU and p99 for each setting."""
    of_lengths = len({each.text_bytes for each in part.settings}) > 1
    names = [size(each.text_bytes) if of_lengths else f"{each.connections}" for each in part.settings]
    what = "**Growth with the text**" if of_lengths else "**Growth with connections**"
    rows = [
        f"| {named(about)} | {about.protocol} | "
        + " | ".join(cells(each, name, GROWTH_CELLS) for each in part.settings)
        + " |"
        for name, about in record.rows.items()
        if any(is_in(each, name) for each in part.settings)
    ]
    head = f"| {'text' if of_lengths else 'connections'} | MCP | " + " | ".join(names) + " |"
    says = caption(f"{what}: CPU in µs per call, and p99 in ms.", part)
    return "\n".join([says, "", head, "|---|---|" + "---:|" * len(names), *rows])


def servers_table(record: Record, part: Part) -> str:
    """Return the table of growth with servers."""
    says = caption("**Growth with servers**: CPU in µs per call, p99 in ms, and memory in MiB.", part)
    return few_rows_table(record, part, says, "servers", lambda each: f"{each.servers:,}", SERVER_CELLS)


def events_table(record: Record, part: Part) -> str:
    """Return the table of growth with events."""
    says = caption("**Growth with the events of one answer**: CPU in µs per answer, and p99 in ms.", part)
    return few_rows_table(record, part, says, "events", lambda each: f"{each.events:,}", GROWTH_CELLS)


def few_rows_table(
    record: Record, part: Part, says: str, what: str, setting: Callable[[Measured], str], makers: Sequence[Cell]
) -> str:
    """Return a table of the rows that every setting has, in the order of the first one."""
    rows = [
        f"| {named(record.rows[name])} | {' | '.join(cells(each, name, makers) for each in part.settings)} |"
        for name in part.settings[0].figures
    ]
    head = f"| {what} | {' | '.join(setting(each) for each in part.settings)} |"
    return "\n".join([says, "", head, "|---|" + "---:|" * len(part.settings), *rows])


def is_in(each: Measured, name: str) -> bool:
    """Say whether a row took part."""
    return name in each.figures or name in each.failed


def named(about: About) -> str:
    """Return a title; the hub's own rows stand out."""
    return f"**{about.title}**" if about.kind == "own" else about.title


Cell = Callable[[Figures], str]
CALL_CELLS: Sequence[Cell] = (
    lambda of: microseconds(of.cpu_microseconds),
    lambda of: "" if of.times_relay is None else f"{of.times_relay:.2f}",
    lambda of: f"{of.calls_per_second:,.0f}",
    lambda of: f"{of.p50_milliseconds:.2f}",
    lambda of: f"{of.p99_milliseconds:.2f}",
    lambda of: f"{of.memory_mib:.0f}",
)
LONG_CELLS: Sequence[Cell] = (*CALL_CELLS[:3], CALL_CELLS[4])
GROWTH_CELLS: Sequence[Cell] = (
    lambda of: f"{microseconds(of.cpu_microseconds)} / {short_milliseconds(of.p99_milliseconds)}",
)
SERVER_CELLS: Sequence[Cell] = (lambda of: f"{GROWTH_CELLS[0](of)} / {of.memory_mib:.0f}",)


def short_milliseconds(value: float) -> str:
    """Return a latency with about two digits."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def cells(each: Measured, name: str, makers: Sequence[Cell]) -> str:
    """Return a row's cells; the first one says why there are no figures."""
    if figures := each.figures.get(name):
        return " | ".join(make(figures) for make in makers)
    why = f"failed: {each.failed[name]}" if name in each.failed else ""
    return " | ".join([why, *[""] * (len(makers) - 1)])


def charts(record: Record) -> dict[str, str]:
    """Return the charts by file name."""
    made: dict[str, str] = {}
    if "calls" in record.parts:
        figures = record.parts["calls"].settings[0].figures
        rows = [(name, figures[name]) for name in record.rows if name in figures]
        made["cpu.svg"] = dots(
            "CPU for one call, of the program in the middle",
            "µs, logarithmic; short text, 16 connections; less is better",
            [(full(record, name, figures), record.rows[name].kind, of.cpu_microseconds) for name, of in rows],
        )
        made["p99.svg"] = dots(
            "Slowest of a hundred calls (p99)",
            "ms, logarithmic; short text, 16 connections; less is better",
            [(full(record, name, figures), record.rows[name].kind, of.p99_milliseconds) for name, of in rows],
        )
    if part := record.parts.get("connections"):
        names = [f"{each.connections}" for each in part.settings]
        made["connections.svg"] = lines(
            "Calls a second with more connections",
            "logarithmic; short text; more is better",
            "connections",
            names,
            growth(record, part, lambda of: of.calls_per_second),
        )
    if part := record.parts.get("sizes"):
        names = [size(each.text_bytes) for each in part.settings]
        made["sizes.svg"] = lines(
            "CPU for one call with longer texts, of the program in the middle",
            "µs per call, logarithmic; 16 connections; less is better",
            "text there and back",
            names,
            growth(record, part, lambda of: of.cpu_microseconds),
        )
    return made


def full(record: Record, name: str, names: Iterable[str]) -> str:
    """Return a title, with the era of its callers if the chart has both."""
    about = record.rows[name]
    twins = [each for each in names if record.rows[each].title == about.title]
    return f"{about.title}, MCP {about.protocol[:4]}" if len(twins) > 1 else about.title


def growth(record: Record, part: Part, of: Callable[[Figures], float]) -> list[Series]:
    """Return a line for each row; a setting that it failed at is left out."""
    names = [name for name in record.rows if any(name in each.figures for each in part.settings)]
    return [
        Series(
            full(record, name, names),
            record.rows[name].kind,
            [(at, of(each.figures[name])) for at, each in enumerate(part.settings) if name in each.figures],
        )
        for name in names
    ]


def with_figures(page: str, text: str) -> str:
    """Return a page with the text between its marks replaced.

    Raises:
        ValueError: the page has no marks.
    """
    before, found, rest = page.partition(START)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise ValueError(f"the page has no {START} … {END}")
    return f"{before}{START}\n\n{text}\n{END}{after}"
