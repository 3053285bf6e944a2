"""Cached results: of tools that the operator named, and of resources whose server allows it.

A result belongs to one caller, exact arguments and exact headers, unless a server that the operator trusts marks it as
public. Errors are never cached.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import TypeAlias

import msgspec

from isthmus.core.calls.running_call import InFlight
from isthmus.model.calls import Call, Outcome, Result
from isthmus.model.names import ServerName

KEPT_BYTES_MAX = 64 * 1024 * 1024
"""All cached results together; the least recently used is dropped first."""

RESULT_BYTES_MAX = 4 * 1024 * 1024
"""A larger result is not cached: it would replace too many others."""

ENTRY_BYTES = 1024
"""The overhead of an entry: millions of tiny results are not small."""

CHANGES_MAX = 1_000
"""Changes that are remembered one by one. A call that began before an older one is not cached."""

SECONDS_MAX = 86_400.0

CACHED_KEY = "isthmus/cached"
"""The member of `_meta` that says that a result comes from the cache, and how old it is."""

Key: TypeAlias = tuple[ServerName, str, bytes]

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _CachedResult(msgspec.Struct):
    result: Result
    kept_at: float
    until: float


class ResultCache:
    """Results that may be returned again. Time is an argument."""

    def __init__(self, limit_bytes: int = KEPT_BYTES_MAX) -> None:
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._kept: OrderedDict[Key, _CachedResult] = OrderedDict()
        self._under: dict[tuple[ServerName, str], set[Key]] = {}
        """Keys by server and name: a server that sends many updates must not have all entries compared."""
        self.changes = 0
        """How often something was forgotten."""
        self._changed: OrderedDict[tuple[ServerName, str | None], int] = OrderedDict()
        self._changed_before = 0

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, inflight: InFlight, now: float) -> Result | None:
        """The cached result of this call, if it is still valid."""
        for owner in (_owner(inflight.call), ""):
            key = _key(inflight, owner)
            kept = self._kept.get(key)
            # The operator may have shortened the time since it was cached.
            limit = inflight.target.keep_seconds
            if kept is not None and kept.until > now and (not limit or now - kept.kept_at < limit):
                self._kept.move_to_end(key)
                return _with_age(kept.result, now - kept.kept_at)
            if kept is not None:
                self._forget(key)
        return None

    def store(
        self, inflight: InFlight, outcome: Outcome, seconds: float, now: float, changes: int | None = None
    ) -> None:
        """Cache how a call ended, if allowed: for the operator's time, else the server's.

        `changes` is what it was when the call began: the server may have announced a change of the resource meanwhile.
        """
        if changes is not None and self._has_changed(inflight, changes):
            return
        if not isinstance(outcome, Result) or outcome.is_error or outcome.asked_by or outcome.task_of is not None:
            return
        seconds = min(seconds or outcome.ttl_seconds, SECONDS_MAX)
        size_bytes = len(memoryview(outcome.payload))
        if seconds <= 0 or size_bytes > RESULT_BYTES_MAX:
            return
        is_shared = outcome.is_public and inflight.target.is_trusted
        key = _key(inflight, "" if is_shared else _owner(inflight.call))
        self._forget(key)
        # A copy: the payload may be a part of a much larger body.
        result = msgspec.structs.replace(outcome, payload=outcome.payload.copy())
        self._kept[key] = _CachedResult(result, now, now + seconds)
        self._under.setdefault(key[:2], set()).add(key)
        self._size_bytes += _cost(key, result)
        while self._size_bytes > self._limit_bytes:
            self._forget(next(iter(self._kept)))

    def forget(self, server: ServerName, name: str | None = None) -> None:
        """Drop what a server returned, or what it returned for one of its names, also for calls in progress."""
        self.changes += 1
        self._changed[server, name] = self.changes
        self._changed.move_to_end((server, name))
        if len(self._changed) > CHANGES_MAX:
            self._changed_before = self._changed.popitem(last=False)[1]
        names = [under for under in self._under if under[0] == server] if name is None else [(server, name)]
        for key in [key for under in names for key in self._under.get(under, ())]:
            self._forget(key)

    def _has_changed(self, inflight: InFlight, changes: int) -> bool:
        if changes == self.changes:
            return False
        server = inflight.target.feature.server
        last = max(self._changed_before, *(self._changed.get((server, name), 0) for name in (None, inflight.name)))
        return last > changes

    def _forget(self, key: Key) -> None:
        kept = self._kept.pop(key, None)
        if kept is None:
            return
        self._size_bytes -= _cost(key, kept.result)
        same_name = self._under[key[:2]]
        same_name.discard(key)
        if not same_name:
            del self._under[key[:2]]


def _cost(key: Key, result: Result) -> int:
    return len(memoryview(result.payload)) + len(key[1]) + ENTRY_BYTES


def _owner(call: Call) -> str:
    """The owner of a result. A caller may speak for several users that only headers distinguish."""
    owner = f"{call.caller.tenant}\0{call.caller.name}\0{call.caller.rights}"
    if not call.headers:
        return owner
    headers = sorted((name.lower(), value) for name, value in call.headers.items())
    return f"{owner}\0{headers!r}"


def _key(inflight: InFlight, owner: str) -> Key:
    call = inflight.call
    digest = hashlib.blake2b(inflight.target.feature.digest, digest_size=16)
    parts = [call.kind.encode(), owner.encode("utf-8", "surrogatepass"), bytes(call.arguments)]
    for name in sorted(call.extra):
        parts += (name.encode("utf-8", "surrogatepass"), bytes(call.extra[name]))
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return inflight.target.feature.server, inflight.name, digest.digest()


TTL = "ttlMs"
"""A server's `ttlMs`; a cached result gets what is left of it."""


def _with_age(result: Result, age: float) -> Result:
    """The result, marked as cached in its `_meta`; what the server put there stays.

    What a plain server returned has no place for a mark.
    """
    if result.is_bare:
        return result
    members = _MEMBERS.decode(result.payload)
    if result.ttl_seconds and TTL in members:
        left = max(0, int((min(result.ttl_seconds, SECONDS_MAX) - age) * 1000))
        members[TTL] = msgspec.Raw(msgspec.json.encode(left))
    try:
        meta = _MEMBERS.decode(members.get("_meta", b"{}"))
    except msgspec.MsgspecError:
        meta = {}
    meta[CACHED_KEY] = msgspec.Raw(msgspec.json.encode({"ageSeconds": round(age, 3)}))
    members["_meta"] = msgspec.Raw(msgspec.json.encode(meta))
    return msgspec.structs.replace(result, payload=msgspec.Raw(msgspec.json.encode(members)))
