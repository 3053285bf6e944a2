"""The A2A frontends of a hub: HTTP, gRPC and push notifications. Used by `app.serve`."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Protocol
from urllib.parse import urlsplit

import structlog

from isthmus.app.caller_identity import FILE_KEY_PREFIX, Identities
from isthmus.app.hub import LOCAL, RunningHub
from isthmus.app.links import ME
from isthmus.app.routes import Frontend
from isthmus.app.shared_state import push_key_store, sealer_of
from isthmus.config.findings import ConfigError, Place
from isthmus.config.settings import Configuration
from isthmus.config.tables import A2A
from isthmus.core.tasks.push_outbox import OwnerStatus, PushOutbox, PushRequest
from isthmus.core.tasks.record import PushRecipient, TaskOwner, TaskRecord
from isthmus.credentials.signed_jwts import PushSigner
from isthmus.frontends.a2a.cards import AgentCards
from isthmus.frontends.a2a.http import A2aHttp
from isthmus.frontends.a2a.push_notifications import PushNotifications
from isthmus.frontends.a2a.service import A2aService
from isthmus.frontends.http.auth import Authenticator
from isthmus.frontends.http.nodes import ALONE, Nodes
from isthmus.model.callers import Caller
from isthmus.transport.egress import Egress
from isthmus.transport.push_client import PushClient

log = structlog.get_logger(__name__)


def open_a2a(
    running: RunningHub,
    identities: Identities,
    pushing: PushNotifications,
    auth: Authenticator,
    address: Callable[[], str],
    nodes: Nodes = ALONE,
) -> A2aHttp:
    """The A2A frontend over HTTP; `address` returns the hub's address."""
    settings = running.configuration.a2a
    service = A2aService(running.hub, running.tasks, running.journal, settings, running.now, pushing, running.targets)
    service.script_task = running.scripts.task
    needs_key = lambda: identities.wants_proof  # noqa: E731
    issues_tokens = lambda: identities.wants_proof and bool(identities.callers())  # noqa: E731
    token_urls = lambda: [issuer.token_url for issuer in running.configuration.issuers if issuer.token_url]  # noqa: E731
    cards = AgentCards(running.hub, settings, ME.version, address, needs_key, time.time, issues_tokens, token_urls)
    return A2aHttp(service, auth, cards, nodes)


# -- gRPC -------------------------------------------------------------------------------------------------------------

GRPC_MODULES = ("grpc", "google.protobuf")


class GrpcService(Protocol):
    """A running gRPC server."""

    async def drain(self, within: float) -> None:
        """Refuse new requests and let running ones finish."""

    async def close(self) -> None:
        """Cut what is left."""


def check_grpc(configuration: Configuration, find: Callable[[str], object] = find_spec) -> None:
    """Raises: ConfigError if gRPC is configured and its library is not installed."""
    if configuration.a2a.grpc_port is None:
        return
    with suppress(ModuleNotFoundError):  # of `google` itself
        if all(find(name) is not None for name in GRPC_MODULES):
            return
    problem = "grpc_port needs a library that is not installed; get it with: pip install 'isthmus[grpc]'"
    raise ConfigError(Place(configuration.file, A2A).mistake(ValueError(problem)))


async def open_grpc(
    running: RunningHub,
    agent: A2aHttp,
    auth: Authenticator,
    frontends: dict[str, Frontend],
    *,
    shares_port: bool = False,
) -> GrpcService | None:
    """Start gRPC and announce it in the card; None if it is not configured. Workers share its port.

    `frontends` gets the paths at which other nodes of a cluster forward calls.

    Raises:
        ListenError: the address cannot be listened on.
    """
    hub, port = running.configuration.hub, running.configuration.a2a.grpc_port
    if port is None:
        return None
    from isthmus.frontends.a2a.grpc import PATHS, A2aGrpc, GrpcSettings  # noqa: PLC0415 - only who wants it has the library

    limits = hub.limits
    settings = GrpcSettings(
        hub.host,
        port,
        limits.request_bytes,
        limits.lag_seconds,
        connections=limits.connections,
        shares_port=shares_port,
    )
    service = A2aGrpc(agent, auth, running.background, settings)
    service.in_flight = running.hub.bytes_in_flight
    bound = await service.open()
    if agent.nodes.prefix:
        frontends |= dict.fromkeys(PATHS, service)
    service.bases = grpc_bases(hub.public_url, hub.host, bound)
    if (url := running.configuration.a2a.grpc_url) is not None:
        service.bases = (f"https://{url}", f"http://{url}", *service.bases)
    agent.cards.grpc_address = grpc_address(hub.public_url, bound)
    log.info("listening for gRPC", host=hub.host, port=bound)
    return service


def grpc_bases(public_url: str | None, host: str, port: int) -> tuple[str, ...]:
    """The gRPC address as clients write it, without a scheme."""
    if public_url is not None:
        return (f"https://{grpc_address(public_url, port)}", f"http://{grpc_address(public_url, port)}", public_url)
    hosts = dict.fromkeys(("localhost", "127.0.0.1", "[::1]", f"[{host}]" if ":" in host else host))
    return tuple(f"{scheme}://{host}:{port}" for host in hosts for scheme in ("http", "https"))


def grpc_address(public_url: str | None, port: int) -> str:
    """The card's gRPC address: the port at the host of the hub's own address."""
    host = "localhost" if public_url is None else urlsplit(public_url).hostname or ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# -- push notifications -----------------------------------------------------------------------------------------------


class PushService:
    """Sends the push notifications of tasks. Call `close` before the hub ends, and `aclose` after it."""

    def __init__(self, running: RunningHub, identities: Identities | None = None) -> None:
        """Nothing is sent before `start`. `[targets]` says which private addresses callers may name.

        With `identities`, owners that are no longer known get no notifications.
        """
        self._running = running
        may_name_private = lambda caller: caller.can_name_targets or caller is LOCAL  # noqa: E731
        self._client = PushClient(Egress(), running.background, self._is_listed)
        chance = random.random  # noqa: S311 - spread, not secrecy
        sealer = sealer_of(running.configuration, "push notifications will not survive a restart: no encryption key")
        signer = PushSigner(push_key_store(running.configuration, sealer))
        self.pushing = PushNotifications(running.tasks, self._client, may_name_private, sealer, signer)
        self._outbox = PushOutbox(
            running.tasks, running.journal, self._client, self._requests_for, running.background, running.now, chance
        )
        if identities is not None:
            self._outbox.check_owner = OwnerChecks(identities).status_of

    def _requests_for(self, recipient: PushRecipient, record: TaskRecord, mark: str) -> Sequence[PushRequest]:
        return self.pushing.letters(recipient, record, mark, self._running.now())

    def _is_listed(self, url: str) -> bool:
        return self._running.configuration.targets.trusts_url(url)

    def start(self) -> None:
        """Start sending, including notifications that an earlier hub left."""
        self._running.background.spawn("outbox", self._outbox.run())

    def close(self) -> None:
        """Send nothing new; the next hub with this state sends what is due."""
        self._outbox.close()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()


class OwnerChecks:
    """The known owners of tasks, with their valid keys."""

    def __init__(self, identities: Identities) -> None:
        self._identities = identities
        self._live: frozenset[Caller] = frozenset()
        self._keys: dict[tuple[str, str], set[str]] = {}

    def status_of(self, owner: TaskOwner, key: str) -> OwnerStatus:
        """Whether an owner and the key it used are still valid; see `core.tasks.push_outbox.CheckOwner`."""
        if self._live is not self._identities.live:
            self._live = self._identities.live
            self._keys = {}
            for caller in self._live:
                self._keys.setdefault((caller.tenant, caller.name), set()).add(caller.key)
        good = self._keys.get((owner.tenant, owner.name))
        if good is None:
            if self._identities.find(owner.tenant, owner.name) is not None:
                return "known"  # identified by a verifier
            return "away" if self._identities.may_become_known(owner.name) else "gone"
        # A key of the file has another id in each process; for an earlier hub's id, the owner alone decides.
        is_foreign = not key or (key.startswith("file:") and not key.startswith(FILE_KEY_PREFIX))
        return "known" if is_foreign or key in good else "gone"
