"""Edit configuration files as text: ours, and those of other clients.

`edit` sets or removes one value of a TOML, YAML or JSON text; comments, order, spaces and line ends of everything else
stay byte for byte. `merge_tables` does the same for several tables of servers. Both parse the text before and after,
and refuse if anything else has changed. Texts in, texts out, except for `replace_file`. Called by `config.importing`
and by the command line.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, NamedTuple

from isthmus.config.findings import ConfigError
from isthmus.config.formats import parse, strict_json, without_comments

SERVERS = "servers"
ROOTS = (SERVERS, "mcpServers")
"""The tables of servers in our own file."""

PRIVATE = 0o600
"""The mode of a file that may hold secrets."""

Keys = tuple[str, ...]
"""Where a value is: the keys that lead to it."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_HEADER = re.compile(r"\s*\[\[?([^\[\]]+)\]\]?\s*(?:#.*)?")
_INDENT = re.compile(r"^([ \t]+)\S", re.MULTILINE)
_SPACE = re.compile(r"\s*")
_BOM = "\ufeff"


class CannotEdit(ValueError):
    """A file that cannot be edited without changing something else in it; the text says why."""


def edit(file: Path, text: str, path: Keys, value: object) -> str:
    """Return the text of a file with the value at `path` set, or removed if it is None. A missing parent is made.

    Raises:
        CannotEdit: the text breaks the rules of its format, or something else would change.
    """
    mark, text = (_BOM, text.removeprefix(_BOM)) if text.startswith(_BOM) else ("", text)
    suffix = file.suffix.lower()
    before = _content(file, text)
    wanted = copy.deepcopy(before)
    _change(wanted, path, value)
    if before == wanted:
        return mark + text
    edit_text = _edit_toml if suffix == ".toml" else _edit_yaml if suffix in (".yaml", ".yml") else _edit_json
    try:
        made = edit_text(text, path, value)
        if _without_empty(_content(file, made)) == _without_empty(wanted):
            return mark + made
    except CannotEdit:
        raise
    except (LookupError, ValueError):
        pass  # it is written in a way that is not expected here
    raise CannotEdit(f"{'.'.join(path)} is written in a way that cannot be edited without changing the rest")


def content_of(file: Path, text: str) -> object:
    """Return what a text says, without its empty tables.

    Raises:
        CannotEdit: it breaks the rules of its format.
    """
    return _without_empty(_content(file, text.removeprefix(_BOM)))


def _content(file: Path, text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        return parse(file, text)[0]
    except ConfigError as error:
        raise CannotEdit("; ".join(str(finding) for finding in error.findings)) from error


def _change(table: dict[str, Any], path: Keys, value: object) -> None:
    for key in path[:-1]:
        inner = table.setdefault(key, {})
        if inner is None:
            inner = table[key] = {}
        if not isinstance(inner, dict):
            raise CannotEdit(f"{key} is not a table")
        table = inner
    if value is None:
        table.pop(path[-1], None)
    else:
        table[path[-1]] = value


def _without_empty(value: object) -> object:
    if isinstance(value, dict):
        return {key: inner for key, item in value.items() if (inner := _without_empty(item)) not in ({}, None)}
    return value


def _nested(path: Keys, value: object) -> object:
    for key in reversed(path):
        value = {key: value}
    return value


def replace_file(file: Path, content: bytes, *, is_private: bool, backup: Path | None = None) -> None:
    """Replace a file in one step: a reader sees the old content or the new. Keep the old one as `backup`.

    Raises:
        OSError: nothing was changed.
    """
    file = Path(os.path.realpath(file))  # a symbolic link stays; the file behind it is written
    mode = PRIVATE
    if file.exists():
        if backup is not None:
            shutil.copy2(file, backup)
            if is_private:
                backup.chmod(PRIVATE)
        if not is_private:
            mode = file.stat().st_mode & 0o777
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(mode)
        Path(name).replace(file)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


# -- JSON ----------------------------------------------------------------------------------------------------


class _Member(NamedTuple):
    """A member of an object: its key, and where key and value are."""

    key: str
    start: int
    value: int
    end: int


def _edit_json(text: str, path: Keys, value: object) -> str:
    if not text.strip():
        return _json_text(_nested(path, value), "", "  ", "\n") + "\n"
    # Both have every character where the text has it.
    bare, plain = without_comments(text), strict_json(text)
    opening = _after_space(plain, 0)
    for depth, key in enumerate(path):
        if plain[opening] != "{":
            raise CannotEdit(f"{path[depth - 1]} is not an object")
        members = list(_members(plain, opening))
        position = next((at for at in reversed(range(len(members))) if members[at].key == key), None)
        if position is None:
            return _json_with(text, bare, opening, members, key, _nested(path[depth + 1 :], value))
        if depth + 1 < len(path):
            opening = members[position].value
        elif value is None:
            return _json_without(text, bare, members, position)
        else:
            _, start, begin, end = members[position]
            new = _json_text(value, _indent_at(text, start), _unit(text), _line_end(text))
            return text[:begin] + new + text[end:]
    raise AssertionError


def _members(plain: str, opening: int) -> Iterator[_Member]:
    decode = json.JSONDecoder(strict=False).raw_decode
    at = _after_space(plain, opening + 1)
    while plain[at] != "}":
        key, after = decode(plain, at)
        value = _after_space(plain, _after_space(plain, after) + 1)
        _, end = decode(plain, value)
        yield _Member(key, at, value, end)
        at = _after_space(plain, end)
        at = _after_space(plain, at + 1) if plain[at] == "," else at


def _json_with(text: str, bare: str, opening: int, members: Sequence[_Member], key: str, value: object) -> str:
    """Add a member to the object that begins at `opening`."""
    closing = json.JSONDecoder(strict=False).raw_decode(strict_json(text), opening)[1] - 1
    line_end, unit = _line_end(text), _unit(text)
    name = json.dumps(key, ensure_ascii=False)
    if members and "\n" not in text[opening:closing]:
        last = members[-1].end
        return f"{text[:last]}, {name}: {json.dumps(value, ensure_ascii=False)}{text[last:]}"
    outer = _indent_at(text, opening)
    indent = _indent_at(text, members[-1].start) if members else outer + unit
    entry = f"{indent}{name}: {_json_text(value, indent, unit, line_end)}"
    if not members:
        inside = text[opening + 1 : closing].rstrip()
        return f"{text[: opening + 1]}{inside}{line_end}{entry}{line_end}{outer}{text[closing:]}"
    last = members[-1].end
    comma = _after_space(bare, last)
    has_comma = bare[comma] == ","
    after = comma + 1 if has_comma else last
    stop = text.find("\n", after)
    is_commented = text.rfind("/*", after, stop) > text.rfind("*/", after, stop)  # its end is on another line
    if stop < 0 or stop > closing or bare[after:stop].strip() or is_commented:
        stop = after
    elif text[stop - 1] == "\r":
        stop -= 1
    tail = f"{line_end}{entry}{',' if has_comma else ''}"
    if text[stop:closing].strip(" \t") == "" and stop == after:  # the brace is on the line of the last member
        tail += line_end + outer
    return f"{text[:last]}{'' if has_comma else ','}{text[last:stop]}{tail}{text[stop:]}"


def _json_without(text: str, bare: str, members: Sequence[_Member], position: int) -> str:
    """Remove a member, with its line if it has one for itself."""
    _, start, _, end = members[position]
    comma = _after_space(bare, end)
    if bare[comma] == ",":
        end = comma + 1
    elif position:  # it is the last one: the comma in front of it goes
        before = _after_space(bare, members[position - 1].end)
        text = f"{text[:before]}{text[before + 1 :]}"
        start, end = start - 1, end - 1
    line, stop = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    stop = len(text) if stop < 0 else stop + 1
    if not text[line:start].strip() and not text[end:stop].strip():
        return text[:line] + text[stop:]
    while end < len(text) and text[end] == " ":
        end += 1
    return text[:start].rstrip(" ") + text[end:] if bare[comma] != "," else text[:start] + text[end:]


def _json_text(value: object, indent: str, unit: str, line_end: str) -> str:
    text = json.dumps(value, indent=unit, ensure_ascii=False)
    return text.replace("\n", line_end + indent)


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _indent_at(text: str, at: int) -> str:
    """The white space at the beginning of the line."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip())]


def _unit(text: str) -> str:
    """What the text indents by."""
    match = _INDENT.search(text)
    return match[1] if match else "  "


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


# -- YAML ----------------------------------------------------------------------------------------------------


def _edit_yaml(text: str, path: Keys, value: object) -> str:
    import yaml  # type: ignore[import-untyped] # noqa: PLC0415 - it loads slowly, and few files are YAML

    line_end = _line_end(text)

    def block(content: object, column: int) -> str:
        made = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, default_flow_style=False, width=4096)
        return line_end.join(" " * column + line for line in made.splitlines())

    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if node is None:
        return text + ("" if not text or text.endswith("\n") else line_end) + block(_nested(path, value), 0) + line_end
    parent = None
    for depth, key in enumerate(path):
        pair = next((pair for pair in node.value if pair[0].value == key), None)
        rest = _nested(path[depth + 1 :], value)
        if pair is None:
            if node.flow_style:
                at = node.end_mark.index - 1
                comma = ", " if node.value else ""
                return f"{text[:at]}{comma}{json.dumps(key)}: {json.dumps(rest)}{text[at:]}"
            at = _line_stop(text, _yaml_end(node))
            lead = "" if text[:at].endswith("\n") else line_end
            return f"{text[:at]}{lead}{block({key: rest}, node.value[0][0].start_mark.column)}{text[at:] or line_end}"
        if depth + 1 == len(path):
            return _yaml_put(
                text, node, pair, None if value is None else block({key: value}, pair[0].start_mark.column)
            )
        parent, node = pair[0], pair[1]
        if node.id != "mapping" or (node.flow_style and not node.value):
            if node.id == "mapping" or (node.id == "scalar" and node.tag.endswith(":null")):
                begin = parent.end_mark.index + 1
                new = line_end + block(rest, parent.start_mark.column + 2)
                return text[:begin] + new + text[node.end_mark.index if node.id == "mapping" else begin :]
            raise CannotEdit(f"{key} is not a mapping")
    raise AssertionError


def _yaml_put(text: str, node: Any, pair: Any, new: str | None) -> str:
    """Replace the lines of a pair, or remove them."""
    if node.flow_style:
        raise CannotEdit(f"{pair[0].value} is written in braces")
    start = text.rfind("\n", 0, pair[0].start_mark.index) + 1
    stop = _line_stop(text, max(_yaml_end(pair[1]), pair[0].end_mark.index))
    if new is not None:
        return text[:start] + new + text[stop:]
    return text[:start] + text[stop + 1 :].removeprefix("\n" if text[stop : stop + 1] == "\r" else "")


def _yaml_end(node: Any) -> int:
    """Where a value ends, without the comments behind it."""
    if node.id == "mapping" and not node.flow_style and node.value:
        return _yaml_end(node.value[-1][1])
    if node.id == "sequence" and not node.flow_style and node.value:
        return _yaml_end(node.value[-1])
    return int(node.end_mark.index)


def _line_stop(text: str, at: int) -> int:
    """The end of the line at `at`; an index behind a line end belongs to the line before."""
    if at and text[at - 1 : at] == "\n":
        at -= 1
    stop = text.find("\n", at)
    stop = len(text) if stop < 0 else stop
    return stop - 1 if text[stop - 1 : stop] == "\r" else stop


# -- TOML ----------------------------------------------------------------------------------------------------


def toml_table(name: str, fields: Mapping[str, object], root: str = SERVERS) -> str:
    """Return the lines of one server."""
    lines = [f"[{_toml_key(root)}.{_toml_key(name)}]"]
    lines += [f"{_toml_key(key)} = {_toml_value(value)}" for key, value in fields.items() if value is not None]
    return "\n".join(lines) + "\n"


def _toml_key(text: str) -> str:
    return text if _BARE_KEY.fullmatch(text) else _toml_text(text)


def _toml_text(text: str) -> str:
    # JSON's escapes are valid TOML, except that TOML also wants DEL escaped.
    escaped = json.dumps(text.encode(errors="replace").decode(), ensure_ascii=False)
    return escaped.replace("\x7f", "\\u007f")


def _toml_value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case list() | tuple():
            return f"[{', '.join(_toml_value(item) for item in value if item is not None)}]"
        case dict():
            members = (
                f"{_toml_key(str(key))} = {_toml_value(item)}" for key, item in value.items() if item is not None
            )
            inside = ", ".join(members)
            return f"{{ {inside} }}" if inside else "{}"
        case datetime() | date() | time():
            return value.isoformat()
        case _:
            return _toml_text(str(value))


def merge_tables(text: str, tables: Mapping[str, str], replaced: Sequence[str] = ()) -> str:
    """Return a file's text with tables appended, and the tables of `replaced` servers removed.

    Raises:
        CannotEdit: something else in the file would change, or the result would not be TOML.
    """
    before = tomllib.loads(text)
    made = _with_tables(_without_tables(text, replaced), tables)
    try:
        after = tomllib.loads(made)
    except tomllib.TOMLDecodeError as error:
        raise CannotEdit(f"its servers are written in a way that cannot be added to ({error})") from error
    names = {*tables, *replaced}
    if _other_content(before, names) != _other_content(after, names):
        raise CannotEdit("something else in it would change with them")
    return made


def _with_tables(text: str, tables: Mapping[str, str]) -> str:
    """Return a text with tables appended, in its own line ends."""
    line_end = _line_end(text)
    parts = [text if not text or text.endswith("\n") else text + line_end]
    parts += [("\n" if text or position else "") + table for position, table in enumerate(tables.values())]
    return parts[0] + "".join(parts[1:]).replace("\n", line_end)


def _without_tables(text: str, names: Sequence[str], roots: Sequence[str] = ROOTS) -> str:
    """Return a text without the tables of some servers; comments in front of the next table stay."""
    kept: list[str] = []
    held: list[str] = []  # blank lines and comments since the last value; they may belong to the next table
    is_dropped = False
    for line in text.splitlines(keepends=True):
        if match := _HEADER.fullmatch(line.rstrip("\r\n")):
            was_dropped, is_dropped = is_dropped, _is_header_of(match[1], names, roots)
            if was_dropped and not is_dropped:
                _close_gap(kept, held)
            kept += held if not (was_dropped and is_dropped) else []
            held = []
        if is_dropped and not line.strip().startswith("#") and line.strip():
            held = []
        elif is_dropped:
            held.append(line)
        else:
            kept.append(line)
    if is_dropped:
        _close_gap(kept, held)
    return "".join([*kept, *held])


def _close_gap(before: list[str], after: list[str]) -> None:
    """Remove the blank line that was between a dropped table and the lines before it."""
    if before and not before[-1].strip() and not (after and after[0].strip()):
        before.pop()


def _is_header_of(header: str, names: Sequence[str], roots: Sequence[str]) -> bool:
    keys = _keys_of(header)
    return len(keys) > 1 and keys[0] in roots and keys[1] in names


def _other_content(table: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """Return a file's content without some servers; an empty table counts as missing."""
    roots = {
        root: {name: entry for name, entry in table[root].items() if name not in names}
        for root in ROOTS
        if isinstance(table.get(root), dict)
    }
    return {key: value for key, value in {**table, **roots}.items() if value != {}}


def _edit_toml(text: str, path: Keys, value: object) -> str:
    """Set or remove a table of servers, or one of its keys."""
    root, name, *below = path
    if not below:
        tables = {} if value is None else {name: toml_table(name, value, root)}  # type: ignore[arg-type]
        kept = _without_inline(_without_tables(text, [name], (root,)), root, name)
        return _with_tables(kept, tables)
    [key] = below
    lines = text.splitlines(keepends=True)
    headers = {at: match[1] for at, line in enumerate(lines) if (match := _HEADER.fullmatch(line.rstrip("\r\n")))}
    setting = None if value is None else f"{_toml_key(key)} = {_toml_value(value)}"
    for at, header in headers.items():
        keys = _keys_of(header)
        stop = min((other for other in headers if other > at), default=len(lines))
        if keys == (root, name):
            _set_line(lines, at, stop, key, setting, _line_end(text))
            return "".join(lines)
        for line in range(at + 1, stop) if keys == (root,) else ():
            if (changed := _with_inline_key(lines[line], name, key, setting)) is not None:
                lines[line] = changed
                return "".join(lines)
    return text


def _set_line(lines: list[str], header: int, stop: int, key: str, setting: str | None, line_end: str) -> None:
    """Set or remove one key of the table whose header is at `header`; a new one becomes its first line."""
    own = re.compile(rf"\s*(?:{re.escape(key)}|\"{re.escape(key)}\")\s*=")
    here = next((line for line in range(header + 1, stop) if own.match(lines[line])), None)
    if here is not None:
        lines[here : here + 1] = [] if setting is None else [setting + line_end]
    elif setting is not None:
        lines[header] = lines[header] if lines[header].endswith("\n") else lines[header] + line_end
        lines.insert(header + 1, setting + line_end)


def _with_inline_key(line: str, name: str, key: str, setting: str | None) -> str | None:
    """Return the line of a server that is written in braces with a switch set or removed; None for other lines."""
    match = re.fullmatch(rf"(\s*(?:{re.escape(name)}|\"{re.escape(name)}\")\s*=\s*\{{)\s*(.*)", line, re.DOTALL)
    if match is None:
        return None
    rest = re.sub(rf"\b{re.escape(key)}\s*=\s*(?:true|false)\s*,?\s*", "", match[2])
    rest = re.sub(r",\s*\}", " }", rest) if setting is None else rest
    return f"{match[1]} {setting + ', ' if setting else ''}{rest}"


def _without_inline(text: str, root: str, name: str) -> str:
    """Return a text without the line of a server below `[servers]`."""
    kept: list[str] = []
    is_inside = False
    own = re.compile(rf"\s*(?:{re.escape(name)}|\"{re.escape(name)}\")\s*=\s*\{{.*\}}\s*(?:#.*)?")
    for line in text.splitlines(keepends=True):
        if match := _HEADER.fullmatch(line.rstrip("\r\n")):
            is_inside = _keys_of(match[1]) == (root,)
        if not (is_inside and own.fullmatch(line.rstrip("\r\n"))):
            kept.append(line)
    return "".join(kept)


def _keys_of(header: str) -> Keys:
    try:
        table: Any = tomllib.loads(f"[{header}]")
    except tomllib.TOMLDecodeError:
        return ()
    keys: list[str] = []
    while isinstance(table, dict) and table:
        [(key, table)] = table.items()
        keys.append(key)
    return tuple(keys)
