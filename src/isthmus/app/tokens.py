"""Verifies tokens of issuers, issues and verifies the hub's own tokens, and fetches the issuers' keys.

`serve` creates one `TokenService` and passes it changed configurations. `IssuerKeys` fetches the public keys (JWKS) of
issuers every five minutes, and finds them by the issuers' metadata; `identity.jwt_callers` verifies tokens with them.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import structlog

from isthmus.app.caller_identity import Identities
from isthmus.app.key_files import offer_secret
from isthmus.app.shared_state import cluster_keys
from isthmus.config.files import read_regular_file
from isthmus.config.settings import Configuration
from isthmus.core.access.tenants import Tenants
from isthmus.core.background import BackgroundTasks
from isthmus.core.journal import Document, Journal, SharedJournal, WriteResult
from isthmus.credentials.fetch import Fetcher, FetchFailed, UrlRefused
from isthmus.frontends.http.auth import BASES, Authenticator, Fields, Request
from isthmus.frontends.oauth.discovery import Challenges, OwnAddresses, RejectedCredential, TrustedIssuer
from isthmus.frontends.oauth.http import LIFETIME_SECONDS, OauthHttp
from isthmus.identity.dpop_proofs import PROOF_ALGORITHMS, PROOF_SECONDS, Proofs, ProvenRequest
from isthmus.identity.jwt import KeySet, read_keys
from isthmus.identity.jwt_callers import Issuer, Issuers, OnProved, Unproven
from isthmus.identity.keys import KEY_LENGTH_MIN, AccessTokens, bound_of, credential_of, digest_of
from isthmus.identity.keys import LIFETIME_SECONDS as REAL_LIFETIME_SECONDS
from isthmus.identity.settings import IssuerSettings
from isthmus.model.callers import Caller, Unprovable
from isthmus.transport.egress import Egress, parse_url

log = structlog.get_logger(__name__)

assert LIFETIME_SECONDS == REAL_LIFETIME_SECONDS, "the announced lifetime is the real one"

_PROVEN_SCOPE_KEY = "isthmus.proved"
"""The key of the ASGI scope that marks a request's proof as accepted; its value is the request's list of headers."""

_PROOF_SCOPE_KEY = "isthmus.proof"
"""The key of the ASGI scope for the digest of an accepted proof."""

_CLAIM_SCOPE_KEY = "isthmus.claimed"
"""The key of the ASGI scope for the result of storing a request's proof in the database."""

PROOF = "proof"
"""The `Document.kind` of accepted proofs."""

PROOF_KEPT_SECONDS = 5 * PROOF_SECONDS
"""How long accepted proofs are stored. None is valid longer than twice `PROOF_SECONDS`; clocks of nodes differ."""

PRUNED_MAX = 10_000
"""How many proofs are deleted at once."""

FOLDER = "oauth"
SECRET_FILE = "secret"  # noqa: S105 - its name
SECRET_BYTES = 32
FILE_BYTES = 4096


class TokenService:
    """Verifies and issues tokens for a hub."""

    def __init__(self, configuration: Configuration, identities: Identities) -> None:
        """Registers itself at `identities` as a verifier."""
        self._configuration = configuration
        self.identities = identities
        keys = cluster_keys(configuration, b"isthmus: tokens")
        state = Path(configuration.hub.state)
        secret: Callable[[], bytes] = (lambda: keys[0]) if keys else partial(secret_in, state)
        self._proofs = Proofs(time.time, secret)
        self._issuers = Issuers(())
        self._refused: tuple[Fields, Unproven] | None = None
        """The last request whose bound token was refused, and why; its response contains the reason."""
        self.on_proved: OnProved = self._issuers.on_proved
        """Called with verified issuers' tokens, for servers that are called in their owners' names."""
        self._own = AccessTokens(secret, identities.by_digest, time.time)
        self._keys: IssuerKeys | None = None
        self._port = configuration.hub.port
        identities.verifiers += [self._own, self]
        self.change(configuration)

    def open(
        self, auth: Authenticator, background: BackgroundTasks, egress: Egress, journal: Journal | None = None
    ) -> OauthHttp:
        """Start fetching keys, let the authenticator announce the token endpoint, and return its frontend."""
        if isinstance(journal, SharedJournal):
            self._share_proofs(auth, journal, background)
        self._keys = IssuerKeys(egress, background)
        self._keys.follow(tuple(self._issuers))
        algorithms = lambda: PROOF_ALGORITHMS if self._configuration.issuers else ()  # noqa: E731
        auth.refuse = Challenges(self.address, self._explain, algorithms).refuse
        auth.prove = self.prove
        return OauthHttp(auth, self, self.address, self._trusted, PROOF_ALGORITHMS)

    def listen_at(self, port: int) -> None:
        """Set the hub's own address."""
        self._port = port
        self._addresses = _addresses(self._configuration, port)

    def change(self, configuration: Configuration) -> None:
        """Apply another configuration; unchanged issuers are kept."""
        before = {issuer.settings.name: issuer for issuer in self._issuers}
        are_tenants_same = configuration.tenants == self._configuration.tenants
        self._configuration = configuration
        self._addresses = _addresses(configuration, self._port)
        issuers: list[Issuer] = []
        for settings in configuration.issuers:
            old = before.get(settings.name)
            if old is not None and old.settings == settings and are_tenants_same:
                issuers.append(old)
                continue
            bound = partial(_bound_caller, configuration.tenants, is_claimed=settings.tenant_claim is not None)
            new = Issuer(settings, bound, time.time, time.monotonic)
            if old is not None:
                new.inherit_keys(old)
            issuers.append(new)
        are_exchanged = any(server.credentials.are_exchanged for server in configuration.servers)
        for issuer in issuers:
            issuer.separates_rights = are_exchanged
        self._issuers = Issuers(issuers, self._proofs)
        self._issuers.on_proved = lambda *proved: self.on_proved(*proved)  # noqa: PLW0108 - it is set later
        if self._keys is not None:
            self._keys.follow(issuers)

    def address(self, fields: Fields) -> str | None:
        """The hub's address as this request's sender sees it; None if no token is needed."""
        return self._addresses.base(fields) if self.identities.wants_proof else None

    # -- as a verifier: delegates to the current issuers -------------------------------------------------------------

    def caller_of(self, credential: bytes) -> Caller | Unprovable | None:
        """The caller of a credential; None if it is invalid or of another kind. It never raises."""
        return self._issuers.caller_of(credential)

    def knows(self, caller: Caller) -> bool:
        """Whether a caller that this verifier identified is still valid; if not, its sessions end within a second."""
        return self._issuers.knows(caller)

    # -- tokens that are bound to a key (RFC 9449) -------------------------------------------------------------------

    def prove(self, fields: Fields, request: Request) -> Caller | Unprovable | None:
        """The caller of a token that is bound to a key, if the request has a valid proof; None without such a token."""
        bound_token = bound_of(fields)
        if bound_token is None:
            return None
        token, proof = bound_token
        path = request["raw_path"].decode("latin-1")
        bases = request.get(BASES) or (self._addresses.base(fields),)
        proven_request = ProvenRequest(proof, request["method"], [base + path for base in bases])
        # One request may be checked more than once. A copied scope contains the same headers.
        is_proved = request.get(_PROVEN_SCOPE_KEY) is request["headers"]
        found = self._issuers.bound_caller_of(token, proven_request, is_proved=is_proved)
        claim_result: WriteResult = request.get(_CLAIM_SCOPE_KEY, "kept")
        if isinstance(found, Caller) and claim_result == "kept":
            if not is_proved:
                request[_PROVEN_SCOPE_KEY], request[_PROOF_SCOPE_KEY] = request["headers"], self._proofs.accepted
            return self.identities.add_verified(found)
        if isinstance(found, Caller):
            found = PROOF_USED if claim_result == "conflict" else PROOF_UNCHECKED
        self._refused = (fields, found)
        return Unprovable(found.reason) if found.is_issuer_away else None

    def _share_proofs(self, auth: Authenticator, journal: Journal, background: BackgroundTasks) -> None:
        """Let the database of a cluster decide which of its nodes accepts a proof: each is accepted once."""

        async def claim(fields: Fields, request: Request) -> None:
            # A proof that this node refuses is not worth a write.
            is_proved = (
                auth.caller_of(fields, request) is not None and request.get(_PROVEN_SCOPE_KEY) is request["headers"]
            )
            if not is_proved or _CLAIM_SCOPE_KEY in request:
                return
            written: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
            document = Document(PROOF, "", request[_PROOF_SCOPE_KEY].hex(), 1, time.time(), b"")
            journal.write([document], lambda result: None if written.done() else written.set_result(result))
            request[_CLAIM_SCOPE_KEY] = await written

        async def prune() -> None:
            while True:
                await asyncio.sleep(PROOF_KEPT_SECONDS)
                with suppress(OSError):  # the database is away; the next time is soon enough
                    before = time.time() - PROOF_KEPT_SECONDS
                    while await journal.prune(PROOF, [""], before=before, limit=PRUNED_MAX) == PRUNED_MAX:
                        pass

        auth.claim_proof = claim
        background.spawn("old proofs", prune())

    # -- issuing tokens ---------------------------------------------------------------------------------------------

    def token_for(self, name: str | None, key: str) -> str | None:
        """A token for the caller with this key; None if there is no such caller or `name` is another's."""
        digest = digest_of(key)
        caller = self.identities.by_digest(digest) if len(key) >= KEY_LENGTH_MIN else None
        return self._own.make(digest) if isinstance(caller, Caller) and name in (None, caller.name) else None

    def issues_tokens(self) -> bool:
        """Whether any caller has a key."""
        return bool(self.identities.callers())

    def _explain(self, fields: Mapping[bytes, bytes]) -> RejectedCredential | None:
        if bound_of(fields) is not None:
            refused_fields, why = self._refused or (None, BOUND_TOKEN_UNSUPPORTED)
            self._refused = None
            return _rejected(why if refused_fields is fields else BOUND_TOKEN_UNSUPPORTED, is_bound=True)
        credential = credential_of(fields)
        if credential is None:
            # Contradicting credentials and other schemes are ignored.
            return None
        unproven = self._issuers.refusal_of(credential)
        if unproven is None:
            return RejectedCredential(is_genuine=self._own.has_made(credential))
        return _rejected(unproven)

    def _trusted(self) -> tuple[TrustedIssuer, ...]:
        known = (issuer.settings for issuer in self._issuers)
        return tuple(
            TrustedIssuer(issuer.issuer, issuer.audience, tuple(issuer.scopes), issuer.dpop != "optional")
            for issuer in known
        )


PROOF_USED = Unproven("it was used already", is_genuine=True, is_proof_wrong=True)
PROOF_UNCHECKED = Unproven("the hub cannot find out whether its proof was used already: try again", is_issuer_away=True)
"""The database is away."""

BOUND_TOKEN_UNSUPPORTED = Unproven("tokens that are bound to a key are not accepted here")
"""Why a bound token is refused where proofs are not supported."""


def _rejected(unproven: Unproven, *, is_bound: bool = False) -> RejectedCredential:
    return RejectedCredential(
        unproven.reason,
        unproven.is_scope_missing,
        unproven.is_genuine,
        unproven.scopes,
        is_bound,
        unproven.is_proof_wrong,
        unproven.nonce,
    )


def _bound_caller(tenants: Tenants, caller: Caller, *, is_claimed: bool) -> Caller | None:
    """Narrow a caller to its tenant's permissions.

    If tenants are configured, a token for an unknown tenant is refused, because nothing would limit it.
    """
    if is_claimed and tenants.known and caller.tenant not in tenants.known:
        return None
    return tenants.bound(caller)


def _addresses(configuration: Configuration, port: int) -> OwnAddresses:
    hub = configuration.hub
    return OwnAddresses(hub.public_url, hub.host, port, hub.hosts)


# -- the secret under which the hub's own tokens are made --------------------------------------------------------------


def secret_in(state: Path) -> bytes:
    """The secret in the state folder, created if needed.

    If it cannot be stored, it lasts as long as the process, and so do its tokens; callers request new ones then.
    """
    file = state / FOLDER / SECRET_FILE
    try:
        with suppress(FileNotFoundError):
            return _read(file)
        for folder in (state, file.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        offer_secret(file, SECRET_BYTES)
        return _read(file)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        message = "access tokens will not survive a restart: their secret cannot be stored"
        log.warning(message, file=str(file), reason=reason)
        return secrets.token_bytes(SECRET_BYTES)


def _read(file: Path) -> bytes:
    if os.stat(file).st_mode & 0o077:
        raise ValueError("other users can read it: delete it to create a new one")
    secret = bytes.fromhex(read_regular_file(file, FILE_BYTES).decode("ascii").strip())
    if len(secret) != SECRET_BYTES:
        raise ValueError("it is not a valid secret: delete it to create a new one")
    return secret


# -- keys of issuers ---------------------------------------------------------------------------------------------------

FRESH_SECONDS = 300.0
"""How often keys are fetched again, so that keys that an issuer withdrew become invalid."""

PAUSE_SECONDS = 10.0
"""The minimum time between two attempts: anybody can send a token with an invented key id."""


class KeysNotFound(Exception):
    """An issuer's keys are unavailable; the message says why, for operators and senders of tokens."""


class _Metadata(msgspec.Struct, frozen=True):
    issuer: str = ""
    jwks_uri: str = ""


class IssuerKeys:
    """Fetches the keys of a hub's issuers while it runs."""

    def __init__(
        self, egress: Egress, background: BackgroundTasks, *, fresh: float = FRESH_SECONDS, pause: float = PAUSE_SECONDS
    ) -> None:
        self._egress = egress
        self._background = background
        self._fresh = fresh
        self._pause = pause
        self._tasks: dict[Issuer, asyncio.Task[None]] = {}

    def follow(self, issuers: Sequence[Issuer]) -> None:
        """Fetch the keys of exactly these issuers from now on."""
        for gone in [issuer for issuer in self._tasks if issuer not in issuers]:
            self._tasks.pop(gone).cancel()
        for issuer in issuers:
            if issuer not in self._tasks:
                self._tasks[issuer] = self._background.spawn(f"keys of {issuer.settings.name}", self._keep(issuer))

    async def _keep(self, issuer: Issuer) -> None:
        wanted = asyncio.Event()
        issuer.on_unknown_key = wanted.set
        while True:
            is_well = await self._refresh(issuer)
            await asyncio.sleep(self._pause)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._fresh - self._pause) if is_well else 0):
                    await wanted.wait()
            wanted.clear()

    async def _refresh(self, issuer: Issuer) -> bool:
        """Fetch the keys once; return whether that succeeded. A failure is logged once, and so is its end."""
        name = issuer.settings.name
        try:
            keys = await fetch_keys(issuer.settings, self._egress, self._background)
        except KeysNotFound as error:
            if str(error) != issuer.trouble:
                log.warning("the keys of an issuer cannot be fetched", issuer=name, reason=str(error))
            issuer.trouble = str(error)
            return False
        except Exception:  # one defect must not stop all later fetches
            log.exception("the keys of an issuer could not be fetched: a defect in the hub", issuer=name)
            return False
        if issuer.trouble:
            log.info("issuer keys fetched", issuer=name, keys=len(keys))
        issuer.set_keys(keys)
        return True


async def fetch_keys(settings: IssuerSettings, egress: Egress, background: BackgroundTasks) -> KeySet:
    """Fetch the keys that an issuer publishes.

    Raises:
        KeysNotFound: the keys are unavailable.
    """
    try:
        named = {parse_url(url)[0] for url in (settings.issuer, settings.jwks) if url is not None}
    except ValueError as error:
        raise KeysNotFound(f"its address cannot be used: {error}") from error
    fetcher = Fetcher(egress, background, named.__contains__)
    try:
        place = settings.jwks or await _find_keys(settings.issuer, fetcher)
        answer = await fetcher.get("its set of keys", place)
    except (UrlRefused, FetchFailed) as failed:
        raise KeysNotFound(str(failed)) from failed
    if answer.status != 200:
        raise KeysNotFound(f"its set of keys was answered with status {answer.status}")
    try:
        return read_keys(answer.body, settings.algorithms)
    except ValueError as error:
        raise KeysNotFound(f"its set of keys cannot be used: {error}") from error


async def _find_keys(issuer: str, fetcher: Fetcher) -> str:
    """Find the address of an issuer's keys. Raises: KeysNotFound, UrlRefused, FetchFailed."""
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    # OpenID Connect puts the issuer's path before the well-known one, RFC 8414 after it.
    places = (
        f"{origin}{path}/.well-known/openid-configuration",
        f"{origin}/.well-known/oauth-authorization-server{path}",
    )
    for place in places:
        answer = await fetcher.get("its metadata", place)
        if answer.status != 200:
            continue
        try:
            said = msgspec.json.decode(answer.body, type=_Metadata)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise KeysNotFound("its metadata cannot be read") from error
        if said.issuer != issuer:
            # Otherwise write access to one path of a host would be enough to impersonate all its issuers.
            raise KeysNotFound("its metadata names another issuer than the configured one")
        if not said.jwks_uri:
            raise KeysNotFound("its metadata does not say where its keys are")
        return said.jwks_uri
    raise KeysNotFound("it publishes no metadata: say where its keys are, as jwks")
