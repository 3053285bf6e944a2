"""Identifies callers: keys of the file, keys of the state folder, then each verifier, in that order.

`serve` makes one `Identities` for all frontends, and `LiveCallers`, which ends the sessions of removed callers. New,
revoked and expired keys apply within a second. It fails closed: with an unreadable list of keys the hub does not start;
a running hub uses the last list for a short while and then accepts none of its keys.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import structlog
from msgspec.structs import replace

from isthmus.app.hub import LOCAL, RunningHub
from isthmus.app.key_files import LiveKeys
from isthmus.app.shared_state import key_store
from isthmus.app.state_folder import claim, new_operator_key
from isthmus.config.callers import CALLERS, DEFAULT_TENANT
from isthmus.config.finding_codes import NO_USABLE_CALLER
from isthmus.config.findings import ConfigError, Place
from isthmus.config.load import access_mode
from isthmus.config.settings import Configuration, HubSettings
from isthmus.frontends.http.auth import Authenticator, OriginGuard
from isthmus.identity.keys import KeyRing, credential_of, digest_of
from isthmus.identity.minted_keys import Keys, MintedKey
from isthmus.identity.verifier import Verifier
from isthmus.model.callers import Caller, Grants, Unprovable, everywhere
from isthmus.telemetry import logs

log = structlog.get_logger(__name__)

CHECK_SECONDS = 0.25
"""How often the list of keys and their expiry are checked. A change applies within a second."""

BOUNDED_CALLERS_MAX = 4096
"""How many verified callers are cached with the permissions that their tenants leave them."""

VERIFIED_CHECK_SECONDS = 0.5
"""How often verifiers are asked whether their callers are still valid."""

VERIFIED_MAX = 16_384
"""How many callers are checked that way; sessions of others end only together with another change."""

ANYONE = Caller("anyone", "anyone", Grants(("*",)), is_anyone=True)
"""The caller of a hub that is open to a network. It is trusted less than the local user."""

LOCAL_OPERATOR = Caller("local", "local", Grants(("*",)), key="local", is_operator=True)
"""The user of a hub's machine, with the key from the state folder (`app.state_folder`)."""

KEYS_UNREADABLE = Unprovable(
    "Keys cannot be checked at the moment: the hub cannot read its list of keys. Ask again later."
)

_ID_KEY = secrets.token_bytes(32)
"""Identifies the keys of the file while this process runs; an id does not reveal its key."""

FILE_KEY_PREFIX = f"file:{secrets.token_hex(4)}-"
"""The prefix of this process's ids; ids of other processes cannot be matched to keys."""


class Identities(Container[Caller]):
    """All known callers. As a container it holds the callers whose credentials are valid now."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        is_insecure: bool = False,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Load the keys. The creator adds `verifiers` and then calls `decide`.

        Raises:
            ConfigError: the list of keys cannot be used.
        """
        self.operator_key: str | None = None
        """The key of the local operator; set before `decide`."""
        self.verifiers: list[Verifier] = []
        """Asked in this order about credentials that are not keys."""
        self.has_other_callers = False
        """Whether a verifier knows callers beyond the configuration; the hub is never open then."""
        self._configuration = configuration
        self._is_insecure = is_insecure
        self._now = now
        self._live_keys = LiveKeys(key_store(configuration), clock)
        self._ring = KeyRing(())
        self._bounded_callers: dict[Caller, Caller] = {}
        """Verified callers, before and after narrowing by their tenants."""
        self._verified_callers: dict[Caller, Caller] = {}
        """Verified callers that may have open sessions."""
        self._verified_checked_at = 0.0
        self._clock = clock
        self._live: frozenset[Caller] = frozenset()
        self.on_keys: Callable[[Keys], None] = lambda _: None
        """Called with the keys of the state folder whenever they may have changed."""
        self._current_keys: Keys = ()
        self._are_keys_lost = False
        self._next_expiry = float("inf")
        self._reported: frozenset[str] = frozenset()
        self._open_caller: Caller | None = None
        """The caller of an open hub."""
        self._were_keys_required = self._live_keys.are_required
        self._build()

    # -- deciding --------------------------------------------------------------------------------------------------

    def decide(self) -> None:
        """Decide whether credentials are required; before this call every caller is rejected.

        Raises:
            ConfigError: the hub would be open to a network.
        """
        self._open_caller = self._open_to(self._configuration)
        self._were_keys_required = self._live_keys.are_required
        self._build()

    def _open_to(self, configuration: Configuration) -> Caller | None:
        has_others = self._live_keys.are_required or bool(configuration.issuers) or self.has_other_callers
        hub = configuration.hub
        mode = access_mode(
            hub,
            configuration.callers,
            has_others=has_others,
            is_insecure=self._is_insecure,
            targets=configuration.targets,
        )
        if mode == "keys":
            return None
        return LOCAL if hub.is_loopback and not hub.is_published else ANYONE

    @property
    def wants_proof(self) -> bool:
        """Whether callers need a credential."""
        return self._open_caller is None

    def __contains__(self, caller: object) -> bool:
        if caller in self._live:
            return True
        if not isinstance(caller, Caller):
            return False
        verified = caller.at_large
        return self._is_still_valid(verified, self._configuration.tenants.unbound(verified))

    def callers(self) -> frozenset[Caller]:
        """Callers with a valid key. The local operator and callers of verifiers are not among them."""
        return self._ring.callers() - {LOCAL_OPERATOR} if self._open_caller is None else frozenset({self._open_caller})

    @property
    def live(self) -> frozenset[Caller]:
        """The same with their narrowing per frontend; the value changes whenever a caller does."""
        return self._live

    def may_become_known(self, name: str) -> bool:
        """Whether an unknown caller may become known: through a verifier, or once the keys are readable again."""
        issuer, slash, _ = name.partition("/")
        is_of_issuer = bool(slash) and issuer in {settings.name for settings in self._configuration.issuers}
        return is_of_issuer or self.has_other_callers or self._are_keys_lost

    def find(self, tenant: str, name: str) -> Caller | None:
        """The caller with this name; None if no key or verified credential has it."""
        for caller in self.callers():
            if (caller.tenant, caller.name) == (tenant, name):
                return caller
        for caller, verified in self._verified_callers.items():
            if (caller.tenant, caller.name) == (tenant, name) and self._is_still_valid(caller, verified):
                return caller
        return None

    # -- on the way of a call --------------------------------------------------------------------------------------

    def identify(self, fields: Mapping[bytes, bytes]) -> Caller | Unprovable | None:
        """The caller that these headers identify, or None."""
        if self._open_caller is not None:
            return self._open_caller
        credential = credential_of(fields)
        if credential is None:
            return None
        caller = self._ring.caller_of(credential)
        if caller is not None:
            return caller
        unprovable: Unprovable | None = KEYS_UNREADABLE if self._are_keys_lost else None
        for verifier in self.verifiers:
            verified = verifier.caller_of(credential)
            if isinstance(verified, Caller):
                return self.add_verified(verified)
            unprovable = verified or unprovable
        return unprovable

    def add_verified(self, verified: Caller) -> Caller:
        """Narrow a caller from a verifier by its tenant, and keep checking that it is still valid."""
        if verified in self._live:  # a token that was issued for a key already has that key's bounds
            return verified
        caller = self._bounded(verified)
        self._verified_callers[caller] = verified
        if len(self._verified_callers) > VERIFIED_MAX:
            del self._verified_callers[next(iter(self._verified_callers))]
        return caller

    def _bounded(self, caller: Caller) -> Caller:
        """Narrow a verified caller by its tenant; cached, because every call needs it."""
        if self._configuration.tenants.are_unrestricted:
            return caller
        bounded = self._bounded_callers.get(caller)
        if bounded is None:
            if len(self._bounded_callers) >= BOUNDED_CALLERS_MAX:
                self._bounded_callers.clear()
            bounded = self._bounded_callers[caller] = self._configuration.tenants.bound(caller)
        return bounded

    def by_key(self, key: bytes) -> Caller | Unprovable | None:
        """The caller of a key, where only a key is accepted."""
        return self.by_digest(digest_of(key))

    def by_digest(self, digest: bytes) -> Caller | Unprovable | None:
        """The same by the digest of a key; valid as long as the key is."""
        caller = self._ring.holder(digest)
        return KEYS_UNREADABLE if caller is None and self._are_keys_lost else caller

    # -- changes ---------------------------------------------------------------------------------------------------

    def prepare(self, configuration: Configuration) -> Callable[[], None]:
        """Check another configuration. The returned function applies it and cannot fail.

        Raises:
            ConfigError: the hub would be open to a network, or no longer want keys.
        """
        anybody = self._open_to(configuration)
        if anybody is not None and self.wants_proof:
            # A truncated or emptied file must not open the hub.
            advice = "restart the hub if it is to be open"
            problem = "must not be empty while the hub requires keys"
            raise ConfigError(Place(configuration.file, CALLERS).finding(problem, advice=advice, code=NO_USABLE_CALLER))

        def apply() -> None:
            self._configuration = configuration
            self._bounded_callers.clear()
            self._open_caller = anybody
            self._build()

        return apply

    async def run(self, on_change: Callable[[], None]) -> None:
        """Watch the keys until cancelled; call `on_change` when a caller was added, changed or removed."""
        loop = asyncio.get_running_loop()
        reloading: asyncio.Future[None] | None = None
        while True:
            # A network folder may hang. Expiry is still checked meanwhile.
            reloading = reloading or _run_in_thread(loop, self._live_keys.reload)
            await asyncio.wait({reloading}, timeout=CHECK_SECONDS)
            try:
                if reloading.done():
                    done, reloading = reloading, None
                    done.result()
                if self.refresh():
                    on_change()
            except Exception:  # one defect must not keep later revocations from taking effect
                log.exception("cannot watch the keys: a defect in the hub")
            await asyncio.sleep(CHECK_SECONDS)

    def refresh(self) -> bool:
        """Apply the current keys; return whether a caller changed or became invalid."""
        has_dropped = self._drop_invalid_verified()
        minted = self._live_keys
        has_changed = (
            minted.keys is not self._current_keys
            or minted.is_unreadable_for_long != self._are_keys_lost
            or self._now() >= self._next_expiry
        )
        if not has_changed and minted.are_required == self._were_keys_required:
            return has_dropped
        before = self._live
        if minted.are_required != self._were_keys_required:
            self._were_keys_required = minted.are_required
            self._open_or_close()
        self._build()
        return has_dropped or self._live != before

    def _open_or_close(self) -> None:
        """Follow `isthmus token`: the first key closes the hub, `token revoke --open` opens it."""
        if self._live_keys.are_required:
            if self._open_caller is not None:
                log.warning("the hub now requires keys: one was created")
            self._open_caller = None
            return
        try:
            self._open_caller = self._open_to(self._configuration)
        except ConfigError as error:
            log.error("hub rejects all requests: keys unreadable", reason=str(error))
        if self._open_caller is not None:
            log.warning("the hub is open again: isthmus token revoke --open removed its last key")

    def _drop_invalid_verified(self) -> bool:
        """Remove verified callers that became invalid, which verifiers do not report; return whether there were any."""
        now = self._clock()
        if not self._verified_callers or now < self._verified_checked_at + VERIFIED_CHECK_SECONDS:
            return False
        self._verified_checked_at = now
        invalid = [pair[0] for pair in self._verified_callers.items() if not self._is_still_valid(*pair)]
        for caller in invalid:
            del self._verified_callers[caller]
        return bool(invalid)

    def _is_still_valid(self, caller: Caller, verified: Caller) -> bool:
        return self._bounded(verified) == caller and any(verifier.knows(verified) for verifier in self.verifiers)

    def _build(self) -> None:
        """Build the table of keys from the configuration and the list."""
        is_unreadable_for_long = self._live_keys.is_unreadable_for_long
        if is_unreadable_for_long and not self._are_keys_lost:
            log.error("the list of keys was unreadable for too long: its keys are rejected")
        self._are_keys_lost, self._current_keys = is_unreadable_for_long, self._live_keys.keys
        known: dict[bytes, Caller] = {}
        for digest, caller in self._configuration.callers:
            mark = FILE_KEY_PREFIX + hmac.digest(_ID_KEY, digest, "sha256")[:8].hex()
            known[digest] = replace(caller, key=mark)
        expiries = dict(self._configuration.expiries)
        for key in () if is_unreadable_for_long else self._usable(known):
            digest = bytes.fromhex(key.digest)
            known[digest] = self._configuration.tenants.bound(key.caller)
            if key.expires_at is not None:
                expiries[digest] = key.expires_at
        if self.operator_key is not None:
            known[digest_of(self.operator_key)] = LOCAL_OPERATOR
        self._ring = KeyRing(tuple(known.items()), expiries, self._now)
        local = () if self.operator_key is None else (LOCAL_OPERATOR,)
        self._live = everywhere({*self.callers(), *local})
        now = self._now()
        self._next_expiry = min((end for end in expiries.values() if end > now), default=float("inf"))
        self.on_keys(self._current_keys)

    @property
    def keys(self) -> Keys:
        """The keys of the state folder that are in use."""
        return self._current_keys

    def _usable(self, known: Mapping[bytes, Caller]) -> Keys:
        """The valid keys of the list whose names do not belong to the configuration; the others are logged once."""
        now = self._now()
        valid = [key for key in self._live_keys.keys if key.is_good(now)]
        in_file = self._configuration.named | {caller.name for caller in known.values()}
        ignored = {key.id: reason for key in valid if (reason := self._why_ignored(key, in_file))}
        for id in ignored.keys() - self._reported:
            log.warning("a key is ignored", key=id, reason=ignored[id])
        self._reported = frozenset(ignored)
        return tuple(key for key in valid if key.id not in ignored and bytes.fromhex(key.digest) not in known)

    def _why_ignored(self, key: MintedKey, in_file: Container[str]) -> str | None:
        if key.name in in_file:
            return f"the configuration has a caller {key.name!r} of its own"
        if key.name.partition("/")[0] in {issuer.name for issuer in self._configuration.issuers if "/" in key.name}:
            return f"{key.name!r} has the form of an issuer's caller (ISSUER/NAME)"
        tenants = self._configuration.tenants.known
        if tenants and key.tenant != DEFAULT_TENANT and key.tenant not in tenants:
            return f"the configuration has tenants, and {key.tenant!r} is not one of them"
        return None


def _run_in_thread(loop: asyncio.AbstractEventLoop, work_in_thread: Callable[[], None]) -> asyncio.Future[None]:
    """Read in a separate thread. The loop's threads are few and may all wait for DNS while a key is revoked."""
    done: asyncio.Future[None] = loop.create_future()

    def deliver(error: Exception | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def work() -> None:
        failed: Exception | None = None
        try:
            work_in_thread()
        except Exception as error:  # noqa: BLE001 - passed on to the waiting caller
            failed = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(deliver, failed)

    # A daemon thread: a hanging folder must not keep the process from ending.
    threading.Thread(target=work, name="keys", daemon=True).start()
    return done


# -- a serving hub -----------------------------------------------------------------------------------------------------
KEYS_GUESSED = "keys.guessed"
"""The audit event for failed attempts above the limit; at most once a minute."""


CREATE_KEY_COMMAND = "isthmus token create NAME --allow '*'"


class SessionFrontend(Protocol):
    """A frontend that keeps sessions of callers."""

    def retain(self, callers: Container[Caller]) -> None:
        """End the sessions of all other callers."""


class LiveCallers:
    """The callers of a serving hub: follows changes of keys and configuration, and ends sessions of removed callers."""

    def __init__(
        self, configuration: Configuration, *, is_insecure: bool = False, operator_key: str | None = None
    ) -> None:
        """Raises: ConfigError if the keys in the state folder cannot be read."""
        self.identities = Identities(configuration, is_insecure=is_insecure)
        self.identities.operator_key = self.operator_key = operator_key or new_operator_key()
        self.local_key = "" if operator_key else self.operator_key
        """The operator's key, unless all workers share it."""
        self._configuration = configuration
        self._is_insecure = is_insecure
        self._auth: Authenticator | None = None
        self._running: RunningHub | None = None
        self._frontends: Sequence[SessionFrontend] = ()
        self._known: frozenset[Caller] = frozenset()

    def open(self, verifiers: Sequence[Verifier] = ()) -> Authenticator:
        """Decide who is accepted, and log it. With extra verifiers the hub is never open.

        Raises:
            ConfigError: the hub would be open to a network unasked, or without the keys of an earlier version.
            ValueError: a host or an origin is invalid.
        """
        self.identities.verifiers += verifiers
        self.identities.has_other_callers = self.identities.has_other_callers or bool(verifiers)
        self.identities.decide()
        is_open = not self.identities.wants_proof
        if warning := claim(self._configuration, is_open=is_open, is_insecure=self._is_insecure):
            log.warning(warning)
        self._log_access_mode()
        self._auth = Authenticator(_guard(self._configuration.hub), self.identities.identify)
        self._auth.failed_auth_limit.per_minute = self._configuration.hub.limits.wrong_keys_per_minute
        return self._auth

    def follow(self, running: RunningHub, frontends: Sequence[SessionFrontend]) -> None:
        """Watch the keys from now on, and end sessions of removed callers in these frontends."""
        self._running, self._frontends = running, frontends
        self._known = self.identities.callers()
        running.callers = self.identities
        running.configure_tenants(self._known)
        if self._auth is not None:
            self._auth.failed_auth_limit.on_refused = lambda address, count: running.note(
                KEYS_GUESSED, address=address, refused=count
            )
        running.background.spawn("keys", self.identities.run(self.end_removed_sessions))

    def change(self, configuration: Configuration) -> None:
        """Apply the callers and log settings of a new configuration.

        Raises:
            ConfigError: the hub would be open to a network, or no longer want keys.
            ValueError: a host or an origin is invalid, or the log cannot be written.
        """
        apply_callers = self.identities.prepare(configuration)
        guard = _guard(configuration.hub)
        before, after = self._configuration.hub, configuration.hub
        if (before.log_level, before.log_format, before.log_file) != (
            after.log_level,
            after.log_format,
            after.log_file,
        ):
            try:
                logs.configure(after.log_level, after.log_format, after.log_file)
            except OSError as error:
                raise ValueError(f"log.file cannot be written: {after.log_file}: {error.strerror}") from error
        apply_callers()
        self._configuration = configuration
        if self._auth is not None:
            self._auth.change(guard, self.identities.identify)
            self._auth.failed_auth_limit.per_minute = configuration.hub.limits.wrong_keys_per_minute
        self.end_removed_sessions()

    def end_removed_sessions(self) -> None:
        """End the sessions of callers that are no longer known."""
        for frontend in self._frontends:
            frontend.retain(self.identities)
        if self._running is not None:
            self._running.targets.change(self._running.configuration.targets, self.identities)
            before, self._known = self._known, self.identities.callers()
            removed, added = before - self._known, self._known - before
            log_changed_callers(removed, added)
            self._running.configure_tenants(self._known)

    def _log_access_mode(self) -> None:
        """Log whether requests need a key; warn if they do not."""
        hub, issuers, file = self._configuration.hub, self._configuration.issuers, self._configuration.file
        # Without --config, the command would create a key for the hub of another folder.
        is_named = file is not None and file.parent != Path.cwd()
        run = f"{CREATE_KEY_COMMAND} --config {shlex.quote(str(file))}" if is_named else CREATE_KEY_COMMAND
        if self.identities.wants_proof:
            callers = {caller.name for caller in self.identities.callers()}
            log.info("requests need a key or a token", keys_of=len(callers), issuers=len(issuers))
            if self._is_insecure:
                log.warning("--insecure has no effect: callers are configured, so every request needs a key")
        elif hub.is_loopback and not hub.is_published:
            message = "open: every program on this machine may call everything; create a key to require one"
            log.warning(message, run=run)
        else:
            message = "INSECURE: everybody who can reach this address may call everything; create a key to require one"
            log.warning(message, host=hub.public_url if hub.is_published else hub.host, run=run)


def log_changed_callers(removed: Iterable[Caller], added: Iterable[Caller]) -> None:
    """Log which keys are no longer valid, which are now valid, and which now permit something else."""
    before = {(caller.tenant, caller.name, caller.key): caller for caller in removed}
    now = {(caller.tenant, caller.name, caller.key): caller for caller in added}
    for identity in sorted({*before, *now}):
        tenant, name, key = identity
        if not key:  # the callers of an open hub
            log.info("requests without a key are accepted" if identity in now else "requests without a key are refused")
            continue
        message = "a key is now valid" if identity in now else "a key is no longer valid"
        if identity in before and identity in now:
            message = "the permissions of a caller have changed"
        log.info(message, caller=name, tenant=tenant, key=key)


def _guard(settings: HubSettings) -> OriginGuard:
    return OriginGuard(
        bind_host=settings.host,
        public_url=settings.public_url,
        allowed_hosts=settings.hosts,
        allowed_origins=settings.origins,
    )
