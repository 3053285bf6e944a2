"""Identifies callers by tokens of trusted issuers, and says why other tokens are refused.

There is one `Issuer` for each configured one, and `Issuers` for all of them, which the hub calls for every request
with such a token. Nothing here waits: `app.tokens` fetches the keys, and a callback requests them.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from isthmus.identity.dpop_proofs import Proofs, ProvenRequest
from isthmus.identity.jwt import Key, KeySet, SignedToken, fault_in_claims, looks_signed, read_token
from isthmus.identity.settings import IssuerSettings
from isthmus.model.callers import Caller, Grants, Unprovable

KEEP_SECONDS = 3600.0
"""How long keys stay valid if they cannot be fetched again. Longer, and the hub would accept withdrawn keys."""

TOKENS_MAX = 4096
"""The number of verified tokens in the cache; their signatures are not checked again."""

CALLERS_MAX = 16_384
"""The number of remembered callers; sessions of the oldest ones end when there are more."""

OPEN_SECONDS = 900.0
"""How long a session or a stream outlasts the token that opened it, for callers that renew their token late.
Every request in it still needs a valid token."""

NAME_LENGTH_MAX = 256
CLAIM_LENGTH_MAX = 256
SCOPES_MAX = 256
"""How many scopes of a token are read."""


OnProved: TypeAlias = Callable[[Caller, bytes, float], None]
"""Called once for each new valid token, with its caller, the token and its expiry."""


@dataclass(frozen=True, slots=True)
class Unproven:
    """Why a token of a known issuer is refused, for its sender. It never quotes the token."""

    reason: str
    is_scope_missing: bool = False
    """The token is genuine, but none of its scopes allows anything."""
    is_issuer_away: bool = False
    """The token cannot be checked now: there are no keys."""
    scopes: tuple[str, ...] = ()
    """The scopes that would allow something."""
    is_genuine: bool = False
    """The issuer signed the token."""
    is_proof_wrong: bool = False
    """The token is valid, but its proof is not (RFC 9449)."""
    nonce: str = ""
    """The nonce for the next proof, if this proof lacked a valid one."""


class Bound(NamedTuple):
    """A token that is valid only together with a proof of the key that it is bound to."""

    caller: Caller
    thumbprint: str
    until: float
    signer: Key
    """The issuer's key that signed it."""
    issuer: Issuer


class Issuer:
    """Checks the tokens of one issuer with its latest keys."""

    def __init__(
        self,
        settings: IssuerSettings,
        bound: Callable[[Caller], Caller | None],
        now: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        """`bound` narrows a caller to the permissions of its tenant; it returns None for an unknown tenant."""
        self.settings = settings
        self.on_unknown_key: Callable[[], None] = lambda: None
        """Called when a token names an unknown key, which may be new."""
        self.separates_rights = False
        """Whether tokens of one caller with different rights count as different callers: needed for exchange."""
        self.trouble = "they have not been fetched yet"
        """Why there are no keys, or only old ones."""
        self._bound = bound
        self._now = now
        self._monotonic = monotonic
        self._keys = KeySet(())
        self._fetched = -math.inf
        self._known: OrderedDict[bytes, tuple[Caller, float, Key]] = OrderedDict()
        """By the digest of a token: its caller, its expiry and the key that signed it."""
        self._key_bound: OrderedDict[bytes, Bound] = OrderedDict()
        """The same for tokens that are bound to their owner's key."""
        self._callers: OrderedDict[Caller, tuple[float, Key]] = OrderedDict()

    def set_keys(self, keys: KeySet) -> None:
        """Use these keys from now on. Tokens that a removed key signed become invalid."""
        if removed := self._keys.removed_in(keys):
            self._known = OrderedDict(known for known in self._known.items() if known[1][2] not in removed)
            self._key_bound = OrderedDict(bound for bound in self._key_bound.items() if bound[1].signer not in removed)
            self._callers = OrderedDict(caller for caller in self._callers.items() if caller[1][1] not in removed)
        self._keys = keys
        self._fetched = self._monotonic()
        self.trouble = ""

    def inherit_keys(self, other: Issuer) -> None:
        """Use the keys of the same issuer's earlier settings until new ones are fetched."""
        mine, its = self.settings, other.settings
        if (mine.issuer, mine.jwks, mine.algorithms) == (its.issuer, its.jwks, its.algorithms):
            self._keys, self._fetched, self.trouble = other._keys, other._fetched, other.trouble

    @property
    def has_keys(self) -> bool:
        """Whether there are keys that are recent enough."""
        return self._monotonic() - self._fetched < KEEP_SECONDS

    def cached_caller(self, digest: bytes) -> Caller | None:
        """The caller of a token that was verified before; None if it was not, or has expired."""
        found = self._known.get(digest)
        if found is None:
            return None
        caller, until, _ = found
        return caller if self._now() < until and self.has_keys else None

    def cached_binding(self, digest: bytes) -> Bound | None:
        """The same for a token that is bound to a key."""
        found = self._key_bound.get(digest)
        return found if found is not None and self._now() < found.until and self.has_keys else None

    def good_until(self, digest: bytes) -> float:
        """When the token of this digest expires, in seconds since 1970; 0 if it is unknown."""
        found = self._known.get(digest)
        return 0.0 if found is None else found[1]

    def check(self, token: SignedToken, digest: bytes) -> Caller | Bound | Unproven:
        """Check a token of this issuer: its caller, its binding that still needs a proof, or why it is refused."""
        if not self.has_keys:
            return Unproven(f"the keys of {self.settings.name} are missing: {self.trouble}", is_issuer_away=True)
        keys = self._keys.for_token(token)
        if not keys:
            self.on_unknown_key()
            return Unproven("it names a key that its issuer does not have")
        key = next((key for key in keys if key.has_signed(token)), None)
        if key is None:
            return Unproven("its signature is not its issuer's")
        made = self._caller_from(token.claims)
        if isinstance(made, Unproven):
            return replace(made, is_genuine=True)
        until = float(token.claims["exp"]) + self.settings.leeway
        thumbprint = _thumbprint_in(token.claims)
        if isinstance(thumbprint, Unproven):
            return thumbprint
        if thumbprint:
            bound = self._key_bound[digest] = Bound(made, thumbprint, until, key, self)
            if len(self._key_bound) > TOKENS_MAX:
                self._key_bound.popitem(last=False)
            return bound
        if self.settings.dpop != "optional":
            return Unproven("it is not bound to a key, as tokens of its issuer must be", is_genuine=True)
        self._known[digest] = (made, until, key)
        if len(self._known) > TOKENS_MAX:
            self._known.popitem(last=False)
        self._note(made, until, key)
        return made

    def note_proof(self, bound: Bound) -> None:
        """A bound token came with a valid proof."""
        self._note(bound.caller, bound.until, bound.signer)

    def knows(self, caller: Caller) -> bool:
        """Whether this caller's token is valid, or expired only a short while ago."""
        found = self._callers.get(caller)
        return found is not None and self._now() < found[0] + OPEN_SECONDS

    def _note(self, caller: Caller, until: float, key: Key) -> None:
        before = self._callers.pop(caller, None)
        # The token with the latest expiry counts: the owner's sessions last as long.
        self._callers[caller] = (until, key) if before is None or before[0] <= until else before
        if len(self._callers) > CALLERS_MAX:
            self._callers.popitem(last=False)

    def _caller_from(self, claims: Mapping[str, Any]) -> Caller | Unproven:
        """The caller that verified claims describe."""
        if (reason := fault_in_claims(claims, self.settings, self._now())) is not None:
            return Unproven(reason)
        name = _printable_name(claims.get(self.settings.name_claim), NAME_LENGTH_MAX)
        if name is None:
            return Unproven(f"its {self.settings.name_claim} is not a name")
        tenant: str | None = self.settings.tenant
        if self.settings.tenant_claim is not None:
            tenant = _printable_name(claims.get(self.settings.tenant_claim), CLAIM_LENGTH_MAX)
        if tenant is None:
            return Unproven(f"its {self.settings.tenant_claim} is not the name of a tenant")
        grants = self.settings.grants
        added = [pattern for scope in _scopes_of(claims) for pattern in self.settings.scopes.get(scope, ())]
        if added:
            allow = tuple(dict.fromkeys((*grants.allow, *added)))
            grants = Grants(allow, grants.deny, set=grants.set, expose=grants.expose)
        if not grants.allow:
            names = tuple(self.settings.scopes)
            return Unproven("none of its scopes allows anything here", is_scope_missing=True, scopes=names)
        # The issuer's name comes first: the same subject of another issuer, or of a key, is another caller.
        rights = _rights_of(claims) if self.separates_rights else ""
        caller = Caller(f"{self.settings.name}/{name}", tenant, grants, rights=rights)
        return self._bound(caller) or Unproven("its tenant is unknown")


UNPROVEN = Unproven("it is bound to a key: send it as Authorization: DPoP, with a proof (RFC 9449)", is_genuine=True)
"""Why a bound token is refused without a proof."""


class Issuers:
    """All issuers of a hub, as one verifier of tokens."""

    def __init__(self, issuers: Sequence[Issuer], proofs: Proofs | None = None) -> None:
        """Without `proofs`, bound tokens are refused."""
        self._issuers = {issuer.settings.issuer: issuer for issuer in issuers}
        self._proofs = proofs
        self.on_proved: OnProved = lambda _caller, _credential, _until: None
        self._refused: Mapping[bytes, Unproven] = {}
        """The digest of the last refused token, and why; its sender is informed at once."""

    def __iter__(self) -> Iterator[Issuer]:
        return iter(self._issuers.values())

    def caller_of(self, credential: bytes) -> Caller | Unprovable | None:
        """The caller of a token; None if it is refused (`refusal_of` returns the reason)."""
        if not self._issuers or not looks_signed(credential):
            return None
        digest = hashlib.sha256(credential).digest()
        for issuer in self._issuers.values():
            if (caller := issuer.cached_caller(digest)) is not None:
                return caller
        checked = self._check(credential, digest)
        if isinstance(checked, Caller):
            until = max(issuer.good_until(digest) for issuer in self._issuers.values())
            self.on_proved(checked, credential, until)
            return checked
        refused = checked if isinstance(checked, Unproven) else UNPROVEN
        self._refused = {digest: refused}
        return Unprovable(refused.reason) if refused.is_issuer_away else None

    def bound_caller_of(self, credential: bytes, request: ProvenRequest, *, is_proved: bool) -> Caller | Unproven:
        """The caller of a bound token with a valid proof, or why it is refused.

        With `is_proved` the proof of this request was accepted before and is not checked again.
        """
        digest = hashlib.sha256(credential).digest()
        cached = (issuer.cached_binding(digest) for issuer in self._issuers.values())
        checked = next((binding for binding in cached if binding is not None), None) or self._check(credential, digest)
        if isinstance(checked, Unproven):
            return checked
        if not isinstance(checked, Bound) or self._proofs is None:
            return Unproven("it is not bound to a key: send it as Authorization: Bearer", is_genuine=True)
        if not is_proved:
            wants_nonce = checked.issuer.settings.dpop == "nonce"
            refused = self._proofs.check(request, credential, checked.thumbprint, wants_nonce=wants_nonce)
            if refused is not None:
                return Unproven(refused.reason, is_genuine=True, is_proof_wrong=True, nonce=refused.nonce)
            self.on_proved(checked.caller, credential, checked.until)
            checked.issuer.note_proof(checked)
        return checked.caller

    def refusal_of(self, credential: bytes) -> Unproven | None:
        """Why a token of one of the issuers is refused; None if it is accepted, or not theirs."""
        if not self._issuers or not looks_signed(credential):
            return None
        digest = hashlib.sha256(credential).digest()
        if (refused := self._refused.get(digest)) is not None:
            return refused
        checked = self._check(credential, digest)
        if isinstance(checked, Bound):
            return UNPROVEN
        return checked if isinstance(checked, Unproven) else None

    def knows(self, caller: Caller) -> bool:
        """Whether a caller that this verifier identified is still valid; if not, its sessions end within a second."""
        return any(issuer.knows(caller) for issuer in self._issuers.values())

    def _check(self, credential: bytes, digest: bytes) -> Caller | Bound | Unproven:
        token = read_token(credential)
        if isinstance(token, str):
            return Unproven(token)
        issuer = self._issuers.get(token.issuer)
        # The list of known issuers is public: the resource metadata contains it.
        return Unproven("it is from another issuer") if issuer is None else issuer.check(token, digest)


def _thumbprint_in(claims: Mapping[str, Any]) -> str | Unproven:
    """The thumbprint of the key that a token is bound to; empty if it is not bound, or in an unknown way."""
    confirmation = claims.get("cnf")
    if not isinstance(confirmation, Mapping) or "jkt" not in confirmation:
        return ""
    thumbprint = confirmation["jkt"]
    if isinstance(thumbprint, str) and _THUMBPRINT.fullmatch(thumbprint):
        return thumbprint
    return Unproven("the key that it is bound to cannot be read", is_genuine=True)


_THUMBPRINT = re.compile(r"[A-Za-z0-9_-]{43}")


def _printable_name(value: object, length_max: int) -> str | None:
    """A printable name; None if the value is not one."""
    is_word = isinstance(value, str) and value.strip() == value and 0 < len(value) <= length_max and value.isprintable()
    return str(value) if is_word else None


def _rights_of(claims: Mapping[str, Any]) -> str:
    """The rights of a token, which distinguish it from others of the same subject: its scopes and its client.

    Times and ids do not count: sessions must survive a renewed token.
    """
    rights = [sorted(_scopes_of(claims)), *(repr(claims.get(name)) for name in ("azp", "client_id", "act"))]
    return hashlib.sha256(repr(rights).encode()).hexdigest()[:16]


def _scopes_of(claims: Mapping[str, Any]) -> list[str]:
    """A token's scopes: a text with spaces (RFC 9068), or a list under `scp`, as some issuers send."""
    value = claims.get("scope", claims.get("scp"))
    if isinstance(value, str):
        return value.split(" ")[:SCOPES_MAX]
    return [scope for scope in value[:SCOPES_MAX] if isinstance(scope, str)] if isinstance(value, list) else []
