"""A Python function as a tool: schema and description from its signature and docstring, arguments converted.

Pure: `upstream.python.runner` runs the functions. The hub fills parameters annotated with `Context`. msgspec converts
arguments and results; the hooks here add paths and pydantic models, which are recognized by their methods, so that
pydantic is not a dependency. Our docstring parser keeps all text that does not describe a parameter, because the
language model reads it (see `docs/decisions/library.md`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import PurePath
from types import UnionType
from typing import Annotated, Any, Protocol, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from isthmus.upstream.python.context import Context
from isthmus.wire.jsonrpc import Payload

_HEADING = re.compile(r"(args|arguments|parameters|params)(:|)\s*", re.IGNORECASE)
_RULE = re.compile(r"-{3,}\s*")
_GOOGLE = re.compile(r"\*{0,2}(\w+)\s*(?:\((?:[^()]|\([^()]*\))*\))?\s*:\s*(.*)")
_NUMPY = re.compile(r"\*{0,2}(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?")
_SPHINX = re.compile(r":param\s+(?:[^:\s]+\s+)*?\*{0,2}(\w+):\s*(.*)")


@dataclass(slots=True)
class Docstring:
    """The text of a docstring, and the descriptions of the parameters, which are taken out of the text."""

    text: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def read_docstring(docstring: str | None) -> Docstring:
    """Read a docstring in Google, NumPy or Sphinx style."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    parameters: dict[str, str] = {}
    rest: list[str] = []
    position = 0
    while position < len(lines):
        line = lines[position]
        position += 1
        if (entry := _SPHINX.fullmatch(line)) is not None:
            parameters[entry[1]] = entry[2].strip()
            while position < len(lines) and lines[position].strip() and _indent(lines[position]) > 0:
                _append_line(parameters, entry[1], lines[position])
                position += 1
        elif (heading := _HEADING.fullmatch(line)) is not None and heading[2]:
            position = _read_google(lines, position, parameters)
        elif heading is not None and _is_rule(lines, position):
            position = _read_numpy(lines, position + 1, parameters)
        else:
            rest.append(line)
    return Docstring(re.sub(r"\n{3,}", "\n\n", "\n".join(rest)).strip(), parameters)


def _read_google(lines: list[str], start: int, parameters: dict[str, str]) -> int:
    """Read indented `name (type): description`; deeper lines continue a description. Return where the section ends."""
    margin = _indent(lines[start]) if start < len(lines) else 0
    position, name = start, ""
    while position < len(lines) and (not lines[position].strip() or _indent(lines[position]) >= margin > 0):
        line = lines[position]
        entry = _GOOGLE.fullmatch(line.strip()) if _indent(line) == margin else None
        if entry is not None:
            name = entry[1]
            parameters[name] = entry[2].strip()
        elif name:
            _append_line(parameters, name, line)
        position += 1
    return position


def _read_numpy(lines: list[str], start: int, parameters: dict[str, str]) -> int:
    """Read `name : type` with indented descriptions, up to the next heading. Return where the section ends."""
    position, names = start, [""]
    while position < len(lines) and not (lines[position].strip() and _is_rule(lines, position + 1)):
        line = lines[position]
        if line.strip() and _indent(line) == 0:
            entry = _NUMPY.fullmatch(line.strip())
            if entry is None:
                break
            names = [name.strip() for name in entry[1].split(",")]
            parameters.update(dict.fromkeys(names, ""))
        else:
            for name in filter(None, names):
                _append_line(parameters, name, line)
        position += 1
    return position


def _is_rule(lines: list[str], position: int) -> bool:
    return position < len(lines) and _RULE.fullmatch(lines[position]) is not None


def _append_line(parameters: dict[str, str], name: str, line: str) -> None:
    parameters[name] = f"{parameters[name]} {line.strip()}".strip()


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


_NO_DEFAULT = inspect.Parameter.empty
_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY


class Unusable(Exception):
    """A function cannot be a tool; the message says why."""


class BadArgument(Exception):
    """An argument does not fit the function's annotations; the message names it."""


class Runnable(Protocol):
    """What a server of functions runs for a call: a `Function`, or an object with the same methods."""

    @property
    def name(self) -> str:
        """The tool's name, without its server."""

    @property
    def is_async(self) -> bool:
        """Whether `call` returns an awaitable and runs on the hub's loop; otherwise it runs in a thread."""

    @property
    def is_inline(self) -> bool:
        """Whether it is quick enough to run on the hub's loop without a thread."""

    @property
    def takes_context(self) -> bool:
        """Whether it has a `Context`, and so may send progress, logs and questions."""

    def definition(self) -> dict[str, msgspec.Raw]:
        """The members of its MCP definition."""

    def read(self, arguments: Payload) -> dict[str, Any]:
        """Convert a call's arguments; raises `BadArgument`."""

    def call(self, arguments: dict[str, Any], context: Context) -> Any:
        """Call it with the arguments that `read` returned.

        The return value becomes the tool's result (a `Result` is used as it is), an exception the tool's error.
        """


@dataclass(frozen=True, slots=True)
class Traits:
    """Properties of a tool that its author declares beside signature and docstring."""

    description: str | None = None
    annotations: Mapping[str, Any] | None = None
    """MCP's hints, such as `{"readOnlyHint": True}`."""
    permissions: tuple[str, ...] = ()
    """The permissions that a user of the library needs for it."""
    is_inline: bool = False


NO_TRAITS = Traits()

PERMISSIONS = "isthmus/permissions"
"""The key of these permissions in `_meta` of a tool's definition."""


class Function:
    """A callable as a tool: its definition, and the conversion of arguments."""

    def __init__(self, name: str, function: Callable[..., Any], traits: Traits = NO_TRAITS) -> None:
        """Read the signature.

        Raises:
            Unusable: the signature cannot be described.
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
        self._named = [p for p in self._parameters if not p.is_context and not p.is_rest]
        self.input_schema = self._schema()
        self._has_objects = "$defs" in self.input_schema
        struct_fields = [parameter.struct_field() for parameter in self._named]
        shape = msgspec.defstruct("Arguments", struct_fields, forbid_unknown_fields=self._rest is None, kw_only=True)
        self._arguments = msgspec.json.Decoder(shape, dec_hook=_decode_hook)
        rest = Any if self._rest is None else self._rest.type
        self._rest_value = msgspec.json.Decoder(rest, dec_hook=_decode_hook)

    @property
    def takes_context(self) -> bool:
        """Whether a parameter is annotated with `Context`."""
        return self._context is not None

    def definition(self) -> dict[str, msgspec.Raw]:
        """The members of its MCP definition."""
        traits = self._traits
        members: dict[str, Any] = {
            "name": self.name,
            "description": self._doc.text if traits.description is None else traits.description,
            "inputSchema": self.input_schema,
            "annotations": traits.annotations,
            "_meta": {PERMISSIONS: traits.permissions} if traits.permissions else None,
        }
        return {key: msgspec.Raw(msgspec.json.encode(value)) for key, value in members.items() if value}

    def read(self, arguments: Payload) -> dict[str, Any]:
        """Convert a call's arguments strictly. Omitted arguments are absent from the result.

        Raises:
            BadArgument: an argument is missing, unknown or of another type.
        """
        try:
            values = _decode(self._arguments, arguments)
            found = {p.name: value for p in self._named if (value := getattr(values, p.name)) is not UNSET}
            if self._rest is not None:
                found |= self._read_rest(arguments)
            return _fill_defaults(found) if self._has_objects else found
        except msgspec.MsgspecError as error:
            raise BadArgument(str(error)) from error

    def _read_rest(self, arguments: Payload) -> dict[str, Any]:
        """The arguments that become `**` keywords."""
        found: dict[str, Any] = {}
        known = {parameter.name for parameter in self._parameters}
        for name, raw in msgspec.json.decode(arguments, type=dict[str, msgspec.Raw]).items():
            if name not in known:
                try:
                    found[name] = _decode(self._rest_value, raw)
                except msgspec.MsgspecError as error:
                    raise BadArgument(f"{error} - at `$.{name}`") from error
        return found

    def call(self, arguments: dict[str, Any], context: Context) -> Any:
        """Call it with the arguments that `read` returned; an asynchronous function returns an awaitable."""
        if self._context is not None:
            arguments[self._context] = context
        leading = [arguments.pop(p.name, p.default) for p in self._parameters if p.is_positional]
        return self.function(*leading, **arguments)

    def _schema(self) -> dict[str, Any]:
        described = [p for p in self._parameters if not p.is_context]
        try:
            schemas, components = _schemas_of([parameter.type for parameter in described])
        except SameName as error:
            raise Unusable(str(error)) from error
        schema: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
        for parameter, one in zip(described, schemas, strict=True):
            if parameter.is_rest:
                schema["additionalProperties"] = one or True
            else:
                schema["properties"][parameter.name] = parameter.property(one, self._doc.parameters)
        if required := [p.name for p in self._named if p.default is _NO_DEFAULT]:
            schema["required"] = required
        return {**schema, "$defs": components} if components else schema


def _schemas_of(types: list[Any]) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """The schemas of types, and the definitions that they share."""
    parts: dict[str, Any] = {}
    hook = partial(_schema_hook, parts=parts)
    schemas, components = msgspec.json.schema_components(types, schema_hook=hook, ref_template=REF + "{name}")
    return schemas, {**components, **parts}


WHOLE_MAX = 2.0**53
"""Up to here every whole number has its own float; above, two integers may share one."""


def _decode(decoder: msgspec.json.Decoder[Any], payload: Payload) -> Any:
    """Decode arguments; a float that is whole is accepted as an integer.

    JSON Schema counts 1.0 as an integer, and some models and languages write all numbers as floats.
    """
    try:
        return decoder.decode(payload)
    except msgspec.ValidationError as error:
        try:
            return decoder.decode(msgspec.json.encode(_with_integers(msgspec.json.decode(payload))))
        except RecursionError:
            raise error from None  # nested too deeply for `_with_integers`


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
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            raise Unusable(f"it takes *{self.name}, and arguments of a tool have names")
        if _is_field(self.default):
            raise Unusable(
                f"the default of its parameter {self.name} is a Field, which Python would give to it as it is: "
                f"write {self.name}: Annotated[..., Field(...)], with a plain default or none"
            )
        try:
            annotation = _with_limits(annotation)
        except TypeError as error:
            raise Unusable(f"the limits of its parameter {self.name} cannot be described: {error}") from error
        self.is_context = _is_context(annotation)
        # `x: int = None` means that the argument is optional; then None is a valid value too.
        self.type: Any = annotation if self.default is not None else Union[annotation, None]  # noqa: UP007
        self._description = _description_in(annotation)
        if self.is_context:
            return
        try:
            _schemas_of([self.type])
            msgspec.json.Decoder(self.type, dec_hook=_decode_hook)
        except TypeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise Unusable(f"the type of its parameter {self.name} cannot be described: {reason}") from error

    def struct_field(self) -> tuple[str, Any] | tuple[str, Any, Any]:
        """Its field in the struct of the arguments. Python fills defaults when it calls the function."""
        if self.default is _NO_DEFAULT:
            return self.name, self.type
        return self.name, Union[self.type, UnsetType], UNSET  # noqa: UP007 - an annotation may be a string

    def property(self, schema: dict[str, Any], descriptions: dict[str, str]) -> dict[str, Any]:
        """Its property in the input schema."""
        text = self._description or descriptions.get(self.name)
        described = {**schema, "description": text} if text and "description" not in schema else dict(schema)
        if self.default is not _NO_DEFAULT:
            with suppress(TypeError, ValueError):  # a sentinel, which has no JSON form
                described["default"] = msgspec.to_builtins(self.default, enc_hook=encode_hook)
        return described


def _read_parameters(function: Callable[..., Any]) -> list[_Parameter]:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Unusable("it is a generator, and a tool has one result")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise Unusable("it has no signature that can be read") from error
    # The annotations of a callable object are those of its `__call__`.
    made = function.__init__ if inspect.isclass(function) else _call_of(function)
    holder = function if inspect.isroutine(function) else getattr(function, "func", made)
    try:
        hints = get_type_hints(inspect.unwrap(holder), include_extras=True)
    except TypeError:
        hints = {}  # a function of a C extension, without annotations
    except Exception as error:  # evaluating an annotation runs arbitrary code
        raise Unusable(f"its annotations cannot be read: {type(error).__name__}: {error}") from error
    return [_Parameter(one, hints.get(one.name, Any)) for one in signature.parameters.values()]


def _call_of(function: Callable[..., Any]) -> Callable[..., Any]:
    return type(function).__call__


def _is_context(annotation: Any) -> bool:
    if get_origin(annotation) in (Union, UnionType, Annotated):
        return any(_is_context(part) for part in get_args(annotation))
    return isinstance(annotation, type) and issubclass(annotation, Context)


def _description_in(annotation: Any) -> str | None:
    """The description in `Annotated`: a string, or an object with a description."""
    if get_origin(annotation) is not Annotated:
        return None
    for extra in get_args(annotation)[1:]:
        text = extra if isinstance(extra, str) else getattr(extra, "description", None)
        text = text or getattr(extra, "documentation", None)
        if isinstance(text, str):
            return text
    return None


# -- paths and pydantic models as types ----------------------------------------------------------------------------

REF = "#/$defs/"

LIMITS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")
"""Limits of a type; msgspec, pydantic and annotated-types use the same names."""

_ODD = re.compile(r"[^A-Za-z0-9_-]")
"""Characters that a reference cannot contain, such as the brackets of a generic model; pydantic replaces them too."""


class SameName(ValueError):
    """Two types of one name in one signature."""


def _schema_hook(kind: type, parts: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type; the definitions it refers to are added to `parts`, prefixed with the type's name.

    Raises:
        NotImplementedError: it is neither a path nor a model, as msgspec expects.
        TypeError: it has no schema.
        SameName: another type of this name exists already.
    """
    if _is_path(kind):
        return {"type": "string", "format": "path"}
    if not _is_model(kind):
        raise NotImplementedError
    owner = _ODD.sub("_", kind.__name__)
    try:
        schema: dict[str, Any] = kind.model_json_schema(ref_template=f"{REF}{owner}.{{model}}")  # type: ignore[attr-defined]
    except Exception as error:
        # A field without a JSON form, or an undefined name; pydantic's further lines link to its own pages.
        raise TypeError(str(error).partition("\n")[0]) from error
    for name, part in schema.pop("$defs", {}).items():
        if parts.setdefault(f"{owner}.{name}", part) != part:
            raise SameName(f"two of its types are called {owner}, and differ: rename one")
    return schema


def _decode_hook(kind: type, value: Any) -> Any:
    """Convert a JSON value to a type.

    Raises:
        ValueError: the value does not fit; the message names the fields.
        NotImplementedError: the type is neither a path nor a model.
    """
    if _is_model(kind):
        try:
            # As JSON text: strict models accept a date as text only there.
            return kind.model_validate_json(msgspec.json.encode(value))  # type: ignore[attr-defined]
        except ValueError as error:
            if (details := getattr(error, "errors", None)) is None:
                raise ValueError(str(error)) from error
            # Field by field, without pydantic's links to its own pages.
            problems = (f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in details())
            raise ValueError("; ".join(problems)) from error
    if _is_path(kind):
        if not isinstance(value, str):
            raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
        return kind(value)
    raise NotImplementedError


def encode_hook(value: Any) -> Any:
    """Convert a value that msgspec does not know to one that it can encode.

    Raises:
        TypeError: it has no JSON form; the message names the type.
    """
    if _is_model(type(value)):
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, PurePath):
        return str(value)
    if inspect.iscoroutine(value):
        value.close()  # otherwise Python warns that nothing awaited it
        raise TypeError("the tool's result must be awaited: write the function as an `async def`, not inline")
    raise TypeError(
        f"the tool's result has a value of type {type(value).__name__}, which JSON does not have: "
        "return text, numbers, lists, dictionaries, dataclasses or models"
    )


def _with_limits(annotation: Any) -> Any:
    """The same type with the limits that `Annotated` states in terms of pydantic or annotated-types.

    Raises:
        TypeError: msgspec cannot apply them.
    """
    if get_origin(annotation) is not Annotated:
        return annotation
    found: dict[str, Any] = {}
    for extra in get_args(annotation)[1:]:
        for one in (extra, *(extra.metadata if _is_field(extra) else ())):
            if not isinstance(one, msgspec.Meta):
                found |= {name: limit for name in LIMITS if (limit := getattr(one, name, None)) is not None}
    return Annotated[annotation, msgspec.Meta(**found)] if found else annotation


def _fill_defaults(value: Any) -> Any:
    """Store the defaults of every dataclass in the object itself, and return the value.

    msgspec leaves omitted fields to the class, but encodes only the fields of the object: a function that returned its
    argument would lose them.
    """
    if isinstance(value, dict):
        for part in value.values():
            _fill_defaults(part)
    elif isinstance(value, list | tuple | set | frozenset):
        for part in value:
            _fill_defaults(part)
    elif is_dataclass(value) and not isinstance(value, type):
        held = getattr(value, "__dict__", {})
        for member in fields(value):
            part = getattr(value, member.name)
            held.setdefault(member.name, part)
            _fill_defaults(part)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            _fill_defaults(getattr(value, name))
    return value


def _is_model(kind: Any) -> bool:
    return hasattr(kind, "model_json_schema") and hasattr(kind, "model_validate_json")


def _is_field(default: Any) -> bool:
    """Whether it is a pydantic `Field(...)` and not a value."""
    return type(default).__name__ == "FieldInfo" and hasattr(default, "metadata")


def _is_path(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, PurePath)
