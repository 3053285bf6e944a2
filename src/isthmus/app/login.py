"""`isthmus login`: logs in at a server. No hub needs to run; a running hub picks up the login.

The command line passes a function that shows the address to the person. The login is stored encrypted in the state
folder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import structlog

from isthmus.app.links import over_http
from isthmus.core.background import BackgroundTasks
from isthmus.credentials.client_registration import NoClient, OAuthClient, client_for
from isthmus.credentials.discovery import DiscoveryFailed, TokenSource, find_token_source, joined
from isthmus.credentials.fetch import Fetcher, FetchFailed, UrlRefused
from isthmus.credentials.interactive_login import (
    Authorization,
    Callback,
    LoginRefused,
    begin_device_login,
    wait_for_device,
)
from isthmus.credentials.server_logins import fetcher_for
from isthmus.credentials.signed_jwts import ProofKey, Prover
from isthmus.credentials.token_endpoint import (
    GrantRefused,
    StoredLogin,
    StoredToken,
    TokenEndpoint,
)
from isthmus.credentials.vault import Slot, Vault, VaultDamaged
from isthmus.model.credentials import ANYONE, OAuthSettings, Subject, written
from isthmus.transport.egress import Egress
from isthmus.upstream.server_settings import PythonSettings, ServerSettings, StdioSettings, TargetHttpSettings

log = structlog.get_logger(__name__)

OFFLINE = "offline_access"
"""The scope for which many authorization servers issue refresh tokens."""


class LoginFailed(Exception):
    """The login failed; the message says why, without secrets."""


@dataclass(frozen=True, slots=True)
class LoginOptions:
    """The parameters of a login."""

    server: ServerSettings
    subject: Subject | None = None
    scope: str = ""
    """Scopes in addition to those that the server requests."""
    is_device: bool = False
    within: float = 300.0

    @property
    def slot(self) -> Slot:
        """Where the login is stored."""
        return Slot.of(self.server.name, self.subject)


@dataclass(frozen=True, slots=True)
class LoginPrompt:
    """The address to visit and the code to enter there."""

    address: str
    code: str = ""


async def log_in(
    wanted: LoginOptions, vault: Vault, show: Callable[[LoginPrompt], None], egress: Egress | None = None
) -> StoredLogin:
    """Let a person log in, and store the login.

    Raises:
        LoginFailed: there is no login.
    """
    url, settings = _terms(wanted)
    background = BackgroundTasks("login")
    try:
        fetcher = fetcher_for(egress or Egress(), background, url, settings, wanted.server.ca)
        kept = await _LoginAttempt(wanted, fetcher, url, settings, _known(vault, wanted.slot)).log_in(show)
        vault.put(wanted.slot, msgspec.json.encode(kept))
    except (DiscoveryFailed, UrlRefused, FetchFailed, NoClient, LoginRefused, VaultDamaged) as failed:
        raise LoginFailed(str(failed)) from failed
    except GrantRefused as refused:
        raise LoginFailed(f"the authorization server says {refused}") from refused
    except TimeoutError:
        raise LoginFailed(f"no login within {wanted.within:g} s") from None
    except OSError as error:
        raise LoginFailed(f"the login cannot be stored: {error.strerror or error}") from error
    finally:
        await background.aclose()
    return kept


def _terms(wanted: LoginOptions) -> tuple[str, OAuthSettings]:
    """The address and the login settings of a server."""
    server = wanted.server
    reach = server.reach
    if isinstance(reach, StdioSettings | PythonSettings | TargetHttpSettings):
        raise LoginFailed("only servers over HTTP have a login")
    if wanted.subject is None:
        settings = server.credentials.oauth or ANYONE
    else:
        own = server.credentials.own.get(wanted.subject)
        if own is None or own.oauth is None:
            place = f"[servers.{server.name}.callers.{written(wanted.subject)}.oauth]"
            raise LoginFailed(f"this caller has no login of its own there; add {place}")
        settings = own.oauth
    if settings.grant not in ("authorization_code", "device"):
        raise LoginFailed(f"{settings.grant} needs no login: the hub requests its tokens itself")
    return over_http(reach.url), settings


def _known(vault: Vault, slot: Slot) -> StoredLogin | None:
    """The stored login; an unreadable one is ignored, since it is about to be replaced."""
    try:
        content = vault.get(slot)
        return None if content is None else msgspec.json.decode(content, type=StoredLogin)
    except (OSError, VaultDamaged, msgspec.MsgspecError) as error:
        log.warning("the present login cannot be read", server=slot.server, reason=str(error))
        return None


class _LoginAttempt:
    """One login, from discovery to the token."""

    def __init__(
        self, wanted: LoginOptions, fetcher: Fetcher, url: str, settings: OAuthSettings, known: StoredLogin | None
    ) -> None:
        self._wanted = wanted
        self._fetcher = fetcher
        self._url = url
        self._settings = settings
        self._known = known
        self._prover: Prover | None = None

    async def log_in(self, show: Callable[[LoginPrompt], None]) -> StoredLogin:
        place = await find_token_source(self._fetcher, self._url, self._settings)
        server = place.server  # without metadata there is no issuer to compare
        known = None if self._known is None else (self._known.issuer, self._known.token_endpoint)
        if known != (server.issuer, server.token_endpoint):
            self._known = None  # a registration is valid at one authorization server only
        if place.is_bound:
            self._prover = Prover(ProofKey.make())
        scope = self._scope(place)
        is_device = self._wanted.is_device or self._settings.grant == "device"
        by = self._by_device if is_device else self._by_browser
        client, token = await by(place, scope, show)
        return StoredLogin(
            token,
            client,
            place.server.issuer,
            place.server.token_endpoint,
            place.resource,
            self._url,
            joined(scope, token.scope),
            self._prover.key.text() if self._prover is not None and token.is_bound else "",
        )

    def _scope(self, place: TokenSource) -> str:
        """The requested scope: the configured one, else the server's and the earlier login's."""
        known = "" if self._known is None else self._known.asked_scope
        if self._wanted.scope:
            scope = joined(self._settings.scope or known or place.scope, self._wanted.scope)
        else:
            scope = self._settings.scope or place.scope
        is_offered = OFFLINE in place.server.scopes_supported
        return joined(scope, OFFLINE) if scope and is_offered and not self._settings.scope else scope

    def _endpoint(self, place: TokenSource, client: OAuthClient) -> TokenEndpoint:
        return TokenEndpoint(self._fetcher, place.server, client, self._settings, place.resource, self._prover)

    async def _by_device(
        self, place: TokenSource, scope: str, show: Callable[[LoginPrompt], None]
    ) -> tuple[OAuthClient, StoredToken]:
        known = None if self._known is None else self._known.client
        client = await client_for(self._fetcher, place.server, self._settings, known, "http://127.0.0.1/callback")
        endpoint = self._endpoint(place, client)
        begun = await begin_device_login(endpoint, scope)
        show(LoginPrompt(begun.verification_uri_complete or begun.verification_uri, begun.user_code))
        return client, await wait_for_device(endpoint, begun, self._wanted.within)

    async def _by_browser(
        self, place: TokenSource, scope: str, show: Callable[[LoginPrompt], None]
    ) -> tuple[OAuthClient, StoredToken]:
        attempt = Authorization()
        callback = Callback(attempt.state)
        try:
            client = await client_for(
                self._fetcher, place.server, self._settings, await self._listen(callback), callback.address
            )
            thumbprint = "" if self._prover is None else self._prover.key.thumbprint
            address = attempt.address(place.server, client, place.resource, scope, thumbprint)
            show(LoginPrompt(address))
            code = attempt.code_in(await callback.answer(self._wanted.within), place.server)
        finally:
            callback.close()
        return client, await self._endpoint(place, client).by_code(code, attempt.verifier)

    async def _listen(self, callback: Callback) -> OAuthClient | None:
        """Listen at the registered redirect address; None without such an address, or if its port is taken."""
        known = None if self._known is None else self._known.client
        if known is not None and known.redirect:
            try:
                port = known.redirect.rpartition(":")[2].partition("/")[0]
                await callback.open(int(port) if port.isdecimal() else 0)
            except OSError:
                known = None  # the port is taken: register again with another one
            else:
                return known if callback.address == known.redirect else None
        try:
            await callback.open(self._settings.redirect_port)
        except OSError as error:
            taken = self._settings.redirect_port
            raise LoginRefused(f"port {taken} cannot be listened on for the browser: {error.strerror}") from error
        return None
