"""One tool as a person reads it."""

from __future__ import annotations

from isthmus.cli.tools import arguments_in


def test_choices_that_do_not_fit_are_listed_in_the_description() -> None:
    cities = ["New York", "Chicago", "Los Angeles"]
    schema = {
        "type": "object",
        "required": ["city"],
        "properties": {
            "city": {"type": "string", "enum": cities, "description": "Which city"},
            "unit": {"enum": ["C", "F"], "default": "C"},
        },
    }
    assert arguments_in(schema) == [
        ("  city", "choice", "yes", "Which city; one of New York, Chicago, Los Angeles"),
        ("  unit", "C|F", "no", "default: C"),
    ]
