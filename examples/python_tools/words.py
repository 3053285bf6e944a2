"""Three functions as tools: what a signature and a docstring say is what an agent is told.

`isthmus call --config examples/python_tools/isthmus.toml words.most_common text="a b a" limit=1`
"""

import asyncio
from collections import Counter
from dataclasses import dataclass

from isthmus.library import ToolContext


@dataclass
class Count:
    """A word and how often it occurs."""

    word: str
    times: int


def count_words(text: str) -> int:
    """Count the words of a text.

    A plain function runs in a thread of its own, so it may take its time or wait for something.
    """
    return len(text.split())


def most_common(text: str, limit: int = 3) -> list[Count]:
    """Find the words that occur most often.

    Args:
        text: The text to look at.
        limit: How many words to return.
    """
    return [Count(word, times) for word, times in Counter(text.lower().split()).most_common(limit)]


async def read_aloud(text: str, context: ToolContext, pause: float = 0.0) -> str:
    """Read a text word by word, telling the caller how far it is.

    An asynchronous function runs on the hub's own loop: it must not block, and it is cancelled with its call.

    Args:
        text: What to read.
        context: The call, which the hub gives; callers neither see nor send it.
        pause: Seconds between two words.
    """
    words = text.split()
    for number, word in enumerate(words, start=1):
        context.progress(number, len(words), word)
        await asyncio.sleep(pause)
    return f"{len(words)} words read to {context.caller}"
