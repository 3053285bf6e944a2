"""A Python function as a tool: schema and description from its signature and docstring, arguments converted.

Pure: `upstream.python.runner` runs the functions. A parameter annotated with `Context` is filled by the hub, not the
caller. Docstrings in Google, NumPy and Sphinx style are read here, because `docstring_parser` is not a runtime
dependency.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import UnionType
from typing import Annotated, Any, Protocol, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from isthmus.upstream.python import model_types
from isthmus.upstream.python.context import Context
from isthmus.wire.jsonrpc import Payload

_HEADING = re.compile(r"(args|arguments|parameters|params)(:|)\s*", re.IGNORECASE)
_RULE = re.compile(r"-{3,}\s*")
_GOOGLE = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY = re.compile(r"\*{0,2}(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?")
_SPHINX = re.compile(r":param\s+(?:[^:\s]+\s+)*?\*{0,2}(\w+):\s*(.*)")


@dataclass(slots=True)
class Docstring:
    """The prose without the parameters, and the parameters' own words."""

    text: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def read_docstring(docstring: str | None) -> Docstring:
    """Read a docstring as `inspect.getdoc` gives it."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    parameters: dict[str, str] = {}
    rest: list[str] = []
    position = 0
    while position < len(lines):
        end = _sphinx(lines, position, parameters) or _section(lines, position, parameters)
        if end is None:
            rest.append(lines[position])
        position = end or position + 1
    return Docstring(re.sub(r"\n{3,}", "\n\n", "\n".join(rest)).strip(), parameters)


def _section(lines: list[str], start: int, parameters: dict[str, str]) -> int | None:
    """Read a section of parameters that starts here; return where it ends, None if there is none."""
    heading = _HEADING.fullmatch(lines[start])
    if heading is None:
        return None
    if not heading[2]:
        is_ruled = start + 1 < len(lines) and _RULE.fullmatch(lines[start + 1]) is not None
        return _numpy(lines, start + 2, parameters) if is_ruled else None
    return _google(lines, start + 1, parameters)


def _google(lines: list[str], start: int, parameters: dict[str, str]) -> int:
    """`name (type): words`, indented; what is indented further goes on with the words."""
    margin = _indent(lines[start]) if start < len(lines) else 0
    position, name = start, ""
    while position < len(lines) and (not lines[position].strip() or _indent(lines[position]) >= margin > 0):
        line = lines[position]
        entry = _GOOGLE.fullmatch(line.strip()) if _indent(line) == margin else None
        if entry is not None:
            name = entry[1]
            parameters[name] = entry[2].strip()
        elif name:
            _go_on(name, line, parameters)
        position += 1
    return position


def _numpy(lines: list[str], start: int, parameters: dict[str, str]) -> int:
    """`name : type`, then the words, indented, until the next heading."""
    position, names = start, [""]
    while position < len(lines) and not _is_ruled(lines, position):
        line = lines[position]
        if line.strip() and _indent(line) == 0:
            entry = _NUMPY.fullmatch(line.strip())
            if entry is None:
                break
            names = [name.strip() for name in entry[1].split(",")]
            parameters.update(dict.fromkeys(names, ""))
        else:
            for name in filter(None, names):
                _go_on(name, line, parameters)
        position += 1
    return position


def _sphinx(lines: list[str], start: int, parameters: dict[str, str]) -> int | None:
    """`:param type name: words`, and what is indented below; return where it ends, None if there is none."""
    entry = _SPHINX.fullmatch(lines[start])
    if entry is None:
        return None
    parameters[entry[1]] = entry[2].strip()
    position = start + 1
    while position < len(lines) and lines[position].strip() and _indent(lines[position]) > 0:
        _go_on(entry[1], lines[position], parameters)
        position += 1
    return position


def _is_ruled(lines: list[str], position: int) -> bool:
    return position + 1 < len(lines) and bool(lines[position].strip()) and bool(_RULE.fullmatch(lines[position + 1]))


def _go_on(name: str, line: str, parameters: dict[str, str]) -> None:
    parameters[name] = f"{parameters[name]} {line.strip()}".strip()


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


_NO_DEFAULT = inspect.Parameter.empty
_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY


class Unusable(Exception):
    """A function that cannot be a tool; the message says why."""


class BadArgument(Exception):
    """Arguments that the function's annotations refuse; the message names the one."""


class Runnable(Protocol):
    """Something that can be called as a tool: a `Function`, or what looks like one."""

    @property
    def name(self) -> str:
        """What it is called among the tools of its server."""

    @property
    def is_async(self) -> bool:
        """Whether what `call` returns is to be awaited, on the hub's loop; else it is called in a thread."""

    @property
    def is_inline(self) -> bool:
        """Whether it is so quick that it can be called on the hub's loop, without a thread."""

    @property
    def takes_context(self) -> bool:
        """Whether it tells or asks something while it works."""

    def definition(self) -> dict[str, msgspec.Raw]:
        """Its description as a tool."""

    def read(self, arguments: Payload) -> dict[str, Any]:
        """Convert a call's arguments; raises `BadArgument`."""

    def call(self, arguments: dict[str, Any], context: Context) -> Any:
        """Call it with what `read` gave.

        What it returns is the tool's result (a `Result` as it is), what it raises the tool's error.
        """


@dataclass(frozen=True, slots=True)
class Traits:
    """What a function's author says of it beside its signature and its docstring."""

    description: str | None = None
    annotations: Mapping[str, Any] | None = None
    """MCP's hints, such as `{"readOnlyHint": True}`."""
    permissions: tuple[str, ...] = ()
    """What a user of the library must have been given to use it."""
    is_inline: bool = False


NO_TRAITS = Traits()

PERMISSIONS = "isthmus/permissions"
"""Where a tool's description says so, below `_meta`."""


class Function:
    """A callable, how it is described to callers, and how their arguments become its own."""

    def __init__(self, name: str, function: Callable[..., Any], traits: Traits = NO_TRAITS) -> None:
        """Read the signature.

        Raises:
            Unusable: something about it cannot be described.
        """
        self.name = name
        self.function = function
        self._traits = traits
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(_call_of(function))
        if traits.is_inline and self.is_async:
            raise Unusable("it is asynchronous, and runs on the loop in any case: leave inline out")
        self.is_inline = traits.is_inline
        self._doc = read_docstring(inspect.getdoc(function))
        self._parameters = _read_parameters(function)
        self._context = next((p.name for p in self._parameters if p.is_context), None)
        self._rest = next((p for p in self._parameters if p.is_rest), None)
        self._given = [p for p in self._parameters if not p.is_context and not p.is_rest]
        self.input_schema = self._schema()
        self._has_objects = "$defs" in self.input_schema
        fields = [parameter.field() for parameter in self._given]
        shape = msgspec.defstruct("Arguments", fields, forbid_unknown_fields=self._rest is None, kw_only=True)
        self._arguments = msgspec.json.Decoder(shape, dec_hook=model_types.decoded)
        rest = Any if self._rest is None else self._rest.type
        self._rest_value = msgspec.json.Decoder(rest, dec_hook=model_types.decoded)

    @property
    def takes_context(self) -> bool:
        """Whether it wants to know of its call."""
        return self._context is not None

    def definition(self) -> dict[str, msgspec.Raw]:
        """Its description as a tool."""
        traits = self._traits
        members: dict[str, Any] = {
            "name": self.name,
            "description": self._doc.text if traits.description is None else traits.description,
            "inputSchema": self.input_schema,
            "annotations": traits.annotations,
            "_meta": {PERMISSIONS: traits.permissions} if traits.permissions else None,
        }
        return {key: _raw(value) for key, value in members.items() if value}

    def read(self, arguments: Payload) -> dict[str, Any]:
        """Convert a call's arguments, strictly; those that were not given are absent.

        Raises:
            BadArgument: one is missing, unknown or of another type.
        """
        try:
            values = _decoded(self._arguments, arguments)
            found = {p.name: value for p in self._given if (value := getattr(values, p.name)) is not UNSET}
            if self._rest is not None:
                found |= self._read_rest(arguments)
            return model_types.with_defaults(found) if self._has_objects else found
        except msgspec.MsgspecError as error:
            raise BadArgument(str(error)) from error

    def _read_rest(self, arguments: Payload) -> dict[str, Any]:
        members = msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
        known = {parameter.name for parameter in self._parameters}
        return {name: self._read_one(name, raw) for name, raw in members.items() if name not in known}

    def _read_one(self, name: str, raw: msgspec.Raw) -> Any:
        try:
            return _decoded(self._rest_value, raw)
        except msgspec.MsgspecError as error:
            raise BadArgument(f"{error} - at `$.{name}`") from error

    def call(self, arguments: dict[str, Any], context: Context) -> Any:
        """Call it with what `read` gave; of an asynchronous one, the answer is to be awaited."""
        if self._context is not None:
            arguments[self._context] = context
        leading = [arguments.pop(p.name, p.default) for p in self._parameters if p.is_positional]
        return self.function(*leading, **arguments)

    def _schema(self) -> dict[str, Any]:
        described = [p for p in self._parameters if not p.is_context]
        types = [parameter.type for parameter in described]
        try:
            schemas, components = _schemas_of(types)
        except model_types.SameName as error:
            raise Unusable(str(error)) from error
        schema: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
        for parameter, one in zip(described, schemas, strict=True):
            if parameter.is_rest:
                schema["additionalProperties"] = one or True
            else:
                schema["properties"][parameter.name] = parameter.property(one, self._doc.parameters)
        if required := [p.name for p in self._given if p.default is _NO_DEFAULT]:
            schema["required"] = required
        return {**schema, "$defs": components} if components else schema


def _schemas_of(types: list[Any]) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    parts: dict[str, Any] = {}
    hook = partial(model_types.schema_of, parts=parts)
    schemas, components = msgspec.json.schema_components(
        types, schema_hook=hook, ref_template=model_types.REF + "{name}"
    )
    return schemas, {**components, **parts}


WHOLE_MAX = 2.0**53
"""Up to here every whole number is a float of its own; beyond, one may stand for another."""


def _decoded(decoder: msgspec.json.Decoder[Any], payload: Payload) -> Any:
    """What is written there, in the types that are wanted.

    To a schema an integer is any whole number, 1.0 as well, and some models and languages write all of theirs so.
    """
    try:
        return decoder.decode(payload)
    except msgspec.ValidationError as error:
        try:
            return decoder.decode(msgspec.json.encode(_with_integers(msgspec.json.decode(payload))))
        except RecursionError:
            raise error from None  # too deep to be looked through


def _with_integers(value: Any) -> Any:
    match value:
        case float() if value.is_integer() and abs(value) <= WHOLE_MAX:
            return int(value)
        case list():
            return [_with_integers(each) for each in value]
        case dict():
            return {key: _with_integers(each) for key, each in value.items()}
        case _:
            return value


class _Parameter:
    """One parameter of a function, as its annotation and its default describe it."""

    def __init__(self, parameter: inspect.Parameter, annotation: Any) -> None:
        self.name = parameter.name
        self.default = parameter.default
        self.is_positional = parameter.kind is _POSITIONAL
        self.is_rest = parameter.kind is inspect.Parameter.VAR_KEYWORD
        self.is_context = _is_context(annotation)
        # `x: int = None` means that it may be absent, which strict types would not let a caller say.
        self.type: Any = annotation if self.default is not None else Union[annotation, None]  # noqa: UP007
        self._words = _words_of(annotation)

    def field(self) -> tuple[str, Any] | tuple[str, Any, Any]:
        """What a struct of the arguments has for it; its default stays the function's own affair."""
        if self.default is _NO_DEFAULT:
            return self.name, self.type
        return self.name, Union[self.type, UnsetType], UNSET  # noqa: UP007 - an annotation may be a string

    def property(self, schema: dict[str, Any], told: dict[str, str]) -> dict[str, Any]:
        """What the schema says of it."""
        words = self._words or told.get(self.name)
        described = {**schema, "description": words} if words and "description" not in schema else dict(schema)
        if self.default is not _NO_DEFAULT:
            with suppress(TypeError, ValueError):  # a sentinel, which says nothing to a caller
                described["default"] = msgspec.to_builtins(self.default, enc_hook=model_types.encoded)
        return described


def _read_parameters(function: Callable[..., Any]) -> list[_Parameter]:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Unusable("it is a generator, and a tool has one result")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise Unusable("it has no signature that can be read") from error
    hints = _hints_of(function)
    return [_read_parameter(one, hints.get(one.name, Any)) for one in signature.parameters.values()]


def _read_parameter(parameter: inspect.Parameter, annotation: Any) -> _Parameter:
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        raise Unusable(f"it takes *{parameter.name}, and arguments of a tool have names")
    if model_types.is_field(parameter.default):
        raise Unusable(
            f"the default of its parameter {parameter.name} is a Field, which Python would give to it as it is: "
            f"write {parameter.name}: Annotated[..., Field(...)], with a plain default or none"
        )
    try:
        read = _Parameter(parameter, model_types.with_limits(annotation))
    except TypeError as error:
        raise Unusable(f"the limits of its parameter {parameter.name} cannot be described: {error}") from error
    if not read.is_context:
        _check_type(read)
    return read


def _check_type(parameter: _Parameter) -> None:
    try:
        _schemas_of([parameter.type])
        msgspec.json.Decoder(parameter.type, dec_hook=model_types.decoded)
    except TypeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise Unusable(f"the type of its parameter {parameter.name} cannot be described: {reason}") from error


def _hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations with their strings evaluated; a callable object's are those of its `__call__`."""
    made = function.__init__ if inspect.isclass(function) else _call_of(function)
    holder = function if inspect.isroutine(function) else getattr(function, "func", made)
    try:
        return get_type_hints(inspect.unwrap(holder), include_extras=True)
    except TypeError:
        return {}  # a function of another language, without annotations
    except Exception as error:  # evaluating an annotation runs whatever it says
        raise Unusable(f"its annotations cannot be read: {type(error).__name__}: {error}") from error


def _call_of(function: Callable[..., Any]) -> Callable[..., Any]:
    return type(function).__call__


def _is_context(annotation: Any) -> bool:
    if get_origin(annotation) in (Union, UnionType, Annotated):
        return any(_is_context(part) for part in get_args(annotation))
    return isinstance(annotation, type) and issubclass(annotation, Context)


def _words_of(annotation: Any) -> str | None:
    """A description in `Annotated`: a string, or an object that has one."""
    if get_origin(annotation) is not Annotated:
        return None
    for extra in get_args(annotation)[1:]:
        words = extra if isinstance(extra, str) else getattr(extra, "description", None)
        words = words or getattr(extra, "documentation", None)
        if isinstance(words, str):
            return words
    return None


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
