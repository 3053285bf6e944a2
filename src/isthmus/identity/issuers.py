"""Callers who show a token of an issuer that the operator trusts: who they are, and why others are refused.

One `Issuer` for each that is configured, and `Issuers` for all of them, which the hub asks for every request that shows
such a token. Nothing here waits: keys are handed in by who fetches them (`app.tokens`), and asked for by a callback.
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
from isthmus.identity.jwt import Key, KeySet, SignedToken, looks_signed, read_token
from isthmus.identity.settings import IssuerSettings
from isthmus.model.callers import Caller, Grants, Unprovable

KEEP_SECONDS = 3600.0
"""How long keys are good that could not be fetched again: longer, and one that the issuer gave up would still be."""

TOKENS_MAX = 4096
"""Tokens whose signature is not checked again."""

CALLERS_MAX = 16_384
"""Callers of whom it is known that they were here; what those have opened that came before them is ended."""

OPEN_SECONDS = 900.0
"""How long a session or a stream outlasts the token that opened it: who renews its token only then still finds it.
Nothing can be asked in it without a good one."""

NAME_LENGTH_MAX = 256
CLAIM_LENGTH_MAX = 256
FAR = 1e12
"""A time that no token means; in seconds since 1970."""

SCOPES_MAX = 256
"""Scopes of one token that are looked at."""


OnProved: TypeAlias = Callable[[Caller, bytes, float], None]
"""Hears of a token that was found to be good, whose it is and until when; once for each token that is new."""


@dataclass(frozen=True, slots=True)
class Unproven:
    """Why a token of a known issuer lets nobody in, for who sent it. It quotes nothing of the token."""

    reason: str
    is_scope_missing: bool = False
    """It is genuine, and none of its scopes allows anything."""
    is_issuer_away: bool = False
    """Nobody can tell now: there are no keys to check it with."""
    scopes: tuple[str, ...] = ()
    """Those that would allow something."""
    is_genuine: bool = False
    """Its issuer signed it."""
    is_proof_wrong: bool = False
    """The token is good, and the proof that came with it is not (RFC 9449)."""
    nonce: str = ""
    """What the next proof must have, if this one lacked a good nonce."""


class Bound(NamedTuple):
    """A token that is good only with a proof of the key that it is bound to."""

    caller: Caller
    thumbprint: str
    until: float
    signer: Key
    """The issuer's, which signed it."""
    issuer: Issuer


class Issuer:
    """Checks the tokens of one issuer with the keys that it was given last."""

    def __init__(
        self,
        settings: IssuerSettings,
        bound: Callable[[Caller], Caller | None],
        now: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        """`bound` holds a caller to what its tenant may do; None if it can be of no such tenant."""
        self.settings = settings
        self.on_unknown_key: Callable[[], None] = _nothing
        """Called when a token names a key that is not known; it may be new."""
        self.tells_rights = False
        """Whether tokens of one caller are told apart by what they may do: where they are exchanged."""
        self.trouble = "they have not been fetched yet"
        """Why there are no keys, or why they are not fresh."""
        self._bound = bound
        self._now = now
        self._monotonic = monotonic
        self._keys = KeySet(())
        self._fetched = -math.inf
        self._known: OrderedDict[bytes, tuple[Caller, float, Key]] = OrderedDict()
        """Callers by the digests of their tokens, until when, and the key that signed them."""
        self._key_bound: OrderedDict[bytes, Bound] = OrderedDict()
        """The same of tokens that are bound to a key of their owner's."""
        self._callers: OrderedDict[Caller, tuple[float, Key]] = OrderedDict()

    def take_keys(self, keys: KeySet) -> None:
        """Go by these from now on. What was signed with one that is not among them is good no more."""
        if gone := self._keys.gone_from(keys):
            self._known = OrderedDict(each for each in self._known.items() if each[1][2] not in gone)
            self._key_bound = OrderedDict(each for each in self._key_bound.items() if each[1].signer not in gone)
            self._callers = OrderedDict(each for each in self._callers.items() if each[1][1] not in gone)
        self._keys = keys
        self._fetched = self._monotonic()
        self.trouble = ""

    def inherit_keys(self, other: Issuer) -> None:
        """Go by the keys of who stood here before, and is configured otherwise now, until there are newer ones."""
        mine, its = self.settings, other.settings
        if (mine.issuer, mine.jwks, mine.algorithms) == (its.issuer, its.jwks, its.algorithms):
            self._keys, self._fetched, self.trouble = other._keys, other._fetched, other.trouble

    @property
    def has_keys(self) -> bool:
        """Whether there are keys that are not too old to go by."""
        return self._monotonic() - self._fetched < KEEP_SECONDS

    def recall(self, digest: bytes) -> Caller | None:
        """Who showed the token of this digest, of which it is known already that it is genuine; None if it is not."""
        found = self._known.get(digest)
        if found is None:
            return None
        caller, until, _ = found
        return caller if self._now() < until and self.has_keys else None

    def recall_bound(self, digest: bytes) -> Bound | None:
        """The same of a token that is bound to a key."""
        found = self._key_bound.get(digest)
        return found if found is not None and self._now() < found.until and self.has_keys else None

    def good_until(self, digest: bytes) -> float:
        """When the token of this digest ceases to be good, in seconds since 1970; 0 if it is not known here."""
        found = self._known.get(digest)
        return 0.0 if found is None else found[1]

    def look_at(self, token: SignedToken, digest: bytes) -> Caller | Bound | Unproven:
        """Who showed a token that says it is from here, or why nobody did; of a bound one, who would by a proof."""
        if not self.has_keys:
            return Unproven(f"the keys of {self.settings.name} are not there: {self.trouble}", is_issuer_away=True)
        keys = self._keys.for_token(token)
        if not keys:
            self.on_unknown_key()
            return Unproven("it names a key that its issuer does not have")
        key = next((key for key in keys if key.has_signed(token)), None)
        if key is None:
            return Unproven("its signature is not its issuer's")
        made = self._made_of(token.claims)
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
        self._remember(digest, made, until, key)
        return made

    def proved(self, bound: Bound) -> None:
        """Somebody showed a bound token with a good proof."""
        self._note(bound.caller, bound.until, bound.signer)

    def knows(self, caller: Caller) -> bool:
        """Whether this caller showed a token that is good still, or was until just now."""
        found = self._callers.get(caller)
        return found is not None and self._now() < found[0] + OPEN_SECONDS

    def _remember(self, digest: bytes, caller: Caller, until: float, key: Key) -> None:
        self._known[digest] = (caller, until, key)
        if len(self._known) > TOKENS_MAX:
            self._known.popitem(last=False)
        self._note(caller, until, key)

    def _note(self, caller: Caller, until: float, key: Key) -> None:
        before = self._callers.pop(caller, None)
        # The token that lasts longest, by whichever key: what its owner has open lasts as long.
        self._callers[caller] = (until, key) if before is None or before[0] <= until else before
        if len(self._callers) > CALLERS_MAX:
            self._callers.popitem(last=False)

    def _made_of(self, claims: Mapping[str, Any]) -> Caller | Unproven:
        """The caller that genuine claims stand for."""
        if (reason := self._fault_in(claims)) is not None:
            return Unproven(reason)
        name = _word(claims.get(self.settings.name_claim), NAME_LENGTH_MAX)
        if name is None:
            return Unproven(f"its {self.settings.name_claim} is not a name")
        tenant: str | None = self.settings.tenant
        if self.settings.tenant_claim is not None:
            tenant = _word(claims.get(self.settings.tenant_claim), CLAIM_LENGTH_MAX)
        if tenant is None:
            return Unproven(f"its {self.settings.tenant_claim} is not the name of a tenant")
        grants = self._grants(_scopes_of(claims))
        if not grants.allow:
            names = tuple(self.settings.scopes)
            return Unproven("none of its scopes allows anything here", is_scope_missing=True, scopes=names)
        # Behind the issuer's own name: the same subject of another issuer, or of a key, is somebody else.
        rights = _rights_of(claims) if self.tells_rights else ""
        caller = Caller(f"{self.settings.name}/{name}", tenant, grants, rights=rights)
        return self._bound(caller) or Unproven("its tenant is unknown")

    def _fault_in(self, claims: Mapping[str, Any]) -> str | None:
        now, leeway = self._now(), self.settings.leeway
        if claims.get("iss") != self.settings.issuer:
            return "it is from another issuer"
        if not _is_for(claims.get("aud"), self.settings.audience):
            return "it was made for another audience"
        expires = _time(claims.get("exp"))
        if expires is None:
            return "it does not say when it expires"
        if now >= expires + leeway:
            return "it has expired"
        for claim in ("nbf", "iat"):
            since = _time(claims.get(claim))
            if claim in claims and (since is None or since - leeway > now):
                return "it is not valid yet"
        return None

    def _grants(self, scopes: Sequence[str]) -> Grants:
        own = self.settings.grants
        added = [pattern for scope in scopes for pattern in self.settings.scopes.get(scope, ())]
        return Grants(tuple(dict.fromkeys((*own.allow, *added))), own.deny) if added else own


UNPROVEN = Unproven("it is bound to a key: send it as Authorization: DPoP, with a proof (RFC 9449)", is_genuine=True)
"""Why a bound token is not good as it is."""


class Issuers:
    """All issuers of a hub; see `identity.verifier.Verifier`."""

    def __init__(self, issuers: Sequence[Issuer], proofs: Proofs | None = None) -> None:
        """Without `proofs`, tokens that are bound to keys let nobody in."""
        self._issuers = {issuer.settings.issuer: issuer for issuer in issuers}
        self._proofs = proofs
        self.on_proved: OnProved = _unheard
        self._refused: Mapping[bytes, Unproven] = {}
        """Why the last token was refused that was, by its digest: who sent it is told so at once."""

    def __iter__(self) -> Iterator[Issuer]:
        return iter(self._issuers.values())

    def caller_of(self, credential: bytes) -> Caller | Unprovable | None:
        """Who showed a token of one of the issuers; None if nobody did, of which `refusal_of` knows the reason."""
        if not self._issuers or not looks_signed(credential):
            return None
        digest = hashlib.sha256(credential).digest()
        for issuer in self._issuers.values():
            if (caller := issuer.recall(digest)) is not None:
                return caller
        looked = self._look_at(credential, digest)
        if isinstance(looked, Caller):
            until = max(issuer.good_until(digest) for issuer in self._issuers.values())
            self.on_proved(looked, credential, until)
            return looked
        refused = looked if isinstance(looked, Unproven) else UNPROVEN
        self._refused = {digest: refused}
        return Unprovable(refused.reason) if refused.is_issuer_away else None

    def bound_caller_of(self, credential: bytes, asked: ProvenRequest, *, is_proved: bool) -> Caller | Unproven:
        """Who showed a token that is bound to a key, with a proof of it; or why nobody did.

        `is_proved` is of a request whose proof was accepted before: it may be looked at twice, and is used up then.
        """
        digest = hashlib.sha256(credential).digest()
        looked = self._recall_bound(digest) or self._look_at(credential, digest)
        if isinstance(looked, Unproven):
            return looked
        if not isinstance(looked, Bound) or self._proofs is None:
            return Unproven("it is not bound to a key: send it as Authorization: Bearer", is_genuine=True)
        if not is_proved:
            wants_nonce = looked.issuer.settings.dpop == "nonce"
            refused = self._proofs.check(asked, credential, looked.thumbprint, wants_nonce=wants_nonce)
            if refused is not None:
                return Unproven(refused.reason, is_genuine=True, is_proof_wrong=True, nonce=refused.nonce)
            self.on_proved(looked.caller, credential, looked.until)
            looked.issuer.proved(looked)
        return looked.caller

    def _recall_bound(self, digest: bytes) -> Bound | None:
        found = (issuer.recall_bound(digest) for issuer in self._issuers.values())
        return next((each for each in found if each is not None), None)

    def refusal_of(self, credential: bytes) -> Unproven | None:
        """Why a token of one of the issuers lets nobody in; None if it is not one of theirs, or does."""
        if not self._issuers or not looks_signed(credential):
            return None
        digest = hashlib.sha256(credential).digest()
        if (refused := self._refused.get(digest)) is not None:
            return refused
        looked = self._look_at(credential, digest)
        if isinstance(looked, Bound):
            return UNPROVEN
        return looked if isinstance(looked, Unproven) else None

    def knows(self, caller: Caller) -> bool:
        """See `identity.verifier.Verifier`."""
        return any(issuer.knows(caller) for issuer in self._issuers.values())

    def _look_at(self, credential: bytes, digest: bytes) -> Caller | Bound | Unproven:
        token = read_token(credential)
        if isinstance(token, str):
            return Unproven(token)
        issuer = self._issuers.get(token.issuer)
        # Which issuers are known is no secret: the metadata of the resource lists them.
        return Unproven("it is from another issuer") if issuer is None else issuer.look_at(token, digest)


def _thumbprint_in(claims: Mapping[str, Any]) -> str | Unproven:
    """The thumbprint of the key that a token is bound to; empty if to none that is known here."""
    confirmation = claims.get("cnf")
    if not isinstance(confirmation, Mapping) or "jkt" not in confirmation:
        return ""
    thumbprint = confirmation["jkt"]
    if isinstance(thumbprint, str) and _THUMBPRINT.fullmatch(thumbprint):
        return thumbprint
    return Unproven("the key that it is bound to cannot be read", is_genuine=True)


_THUMBPRINT = re.compile(r"[A-Za-z0-9_-]{43}")


def _unheard(caller: Caller, credential: bytes, until: float) -> None:
    """Nobody needs what callers have proved themselves with."""


def _nothing() -> None:
    """Nobody fetches keys."""


def _is_for(audience: object, accepted: tuple[str, ...]) -> bool:
    """Whether a token was made for one of those accepted, alone or among others."""
    if isinstance(audience, str):
        return audience in accepted
    return isinstance(audience, list) and any(isinstance(each, str) and each in accepted for each in audience)


def _time(value: object) -> float | None:
    """A time in seconds; None for a text that looks like one, or a number that is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # A number of any length may be written there, and not all of them can be reckoned with.
    return float(value) if 0 <= value < FAR else None


def _word(value: object, length_max: int) -> str | None:
    """A name for people and logs; None if it is none."""
    is_word = isinstance(value, str) and value.strip() == value and 0 < len(value) <= length_max and value.isprintable()
    return str(value) if is_word else None


def _rights_of(claims: Mapping[str, Any]) -> str:
    """What tells a token from another one's of the same subject: its scopes, and the client that it was given to.

    Not its times and ids: what a caller has open outlasts a token that is only a newer one.
    """
    told = [sorted(_scopes_of(claims)), *(repr(claims.get(name)) for name in ("azp", "client_id", "act"))]
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def _scopes_of(claims: Mapping[str, Any]) -> list[str]:
    """A token's scopes: a text with spaces (RFC 9068), or a list as some issuers have it under `scp`."""
    value = claims.get("scope", claims.get("scp"))
    if isinstance(value, str):
        return value.split(" ")[:SCOPES_MAX]
    return [each for each in value[:SCOPES_MAX] if isinstance(each, str)] if isinstance(value, list) else []
