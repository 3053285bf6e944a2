"""Identifies callers: keys of the file, keys of the state folder, then each verifier, in that order.

`serve` makes one `Identities` for all frontends. New, revoked and expired keys apply within a second, and sessions of
revoked callers end. It fails closed: with an unreadable list of keys the hub does not start; a running hub uses the
last list for a short while and then accepts none of its keys.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import threading
import time
from collections.abc import Callable, Container, Mapping
from contextlib import suppress

import structlog
from msgspec.structs import replace

from isthmus.app.hub import LOCAL
from isthmus.app.key_files import Minted
from isthmus.app.shared_state import key_store
from isthmus.config.callers import CALLERS, DEFAULT_TENANT
from isthmus.config.finding_codes import NO_USABLE_CALLER
from isthmus.config.findings import ConfigError, Place
from isthmus.config.load import access_mode
from isthmus.config.settings import Configuration
from isthmus.identity.keys import KeyRing, credential_of, digest_of
from isthmus.identity.minted_keys import Keys, MintedKey
from isthmus.identity.verifier import Verifier
from isthmus.model.callers import Caller, Grants, Unprovable, everywhere

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.25
"""How often the list of keys and their expiry are checked. A change applies within a second."""

BOUNDS_MAX = 4096
"""How many verified callers are cached with the permissions that their tenants leave them."""

SHOWN_SECONDS = 0.5
"""How often verifiers are asked whether their callers are still valid."""

SHOWN_MAX = 16_384
"""How many callers are checked that way; sessions of others end only together with another change."""

ANYONE = Caller("anyone", "anyone", Grants(("*",)), is_anyone=True)
"""The caller of a hub that is open to a network. It is trusted less than the local user."""

LOCAL_OPERATOR = Caller("local", "local", Grants(("*",)), key="local", is_operator=True)
"""The user of a hub's machine, with the key from the state folder (`app.state_folder`)."""

LOST = Unprovable("Keys cannot be checked at the moment: the hub cannot read its list of keys. Ask again later.")

_MARK = secrets.token_bytes(32)
"""Identifies the keys of the file while this process runs; an id does not reveal its key."""

FILE_MARKS = f"file:{secrets.token_hex(4)}-"
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
        """Load the keys. Add `verifiers`, then call `decide`.

        Raises:
            ConfigError: the list of keys cannot be used.
        """
        self.operator_key: str | None = None
        """The key of the local operator; set before `decide`."""
        self.verifiers: list[Verifier] = []
        """Asked in this order about credentials that are not keys."""
        self.knows_more = False
        """Whether a verifier knows callers beyond the configuration; the hub is never open then."""
        self._configuration = configuration
        self._is_insecure = is_insecure
        self._now = now
        self._minted = Minted(key_store(configuration), clock)
        self._ring = KeyRing(())
        self._bounds: dict[Caller, Caller] = {}
        """Verified callers, before and after narrowing by their tenants."""
        self._shown: dict[Caller, Caller] = {}
        """Verified callers that may have open sessions."""
        self._shown_at = 0.0
        self._clock = clock
        self._live: frozenset[Caller] = frozenset()
        self.on_keys: Callable[[Keys], None] = lambda _: None
        """Called with the list of keys whenever it may have changed."""
        self._taken: Keys = ()
        self._is_lost = False
        self._next_end = float("inf")
        self._reported: frozenset[str] = frozenset()
        self._anybody: Caller | None = None
        """The caller of an open hub."""
        self._was_wanted = self._minted.is_wanted
        self._build()

    # -- deciding --------------------------------------------------------------------------------------------------

    def decide(self) -> None:
        """Decide whether credentials are required; before this call every caller is rejected.

        Raises:
            ConfigError: the hub would be open to a network.
        """
        self._anybody = self._open_to(self._configuration)
        self._was_wanted = self._minted.is_wanted
        self._build()

    def _open_to(self, configuration: Configuration) -> Caller | None:
        others = self._minted.is_wanted or bool(configuration.issuers) or self.knows_more
        hub = configuration.hub
        mode = access_mode(
            hub,
            configuration.callers,
            has_others=others,
            is_insecure=self._is_insecure,
            targets=configuration.targets,
        )
        if mode == "keys":
            return None
        return LOCAL if hub.is_loopback and not hub.is_published else ANYONE

    @property
    def wants_proof(self) -> bool:
        """Whether callers need a credential."""
        return self._anybody is None

    def __contains__(self, caller: object) -> bool:
        if caller in self._live:
            return True
        if not isinstance(caller, Caller):
            return False
        verified = caller.at_large
        return self._is_still(verified, self._configuration.tenants.unbound(verified))

    def callers(self) -> frozenset[Caller]:
        """Callers with a valid key. The local operator and callers of verifiers are not among them."""
        return self._ring.callers() - {LOCAL_OPERATOR} if self._anybody is None else frozenset({self._anybody})

    @property
    def live(self) -> frozenset[Caller]:
        """The same with their narrowing per frontend; the value changes whenever a caller does."""
        return self._live

    def may_be_proved(self, name: str) -> bool:
        """Whether an unknown caller may become known: through a verifier, or once the keys are readable again."""
        issuer, slash, _ = name.partition("/")
        is_issued = bool(slash) and issuer in {each.name for each in self._configuration.issuers}
        return is_issued or self.knows_more or self._is_lost

    def find(self, tenant: str, name: str) -> Caller | None:
        """The caller with this name; None if no key or verified credential has it."""
        known = next((each for each in self.callers() if (each.tenant, each.name) == (tenant, name)), None)
        if known is not None:
            return known
        named = ((each, found) for each, found in self._shown.items() if (each.tenant, each.name) == (tenant, name))
        return next((each for each, found in named if self._is_still(each, found)), None)

    # -- on the way of a call --------------------------------------------------------------------------------------

    def identify(self, fields: Mapping[bytes, bytes]) -> Caller | Unprovable | None:
        """The caller that these headers identify, or None."""
        if self._anybody is not None:
            return self._anybody
        credential = credential_of(fields)
        if credential is None:
            return None
        caller = self._ring.caller_of(credential)
        if caller is not None:
            return caller
        doubt: Unprovable | None = LOST if self._is_lost else None
        for verifier in self.verifiers:
            found = verifier.caller_of(credential)
            if isinstance(found, Caller):
                return self.verified(found)
            doubt = found or doubt
        return doubt

    def verified(self, found: Caller) -> Caller:
        """Narrow a caller from a verifier by its tenant, and keep checking that it is still valid."""
        if found in self._live:  # a token that was issued for a key already has that key's bounds
            return found
        caller = self._bounded(found)
        self._shown[caller] = found
        if len(self._shown) > SHOWN_MAX:
            del self._shown[next(iter(self._shown))]
        return caller

    def _bounded(self, caller: Caller) -> Caller:
        """Narrow a verified caller by its tenant; cached, because every call needs it."""
        if self._configuration.tenants.are_unrestricted:
            return caller
        bounded = self._bounds.get(caller)
        if bounded is None:
            if len(self._bounds) >= BOUNDS_MAX:
                self._bounds.clear()
            bounded = self._bounds[caller] = self._configuration.tenants.bound(caller)
        return bounded

    def by_key(self, key: bytes) -> Caller | Unprovable | None:
        """The caller of a key, where only a key is accepted."""
        return self.by_digest(digest_of(key))

    def by_digest(self, digest: bytes) -> Caller | Unprovable | None:
        """The same by the digest of a key; valid as long as the key is."""
        found = self._ring.holder(digest)
        return LOST if found is None and self._is_lost else found

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
            said = "must not be empty while the hub requires keys"
            raise ConfigError(Place(configuration.file, CALLERS).finding(said, advice=advice, code=NO_USABLE_CALLER))

        def apply() -> None:
            self._configuration = configuration
            self._bounds.clear()
            self._anybody = anybody
            self._build()

        return apply

    async def run(self, on_change: Callable[[], None]) -> None:
        """Watch the keys until cancelled; call `on_change` when a caller was added, changed or removed."""
        loop = asyncio.get_running_loop()
        looking: asyncio.Future[None] | None = None
        while True:
            # A network folder may hang. Expiry is still checked meanwhile.
            looking = looking or _in_thread(loop, self._minted.reload)
            await asyncio.wait({looking}, timeout=LOOK_SECONDS)
            try:
                if looking.done():
                    done, looking = looking, None
                    done.result()
                if self.refresh():
                    on_change()
            except Exception:  # one defect must not keep later revocations from taking effect
                log.exception("cannot watch the keys: a defect in the hub")
            await asyncio.sleep(LOOK_SECONDS)

    def refresh(self) -> bool:
        """Apply the current keys; return whether a caller changed or became invalid."""
        has_lost = self._has_lost_shown()
        minted = self._minted
        has_changed = minted.keys is not self._taken or minted.is_lost != self._is_lost or self._now() >= self._next_end
        if not has_changed and minted.is_wanted == self._was_wanted:
            return has_lost
        before = self._live
        if minted.is_wanted != self._was_wanted:
            self._was_wanted = minted.is_wanted
            self._open_or_close()
        self._build()
        return has_lost or self._live != before

    def _open_or_close(self) -> None:
        """Follow `isthmus token`: the first key closes the hub, `token revoke --open` opens it."""
        if self._minted.is_wanted:
            if self._anybody is not None:
                log.warning("the hub now requires keys: one was created")
            self._anybody = None
            return
        try:
            self._anybody = self._open_to(self._configuration)
        except ConfigError as error:
            log.error("hub rejects all requests: keys unreadable", reason=str(error))
        if self._anybody is not None:
            log.warning("the hub is open again: isthmus token revoke --open removed its last key")

    def _has_lost_shown(self) -> bool:
        """Whether a verified caller became invalid; verifiers do not report that themselves."""
        now = self._clock()
        if not self._shown or now < self._shown_at + SHOWN_SECONDS:
            return False
        self._shown_at = now
        gone = [caller for caller, found in self._shown.items() if not self._is_still(caller, found)]
        for caller in gone:
            del self._shown[caller]
        return bool(gone)

    def _is_still(self, caller: Caller, found: Caller) -> bool:
        return self._bounded(found) == caller and any(verifier.knows(found) for verifier in self.verifiers)

    def _build(self) -> None:
        """Build the table of keys from the configuration and the list."""
        is_lost = self._minted.is_lost
        if is_lost and not self._is_lost:
            log.error("the list of keys was unreadable for too long: its keys are rejected")
        self._is_lost, self._taken = is_lost, self._minted.keys
        known: dict[bytes, Caller] = {}
        for digest, caller in self._configuration.callers:
            mark = FILE_MARKS + hmac.digest(_MARK, digest, "sha256")[:8].hex()
            known[digest] = replace(caller, key=mark)
        expiries = dict(self._configuration.expiries)
        for key in () if is_lost else self._usable(known):
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
        self._next_end = min((end for end in expiries.values() if end > now), default=float("inf"))
        self.on_keys(self._taken)

    @property
    def keys(self) -> Keys:
        """The keys of the state folder that are in use."""
        return self._taken

    def _usable(self, known: Mapping[bytes, Caller]) -> Keys:
        """The valid keys of the list whose names do not belong to the configuration; the others are logged once."""
        now = self._now()
        good = [key for key in self._minted.keys if key.is_good(now)]
        in_file = self._configuration.named | {caller.name for caller in known.values()}
        odd = {key.id: said for key in good if (said := self._odd(key, in_file))}
        for id in odd.keys() - self._reported:
            log.warning("a key is ignored", key=id, reason=odd[id])
        self._reported = frozenset(odd)
        return tuple(key for key in good if key.id not in odd and bytes.fromhex(key.digest) not in known)

    def _odd(self, key: MintedKey, in_file: Container[str]) -> str | None:
        if key.name in in_file:
            return f"the configuration has a caller {key.name!r} of its own"
        if key.name.partition("/")[0] in {issuer.name for issuer in self._configuration.issuers if "/" in key.name}:
            return f"{key.name!r} has the form of an issuer's caller (ISSUER/NAME)"
        tenants = self._configuration.tenants.known
        if tenants and key.tenant != DEFAULT_TENANT and key.tenant not in tenants:
            return f"the configuration has tenants, and {key.tenant!r} is not one of them"
        return None


def _in_thread(loop: asyncio.AbstractEventLoop, look: Callable[[], None]) -> asyncio.Future[None]:
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
            look()
        except Exception as error:  # noqa: BLE001 - passed on to the waiting caller
            failed = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(deliver, failed)

    # A daemon thread: a hanging folder must not keep the process from ending.
    threading.Thread(target=work, name="keys", daemon=True).start()
    return done
