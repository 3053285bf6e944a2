"""What replies over HTTP say of themselves, and what an operator may do about them. The kinds of links call it."""

from __future__ import annotations

from collections.abc import Mapping

OK = 200
EVENT_STREAM = "text/event-stream"

ADVICE = {
    401: "; check the credentials in its headers",
    403: "; check the credentials in its headers",
    405: "; check that its url is an MCP endpoint",
}
"""What an operator may do about a status."""


def media_type(headers: Mapping[str, str]) -> str:
    """What kind of content a reply has."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()
