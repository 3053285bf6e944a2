"""Types of plain values."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from isthmus.config import values

Reader = Callable[[str, object], object]


@pytest.mark.parametrize(
    ("read", "value", "result"),
    [
        (values.text, "a", "a"),
        (values.texts, ["a", "b"], ("a", "b")),
        (values.word, "a", "a"),
        (values.word, True, "true"),
        (values.word, False, "false"),
        (values.word, 8080, "8080"),
        (values.word, 1.5, "1.5"),
        (values.words, ["--port", 8080], ("--port", "8080")),
        (values.table_of_words, {"A": 1, "B": None, "C": "c"}, {"A": "1", "C": "c"}),
        (values.flag, True, True),
        (values.flag, " False ", False),
        (values.number, 5, 5),
        (values.number, "2.5", 2.5),
        (values.number, 10**400, float("inf")),
        (values.integer, 5, 5),
        (values.integer, " 5 ", 5),
    ],
)
def test_a_value_of_the_right_kind_is_returned(read: Reader, value: object, result: object) -> None:
    assert read("name", value) == result


@pytest.mark.parametrize(
    ("read", "key", "value", "message"),
    [
        (values.text, "name", 5, "name must be a text, not 5"),
        (values.text, "name", None, "name must be a text, not null"),
        (values.text, "url", 5, "url must be a text, not a number"),
        (values.text, "key", True, "key must be a text, not a boolean"),
        (values.text, "key", None, "key must be a text, not null"),
        (values.texts, "allow", "a", "allow must be a list of texts, not 'a'"),
        (values.texts, "allow", ["a", 1], "allow.1 must be a text, not 1"),
        (values.words, "args", "-y secret", "args must be a list of texts, not a text"),
        (values.words, "args", [["x"]], "args.0 must be a text, not a list"),
        (values.word, "env.A", 10**400, "env.A must be a text, not a number"),
        (values.table_of_words, "headers", "secret", "headers must be a table, not a text"),
        (values.table_of_words, "env", {"A": {"b": 1}}, "env.A must be a text, not a table"),
        (values.table, "hub", [], "hub must be a table, not a list"),
        (values.flag, "disabled", 1, "disabled must be true or false, not 1"),
        (values.flag, "disabled", "yes", "disabled must be true or false, not 'yes'"),
        (values.number, "timeout", "soon", "timeout must be a number, not 'soon'"),
        (values.number, "timeout", True, "timeout must be a number, not true"),
        (values.number, "timeout", "x" * 100, f"timeout must be a number, not '{'x' * 59}…'"),
        (values.integer, "port", 1.5, "port must be a whole number, not 1.5"),
        (values.integer, "port", 10**400, "port must be a whole number, not a number"),
        (values.integer, "port", "9" * 100, f"port must be a whole number, not '{'9' * 59}…'"),
        (values.integer, "port", {1}, "port must be a whole number, not a set"),
    ],
)
def test_a_value_of_another_kind_is_refused_and_quoted_only_if_harmless(
    read: Reader, key: str, value: object, message: str
) -> None:
    with pytest.raises(ValueError, match="must be") as refused:
        read(key, value)
    assert str(refused.value) == message


def test_a_variables_value_is_never_quoted_and_becomes_plain_text() -> None:
    lent = values.VariableText("hunter22")
    assert values.quoted(lent) == "what its variable holds"
    assert type(values.text("command", lent)) is str
