"""What replies over HTTP say of themselves, and what an operator may do about them. The kinds of links call it."""

from __future__ import annotations

import re
from collections.abc import Mapping

OK = 200
UNAUTHORIZED = 401
FORBIDDEN = 403
EVENT_STREAM = "text/event-stream"

ADVICE = {
    401: "; check the credentials in its headers",
    403: "; check the credentials in its headers",
    405: "; check that its url is an MCP endpoint",
}
"""What an operator may do about a status."""


URL_LENGTH_MAX = 2_000
"""Longer ones are no addresses that a person could visit."""

_METADATA = re.compile(r"""\bresource_metadata\s*=\s*(?:"([^"\s]+)"|([^\s,"]+))""", re.IGNORECASE)


def login_place(status: int, headers: Mapping[str, str]) -> str | None:
    """Where a server that wants to know who one is says how that is proven (RFC 9728)."""
    found = _METADATA.search(headers.get("www-authenticate", "")) if status == UNAUTHORIZED else None
    place = (found[1] or found[2]) if found is not None else ""
    is_place = place.lower().startswith(("https://", "http://")) and place.isprintable()
    return place if is_place and len(place) <= URL_LENGTH_MAX else None


_SCOPE = re.compile(r"""\bscope\s*=\s*"([\x21\x23-\x5b\x5d-\x7e ]{1,500})\"""", re.IGNORECASE)


def advice_on(status: int, headers: Mapping[str, str], server: str, *, can_log_in: bool) -> str:
    """What an operator may do about a status; of what one may not do, what one would have to be allowed."""
    challenge = headers.get("www-authenticate", "")
    found = _SCOPE.search(challenge) if "insufficient_scope" in challenge else None
    if status != FORBIDDEN or found is None:
        return ADVICE.get(status, "")
    scope = " ".join(found[1].split())
    told = f"; it wants the scope {scope!r}"
    # A stranger's text in a command that somebody may copy into a shell: single quotes keep all of it a text.
    quoted = scope.replace("'", "'\\''")
    return f"{told}: run isthmus login {server} --scope '{quoted}'" if can_log_in else told


def media_type(headers: Mapping[str, str]) -> str:
    """What kind of content a reply has."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()
