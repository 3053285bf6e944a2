"""Write the tables of `docs/configuration.md` from the declarations in the code: `python -m tests.reference`.

A table stands between `<!-- table: NAME -->` and `<!-- end of table -->`; the text around it is written by hand. A unit
test proves that the committed page is up to date.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from isthmus.config.callers import CALLER_KEYS
from isthmus.config.codes import CODES
from isthmus.config.sets import SET_KEYS, SET_TOOL_KEYS
from isthmus.config.tables import HUB_TABLES
from isthmus.upstream.server_settings import SERVER_KEYS, WAYS

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"

_TABLE = re.compile(r"(<!-- table: ([a-z0-9-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
_UNITS = ((1024 * 1024, "MiB"), (1024, "KiB"))


def updated(page: str) -> str:
    """Return a page with all its tables written anew.

    Raises:
        KeyError: the page has a table that nothing declares.
    """
    return _TABLE.sub(lambda found: f"{found[1]}\n{_table(found[2])}\n{found[3]}", page)


def _table(name: str) -> str:
    if name == "servers":
        return _rows(("Key", "Beside", "Default", "Meaning"), _server_rows())
    if name == "callers":
        return _rows(("Key", "Meaning"), ((f"`{key}`", doc) for key, doc in CALLER_KEYS.items()))
    if name == "sets":
        return _rows(("Key", "Meaning"), ((f"`{key}`", doc) for key, doc in SET_KEYS.items()))
    if name == "set-tools":
        return _rows(("Key", "Meaning"), ((f"`{key}`", doc) for key, doc in SET_TOOL_KEYS.items()))
    if name == "findings":
        found = ((code.number, f"`{code.name}`", code.meaning, _sentence(code.fix)) for code in CODES)
        return _rows(("Code", "Name", "Meaning", "What to do"), found)
    table = HUB_TABLES[name]
    defaults = table.defaults
    rows = ((f"`{key}`", _default(key, defaults[key]), doc) for key, doc in table.docs.items())
    return _rows((f"Key of `[{name}]`", "Default", "Meaning"), rows)


def _server_rows() -> Iterable[tuple[str, ...]]:
    for name, key in SERVER_KEYS.items():
        beside = "all" if key.beside == WAYS else ", ".join(f"`{way}`" for way in key.beside)
        default = f"`limits.{key.limit}`" if key.limit else _default(name, key.default)
        bounds = f" {_sentence(key.range_text)}." if key.range_text else ""
        yield f"`{name}`", beside, default, key.doc + bounds


def _rows(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def _default(key: str, value: object) -> str:
    match value:
        case None | "" | () | {}:
            return ""
        case bool():
            return "`true`" if value else "`false`"
        case str():
            return f"`{value}`"
        case int() if key.endswith("_bytes"):
            size, unit = next((size, unit) for size, unit in _UNITS if value % size == 0)
            return f"{value // size} {unit}"
        case float():
            return f"{value:.10g}"
        case _:
            return str(value)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
