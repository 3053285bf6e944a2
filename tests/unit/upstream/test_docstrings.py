"""Docstrings as people write them."""

from __future__ import annotations

import pytest

from isthmus.upstream.docstrings import read_docstring

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
