"""Functions as tools: their schemas, and how arguments become their own."""

from __future__ import annotations

import enum
import functools
import math
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NotRequired, Optional, TypedDict, TypeVar, Union

import jsonschema_rs
import msgspec
import pytest
from annotated_types import Ge, Len
from pydantic import BaseModel, Field

from isthmus.model.calls import Event, LogMessage, Progress
from isthmus.upstream.python.context import Context
from isthmus.upstream.python.signatures import BadArgument, Function, Unusable, read_docstring
from tests.unit.core.doubles import raw

T = TypeVar("T")


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass
class Point:
    x: int
    y: int = 0
    next: Point | None = None


class Options(TypedDict):
    depth: int
    name: NotRequired[str]


class Box(msgspec.Struct):
    width: float


NOWHERE = object()


class Item(BaseModel):
    name: str
    parts: list[Item] = []


class Crate(BaseModel, Generic[T]):
    held: list[T]


def other_item() -> type[BaseModel]:
    class Item(BaseModel):
        parts: list[Item] = []

    return Item


class Described:
    description = "In words"


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    return Function("f", function).input_schema


def call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    made = Function("f", function)
    return made.call(made.read(raw(arguments)), Context("ann", lambda _event: None))


# -- schemas ---------------------------------------------------------------------------------------------------------


def test_a_signature_is_a_schema() -> None:
    def send(to: str, amount: int = 3, *, is_urgent: bool = False, weight: float | None = None) -> None: ...

    assert schema_of(send) == {
        "type": "object",
        "properties": {
            "to": {"type": "string"},
            "amount": {"type": "integer", "default": 3},
            "is_urgent": {"type": "boolean", "default": False},
            "weight": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
        },
        "required": ["to"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (str, ["x"], [1, None]),
        (int, [1, 1.0, -2e3], ["1", 1.5, True]),
        (float, [1.5, 1], ["1"]),
        (bool, [True], [1, "true"]),
        (None, [None], [0]),
        (Any, [1, None, {}], []),
        (list, [[1, "x"]], [{}, "x"]),
        (list[int], [[1], [1.0]], [["x"]]),
        (dict, [{"a": 1}], [[]]),
        (dict[str, int], [{"a": 1}], [{"a": "x"}]),
        (tuple[int, str], [[1, "x"]], [[1], [1, 2]]),
        (set[int], [[1, 2]], [["x"]]),
        (Optional[int], [1, None], ["x"]),  # noqa: UP045 - people write it so
        (Union[int, str], [1, 1.0, "x"], [1.5, None]),  # noqa: UP007
        (Literal["a", 1], ["a", 1, 1.0], ["b", 2, 2.0]),
        (Size, ["s"], ["m", "SMALL"]),
        (Options, [{"depth": 1}, {"depth": 1, "name": "x"}], [{}, {"depth": "x"}]),
        (Point, [{"x": 1}, {"x": 1, "next": {"x": 2}}], [{"y": 1}, {"x": 1, "next": {}}]),
        (Box, [{"width": 1.5}], [{"width": "x"}]),
        (Annotated[int, msgspec.Meta(ge=1)], [1], [0]),
        (Annotated[int, Field(ge=1, multiple_of=2)], [2], [0, 3]),
        (Annotated[str, Field(pattern="^a+$", max_length=2)], ["a"], ["b", "aaa"]),
        (Annotated[list[int], Len(1)], [[1]], [[]]),
        (Item, [{"name": "x"}, {"name": "x", "parts": [{"name": "y"}]}], [{}, {"name": "x", "parts": [{}]}, 5]),
        (Optional[Item], [{"name": "x"}, None], [{}]),  # noqa: UP045
        (dict[str, list[Item]], [{"a": [{"name": "x"}]}], [{"a": [{}]}]),
        (Crate[Item], [{"held": [{"name": "x"}]}], [{"held": [{}]}]),
        (Path, ["/a/b"], [5]),
    ],
)
def test_the_schema_and_the_conversion_say_the_same(annotation: Any, good: list[Any], bad: list[Any]) -> None:
    def f(value: Any) -> Any:
        return value

    f.__annotations__["value"] = annotation
    function = Function("f", f)
    check = jsonschema_rs.validator_for(function.input_schema)
    for value in good:
        check.validate({"value": value})
        function.read(raw({"value": value}))
    for value in bad:
        assert not check.is_valid({"value": value})
        with pytest.raises(BadArgument, match=r"\$\.value"):
            function.read(raw({"value": value}))


def test_words_come_from_the_annotation_and_else_from_the_docstring() -> None:
    def f(  # noqa: D417
        a: Annotated[int, "A's own"],
        b: Annotated[int, Described()],
        c: Annotated[int, msgspec.Meta(description="C's own")],
        d: int,
        e: int,
    ) -> None:
        """Do it.

        Args:
            a: not this
            c: not this
            d: D's words
        """

    properties = schema_of(f)["properties"]
    assert [properties[name].get("description") for name in "abcde"] == [
        "A's own",
        "In words",
        "C's own",
        "D's words",
        None,
    ]
    assert bytes(Function("f", f).definition()["description"]) == b'"Do it."'


def test_a_default_that_json_has_not_is_left_out() -> None:
    def f(a: Any = NOWHERE, b: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    assert schema_of(f)["properties"] == {
        "a": {},
        "b": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
    }


def test_a_function_without_docstring_has_no_description() -> None:
    definition = Function("f", lambda: None).definition()
    assert set(definition) == {"name", "inputSchema"}


def test_more_keywords_are_allowed_where_the_function_takes_them() -> None:
    def f(a: int, **more: int) -> dict[str, int]:
        return {"a": a, **more}

    assert schema_of(f)["additionalProperties"] == {"type": "integer"}
    assert call(f, {"a": 1, "b": 2}) == {"a": 1, "b": 2}
    with pytest.raises(BadArgument, match=r"Expected `int`, got `str` - at `\$\.b`"):
        call(f, {"a": 1, "b": "x"})


def test_more_keywords_without_a_type_are_anything() -> None:
    def f(**more) -> Any:  # type: ignore[no-untyped-def]
        return more

    assert schema_of(f)["additionalProperties"] is True
    assert call(f, {"x": [1]}) == {"x": [1]}


# -- arguments -------------------------------------------------------------------------------------------------------


def test_values_arrive_in_the_types_that_were_asked_for() -> None:
    def f(point: Point, size: Size, numbers: set[int], pair: tuple[int, str]) -> Any:
        return point, size, numbers, pair

    given = {"point": {"x": 1}, "size": "l", "numbers": [1, 1], "pair": [1, "a"]}
    assert call(f, given) == (Point(1), Size.LARGE, {1}, (1, "a"))


def test_a_whole_number_is_an_integer_however_it_is_written() -> None:
    def f(point: Point, ratio: float, anything: Any, text: str, **more: int) -> Any:
        return point, ratio, anything, text, more

    given = {"point": {"x": 1.0}, "ratio": 2.0, "anything": 0.5, "text": "1.0", "b": 3.0}
    point, ratio, anything, text, more = call(f, given)
    assert (point, ratio, anything, text, more) == (Point(1), 2.0, 0.5, "1.0", {"b": 3})
    assert [type(each) for each in (point.x, ratio, more["b"])] == [int, float, int]
    with pytest.raises(BadArgument, match=r"Expected `int`, got `float` - at `\$\.point\.x`"):
        call(f, {**given, "point": {"x": 1.5}})
    # Deep for who looks through it in Python, not for who decodes it: where comprehensions are frames, the first ends
    # earlier; from 3.12 on they are none, and the second has a limit of its own, which differs between versions.
    depth = 900 if sys.version_info < (3, 12) else sys.getrecursionlimit() + 100
    deep = msgspec.json.decode(b"[" * depth + b"]" * depth)
    with pytest.raises(BadArgument, match=r"Expected `int`, got `float` - at `\$\.point\.x`"):
        call(f, {**given, "anything": deep})


def test_omitted_arguments_use_the_functions_own_default() -> None:
    own: list[int] = [7]

    def f(a: int, b: list[int] = own) -> Any:
        return b

    assert call(f, {"a": 1}) is own


@pytest.mark.parametrize("arguments", [{}, {"a": 1, "b": 2}, {"a": "1"}])
def test_a_bad_argument_is_named(arguments: dict[str, Any]) -> None:
    def f(a: int) -> None: ...

    with pytest.raises(BadArgument, match=r"`a`|`b`|`\$\.a`"):
        call(f, arguments)


def test_positions_are_filled_by_name() -> None:
    def f(a: int, b: int = 5, /, c: int = 6) -> Any:
        return a, b, c

    assert call(f, {"a": 1, "c": 2}) == (1, 5, 2)
    assert call(math.sqrt, {"x": 4}) == 2.0


def test_objects_and_partials_that_can_be_called_are_functions() -> None:
    class Adder:
        async def __call__(self, a: int) -> int:
            return a

    def add(a: int, b: int) -> int:
        return a + b

    adder = Function("adder", Adder())
    assert adder.is_async
    assert adder.input_schema["required"] == ["a"]
    assert call(functools.partial(add, b=2), {"a": 1}) == 3


def test_a_class_is_described_by_how_it_is_made() -> None:
    assert schema_of(Point)["properties"]["x"] == {"type": "integer"}
    assert call(Point, {"x": 1}) == Point(1)


def test_a_decorated_function_has_the_schema_of_the_wrapped_one() -> None:
    def add(a: int) -> int:
        return a

    @functools.wraps(add)
    def wrapped(*args: Any, **kwargs: Any) -> int:
        return add(*args, **kwargs) + 1

    assert schema_of(wrapped)["properties"] == {"a": {"type": "integer"}}
    assert call(wrapped, {"a": 1}) == 2


# -- context ---------------------------------------------------------------------------------------------------------


def test_a_context_is_given_by_the_hub_and_not_by_the_caller() -> None:
    def f(a: int, context: Context) -> str:
        context.progress(1, total=2, message="half")
        context.log("info", "hello")
        return context.caller

    events: list[Event] = []
    function = Function("f", f)
    assert function.takes_context
    assert function.input_schema["properties"] == {"a": {"type": "integer"}}
    assert function.call(function.read(raw({"a": 1})), Context("ann", events.append)) == "ann"
    assert events == [
        Progress({"progress": msgspec.Raw(b"1"), "total": msgspec.Raw(b"2"), "message": msgspec.Raw(b'"half"')}),
        LogMessage("info", {"level": msgspec.Raw(b'"info"'), "data": msgspec.Raw(b'"hello"')}),
    ]
    with pytest.raises(BadArgument, match="context"):
        function.read(raw({"a": 1, "context": {}}))


def test_an_optional_context_is_given_too() -> None:
    def f(context: Context | None = None) -> bool:
        return context is not None

    assert call(f, {}) is True


# -- what cannot be a tool -------------------------------------------------------------------------------------------


def with_words(*words: str) -> None: ...
def with_bad_type(a: complex) -> None: ...
def with_two_tables(a: Point | dict[str, int]) -> None: ...
def with_unknown(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def with_field(a: int = Field(ge=0)) -> None: ...
def with_odd_limit(a: Annotated[complex, Field(ge=0)]) -> None: ...
def with_date_limit(a: Annotated[datetime, Ge(datetime(2020, 1, 1, tzinfo=UTC))]) -> None: ...
def with_odd_model(a: Odd) -> None: ...
def with_two_models(a: Item, b: object) -> None: ...


class Odd(BaseModel):
    function: Callable[[], int]


with_two_models.__annotations__["b"] = other_item()


def generator() -> Iterator[int]:
    yield 1


async def stream() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (with_words, r"it takes \*words"),
        (with_bad_type, "the type of its parameter a cannot be described: type <class 'complex'> is not supported"),
        (with_two_tables, "more than one dict-like type"),
        (with_unknown, "its annotations cannot be read: NameError: name 'Nowhere' is not defined"),
        (with_field, r"parameter a is a Field, .* write a: Annotated\[\.\.\., Field"),
        (with_odd_limit, "the type of its parameter a cannot be described"),
        (with_date_limit, "the limits of its parameter a cannot be described"),
        (with_odd_model, "the type of its parameter a cannot be described: .*CallableSchema"),
        (with_two_models, "two of its types are called Item, and differ: rename one"),
        (generator, "it is a generator"),
        (stream, "it is a generator"),
        (dict.update, r"no signature|takes \*"),
    ],
)
def test_an_undescribable_function_is_refused_with_a_reason(function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(Unusable, match=reason):
        Function("f", function)


GOOGLE = """Send a letter.

    It takes a while.

    Args:
        to: Whom it goes to,
            by name.
        amount (int, optional): How many.
        **more: What else.

    Returns:
        Its number.
    """

NUMPY = """
    Send a letter.

    It takes a while.

    Parameters
    ----------
    to : str
        Whom it goes to,
        by name.
    amount, more
        How many.

    Returns
    -------
    int
        Its number.
    """

SPHINX = """Send a letter.

    :param str to: Whom it goes to,
        by name.
    :param amount: How many.
    :returns: Its number.
    """


def test_the_google_way() -> None:
    doc = read_docstring(GOOGLE)
    assert doc.parameters == {"to": "Whom it goes to, by name.", "amount": "How many.", "more": "What else."}
    assert doc.text == "Send a letter.\n\nIt takes a while.\n\nReturns:\n    Its number."


def test_a_type_in_brackets_may_contain_brackets() -> None:
    doc = read_docstring("Do it.\n\nArgs:\n    a: One.\n    b (tuple[int, (str)]): Two.\n")
    assert doc.parameters == {"a": "One.", "b": "Two."}


def test_text_beside_the_parameters_stays_in_the_description() -> None:
    doc = read_docstring("Do it.\n\nNote: slow.\n\nArgs:\n    a: One.\n\nWarning:\n    It costs money.\n")
    assert doc.text == "Do it.\n\nNote: slow.\n\nWarning:\n    It costs money."


def test_the_numpy_way() -> None:
    doc = read_docstring(NUMPY)
    assert doc.parameters == {"to": "Whom it goes to, by name.", "amount": "How many.", "more": "How many."}
    assert doc.text == "Send a letter.\n\nIt takes a while.\n\nReturns\n-------\nint\n    Its number."


def test_the_sphinx_way() -> None:
    doc = read_docstring(SPHINX)
    assert doc.parameters == {"to": "Whom it goes to, by name.", "amount": "How many."}
    assert doc.text == "Send a letter.\n\n:returns: Its number."


@pytest.mark.parametrize("text", ["", None, "Add.", "Parameters are what it needs:\nall of them.", "Parameters"])
def test_anything_else_is_prose(text: str | None) -> None:
    assert read_docstring(text).text == (text or "")
    assert read_docstring(text).parameters == {}


@pytest.mark.parametrize(
    "text", ["Args:", "Args:\nnothing: here", "Parameters\n---", "Parameters\n---\n  x", ":param x:"]
)
def test_a_section_that_is_cut_short_is_harmless(text: str) -> None:
    assert set(read_docstring(text).parameters) <= {"x"}


def test_a_sentence_with_two_brackets_is_no_parameter() -> None:
    doc = read_docstring("Do it.\n\nArgs:\n    a: One,\n        or (a) this (b): that.\n")
    assert doc.parameters == {"a": "One, or (a) this (b): that."}
