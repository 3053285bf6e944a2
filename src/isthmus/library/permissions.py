"""What a user may use, as the hub's grants, and the caller that the hub sees for that user.

`core.access.policy` decides; this module only translates. Programs describe their users freely, so no form of
permissions raises: an unreadable permission grants nothing, and an unreadable restriction denies more than was meant,
never less. A user that is not a `UserContext` is a mistake of the program and raises. Called by the service and its
catalog.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

import msgspec

from isthmus.core.access.policy import Policy, check_pattern, is_of_label
from isthmus.core.catalog.names import BUILTIN
from isthmus.library.public_types import UserContext, UserPermissions
from isthmus.library.request_checks import valid_utf8
from isthmus.model.callers import Caller, Grants
from isthmus.model.names import parse_server_name

EVERYTHING = "*"
UNRESTRICTED = Grants((EVERYTHING,))
"""The grants of the program itself."""

POLICIES_MAX = 256


def grants_of(user: UserContext | None) -> Grants:
    """The grants of a user: everything if there is no user, the built-in tools if the user has no permissions."""
    if user is None:
        return UNRESTRICTED
    given: object = getattr(user, "permissions", None)
    if not isinstance(given, UserPermissions):
        return Grants(_allowed(given))
    restrictions: object = given.restrictions
    restricted = restrictions.get("tools") if isinstance(restrictions, dict) else restrictions
    return Grants(_allowed(given.permissions), tuple(dict.fromkeys(_denial(item) for item in _items(restricted))))


def check_user(user: object) -> None:
    """Raise `TypeError` for anything but a `UserContext`, such as a user's name."""
    if user is not None and not isinstance(user, UserContext):
        raise TypeError(f"user_context must be a UserContext, not {type(user).__name__}")


@lru_cache(maxsize=POLICIES_MAX)
def policy_of(grants: Grants) -> Policy:
    """The compiled policy, cached: few users, but one check per tool of a list."""
    return Policy(grants)


def has_permissions(user: UserContext | None, required: Iterable[str]) -> bool:
    """Whether a user has each of these permissions or roles; the program itself needs none."""
    if user is None:
        return True
    given = user.permissions
    held = [*_items(given.permissions), *_items(given.roles)] if isinstance(given, UserPermissions) else _items(given)
    return EVERYTHING in held or all(each in held for each in required)


def _allowed(permissions: object) -> tuple[str, ...]:
    patterns = [text for text in _items(permissions) if isinstance(text, str) and _is_pattern(text)]
    return tuple(dict.fromkeys(patterns)) or (f"{BUILTIN}.*",)


def _denial(item: object) -> str:
    """A restriction as a pattern; an invalid one denies its whole server, or everything."""
    if not isinstance(item, str):
        return EVERYTHING
    if _is_pattern(item):
        return item
    try:
        return f"{parse_server_name(item.partition('.')[0])}.*"
    except ValueError:
        return EVERYTHING


def restricted_names(user: UserContext | None) -> frozenset[object]:
    """The restrictions as written: a tool is denied by any of its names."""
    given = getattr(user, "permissions", None)
    restrictions = given.restrictions if isinstance(given, UserPermissions) else None
    items = _items(restrictions.get("tools") if isinstance(restrictions, dict) else restrictions)
    return frozenset(item for item in items if isinstance(item, str))


def _items(given: object) -> list[object]:
    """The members of a list. A string is one member; an iterator counts as one unreadable member."""
    if not given:
        return []
    return list(given) if isinstance(given, list | tuple | set | frozenset) else [given]


def _is_pattern(text: str) -> bool:
    """Whether a text is a pattern of tool names, not of labels, which are unknown here."""
    if is_of_label(text):
        return False
    try:
        check_pattern(text)
    except ValueError:
        return False
    return True


PROGRAM = Caller("local", "local", UNRESTRICTED)
"""The caller without a user: the program itself."""

USERS = "users"
NAMELESS = "nameless"
"""Tenants of users with and without a name, so that no user's name is the program's or another tenant's."""

_KEY = secrets.token_bytes(32)
"""Hashes what is known of a user without a name into a name that does not reveal it."""

_encode = msgspec.json.Encoder().encode


def caller_for(user: UserContext, session: str | None, *, is_attached: bool) -> Caller:
    """The caller for a user. A remote hub does not know users: permissions were already checked here."""
    granted = grants_of(user)
    grants = UNRESTRICTED if is_attached else granted
    if user.user_id:
        return Caller(user.user_id, USERS, grants)
    # Users that differ in anything must be different callers, or one would get results cached for another.
    known = repr((user.user_name, user.session_token, session, granted)).encode("utf-8", "surrogatepass")
    return Caller(hashlib.blake2b(known, digest_size=16, key=_KEY).hexdigest(), NAMELESS, grants)


def refused_caller(user: object, session: str, *, is_attached: bool) -> Caller:
    """The caller of a refused, unchecked request; if its user is invalid, the program itself."""
    if not isinstance(user, UserContext) or not isinstance(user_id := user.user_id, str | None):
        return PROGRAM
    known = replace(user, user_id=valid_utf8(user_id)) if user_id else user
    return caller_for(known, session or None, is_attached=is_attached)


def argument_bytes(arguments: object) -> bytes:
    """Arguments as bytes for the audit log's digest; empty if they cannot be encoded."""
    if arguments is None:
        return b""
    if isinstance(arguments, str):
        return arguments.encode(errors="replace")
    try:
        return _encode(arguments)
    except (TypeError, ValueError, RecursionError, OverflowError):
        return b""
