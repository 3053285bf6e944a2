"""Fetches the public keys (JWKS) of trusted issuers every five minutes, and finds them by the issuers' metadata.

`app.tokens` passes it the issuers; `identity.jwt_callers` verifies tokens with the keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

import msgspec
import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.credentials.fetch import Fetcher, FetchFailed, UrlRefused
from isthmus.identity.jwt import KeySet, read_keys
from isthmus.identity.jwt_callers import Issuer
from isthmus.identity.settings import IssuerSettings
from isthmus.transport.egress import Egress, parse_url

log = structlog.get_logger(__name__)

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
