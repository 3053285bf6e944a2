"""For whom a call is made: the program itself, or one of its users, who may have no name."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import replace

import msgspec

from isthmus.library.contracts import UserContext
from isthmus.library.permissions import UNRESTRICTED, grants_of
from isthmus.library.results import whole
from isthmus.model.callers import Caller

ME = Caller("local", "local", UNRESTRICTED)
"""Who calls where no user is named: the program itself."""

USERS = "users"
NAMELESS = "nameless"
"""Tenants of those for whom the program calls, so that no name of theirs is the program's own or each other's."""

_KEY = secrets.token_bytes(32)
"""Makes of what is known of a nameless user a name that tells nobody what that was."""

_encode = msgspec.json.Encoder().encode


def caller_for(user: UserContext, session: str | None, *, is_attached: bool) -> Caller:
    """Who calls for a user. A hub elsewhere knows nothing of them: what they may use was decided here."""
    granted = grants_of(user)
    grants = UNRESTRICTED if is_attached else granted
    if user.user_id:
        return Caller(user.user_id, USERS, grants)
    # Whom nothing tells apart is the same to everybody; whatever does must, or one is given what is kept for another.
    known = repr((user.user_name, user.session_token, session, granted)).encode("utf-8", "surrogatepass")
    return Caller(hashlib.blake2b(known, digest_size=16, key=_KEY).hexdigest(), NAMELESS, grants)


def asker_of(user: object, session: str, *, is_attached: bool) -> Caller:
    """Who is said to have asked, where nobody has looked at the request before: what is no user is the program's."""
    if not isinstance(user, UserContext) or not isinstance(user_id := user.user_id, str | None):
        return ME
    known = replace(user, user_id=whole(user_id)) if user_id else user
    return caller_for(known, session or None, is_attached=is_attached)


def as_given(arguments: object) -> bytes:
    """Arguments as their digest is made of; nothing, if they cannot be written down."""
    if arguments is None:
        return b""
    if isinstance(arguments, str):
        return arguments.encode(errors="replace")
    try:
        return _encode(arguments)
    except (TypeError, ValueError, RecursionError, OverflowError):
        return b""
