"""Who comes in, by whichever face, and what becomes of those who may no more. Made by `serve`, changed by a reload."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Protocol

import structlog

from isthmus.app.hub import RunningHub
from isthmus.app.identity import Identities
from isthmus.config.settings import Configuration, HubSettings
from isthmus.frontends.http.auth import Authenticator
from isthmus.frontends.http.origin import OriginGuard
from isthmus.identity.verifying import Verifier
from isthmus.model.callers import Caller
from isthmus.telemetry import logs

log = structlog.get_logger(__name__)

GUESSED = "keys.guessed"
"""What the audit log calls it when wrong keys come faster than they are answered; at most once a minute."""

MAKE_A_KEY = "isthmus token create NAME --allow '*'"


class SessionFace(Protocol):
    """A way in that remembers callers between their requests."""

    def retain(self, callers: Container[Caller]) -> None:
        """End what it remembers of everybody else."""


class Access:
    """Who is known, the one gate of all faces, and those faces that remember who came through it."""

    def __init__(self, configuration: Configuration, *, is_insecure: bool = False) -> None:
        """Raises: ConfigError if the keys in the state folder cannot be read."""
        self.identities = Identities(configuration, is_insecure=is_insecure)
        self._configuration = configuration
        self._is_insecure = is_insecure
        self._auth: Authenticator | None = None
        self._running: RunningHub | None = None
        self._faces: Sequence[SessionFace] = ()
        self._known: frozenset[Caller] = frozenset()

    def open(self, verifiers: Sequence[Verifier] = ()) -> Authenticator:
        """Decide who comes in, and say so. These prove who somebody is, too; where there are such, no hub is open.

        Raises:
            ConfigError: the hub would be open to a network unasked.
            ValueError: a host or an origin is none.
        """
        self.identities.verifiers += verifiers
        self.identities.knows_more = self.identities.knows_more or bool(verifiers)
        self.identities.decide()
        self._tell()
        self._auth = Authenticator(_guard(self._configuration.hub), self.identities.identify)
        self._auth.failed_auth_limit.per_minute = self._configuration.hub.limits.wrong_keys_per_minute
        return self._auth

    def follow(self, running: RunningHub, faces: Sequence[SessionFace]) -> None:
        """Look after who is known from now on, and have these faces let go of who is not any more."""
        self._running, self._faces = running, faces
        self._known = self.identities.callers()
        running.callers = self.identities
        running.know_tenants(self._known)
        if self._auth is not None:
            self._auth.failed_auth_limit.on_told = lambda address, count: running.note(
                GUESSED, address=address, refused=count
            )
        running.background.spawn("keys", self.identities.run(self.let_go))

    def change(self, configuration: Configuration) -> None:
        """Let in whom a new configuration names, and nobody else, from now on; log as it says.

        Raises:
            ConfigError: the hub would be open to a network, or no longer want keys.
            ValueError: a host or an origin is none, or the log cannot be written.
        """
        take = self.identities.prepare(configuration)
        guard = _guard(configuration.hub)
        _log_as(self._configuration.hub, configuration.hub)
        take()
        self._configuration = configuration
        if self._auth is not None:
            self._auth.change(guard, self.identities.identify)
            self._auth.failed_auth_limit.per_minute = configuration.hub.limits.wrong_keys_per_minute
        self.let_go()

    def let_go(self) -> None:
        """End what those have open who are not known any more."""
        for face in self._faces:
            face.retain(self.identities)
        if self._running is not None:
            self._running.targets.change(self._running.configuration.targets, self.identities)
            self._log_changes()
            self._running.know_tenants(self._known)

    def _log_changes(self) -> None:
        """Log whose keys are good from now on, and whose no more."""
        before, self._known = self._known, self.identities.callers()
        gone, come = before - self._known, self._known - before
        for told, callers in (("a key is good no more", gone), ("a key is good from now on", come)):
            for caller in sorted(callers, key=lambda each: (each.tenant, each.name, each.key)):
                log.info(told, caller=caller.name, tenant=caller.tenant, key=caller.key)

    def _tell(self) -> None:
        """Say so if the hub is open, which nobody should find out otherwise."""
        hub, issuers = self._configuration.hub, self._configuration.issuers
        if self.identities.wants_proof:
            callers = {caller.name for caller in self.identities.callers()}
            log.info("callers have to show who they are", keys_of=len(callers), issuers=len(issuers))
            if self._is_insecure:
                log.warning("--insecure has no effect: callers are configured, and everybody has to show a key")
        elif hub.is_loopback and not hub.is_published:
            told = "open: every program on this machine may call everything; to want keys, make one"
            log.warning(told, run=MAKE_A_KEY)
        else:
            told = "INSECURE: everybody who can reach this address may call everything; to want keys, make one"
            log.warning(told, host=hub.public_url if hub.is_published else hub.host, run=MAKE_A_KEY)


def _guard(settings: HubSettings) -> OriginGuard:
    return OriginGuard(
        bind_host=settings.host,
        public_url=settings.public_url,
        allowed_hosts=settings.hosts,
        allowed_origins=settings.origins,
    )


def _log_as(before: HubSettings, now: HubSettings) -> None:
    if (before.log_level, before.log_format, before.log_file) != (now.log_level, now.log_format, now.log_file):
        try:
            logs.configure(now.log_level, now.log_format, now.log_file)
        except OSError as error:
            raise ValueError(f"log.file cannot be written: {now.log_file}: {error.strerror}") from error
