"""Keeps the keys of issuers fresh: fetched at the start, every few minutes, and when a token names an unknown one.

Nothing here is on the way of a call. An issuer that is away costs nobody anything for an hour, in which its last keys
are good; then its tokens are refused, and who shows one is told why. Its addresses are the operator's own and may be
private; where it says itself that its keys are elsewhere, that must be a public place. `app.oauth` starts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

import msgspec
import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.credentials.fetching import Fetcher, FetchFailed, UrlRefused
from isthmus.identity.issuers import Issuer
from isthmus.identity.jwt import KeySet, read_keys
from isthmus.identity.settings import IssuerSettings
from isthmus.transport.egress import Egress, parse_url

log = structlog.get_logger(__name__)

FRESH_SECONDS = 300.0
"""How often keys are fetched that nobody misses; an issuer that gives one up wants it believed no longer."""

PAUSE_SECONDS = 10.0
"""How long after one attempt the next may come, whatever tokens name: anybody can send one with a made-up key."""


class KeysNotFound(Exception):
    """An issuer's keys cannot be had now; the message says why, for operators and for who shows a token."""


class _Metadata(msgspec.Struct, frozen=True):
    issuer: str = ""
    jwks_uri: str = ""


class IssuerKeys:
    """Fetches the keys of a hub's issuers for as long as it runs."""

    def __init__(
        self, egress: Egress, background: BackgroundTasks, *, fresh: float = FRESH_SECONDS, pause: float = PAUSE_SECONDS
    ) -> None:
        self._egress = egress
        self._background = background
        self._fresh = fresh
        self._pause = pause
        self._tasks: dict[Issuer, asyncio.Task[None]] = {}

    def follow(self, issuers: Sequence[Issuer]) -> None:
        """Fetch the keys of these from now on, and of nobody else."""
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
        """Fetch the keys once; return whether that succeeded. What goes wrong is told once, and when it is over."""
        name = issuer.settings.name
        try:
            keys = await fetch_keys(issuer.settings, self._egress, self._background)
        except KeysNotFound as error:
            if str(error) != issuer.trouble:
                log.warning("the keys of an issuer cannot be fetched", issuer=name, reason=str(error))
            issuer.trouble = str(error)
            return False
        except Exception:  # a defect met once must not have the keys grow old for good
            log.exception("the keys of an issuer could not be fetched: a defect in the hub", issuer=name)
            return False
        if issuer.trouble:
            log.info("the keys of an issuer are here", issuer=name, keys=len(keys))
        issuer.take_keys(keys)
        return True


async def fetch_keys(settings: IssuerSettings, egress: Egress, background: BackgroundTasks) -> KeySet:
    """The keys that an issuer publishes now.

    Raises:
        KeysNotFound: they cannot be had.
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
    """Where an issuer says its keys are. Raises: KeysNotFound, UrlRefused, FetchFailed."""
    for place in _metadata_places(issuer):
        answer = await fetcher.get("its metadata", place)
        if answer.status == 200:
            return _read_place(answer.body, issuer)
    raise KeysNotFound("it publishes no metadata: say where its keys are, as jwks")


def _metadata_places(issuer: str) -> tuple[str, ...]:
    """OpenID Connect puts the path of an issuer before the well-known one, RFC 8414 behind it."""
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    return (
        f"{origin}{path}/.well-known/openid-configuration",
        f"{origin}/.well-known/oauth-authorization-server{path}",
    )


def _read_place(document: bytes, issuer: str) -> str:
    try:
        said = msgspec.json.decode(document, type=_Metadata)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise KeysNotFound("its metadata cannot be read") from error
    if said.issuer != issuer:
        # Who may write one place at a host could otherwise speak for all of it.
        raise KeysNotFound("its metadata is of another issuer than the one that is configured")
    if not said.jwks_uri:
        raise KeysNotFound("its metadata does not say where its keys are")
    return said.jwks_uri
