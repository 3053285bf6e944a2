"""Servers that want their user to go somewhere first, to log in or to agree to something: what a task asks then.

Two ways lead here. A server asks while it works (an elicitation that is an address), or it answers that it cannot begin
before its user was there; of the second nothing is left to answer, and the work has to be asked for once more. Pure;
used by the engine and the faces.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Raw

from isthmus.core.tasks.record import Asked
from isthmus.model.faults import NotConnected, ServerError
from isthmus.model.outcomes import Outcome

URL_REQUIRED = -32042
"""With this code a server says that its user has to visit an address before the same request can be done."""

ELICIT = "elicitation/create"


class _Visit(msgspec.Struct):
    """An address that a server wants its user to visit."""

    mode: Literal["url"]
    url: str
    message: str = ""


class _Required(msgspec.Struct):
    elicitations: list[Raw]


_visit = msgspec.json.Decoder(_Visit).decode
_required = msgspec.json.Decoder(_Required).decode


def is_login(asked: Asked) -> bool:
    """Whether what is asked is to go somewhere."""
    return asked.method == ELICIT and _read(asked.params) is not None


def login_of(outcome: Outcome) -> Asked | None:
    """What has to be done before a call that ended so is tried again; None if that would be of no use."""
    if isinstance(outcome, ServerError) and outcome.code == URL_REQUIRED:
        return _asked(outcome)
    if isinstance(outcome, NotConnected) and outcome.login is not None:
        told = f"Server {outcome.server} wants to know who you are"
        params = {"mode": "url", "message": told, "url": outcome.login, "server": outcome.server}
        return Asked(ELICIT, Raw(msgspec.json.encode(params)))
    return None


def _asked(error: ServerError) -> Asked | None:
    try:
        wanted = _required(error.data or b"").elicitations
    except msgspec.MsgspecError:
        return None
    visits = [(each, visit) for each in wanted if (visit := _read(each)) is not None]
    if len(visits) <= 1:
        return Asked(ELICIT, visits[0][0].copy()) if visits else None
    # All of them have to be visited, and it is asked only once.
    told = "\n".join(f"{visit.message} {visit.url}".strip() for _, visit in visits[1:])
    first = visits[0][1]
    params = {"mode": "url", "message": f"{first.message}\n{told}".strip(), "url": first.url, "elicitations": wanted}
    return Asked(ELICIT, Raw(msgspec.json.encode(params)))


def _read(params: Raw) -> _Visit | None:
    try:
        return _visit(params)
    except msgspec.MsgspecError:
        return None
