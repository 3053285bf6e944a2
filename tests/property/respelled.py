"""JSON values and their spellings: order, white space, escapes and numbers written in different ways."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, TypeAlias

from hypothesis import strategies as st

Json: TypeAlias = Any

NAMES = st.sampled_from(["a", "b", "c", "é", "x y"])
TEXTS = st.one_of(
    st.sampled_from(["", "a", "é", "\u2028", '"', "\\", "/", "\ud83d\ude00", "1", "true"]), st.text(max_size=6)
)
NUMBERS = st.one_of(
    st.integers(-5, 5),
    st.sampled_from([10, 100, 2**53, 2**53 + 1, 10**20]),
    st.decimals(-1000, 1000, allow_nan=False, places=3),
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS.filter(lambda text: text.isprintable() or text == "\u2028"))
VALUES: st.SearchStrategy[Json] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=6,
)


def documents() -> st.SearchStrategy[Json]:
    """Arguments of a tool."""
    return st.dictionaries(NAMES, VALUES, max_size=4)


@st.composite
def respelled(draw: st.DrawFn, value: Json) -> str:
    """One of the texts of a value."""
    blank = st.sampled_from(["", " ", "\n", "\t "])
    match value:
        case None | True | False:
            return json.dumps(value)
        case str():
            return _spell_text(draw, value)
        case int() | Decimal():
            return _spell_number(draw, Decimal(value))
        case list():
            items = [draw(blank) + draw(respelled(item)) + draw(blank) for item in value]
            return f"[{','.join(items)}]"
        case dict():
            names = draw(st.permutations(list(value)))
            members = [
                f"{draw(blank)}{_spell_text(draw, name)}{draw(blank)}:{draw(blank)}{draw(respelled(value[name]))}"
                for name in names
            ]
            return f"{{{','.join(members)}{draw(blank)}}}"
        case _:
            raise TypeError(value)


def _spell_text(draw: st.DrawFn, text: str) -> str:
    spelled = []
    for character in text:
        plain = json.dumps(character, ensure_ascii=False)[1:-1]
        escaped = json.dumps(character)[1:-1]
        units = character.encode("utf-16-be", "surrogatepass")
        numbers = "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
        choices = [
            plain,
            escaped,
            numbers,
            numbers.upper().replace("\\U", "\\u"),
            *(["\\/"] if character == "/" else []),
        ]
        spelled.append(draw(st.sampled_from(choices)))
    return f'"{"".join(spelled)}"'


def _spell_number(draw: st.DrawFn, number: Decimal) -> str:
    plain = f"{number:f}"
    shift = draw(st.integers(-3, 3))
    moved = f"{number.scaleb(-shift):f}e{'+' if shift >= 0 and draw(st.booleans()) else ''}{shift}"
    longer = f"{plain}0" if "." in plain else f"{plain}.00"
    return draw(st.sampled_from([plain, moved, moved.upper(), longer]))


def is_equal(one: str, other: str) -> bool:
    """Whether a server would see equal JSON: as the standard library reads it, with exact numbers."""
    first, second = (json.loads(text, parse_int=Decimal, parse_float=Decimal) for text in (one, other))
    return _is_same(first, second)


def _is_same(one: Json, other: Json) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other)
