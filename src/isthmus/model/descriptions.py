"""Descriptions of tools, prompts and resources in less room: for sets, for results of a search, and for lists."""

from __future__ import annotations

import re

_SENTENCE_END = re.compile(r"[.!?](?=\s)|\n")

READ_FACTOR = 8
"""So many times the wanted length is read: the rest of a long text would be cut anyway."""


def shortened(text: str, length: int) -> str:
    """The first sentences of a text that fit; if not even one does, its first words and an ellipsis."""
    if len(text) <= length:
        return text
    ends = [found.end() for found in _SENTENCE_END.finditer(text, 0, length + 1) if found.end() <= length]
    if ends and (sentences := text[: ends[-1]].rstrip()):
        return sentences
    words = text[: length - 1]
    return f"{(words.rpartition(' ')[0] or words).rstrip()}…"


def on_one_line(text: str, length: int) -> str:
    """The same on one line, whatever line breaks the text has."""
    return shortened(" ".join(text[: READ_FACTOR * length].split()), length)
