"""Who can reach what, for operators: pages of the matrix, how much of each server, and the preview of a change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from isthmus.core.admin_ports import AccessPageQuery, AccessReports, RuleChanges, UnknownName
from isthmus.frontends.rest.problem_details import Problem, refusal
from isthmus.model.callers import FRONTENDS, FrontendName
from isthmus.wire.jsonrpc import Malformed, decode_object

Query: TypeAlias = Mapping[str, str]

FEATURES_MAX = 1_000
FEATURES_DEFAULT = 100
NUMBER_LENGTH_MAX = 15
BODY_BYTES = 256 * 1024
"""Far more rules than people write; reading them takes a few milliseconds."""


async def access_page(reports: AccessReports, query: Query) -> bytes | Problem:
    """A page of the matrix."""
    frontend = _frontend(query)
    limit = read_count(query, "limit", FEATURES_DEFAULT, FEATURES_MAX)
    if isinstance(frontend, Problem):
        return frontend
    if isinstance(limit, Problem):
        return limit
    wanted = AccessPageQuery(
        query.get("caller"), query.get("server"), query.get("tool"), frontend, limit, query.get("cursor")
    )
    try:
        return msgspec.json.encode(await reports.page(wanted))
    except (UnknownName, ValueError) as error:
        return _refused(error)


async def access_summary(reports: AccessReports, query: Query) -> bytes | Problem:
    """The matrix by server."""
    frontend = _frontend(query)
    if isinstance(frontend, Problem):
        return frontend
    try:
        return msgspec.json.encode(await reports.summary(query.get("caller"), frontend))
    except (UnknownName, ValueError) as error:
        return _refused(error)


async def preview_access(reports: AccessReports, body: bytes, max_depth: int) -> bytes | Problem:
    """What other rules would change."""
    if len(body) > BODY_BYTES:
        return refusal("bad_request", f"The body must have at most {BODY_BYTES} bytes, not {len(body)}")
    read = decode_object(body, max_depth=max_depth)
    if isinstance(read, Malformed):
        return refusal("bad_request", read.message[0].upper() + read.message[1:])
    try:
        changes = msgspec.json.decode(read, type=RuleChanges)
    except msgspec.MsgspecError as error:
        text = 'The body must be like {"callers": {"NAME": {"allow": ["server.tool"], "deny": []}}}'
        return refusal("bad_request", f"{text}: {error}")
    if not changes.callers and not changes.tenants:
        return refusal("bad_request", 'The body must have "callers" or "tenants" with other rules')
    try:
        return msgspec.json.encode(await reports.preview(changes))
    except (UnknownName, ValueError) as error:
        return _refused(error)


def read_count(query: Query, name: str, default: int, most: int) -> int | Problem:
    """A whole number of the query from 1 to `most`."""
    given = query.get(name, str(default))
    count = int(given) if given.isdecimal() and len(given) <= NUMBER_LENGTH_MAX else 0
    if not 1 <= count <= most:
        return refusal("bad_request", f"{name} must be a whole number from 1 to {most}, not {given!r}")
    return count


def _frontend(query: Query) -> FrontendName | Problem | None:
    given = query.get("frontend")
    found = next((name for name in FRONTENDS if name == given), None)
    if given is not None and found is None:
        return refusal("bad_request", f"frontend must be one of {', '.join(FRONTENDS)}, not {given!r}")
    return found


def _refused(error: UnknownName | ValueError) -> Problem:
    if isinstance(error, UnknownName):
        return refusal(f"unknown_{error.kind}", str(error))
    return refusal("bad_request", str(error))
