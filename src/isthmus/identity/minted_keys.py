"""Keys that `isthmus token create` made: what is kept of each, and what becomes of them.

Plain decisions over values; time comes in from outside. Of a key only its digest is kept. `app.key_files` keeps the
list in the state folder, `app.identity` lets its callers in, the command line changes it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import msgspec

from isthmus.core.access.policy import check_pattern
from isthmus.identity.keys import digest_of
from isthmus.identity.relay_tokens import is_id as is_relay_id
from isthmus.model.callers import Caller, Grants

PREFIX = "isk_"
"""How such keys begin, so that whoever finds one, person or program, knows what it is."""

VERSION = 1
NAME_LENGTH_MAX = 128
KEYS_MAX = 10_000
"""In the list, those that have ended included; more are not made."""

MEMORY_SECONDS = 30 * 86_400.0
"""How long a key is listed after its end."""

State: TypeAlias = Literal["good", "rotated", "expired", "revoked"]
"""`rotated`: another has taken its place, and it is good for a while still."""

_KEY_BYTES = 32
_ID_FORM = re.compile(r"k[0-9a-f]{12}")
_DIGEST_FORM = re.compile(r"[0-9a-f]{64}")


class StoreDamaged(ValueError):
    """A list of keys that cannot be used; nothing of it is quoted."""


class MintedKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is kept of a key. What a newer hub may have written beside it could narrow it: that is not ignored."""

    id: str
    """Random, to speak of the key by."""
    name: str
    tenant: str
    digest: str
    """In hex, as `identity.keys` compares them."""
    made_at: float
    """Seconds since 1970, as are the others."""
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    targets: bool = False
    operator: bool = False
    expires_at: float | None = None
    rotated_at: float | None = None
    revoked_at: float | None = None

    @property
    def caller(self) -> Caller:
        """Who comes with it."""
        grants = Grants(self.allow, self.deny)
        return Caller(self.name, self.tenant, grants, self.targets, key=self.id, is_operator=self.operator)

    def state(self, now: float) -> State:
        """How it is with this key."""
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is not None and now >= self.expires_at:
            return "expired"
        return "good" if self.rotated_at is None else "rotated"

    def is_good(self, now: float) -> bool:
        """Whether it lets its caller in."""
        return self.state(now) in ("good", "rotated")


Keys: TypeAlias = tuple[MintedKey, ...]


class _Book(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    keys: Keys


# -- the list as bytes -----------------------------------------------------------------------------------------------


def read_keys(content: bytes) -> Keys:
    """Read a list of keys.

    Raises:
        StoreDamaged: it is none, or one of its keys cannot be used: it may say less than it did.
    """
    try:
        book = msgspec.json.decode(content, type=_Book)
    except (ValueError, RecursionError) as error:
        raise StoreDamaged("it is not a list of keys, or was cut short") from error
    if book.version != VERSION:
        raise StoreDamaged(f"it was written by another version of the hub ({book.version})")
    if any(not _is_sound(key) for key in book.keys) or len({key.id for key in book.keys}) != len(book.keys):
        raise StoreDamaged("one of its keys is not as the hub writes them")
    return book.keys


def write_keys(keys: Sequence[MintedKey]) -> bytes:
    """Write a list of keys, one in a line."""
    lines = b",\n".join(msgspec.json.encode(key) for key in keys)
    return b'{"version":%d,"keys":[\n%b\n]}\n' % (VERSION, lines)


def _is_sound(key: MintedKey) -> bool:
    has_form = _ID_FORM.fullmatch(key.id) is not None and _DIGEST_FORM.fullmatch(key.digest) is not None
    return has_form and _is_name(key.name) and _is_name(key.tenant) and all(map(_is_pattern, (*key.allow, *key.deny)))


def _is_pattern(text: str) -> bool:
    try:
        check_pattern(text)
    except ValueError:
        return False
    return True


# -- what can be done ------------------------------------------------------------------------------------------------


def mint(
    name: str,
    grants: Grants,
    tenant: str,
    *,
    targets: bool,
    operator: bool = False,
    now: float,
    expires_at: float | None,
) -> tuple[str, MintedKey]:
    """Make a key for a new caller; the first that is returned is the key itself, which nobody keeps.

    Raises:
        ValueError: nobody can have such a name or tenant.
    """
    check_name("name", name)
    check_name("tenant", tenant)
    return _made(
        MintedKey(
            id="",
            name=name,
            tenant=tenant,
            digest="",
            made_at=now,
            allow=grants.allow,
            deny=grants.deny,
            targets=targets,
            operator=operator,
            expires_at=expires_at,
        )
    )


def renewed(key: MintedKey, now: float, expires_at: float | None) -> tuple[str, MintedKey]:
    """Make another key for the caller of one."""
    fresh = msgspec.structs.replace(key, made_at=now, expires_at=expires_at, rotated_at=None, revoked_at=None)
    return _made(fresh)


def _made(record: MintedKey) -> tuple[str, MintedKey]:
    key = PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    return key, msgspec.structs.replace(record, id=f"k{secrets.token_hex(6)}", digest=digest_of(key).hex())


def check_name(what: str, name: str) -> None:
    """Accept the name of a caller or of a tenant.

    Raises:
        ValueError: it cannot be one, or would be taken for the id of something else.
    """
    if not _is_name(name):
        raise ValueError(f"{what} must be 1 to {NAME_LENGTH_MAX} printable characters, not {name[:NAME_LENGTH_MAX]!r}")
    if _ID_FORM.fullmatch(name) or is_relay_id(name):
        raise ValueError(f"{what} must not look like the id of a key or of a token, not {name!r}")


def _is_name(text: str) -> bool:
    return bool(text.strip()) and text.isprintable() and len(text) <= NAME_LENGTH_MAX


def current(keys: Iterable[MintedKey], name: str, now: float) -> MintedKey | None:
    """The key of a caller that no other has replaced; None if it has none that is good."""
    return next((key for key in keys if key.name == name and key.state(now) == "good"), None)


def meant(keys: Iterable[MintedKey], word: str) -> Keys:
    """The key with this id, or all keys of the caller with this name."""
    found = tuple(keys)
    return tuple(key for key in found if key.id == word) or tuple(key for key in found if key.name == word)


def rotated_out(key: MintedKey, now: float, overlap: float) -> MintedKey:
    """A key in whose place another has come: it is good for a while still, and never longer than before."""
    ends_at = now + overlap if key.expires_at is None else min(key.expires_at, now + overlap)
    return msgspec.structs.replace(key, rotated_at=now, expires_at=ends_at)


def revoked(key: MintedKey, now: float) -> MintedKey:
    """A key that is good no more."""
    return key if key.revoked_at is not None else msgspec.structs.replace(key, revoked_at=now)


def without_old(keys: Iterable[MintedKey], now: float) -> Keys:
    """The list without what ended long ago."""
    return tuple(key for key in keys if _ended_at(key) + MEMORY_SECONDS > now)


def _ended_at(key: MintedKey) -> float:
    ends = [moment for moment in (key.revoked_at, key.expires_at) if moment is not None]
    return min(ends, default=float("inf"))
