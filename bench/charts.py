"""Charts as SVG text, on logarithmic scales, readable on light and dark pages.

`bench.peers_report` calls it. It needs no library and knows nothing of what is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log10
from typing import Literal
from xml.sax.saxutils import escape

Kind = Literal["own", "yardstick", "other"]
"""Whose figures they are: the hub's, those that all are compared with, or another program's."""

STYLE = """<style>
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2933; }
.head { font-weight: 600; font-size: 15px; } .small { font-size: 12px; fill: #52606d; }
.grid { stroke: #d5dae0; fill: none; } .own { --c: #0f766e; } .yardstick { --c: #7b8794; }
.other { --c: #2563eb; } .other1 { --c: #c2410c; } .other2 { --c: #7c3aed; } .other3 { --c: #a16207; }
circle { fill: var(--c); } path.line { stroke: var(--c); stroke-width: 2; fill: none; } text.name { fill: var(--c); }
.own text.value, .own text.name { font-weight: 600; }
@media (prefers-color-scheme: dark) {
text { fill: #e4e7eb; } .small { fill: #9aa5b1; } .grid { stroke: #3e4c59; }
.own { --c: #2dd4bf; } .yardstick { --c: #9aa5b1; }
.other { --c: #60a5fa; } .other1 { --c: #fb923c; } .other2 { --c: #a78bfa; } .other3 { --c: #facc15; }
}
</style>"""

WIDTH = 860
ROW = 26
OTHERS = ("other", "other1", "other2", "other3")


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or with a single point one row of dots."""

    name: str
    kind: Kind
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Scale:
    """A logarithmic axis: from values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        share = (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        return round(self.start + share * (self.end - self.start), 1)


def powers(values: Sequence[float]) -> tuple[float, ...]:
    """Return the powers of ten around positive values, at least two."""
    first, last = floor(log10(min(values))), ceil(log10(max(values)))
    return tuple(10.0**power for power in range(first, max(last, first + 1) + 1))


def shown(tick: float) -> str:
    """Return the text of a mark on an axis."""
    return f"{tick:,.0f}" if tick >= 1 else f"{tick:g}"


def short(value: float) -> str:
    """Return a figure with about three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}".removesuffix(".0") if value >= 10 else f"{value:.3g}"


def dots(title: str, unit: str, rows: Sequence[tuple[str, Kind, float]]) -> str:
    """Return one dot for each row with its figure beside it, the smallest on top."""
    ticks = powers([value for _, _, value in rows])
    left, top = 290, 64
    height = top + ROW * len(rows) + 34
    scale = Scale(ticks[0], ticks[-1], left, WIDTH - 95)
    parts = [_begin(height, title), _text(20, 24, title, "head"), _text(20, 44, unit, "small")]
    for tick in ticks:
        x = scale.at(tick)
        parts.append(f'<path class="grid" d="M{x} {top - 8} V{height - 30}"/>')
        parts.append(_text(x, height - 12, shown(tick), "small", "middle"))
    for number, (name, kind, value) in enumerate(sorted(rows, key=lambda row: row[2])):
        x, y = scale.at(value), top + ROW * number + 8
        parts.append(f'<g class="{kind}"><path class="grid" d="M{left} {y} H{x}"/><circle cx="{x}" cy="{y}" r="5"/>')
        parts.append(
            _text(left - 10, y + 4, name, "name", "end") + _text(x + 12, y + 4, short(value), "value") + "</g>"
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def lines(title: str, unit: str, across: str, names: Sequence[str], series: Sequence[Series]) -> str:
    """Return a line for each series over the same positions, whose `names` stand below them."""
    ticks = powers([value for each in series for _, value in each.points])
    xs = sorted({x for each in series for x, _ in each.points})
    left, right, top, bottom = 72, WIDTH - 335, 64, 380
    scale = Scale(ticks[0], ticks[-1], bottom, top)
    where = {x: round(left + (right - left) * number / max(1, len(xs) - 1), 1) for number, x in enumerate(xs)}
    parts = [_begin(440, title), _text(20, 24, title, "head"), _text(20, 44, unit, "small")]
    for tick in ticks:
        parts.append(f'<path class="grid" d="M{left} {scale.at(tick)} H{right}"/>')
        parts.append(_text(left - 8, scale.at(tick) + 4, shown(tick), "small", "end"))
    for x, name in zip(xs, names, strict=True):
        parts.append(_text(where[x], bottom + 20, name, "small", "middle"))
    parts.append(_text((left + right) / 2, bottom + 44, across, "small", "middle"))
    classes = _classes(series)
    ends = apart([scale.at(each.points[-1][1]) for each in series], 17)
    for each, style, label in zip(series, classes, ends, strict=True):
        spots = [(where[x], scale.at(y)) for x, y in each.points]
        path = "M" + " L".join(f"{x} {y}" for x, y in spots)
        marks = "".join(f'<circle cx="{x}" cy="{y}" r="3.5"/>' for x, y in spots)
        name = f"{each.name}, {short(each.points[-1][1])}"
        parts.append(f'<g class="{style}"><path class="line" d="{path}"/>{marks}')
        parts.append(_text(right + 14, label + 4, name, "name") + "</g>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def apart(places: Sequence[float], least: float) -> list[float]:
    """Move labels so far apart that none covers another; their order stays."""
    moved = list(places)
    order = sorted(range(len(places)), key=lambda at: places[at])
    for before, after in pairwise(order):
        moved[after] = max(moved[after], moved[before] + least)
    return [round(place, 1) for place in moved]


def _classes(series: Sequence[Series]) -> list[str]:
    others = iter(OTHERS * len(series))
    return [next(others) if each.kind == "other" else each.kind for each in series]


def _begin(height: int, title: str) -> str:
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    label = escape(title, {'"': "&quot;"})
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">\n{STYLE}'


def _text(x: float, y: float, text: str, style: str, anchor: str = "start") -> str:
    return f'<text class="{style}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
