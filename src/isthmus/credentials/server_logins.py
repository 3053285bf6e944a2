"""The logins of a running hub at its servers, one for each server and name, and the renewal of their tokens.

A `Login` always has headers. Links call `ready` first, which may need a request to a token endpoint. Renewals run in
the background, one at a time, before expiry and with some jitter. After a permanent refusal nothing is requested until
somebody logs in. `Logins` creates them and notices logins made by the command line. `SubjectTokens` has the verified
tokens of callers, for token exchange at servers that are called in their name (RFC 8693). `app.links` gets the
credentials of a link here.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import stat
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec
import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.core.ports import RequestSigner
from isthmus.credentials.client_registration import OAuthClient
from isthmus.credentials.discovery import DiscoveryFailed, ServerMetadata, TokenSource, find_issuer, find_token_source
from isthmus.credentials.fetch import Fetcher, FetchFailed, UrlRefused
from isthmus.credentials.signed_jwts import ProofKey, Prover
from isthmus.credentials.token_endpoint import (
    BEGINNING,
    TOKEN_LENGTH_MAX,
    GrantRefused,
    StoredLogin,
    StoredToken,
    TokenEndpoint,
    is_token,
)
from isthmus.credentials.vault import Slot, Vault, VaultDamaged
from isthmus.model.callers import Caller
from isthmus.model.credentials import ANYONE, OAuthSettings, ServerCredentials, Subject
from isthmus.model.names import ServerName
from isthmus.transport.egress import Egress, HttpOrigin, parse_url

log = structlog.get_logger(__name__)


# -- tokens of callers ------------------------------------------------------------------------------------------


SUBJECTS_MAX = 10_000
"""The maximum number of callers; the least recently seen one is forgotten first."""


class SubjectTokens:
    """The latest token of each caller."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._known: OrderedDict[Subject, tuple[str, float]] = OrderedDict()

    def note(self, subject: Subject, token: str, expires_at: float) -> None:
        """Remember a caller's verified token."""
        self._known[subject] = (token, expires_at)
        self._known.move_to_end(subject)
        if len(self._known) > SUBJECTS_MAX:
            self._known.popitem(last=False)

    def token_of(self, subject: Subject) -> str | None:
        """The caller's latest token; None if it has expired."""
        token, expires_at = self._known.get(subject, ("", 0.0))
        return token if expires_at > self._clock() else None

    def __repr__(self) -> str:
        return f"SubjectTokens({len(self._known)} callers)"


# -- one login --------------------------------------------------------------------------------------------------


LEEWAY_SECONDS = 10.0
"""A token with less remaining time is not used for new links."""

AHEAD_SHARE = 0.2
AHEAD_SECONDS_MAX = 120.0
"""How long before its expiry a token is renewed: this share of its lifetime, and at most so many seconds."""

RETRY_SECONDS = 5.0
RETRY_SECONDS_MAX = 60.0
"""Pauses between renewal attempts while the authorization server is unreachable."""

RENEWAL_SECONDS_MIN = 5.0
"""The minimum time before a renewal: very short lifetimes must not cause a busy loop."""

FRESH_SECONDS = 30.0
"""If a server refuses a token this soon after it was issued, a new one would not help."""


class LoginNeeded(Exception):
    """There are no credentials until somebody logs in or changes the configuration; the message says what to do."""


class NotReady(Exception):
    """There is no token at the moment, but there may be one soon; the message says why."""


class Login:
    """The credentials for one server, shared by all callers or for one of them."""

    def __init__(
        self,
        logins: Logins,
        slot: Slot,
        url: str,
        headers: Mapping[str, str],
        oauth: OAuthSettings | None,
        subject: Subject | None = None,
    ) -> None:
        """`subject` is the caller whose token is exchanged, for a login by token exchange."""
        self.ca = ""
        """The server's private certificate authority, if it has one."""
        self.generation = 0
        self.slot = slot
        self._logins = logins
        self._url = url
        self._headers = dict(headers)
        self._oauth = oauth
        self._settings = oauth or ANYONE
        self._subject = subject
        self._token: StoredToken | None = None
        self._stored: StoredLogin | None = None
        self._token_source: TokenSource | None = None
        self._prover: Prover | None = None
        """Has the key that tokens are bound to; None for bearer tokens."""
        self._login_reason = ""
        """Why a login is needed."""
        self._failure = ""
        self._is_refused = False
        """Whether the authorization server refused permanently."""
        self._is_rejected = False
        """Whether the server rejected the token, so that a new one is needed even if it has not expired."""
        self._renewing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._read_stamp: tuple[int, ...] | None = None
        self._read_content = b""
        """The vault's content when it was last read."""
        self._is_closed = False
        self._earlier_request: asyncio.Task[None] | None = None
        """The running request of the login that this one replaces; it may use up the shared refresh token."""

    def follow(self, before: Login) -> None:
        """Replace another login, and close it."""
        self._earlier_request = before._renewing or before._earlier_request

    @property
    def is_fixed(self) -> bool:
        """Whether only static headers are used: `Authorization` is configured, or no login is."""
        return self._oauth is None and any(name.lower() == "authorization" for name in self._headers)

    @property
    def _is_interactive(self) -> bool:
        """Whether a person has to log in."""
        return self._settings.grant in ("authorization_code", "device")

    def headers_for(self, server: ServerName) -> Mapping[str, str]:
        """The headers to send to this server now."""
        if self._token is None:
            return self._headers
        own = {name: value for name, value in self._headers.items() if name.lower() != "authorization"}
        return {**own, "authorization": f"{'DPoP' if self._token.is_bound else 'Bearer'} {self._token.access}"}

    @property
    def signer(self) -> RequestSigner | None:
        """Signs the requests of a new link; None if headers are enough."""
        return self if self._token is not None and self._token.is_bound else None

    def proof_for(self, method: str, url: str, authorization: str) -> str | None:
        """The proof for a request, signed with the key of the current login; None if its token has no key."""
        return None if self._prover is None else self._prover.proof_for(method, url, authorization)

    def wants_nonce(self, url: str, status: int, headers: Mapping[str, str]) -> bool:
        """Read a response; True if it rejects a request because the proof had no nonce, or an old one."""
        return self._prover is not None and self._prover.wants_nonce(url, status, headers)

    # -- before a link is made ---------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Obtain a token if one is needed.

        Raises:
            LoginNeeded: a person has to log in.
            NotReady: a later attempt may succeed.
        """
        if self.is_fixed:
            return
        self.read_again()
        if self._is_good():
            return
        if self._can_renew():
            # One request at a time; the state afterwards shows its result.
            await asyncio.wait({self._start()})
        if self._is_good():
            return
        if self._login_reason:
            raise LoginNeeded(self._login_reason)
        if self._failure:
            raise (LoginNeeded if self._is_refused else NotReady)(self._failure)
        if not self._is_interactive:
            raise NotReady("no token for it: the authorization server's tokens expire at once")
        if self._oauth is not None or self._stored is not None:
            raise LoginNeeded(self._login_advice("its login has expired" if self._stored else "nobody has logged in"))

    def refused(self) -> bool:
        """The server refused the credentials. Return whether to retry with another token.

        If not, a later attempt uses the same token: the refusal may have been the server's mistake.
        """
        if self._token is None or not self._can_renew():
            return False
        # A negative age proves nothing: the clock was set back.
        is_fresh = 0.0 <= self._logins.now() - self._token.obtained_at < FRESH_SECONDS
        self._is_rejected = not is_fresh
        return not is_fresh

    def hide(self, text: str) -> str:
        """Remove the token from a text: a server may quote it."""
        if self._token is None:
            return text
        for secret in (self._token.access, self._token.refresh):
            if not secret:
                continue
            text = text.replace(secret, "***")
            # A server may have cut the token off at the end.
            while len(secret) > BEGINNING and (at := text.find(secret[:BEGINNING])) >= 0:
                end = BEGINNING
                while text[at : at + end + 1] == secret[: end + 1] and end < len(secret):
                    end += 1
                text = f"{text[:at]}***{text[at + end :]}"
        return text

    def login_hint(self) -> str:
        """How to log in at the server, and why; empty if only static headers are used."""
        if self.is_fixed or not self._is_interactive:
            return ""
        return self._login_reason or self._login_advice("")

    def _is_good(self) -> bool:
        if self._token is None or self._is_rejected or self._login_reason:
            return False
        token = self._token
        lifetime = math.inf if token.expires_at is None else max(0.0, token.expires_at - token.obtained_at)
        return token.is_good(self._logins.now(), min(LEEWAY_SECONDS, lifetime * AHEAD_SHARE))

    def _login_advice(self, why: str) -> str:
        name = f" --caller {self.slot.tenant}/{self.slot.caller}" if self.slot.caller else ""
        because = f" ({why})" if why else ""
        return f"it requires a login{because}: run isthmus login {self.slot.server}{name}"

    # -- the vault ---------------------------------------------------------------------------------------------------

    def read_again(self) -> bool:
        """Read the vault if it has changed; return whether the login there is another one now."""
        if not self._is_interactive or self.is_fixed or (seen := self._logins.vault.stamp()) == self._read_stamp:
            return False
        self._read_stamp = seen
        stored = self._read()
        if stored == self._stored:
            return False
        self._use_token(stored)
        return True

    def _read(self) -> StoredLogin | None:
        try:
            content = self._logins.vault.get(self.slot)
            self._read_content = content or b""
            stored = None if content is None else msgspec.json.decode(content, type=StoredLogin)
        except (OSError, VaultDamaged, msgspec.MsgspecError) as error:
            log.warning("a login cannot be read", server=self.slot.server, reason=str(error))
            return None
        if stored is not None and stored.url != self._url:
            log.warning("the stored login is for another address than the configured one", server=self.slot.server)
            return None
        try:
            _prover_of(stored)
        except ValueError as error:
            log.warning("a login cannot be read", server=self.slot.server, reason=str(error))
            return None
        return stored

    def _use_token(self, stored: StoredLogin | None) -> None:
        if self._stored is None or stored is None or stored.proof_key != self._stored.proof_key:
            self._prover = _prover_of(stored)  # otherwise its known nonces stay valid
        self._stored = stored
        self._login_reason = self._failure = ""
        self._use(None if stored is None else stored.token)

    def _use(self, token: StoredToken | None) -> None:
        before, self._token = self._token, token
        self._is_rejected = False
        self._failures = 0
        self.generation += 1
        self._stop_waiting()
        if token is not None and token.expires_at is not None and self._can_renew():
            left = token.expires_at - self._logins.now()
            ahead = min(left * AHEAD_SHARE, AHEAD_SECONDS_MAX)
            spread = ahead * random.uniform(1.0, 1.5)  # noqa: S311 - spread, not secrecy
            self._renew_in(max(RENEWAL_SECONDS_MIN, left - spread))
        if before is not None and token is not None and before.is_bound != token.is_bound:
            self._logins.notify(self.slot)  # links are recreated when signing starts or ends

    def close(self) -> None:
        """Stop renewing."""
        self._is_closed = True
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- renewing ----------------------------------------------------------------------------------------------------

    def _can_renew(self) -> bool:
        if self._login_reason:
            return False
        return bool(self._stored and self._stored.token.refresh) if self._is_interactive else True

    def _renew_in(self, seconds: float) -> None:
        self._call_in(seconds, self._renew_soon)

    def _call_in(self, seconds: float, do: Callable[[], None]) -> None:
        self._stop_waiting()
        if not self._is_closed:
            self._timer = asyncio.get_running_loop().call_later(seconds, do)

    def _renew_soon(self) -> None:
        self._timer = None
        has_no_token = self._subject is not None and self._logins.subjects.token_of(self._subject) is None
        if has_no_token and self._token is not None:
            self._expire_with(self._token)  # the caller has no token to exchange now, but may send one later
        else:
            self._start()

    def _start(self) -> asyncio.Task[None]:
        if self._renewing is None:
            self._renewing = self._logins.background.spawn(f"login at {self.slot.server}", self._renew())
        return self._renewing

    async def _renew(self) -> None:
        self._failure, self._is_refused = "", False
        if self._earlier_request is not None:
            await asyncio.wait({self._earlier_request})
            self._earlier_request = None
        before = self._token
        try:
            await self._obtain()
        except GrantRefused as refused:
            self._record_refusal(refused, before)
        except (FetchFailed, UrlRefused, DiscoveryFailed) as failed:
            self._failure = f"no token for it: {failed}"
            self._token_source = None
            self._failures += 1
            log.warning("login not renewed", server=self.slot.server, reason=str(failed))
            if self._token is not None and self._token.is_good(self._logins.now()):
                self._renew_in(min(RETRY_SECONDS * 2 ** min(self._failures, 8), RETRY_SECONDS_MAX))
        finally:
            self._renewing = None

    async def _obtain(self) -> None:
        if self._is_interactive:
            before = self._stored
            async with self._logins.vault.turn(self.slot):
                self._read_stamp = None
                self.read_again()
                if self._stored == before or not self._is_good():
                    await self._refresh()  # otherwise another process has done it
            return
        endpoint = await self._endpoint()
        found_scope = "" if self._token_source is None else self._token_source.scope
        grant, scope = self._settings.grant, self._settings.scope or found_scope
        if grant == "jwt_bearer":
            self._use(await endpoint.by_assertion(self._identity_token(), scope))
        elif grant == "enterprise_managed" and self._settings.has_identity_token:
            self._use(await self._token_by_id_jag(endpoint, self._identity_token(), scope))
        elif self._subject is None:
            self._use(await endpoint.by_client(scope))
        elif (caller_token := self._logins.subjects.token_of(self._subject)) is None:
            raise GrantRefused("no_token", "this caller has sent no token that could be exchanged")
        elif grant == "enterprise_managed":
            self._use(await self._token_by_id_jag(endpoint, caller_token, scope))
        else:
            self._use(await endpoint.by_exchange(caller_token, self._settings.scope))

    async def _token_by_id_jag(self, endpoint: TokenEndpoint, identity_token: str, scope: str) -> StoredToken:
        """Request a token for the identity provider's assertion of a person's identity token."""
        settings = self._settings
        if settings.idp_token_endpoint:
            provider = ServerMetadata(issuer=settings.idp_issuer, token_endpoint=settings.idp_token_endpoint)
        else:
            provider = await find_issuer(endpoint.fetcher, settings.idp_issuer)
        client = OAuthClient(settings.idp_client_id, settings.idp_client_secret)
        # Without the settings: their key and secret belong to the other authorization server.
        idp = TokenEndpoint(endpoint.fetcher, provider, client, ANYONE, endpoint.resource)
        audience = settings.audience or endpoint.server.issuer or endpoint.server.token_endpoint
        return await endpoint.by_assertion(await idp.id_jag(identity_token, audience, scope), scope)

    def _identity_token(self) -> str:
        """Read the current assertion that the operator configured. Raises `FetchFailed`."""
        settings = self._settings
        token = settings.identity_token or _token_in(settings.identity_token_file)
        if not is_token(token):
            raise FetchFailed(f"{settings.identity_token_file} contains no token")
        return token

    async def _refresh(self) -> None:
        stored, read_content = self._stored, self._read_content
        if stored is None or not stored.token.refresh:
            return
        server = ServerMetadata(issuer=stored.issuer, token_endpoint=stored.token_endpoint)
        client = stored.client
        if client.id == self._settings.client_id:
            # Its secret may have changed since the login.
            client = msgspec.structs.replace(client, secret=self._settings.client_secret)
        endpoint = TokenEndpoint(self._fetcher(), server, client, self._settings, stored.resource, self._prover)
        token = await endpoint.by_refresh(stored.token)
        if await self._store_renewed(read_content, stored := msgspec.structs.replace(stored, token=token)):
            self._use_token(stored)
        elif self.read_again():  # somebody has logged in or out meanwhile, which takes precedence
            self._logins.notify(self.slot)

    async def _store_renewed(self, before: bytes, stored: StoredLogin) -> bool:
        """Store a renewed login; return False if the stored one was replaced or removed meanwhile."""
        content = msgspec.json.encode(stored)
        self._read_stamp = None  # read the vault again
        try:
            is_stored = await self._logins.vault.replace_in_thread(self.slot, before, content)
        except (OSError, VaultDamaged) as error:
            log.warning("a renewed login cannot be stored", server=self.slot.server, reason=str(error))
            return True
        self._read_content = content if is_stored else self._read_content
        return is_stored

    async def _endpoint(self) -> TokenEndpoint:
        fetcher = self._fetcher()
        if self._token_source is None:
            self._token_source = await find_token_source(fetcher, self._url, self._settings)
        client = OAuthClient(self._settings.client_id, self._settings.client_secret)
        if not self._token_source.is_bound:
            self._prover = None
        elif self._prover is None:
            self._prover = Prover(ProofKey.make(), self._logins.now)
        source = self._token_source
        return TokenEndpoint(fetcher, source.server, client, self._settings, source.resource, self._prover)

    def _fetcher(self) -> Fetcher:
        return self._logins.fetcher(self._url, self._settings, self.ca)

    def _record_refusal(self, refused: GrantRefused, before: StoredToken | None) -> None:
        """Record a permanent refusal, log it once, and wait for a new login."""
        self._read_stamp = None
        if self.read_again() and self._is_good():
            return  # another process was faster, so the old refresh token is invalid
        self._token_source = None  # the server may use another authorization server by now
        if self._is_interactive:
            self._login_reason = self._login_advice(f"its authorization server says {refused}")
        else:
            self._failure = f"no token for it: the authorization server says {refused}"
            self._is_refused = True
        log.warning("login refused", server=self.slot.server, reason=str(refused))
        if before is not None and before.is_good(self._logins.now()) and not self._is_rejected:
            self._expire_with(before)
        else:
            self._drop()

    def _expire_with(self, token: StoredToken) -> None:
        """Keep using the current token while it is valid."""
        assert token.expires_at is not None  # otherwise it would not have been renewed
        self._call_in(max(0.0, token.expires_at - self._logins.now()), self._drop)

    def _drop(self) -> None:
        self._timer = None
        self._token = None
        self.generation += 1
        self._logins.notify(self.slot)


def _prover_of(stored: StoredLogin | None) -> Prover | None:
    """The signer of a stored login. Raises `ValueError` if its key cannot be read."""
    return Prover(ProofKey.read(stored.proof_key)) if stored is not None and stored.proof_key else None


def _token_in(path: str) -> str:
    """Read a token from a file. Raises `FetchFailed`, as the platform may still be writing it."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise FetchFailed(f"{path} is not a file")
        with open(path, "rb") as file:
            return file.read(TOKEN_LENGTH_MAX + 2).decode("ascii").strip()
    except OSError as error:
        raise FetchFailed(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        return ""


# -- all logins -------------------------------------------------------------------------------------------------


CHECK_SECONDS = 0.5
"""How often the vault is checked for logins and logouts by the command line."""

IDENTIFYING_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key"})
"""Headers that identify a caller. Shared ones must not be sent together with a caller's own login."""

LOGINS_MAX = 4_096
"""The maximum number of logins in memory; there may be many callers with their own tokens."""


_LoginKey: TypeAlias = tuple[Slot, str]
"""The slot of a login, and the rights of the exchanged token, if any."""


class Logins:
    """The registry of all logins of a hub."""

    def __init__(
        self,
        vault: Vault,
        egress: Egress,
        background: BackgroundTasks,
        subjects: SubjectTokens | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.vault = vault
        self.background = background
        self._clock = clock
        self.subjects = subjects or SubjectTokens()
        self.on_changed: Callable[[ServerName, Subject | None], None] = lambda _server, _subject: None
        """Called when the credentials for a server have changed or gone."""
        self._egress = egress
        self._known: OrderedDict[_LoginKey, tuple[object, Login]] = OrderedDict()
        self._is_watching = False
        self._has_exchanges = False
        """Whether any server ever exchanges callers' tokens; otherwise none of them is stored."""

    def now(self) -> float:
        """The time, in seconds since the epoch."""
        return self._clock()

    def login_for(
        self,
        server: ServerName,
        url: str,
        headers: Mapping[str, str],
        credentials: ServerCredentials,
        subject: Subject | None = None,
        ca: str = "",
    ) -> Login:
        """The login for this server, shared or for one caller."""
        slot = Slot.of(server, subject)
        self._has_exchanges |= credentials.are_exchanged
        terms = (url, dict(headers), credentials, ca)
        place = (slot, subject.rights if subject is not None and credentials.are_exchanged else "")
        known = self._known.get(place)
        if known is not None and known[0] == terms:
            self._known.move_to_end(place)
            return known[1]
        login = self._make(slot, url, headers, credentials, subject)
        if known is not None:
            known[1].close()
            login.follow(known[1])
        login.ca = ca
        self._known[place] = (terms, login)
        while len(self._known) > LOGINS_MAX:
            _, (_, oldest) = self._known.popitem(last=False)
            oldest.close()
        if not login.is_fixed and not self._is_watching:
            self._is_watching = True
            self.background.spawn("watch over logins", self._watch())
        return login

    def _make(
        self, slot: Slot, url: str, headers: Mapping[str, str], credentials: ServerCredentials, subject: Subject | None
    ) -> Login:
        if subject is None:
            return Login(self, slot, url, headers, credentials.oauth)
        own = credentials.own.get(subject.at_large)
        if own is None:
            return Login(self, slot, url, headers, credentials.oauth, subject)
        # Shared headers are left out, except those that identify no caller and that the caller does not override.
        left_out = IDENTIFYING_HEADERS | {name.lower() for name in own.headers}
        common = {name: value for name, value in headers.items() if name.lower() not in left_out}
        oauth = own.oauth
        if oauth is not None and oauth.is_for_each:
            return Login(self, slot, url, {**common, **own.headers}, oauth, subject)
        return Login(self, slot, url, {**common, **own.headers}, oauth)

    def add_subject_token(self, caller: Caller, credential: bytes, until: float) -> None:
        """Store a caller's verified token for exchange; it is used for nothing else."""
        if self._has_exchanges:
            subject = Subject(caller.tenant, caller.name, caller.rights)
            self.subjects.note(subject, credential.decode("ascii", "replace"), until)

    def logins_of(self, server: ServerName, caller: Caller) -> list[Login]:
        """The logins that a call of this caller may have used: the shared one, and the caller's own."""
        found = self._known.items()
        return [login for (slot, _), (_, login) in found if slot.server == server and slot.caller in ("", caller.name)]

    def forget(self, server: ServerName) -> None:
        """A server was removed."""
        for place in [place for place in self._known if place[0].server == server]:
            self._known.pop(place)[1].close()

    def fetcher(self, url: str, settings: OAuthSettings, ca: str) -> Fetcher:
        """Return the fetcher for this server: it may reach the server, configured origins and public addresses."""
        return fetcher_for(self._egress, self.background, url, settings, ca)

    def notify(self, slot: Slot) -> None:
        """Report that the credentials for a server have changed."""
        subject = Subject(slot.tenant, slot.caller) if slot.caller else None
        self.on_changed(ServerName(slot.server), subject)

    async def _watch(self) -> None:
        seen = self.vault.stamp()
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            if (stamp := self.vault.stamp()) != seen:
                seen = stamp
                for _, login in list(self._known.values()):
                    if login.read_again():
                        log.info("login changed", server=login.slot.server)
                        self.notify(login.slot)


def fetcher_for(
    egress: Egress, background: BackgroundTasks, url: str, settings: OAuthSettings, ca: str = ""
) -> Fetcher:
    """Return the fetcher for a login at the server with this address. Every address is checked each time.

    The server's own certificate authority, `ca`, is trusted there and at configured origins.
    """
    own, _ = parse_url(url)

    def is_named(origin: HttpOrigin) -> bool:
        return origin == own or settings.allows(origin.scheme, origin.host, origin.port)

    return Fetcher(egress, background, is_named, egress.trusting(ca) if ca else None)


class StaticCredentials:
    """The configured headers of each server."""

    generation = 0
    signer = None

    def __init__(self, headers: Mapping[ServerName, Mapping[str, str]]) -> None:
        self._headers = headers

    def headers_for(self, server: ServerName) -> Mapping[str, str]:
        """The server's headers; empty if it has none."""
        return self._headers.get(server, {})
