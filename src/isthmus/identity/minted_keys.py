"""API keys that `isthmus token create` made: their records, and how they are created, rotated and revoked.

Pure functions over values; the caller passes the time. Records contain the digest of a key, never the key.
`app.key_files` stores the list in the state folder, `app.caller_identity` accepts its keys, and the command line
changes it.
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
"""The start of every such key, so that people and secret scanners recognize it."""

VERSION = 1
NAME_LENGTH_MAX = 128
KEYS_MAX = 10_000
"""The maximum number of keys in the list, including expired and revoked ones."""

MEMORY_SECONDS = 30 * 86_400.0
"""How long an expired or revoked key stays in the list."""

State: TypeAlias = Literal["good", "rotated", "expired", "revoked"]
"""`rotated`: a new key replaces it, and it stays valid for a while."""

_KEY_BYTES = 32
_ID_FORM = re.compile(r"k[0-9a-f]{12}")
_DIGEST_FORM = re.compile(r"[0-9a-f]{64}")


class StoreDamaged(ValueError):
    """The list of keys cannot be used. The message does not quote it."""


class MintedKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The record of a key. Unknown fields are an error: a newer hub's field may restrict the key."""

    id: str
    """A random id that names the key."""
    name: str
    tenant: str
    digest: str
    """In hex; see `identity.keys.digest_of`."""
    made_at: float
    """Seconds since 1970, like all times here."""
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    targets: bool = False
    operator: bool = False
    set: str | None = None
    """The set that its caller is bound to."""
    expires_at: float | None = None
    rotated_at: float | None = None
    revoked_at: float | None = None

    @property
    def caller(self) -> Caller:
        """The caller that uses this key."""
        grants = Grants(self.allow, self.deny, set=self.set)
        return Caller(self.name, self.tenant, grants, self.targets, key=self.id, is_operator=self.operator)

    def state(self, now: float) -> State:
        """The state of this key."""
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is not None and now >= self.expires_at:
            return "expired"
        return "good" if self.rotated_at is None else "rotated"

    def is_good(self, now: float) -> bool:
        """Whether the key is accepted."""
        return self.state(now) in ("good", "rotated")


Keys: TypeAlias = tuple[MintedKey, ...]


class _KeyList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    keys: Keys


# -- the list as bytes -----------------------------------------------------------------------------------------------


def read_keys(content: bytes) -> Keys:
    """Read a list of keys.

    Raises:
        StoreDamaged: this is not such a list, or one of its keys is invalid. A damaged entry may have lost limits.
    """
    try:
        book = msgspec.json.decode(content, type=_KeyList)
    except (ValueError, RecursionError) as error:
        raise StoreDamaged("it is not a list of keys, or it is truncated") from error
    if book.version != VERSION:
        raise StoreDamaged(f"it was written by another version of the hub ({book.version})")
    are_sound = len({key.id for key in book.keys}) == len(book.keys)
    for key in book.keys:
        has_form = _ID_FORM.fullmatch(key.id) is not None and _DIGEST_FORM.fullmatch(key.digest) is not None
        are_sound = are_sound and has_form and _is_name(key.name) and _is_name(key.tenant)
        try:
            for pattern in (*key.allow, *key.deny):
                check_pattern(pattern)
        except ValueError:
            are_sound = False
    if not are_sound:
        raise StoreDamaged("one of its keys is invalid")
    return book.keys


def write_keys(keys: Sequence[MintedKey]) -> bytes:
    """Encode a list of keys, one per line."""
    lines = b",\n".join(msgspec.json.encode(key) for key in keys)
    return b'{"version":%d,"keys":[\n%b\n]}\n' % (VERSION, lines)


# -- operations ------------------------------------------------------------------------------------------------------


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
    """Create a key for a new caller. Return the key itself, which is not stored, and its record.

    Raises:
        ValueError: the name or the tenant is invalid.
    """
    check_name("name", name)
    check_name("tenant", tenant)
    return _new_key(
        MintedKey(
            id="",
            name=name,
            tenant=tenant,
            digest="",
            made_at=now,
            allow=grants.allow,
            deny=grants.deny,
            set=grants.set,
            targets=targets,
            operator=operator,
            expires_at=expires_at,
        )
    )


def renewed(key: MintedKey, now: float, expires_at: float | None) -> tuple[str, MintedKey]:
    """Create a new key for the caller of an existing key."""
    fresh = msgspec.structs.replace(key, made_at=now, expires_at=expires_at, rotated_at=None, revoked_at=None)
    return _new_key(fresh)


def _new_key(record: MintedKey) -> tuple[str, MintedKey]:
    key = PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    return key, msgspec.structs.replace(record, id=f"k{secrets.token_hex(6)}", digest=digest_of(key).hex())


def check_name(what: str, name: str) -> None:
    """Check the name of a caller or a tenant.

    Raises:
        ValueError: the name is invalid, or looks like the id of a key or token.
    """
    if not _is_name(name):
        raise ValueError(f"{what} must be 1 to {NAME_LENGTH_MAX} printable characters, not {name[:NAME_LENGTH_MAX]!r}")
    if _ID_FORM.fullmatch(name) or is_relay_id(name):
        raise ValueError(f"{what} must not look like the id of a key or token, got {name!r}")


def _is_name(text: str) -> bool:
    return bool(text.strip()) and text.isprintable() and len(text) <= NAME_LENGTH_MAX


def current(keys: Iterable[MintedKey], name: str, now: float) -> MintedKey | None:
    """The caller's valid key that is not rotated out; None if the caller has no such key."""
    return next((key for key in keys if key.name == name and key.state(now) == "good"), None)


def keys_named(keys: Iterable[MintedKey], word: str) -> Keys:
    """The key with this id, or all keys of the caller with this name."""
    found = tuple(keys)
    return tuple(key for key in found if key.id == word) or tuple(key for key in found if key.name == word)


def replaced_key(key: MintedKey, now: float, overlap: float) -> MintedKey:
    """The record of a replaced key: valid for `overlap` seconds more, but never longer than before."""
    ends_at = now + overlap if key.expires_at is None else min(key.expires_at, now + overlap)
    return msgspec.structs.replace(key, rotated_at=now, expires_at=ends_at)


def revoked(key: MintedKey, now: float) -> MintedKey:
    """The record of a revoked key."""
    return key if key.revoked_at is not None else msgspec.structs.replace(key, revoked_at=now)


def without_old(keys: Iterable[MintedKey], now: float) -> Keys:
    """The list without keys that ended long ago."""
    ends = ((key, [each for each in (key.revoked_at, key.expires_at) if each is not None]) for key in keys)
    return tuple(key for key, times in ends if min(times, default=float("inf")) + MEMORY_SECONDS > now)
