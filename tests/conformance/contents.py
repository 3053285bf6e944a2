"""The pieces that the fixture's results are made of: text, a picture, a sound, a resource inside a result.

`tools` and `prompts` put them together.
"""

from __future__ import annotations

from mcp_types import AudioContent, EmbeddedResource, ImageContent, TextContent, TextResourceContents

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
"""One red point."""
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQIAAACAgA=="
"""Two samples of silence."""


def text(words: str) -> TextContent:
    """Some text."""
    return TextContent(text=words)


def picture() -> ImageContent:
    """The picture."""
    return ImageContent(data=PNG, mime_type="image/png")


def sound() -> AudioContent:
    """The sound."""
    return AudioContent(data=WAV, mime_type="audio/wav")


def embedded(uri: str, words: str, mime_type: str = "text/plain") -> EmbeddedResource:
    """A resource as part of a result."""
    return EmbeddedResource(resource=TextResourceContents(uri=uri, text=words, mime_type=mime_type))
