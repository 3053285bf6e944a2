"""Ten functions with the schemas of ordinary tools; `bench.console` makes a thousand servers of them."""

from __future__ import annotations

from typing import Annotated, Literal

Text = Annotated[str, "The text to work on"]
Language = Annotated[Literal["en", "de", "fr", "zh"], "The language of the text"]
Limit = Annotated[int, "The largest number of results"]


async def search(text: Text, language: Language = "en", limit: Limit = 10) -> str:
    """Search the documents of this department for a text, and return the best passages with their titles."""
    return text


async def summarize(text: Text, language: Language = "en", limit: Limit = 10) -> str:
    """Summarize a text in a few sentences, and keep names, figures and dates as they are."""
    return text


async def translate(text: Text, language: Language = "en") -> str:
    """Translate a text into another language, with the terms of the department's glossary."""
    return text


async def classify(text: Text, limit: Limit = 3) -> str:
    """Choose the categories of the filing plan that a text belongs to, with the most likely first."""
    return text


async def extract(text: Text, limit: Limit = 10) -> str:
    """Extract the people, places, companies and amounts that a text mentions."""
    return text


async def index(text: Text, language: Language = "en") -> str:
    """Add a text to the search index of this department; a text with the same title is replaced."""
    return text


async def compare(text: Text, other: Text = "") -> str:
    """Compare two texts, and return the sentences that only one of them has."""
    return text


async def spell(text: Text, language: Language = "en") -> str:
    """Check the spelling of a text, and return the words that no dictionary has."""
    return text


async def count(text: Text) -> str:
    """Count the words, sentences and characters of a text."""
    return text


async def fail(text: Text) -> str:
    """Fail, as tools sometimes do: the result is an error with the text in it."""
    raise ValueError(text)
