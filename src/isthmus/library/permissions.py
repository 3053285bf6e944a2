"""What a user may use, as the hub's own grants: nothing is decided here that `core.access.policy` does not decide.

What a program says of its users comes from anywhere, so that no form of permissions raises. What cannot be understood
grants nothing; a restriction that cannot be understood restricts more than was meant, never less. Who is no user at all
is a mistake of the program, which is told so. Called by the service and by its catalog.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from isthmus.core.access.policy import Policy, check_pattern, is_of_label
from isthmus.core.catalog.names import BUILTIN
from isthmus.library.contracts import UserContext, UserPermissions
from isthmus.model.callers import Grants
from isthmus.model.names import parse_server_name

EVERYTHING = "*"
UNRESTRICTED = Grants((EVERYTHING,))
"""Of a program that asks for itself."""

POLICIES_MAX = 256


def grants_of(user: UserContext | None) -> Grants:
    """What the hub grants this user: everything without one, and the built-in tools to who has no permissions."""
    if user is None:
        return UNRESTRICTED
    given: object = getattr(user, "permissions", None)
    if not isinstance(given, UserPermissions):
        return Grants(_allowed(given))
    restrictions: object = given.restrictions
    restricted = restrictions.get("tools") if isinstance(restrictions, dict) else restrictions
    return Grants(_allowed(given.permissions), _denied(restricted))


def check_user(user: object) -> None:
    """Refuse what is no user.

    Raises:
        TypeError: it is something else, such as a user's name.
    """
    if user is not None and not isinstance(user, UserContext):
        raise TypeError(f"user_context must be a UserContext, not {type(user).__name__}")


@lru_cache(maxsize=POLICIES_MAX)
def policy_of(grants: Grants) -> Policy:
    """The compiled form, kept: users are few, and each is asked about for every tool of a list."""
    return Policy(grants)


def has_all(user: UserContext | None, demanded: Iterable[str]) -> bool:
    """Whether a user was given each of these words, as a permission or as a role; a program itself needs none."""
    if user is None:
        return True
    given = user.permissions
    words = [*_items(given.permissions), *_items(given.roles)] if isinstance(given, UserPermissions) else _items(given)
    return EVERYTHING in words or all(word in words for word in demanded)


def _allowed(permissions: object) -> tuple[str, ...]:
    patterns = [text for text in _items(permissions) if isinstance(text, str) and _is_pattern(text)]
    return tuple(dict.fromkeys(patterns)) or (f"{BUILTIN}.*",)


def _denied(restricted: object) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_denial(item) for item in _items(restricted)))


def _denial(item: object) -> str:
    """A restriction as a pattern; of one that is none, all of its server, or everything."""
    if not isinstance(item, str):
        return EVERYTHING
    if _is_pattern(item):
        return item
    try:
        return f"{parse_server_name(item.partition('.')[0])}.*"
    except ValueError:
        return EVERYTHING


def restricted_words(user: UserContext | None) -> frozenset[object]:
    """What is denied, as it was written: a tool is, whichever of its names it is denied by."""
    given = getattr(user, "permissions", None)
    restrictions = given.restrictions if isinstance(given, UserPermissions) else None
    items = _items(restrictions.get("tools") if isinstance(restrictions, dict) else restrictions)
    return frozenset(item for item in items if isinstance(item, str))


def _items(given: object) -> list[object]:
    """The members of a list; one text is one member, not its letters, and what can be read only once is none."""
    if not given:
        return []
    return list(given) if isinstance(given, list | tuple | set | frozenset) else [given]


def _is_pattern(text: str) -> bool:
    """Whether tools can be granted or denied by this here, where only their names are looked at."""
    if is_of_label(text):
        return False
    try:
        check_pattern(text)
    except ValueError:
        return False
    return True
