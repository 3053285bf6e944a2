"""Which findings of the type checker are errors of a script, and what it does not find.

Pure functions. `code.sandbox_in_child` runs the checker, on the script and the `code.signatures` of its tools.
"""

from __future__ import annotations

import ast
import re
from typing import Final

_WRONG_ARGUMENT: Final = re.compile(
    r"[^:]*:(\d+):(\d+): error\[invalid-argument-type\] "
    r"Argument .* is incorrect: Expected `([^`]*)`, found `([^`]*)`"
)
_FORGOTTEN_AWAIT: Final = re.compile(r"(.*): warning\[(unused-awaitable|redundant-condition)\] .*`CoroutineType\[.*")
"""What is only a warning to the checker: a function that is called without `await` does not run."""
_WIDER: Final = {("bool", "int"), ("bool", "float"), ("int", "float")}
COMPARED_MAX = 2_000
"""Types that are compared for one script; beyond that its errors stay errors."""


RETURN_EXCEPTIONS: Final = "return_exceptions"
GATHER_ADVICE: Final = """asyncio.gather takes no return_exceptions. Write instead:
import asyncio
async def attempt(call):
    try:
        return await call
    except RuntimeError as error:
        return error
results = await asyncio.gather(*[attempt(each) for each in [...]])"""


def unsupported(code: str) -> list[str]:
    """The uses of `return_exceptions`, which the type checker knows and the sandbox does not; at most one line."""
    if RETURN_EXCEPTIONS not in code:
        return []
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []  # the sandbox says what is wrong
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="asyncio"), attr="gather") as called, keywords=given):
                if any(each.arg == RETURN_EXCEPTIONS for each in given):
                    return [f"script.py:{called.lineno}:{called.col_offset + 1}: error[unsupported] {GATHER_ADVICE}"]
            case _:
                pass
    return []


def real_errors(found: str, stubs: str, code: str) -> list[str]:
    """The errors of a script among what the type checker found, one line each.

    To the checker, a list or dictionary that was put into a variable before the call is of a type of its own: neither
    `list[dict[str, str]]` nor `list[Row]` is a `list[Item]`, since the tool could put something else into it. A call
    only sends JSON, so such an argument is compared part by part. A `dict[str, str]` may be an `Item` if no value is of
    a wrong type, and each required member could be among them; the hub checks the arguments themselves before the call.
    Arguments that are given as `**values` have one type for all, which says nothing about each.
    """
    lines = code.split("\n")
    compared: _Comparison | None = None
    real: list[str] = []
    for line in found.splitlines():
        if (forgotten := _FORGOTTEN_AWAIT.fullmatch(line)) is not None:
            at, rule = forgotten.groups()
            real.append(f"{at}: error[{rule}] You forgot `await`: without it the function does not run")
            continue
        if ": error[" not in line:
            continue
        if "`CoroutineType[" in line:
            real.append(f"{line}: you forgot `await`")
            continue
        if (wrong := _WRONG_ARGUMENT.fullmatch(line)) is not None:
            if _text_at(lines, int(wrong[1]), int(wrong[2])).startswith("**"):
                continue
            compared = compared or _Comparison(stubs)
            if compared.may_be(wrong[4], wrong[3]):
                continue
        real.append(line)
    return real


def _text_at(lines: list[str], line: int, column: int) -> str:
    """What a line has from a column on; both are counted from 1."""
    return lines[line - 1][column - 1 :] if line <= len(lines) else ""


class _Comparison:
    """Compares types as the checker writes them, with the classes of some signatures."""

    def __init__(self, stubs: str) -> None:
        self._classes: dict[str, dict[str, tuple[ast.expr, bool]]] = {}
        """By name: the type of each member, and whether it is required."""
        self._left = COMPARED_MAX
        for each in ast.parse(stubs).body:
            match each:
                case ast.ClassDef(name=name, body=body):
                    self._classes[name] = {
                        line.target.id: _field(line.annotation)
                        for line in body
                        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
                    }
                case ast.Assign(
                    targets=[ast.Name(id=name)], value=ast.Call(args=[_, ast.Dict(keys=keys, values=types)])
                ):
                    members = zip(keys, types, strict=True)
                    self._classes[name] = {
                        str(key.value): _field(written) for key, written in members if isinstance(key, ast.Constant)
                    }
                case _:
                    pass

    def may_be(self, found: str, expected: str) -> bool:
        """Whether a value of one type may be of the other. False if a type cannot be read, or is too deep."""
        try:
            one, other = (ast.parse(text, mode="eval").body for text in (found, expected))
            return self._is(one, other)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False

    def _is(self, found: ast.expr, expected: ast.expr) -> bool:
        self._left -= 1
        if self._left < 0:
            return False
        match found, expected:
            case (ast.Name(id="Any" | "Unknown"), _) | (_, ast.Name(id="Any" | "Unknown")):
                return True
            case ast.BinOp(left=left, right=right), _:
                return self._is(left, expected) and self._is(right, expected)
            case _, ast.BinOp(left=left, right=right):
                return self._is(found, left) or self._is(found, right)
            case ast.Constant(value=None), ast.Constant(value=None):
                return True
            case ast.Name(id=name), _:
                return self._is_named(name, expected)
            case ast.Subscript(value=ast.Name(id=name), slice=parts), _:
                return self._is_generic(name, parts, expected)
            case _:
                return False

    def _is_named(self, name: str, expected: ast.expr) -> bool:
        match expected:
            case ast.Subscript(value=ast.Name(id="Literal"), slice=values):
                # The checker forgets which texts and numbers a list, a function or a result can have.
                kinds = {type(each.value).__name__ for each in _elements(values) if isinstance(each, ast.Constant)}
                return ("str" if name == "LiteralString" else name) in kinds
            case ast.Name(id=wanted):
                return name == wanted or (name, wanted) in _WIDER or self._is_class(name, wanted)
            case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[_, wanted_value])):
                fields = self._classes.get(name)
                return fields is not None and all(self._is(each, wanted_value) for each, _ in fields.values())
            case _:
                return False

    def _is_generic(self, name: str, parts: ast.expr, expected: ast.expr) -> bool:
        match name, parts, expected:
            case "Literal", _, _:
                return all(self._is_literal(value, expected) for value in _elements(parts))
            case "list", _, ast.Subscript(value=ast.Name(id="list"), slice=wanted):
                return self._is(parts, wanted)
            case "dict", ast.Tuple(elts=[key, value]), _:
                return self._is_dict(key, value, expected)
            case _:
                return False

    def _is_literal(self, value: ast.expr, expected: ast.expr) -> bool:
        if not isinstance(value, ast.Constant):
            return False
        match expected:
            case ast.Subscript(value=ast.Name(id="Literal"), slice=values):
                return any(isinstance(each, ast.Constant) and each.value == value.value for each in _elements(values))
            case _:
                return self._is(ast.Name(id=type(value.value).__name__), expected)

    def _is_dict(self, key: ast.expr, value: ast.expr, expected: ast.expr) -> bool:
        match expected:
            case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[wanted_key, wanted])):
                return self._is(key, wanted_key) and self._is(value, wanted)
            case ast.Name(id=name) if (fields := self._classes.get(name)) is not None and self._is(
                key, ast.Name(id="str")
            ):
                types = [written for written, _ in fields.values()]
                values = _members(value)
                return all(any(self._is(each, written) for written in types) for each in values) and all(
                    any(self._is(each, written) for each in values)
                    for written, is_required in fields.values()
                    if is_required
                )
            case _:
                return False

    def _is_class(self, found: str, expected: str) -> bool:
        """Whether one class has what the other requires. What else it has may be refused by the schema, or not."""
        fields, wanted = self._classes.get(found), self._classes.get(expected)
        if fields is None or wanted is None:
            return False
        for key, (written, is_required) in wanted.items():
            if key not in fields:
                if is_required:
                    return False
            elif not self._is(fields[key][0], written):
                return False
        return True


def _field(written: ast.expr) -> tuple[ast.expr, bool]:
    match written:
        case ast.Subscript(value=ast.Name(id="NotRequired"), slice=inner):
            return inner, False
        case _:
            return written, True


def _elements(written: ast.expr) -> list[ast.expr]:
    return written.elts if isinstance(written, ast.Tuple) else [written]


def _members(union: ast.expr) -> list[ast.expr]:
    """The types of a union."""
    match union:
        case ast.BinOp(left=left, right=right):
            return [*_members(left), *_members(right)]
        case _:
            return [union]
