"""The relay of a running hub: connects its tokens, dial-in servers and frontend. `app.serve` creates it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import structlog

from isthmus.app.hub import RunningHub
from isthmus.app.links import ME
from isthmus.app.process_setup import CrowdCollector
from isthmus.app.relay_keys import Keys, KnownAgents, NoTokens, Revocations
from isthmus.app.shared_state import relay_store
from isthmus.config.settings import Configuration
from isthmus.frontends.http.auth import Authenticator
from isthmus.frontends.relay.http import RelayHttp, RelayTokenReader
from isthmus.frontends.relay.settings import RelaySettings
from isthmus.identity.relay_tokens import WHY, RelayTokens
from isthmus.model.names import ServerName
from isthmus.model.relay import Forgetting, RelayStatus

log = structlog.get_logger(__name__)

RECHECK_SECONDS = 0.5
"""How often the tokens of open sockets are checked for revocation and expiry."""


class Relay:
    """The relay as configured in `[relay]`. The hub closes its servers; the frontend closes its devices."""

    def __init__(self, running: RunningHub, auth: Authenticator) -> None:
        """Raises: ConfigError if the key in the state folder is invalid."""
        self._running = running
        state = self._state = relay_store(running.configuration)
        self._keys = Keys(state)
        self._revocations = Revocations(state, running.configuration.relay.tokens.revoked)
        self._tokens = self._read_with(running.configuration)
        settings = _relay_settings(running.configuration)
        self.frontend = RelayHttp(running.hub, running.background, auth, self._tokens, running.dialins, settings, ME)
        self.frontend.refusal_words = WHY
        self._collector = CrowdCollector(lambda: len(running.hub.server_queues))

    def _read_with(self, configuration: Configuration) -> RelayTokenReader:
        settings = configuration.relay.tokens
        key = self._keys.key(settings.key)
        if key is None:
            return NoTokens()
        known = KnownAgents(self._state, configuration.relay.frontend.agents)
        tokens = RelayTokens(key, settings, time.time, self._revocations.has, known)
        if settings.compatible and (settings.compatible_agents != "known" or known()):
            log.warning(
                "the relay accepts original tokens, which can be spliced and never expire",
                compatible_agents=settings.compatible_agents,
                known=len(known()),
                fix="set [relay] compatible = false once no device needs them",
            )
            if refused := tokens.spliceable():
                log.warning("relay tokens are refused: they could be spliced from other agents' tokens", agents=refused)
        return tokens

    async def start(self) -> None:
        """Restore servers that dialled in before, and start checking tokens."""
        await self._running.dialins.recall()
        self._running.dialins.on_come = self._collector.joined

        async def recheck_regularly() -> None:
            while True:
                await asyncio.sleep(RECHECK_SECONDS)
                self.recheck()
                self._collector.look()

        self._running.background.spawn("tokens of the relay", recheck_regularly())

    def recheck(self) -> None:
        """Close sockets whose token is no longer valid."""
        self._running.dialins.recheck(self._tokens.is_valid)
        self.frontend.recheck()

    def prepare(self, configuration: Configuration) -> Callable[[], None]:
        """Check a new configuration. The returned function applies it and cannot fail.

        Raises:
            ConfigError: the key in the state folder is invalid.
        """
        tokens = self._read_with(configuration)

        def apply() -> None:
            self._revocations.change(configuration.relay.tokens.revoked)
            self._tokens = tokens
            self.frontend.change(_relay_settings(configuration), tokens)
            self.recheck()

        return apply

    async def status(self) -> RelayStatus:
        """All agents, servers and devices now, with those of other nodes."""
        return RelayStatus(self._running.dialins.servers(), await self.frontend.all_devices())

    def forget(self, server: ServerName) -> Forgetting:
        """Delete what is stored about a server that is away."""
        return self._running.dialins.forget(server)


def _relay_settings(configuration: Configuration) -> RelaySettings:
    """The device settings of `[relay]`, narrowed by tenants."""
    return replace(configuration.relay.frontend, tenants=configuration.tenants)
