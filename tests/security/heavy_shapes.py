"""Legal JSON that is heavy in many ways, for callers and servers in T71.

Every shape is a function from a size in bytes to the text of one JSON value of about that size. Both the test and
`heavy_server`, which runs as a process of its own, use it, so it imports nothing of the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

VALUES_MAX = 90_000
"""Values that a dense shape has at most: callers may send 100,000."""

Shape = Callable[[int], str]


def _filled(piece: str, size: int, *, values: int = 1) -> str:
    """An array of one element, again and again; `values` is how many values an element has."""
    count = min(size // (len(piece) + 1), VALUES_MAX // values)
    return "[" + ",".join([piece] * max(1, count)) + "]"


def _string(piece: str, size: int) -> str:
    return '"' + piece * (size // len(piece.encode())) + '"'


def _members(size: int, name: str = "k%d", value: str = "1") -> str:
    count = min(size // (len(name) + len(value) + 7), VALUES_MAX)
    return "{" + ",".join(f'"{name % at}":{value}' for at in range(count)) + "}"


SHAPES: dict[str, Shape] = {
    "ascii": lambda size: _string("abcdefgh", size),
    "non-ascii": lambda size: _string("é中文字😀", size),
    "latin": lambda size: _string("é", size),
    "escapes": lambda size: _string("\\u00e9\\n", size),
    "surrogates": lambda size: _string("\\ud83d\\ude00", size),
    "backslashes": lambda size: _string("\\\\", size),
    "quotes": lambda size: _string('\\"', size),
    "brackets in a string": lambda size: _string("[{", size),
    "commas in a string": lambda size: _string(",:", size),
    "digits in a string": lambda size: _string("7", size),
    "base64": lambda size: _string("iVBORw0KGgoAAAANSUhEUgAA", size),
    "numbers": lambda size: _filled("1", size),
    "floats": lambda size: _filled("1.2345678901234567e-123", size),
    "nulls": lambda size: _filled("null", size),
    "empty objects": lambda size: _filled("{}", size),
    "objects": lambda size: _filled('{"b":1}', size, values=2),
    "rows": lambda size: _filled('{"id":1,"name":"row","ok":true,"tags":["a","b"]}', size, values=7),
    "strings": lambda size: _filled('"a"', size),
    "long strings": lambda size: _filled('"' + "x" * 4000 + '"', size),
    "non-ascii strings": lambda size: _filled('"' + "é中" * 200 + '"', size),
    "members": _members,
    "long keys": lambda size: _members(size, "k%d" + "x" * 2000),
    "non-ascii keys": lambda size: _members(size, "中%d"),
    "deep": lambda size: _filled("[" * 40 + "]" * 40, size, values=40),
    "deep objects": lambda size: _filled('{"a":' * 30 + "1" + "}" * 30, size, values=31),
    "blanks": lambda size: "[1" + " " * size + "]",
    "line breaks": lambda size: "[1" + "\n" * size + "]",
}


@cache
def value(shape: str, size: int) -> str:
    """The text of a value."""
    return SHAPES[shape](size)


def is_text(shape: str) -> bool:
    """Whether it is one string."""
    return value(shape, 64).startswith('"')


@cache
def result(shape: str, size: int) -> bytes:
    """The result of a tool that holds a value: a text as content, an image, or structured content."""
    text = value(shape, size)
    if shape == "base64":
        return f'{{"content":[{{"type":"image","mimeType":"image/png","data":{text}}}]}}'.encode()
    if is_text(shape):
        return f'{{"content":[{{"type":"text","text":{text}}}]}}'.encode()
    return f'{{"content":[{{"type":"text","text":"see"}}],"structuredContent":{{"value":{text}}}}}'.encode()


@cache
def blocks(size: int, text: str = "hi") -> bytes:
    """A result of very many blocks of content."""
    piece = f'{{"type":"text","text":"{text}"}}'
    return f'{{"content":[{",".join([piece] * (size // (len(piece.encode()) + 1)))}]}}'.encode()


@cache
def resource(shape: str, size: int) -> bytes:
    """What `resources/read` answers: a text, or a blob."""
    member = "blob" if shape == "base64" else "text"
    return f'{{"contents":[{{"uri":"heavy://{shape}","mimeType":"x/y","{member}":{value(shape, size)}}}]}}'.encode()
