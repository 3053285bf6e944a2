"""Connects extensions from other packages to a serving hub: verifiers of callers, policies and storage.

`config.extensions` finds and loads them. An exception of an extension is logged and counts as a refusal. `serve`
calls this.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, cast

import msgspec
import structlog

from isthmus.config.finding_codes import BAD_EXTENSION
from isthmus.config.findings import ConfigError, Place
from isthmus.config.settings import Configuration
from isthmus.config.tables import STORAGE
from isthmus.core.access.policy import CustomPolicy, Policy
from isthmus.core.journal import ClosableJournal
from isthmus.identity.verifier import Verifier
from isthmus.model.callers import Caller, CallerId, Unprovable
from isthmus.model.names import FeatureName, ServerName

log = structlog.get_logger(__name__)

JOURNAL_METHODS = (
    "write",
    "read",
    "page",
    "all_in",
    "newest",
    "named",
    "prune",
    "weigh",
    "trim",
    "commit",
    "latest",
    "aclose",
)
"""The methods that a journal needs."""

CHECKED_CALLERS_MAX = 4096
"""How many checked callers of extensions are cached."""


class PolicyExtension(Protocol):
    """Can refuse what grants allow; it cannot allow anything else."""

    def allows(self, tenant: str, caller: str, server: str, tool: str) -> bool:
        """Whether this caller may see and call this tool, which its grants already allow.

        It is called when tables are built, not for every call. It must not wait. A decision is valid until a server's
        list or the configuration changes. `caller` is empty in an open hub.
        """


class ContainedVerifier:
    """An extension's verifier. Exceptions and invalid return values count as an unknown caller."""

    def __init__(self, name: str, verifier: Verifier) -> None:
        self._name = name
        self._verifier = verifier
        self._logged: set[str] = set()
        self._checked_callers: set[Caller] = set()

    def caller_of(self, credential: bytes) -> Caller | Unprovable | None:
        """The caller of a credential; None if it is invalid or of another kind. It never raises."""
        try:
            found = self._verifier.caller_of(credential)
        except Exception as error:  # noqa: BLE001 - a defect of an extension must not let anybody in
            self._log_once(type(error).__name__)
            return None
        if isinstance(found, Caller):
            try:
                is_usable = found in self._checked_callers or self._is_usable(found)
            except TypeError:  # not hashable: it has a list instead of a tuple
                is_usable = self._is_usable(found)
            return found if is_usable else None
        return found if isinstance(found, Unprovable) and isinstance(found.reason, str) else None

    def _is_usable(self, caller: Caller) -> bool:
        """Whether this is a well-formed caller; cached, because each of its calls checks it."""
        try:
            # A string instead of a tuple of patterns would be read letter by letter, and one letter may be a star.
            is_typed = msgspec.convert(msgspec.to_builtins(caller), Caller) == caller
            Policy(caller.grants)
            for _, held in caller.frontends:
                Policy(held)
            is_named = bool(caller.name and caller.tenant) and (caller.name + caller.tenant).isprintable()
        except Exception:  # noqa: BLE001 - the extension returned something that is not grants
            is_typed = is_named = False
        if not is_typed or not is_named or caller.is_anyone or caller.frontend is not None:
            self._log_once("a caller that cannot be used")
            return False
        if len(self._checked_callers) >= CHECKED_CALLERS_MAX:
            self._checked_callers.clear()
        self._checked_callers.add(caller)
        return True

    def knows(self, caller: Caller) -> bool:
        """Whether a caller that this verifier identified is still valid; if not, its sessions end within a second."""
        try:
            return self._verifier.knows(caller) is True
        except Exception as error:  # noqa: BLE001 - as above
            self._log_once(type(error).__name__)
            return False

    def _log_once(self, what: str) -> None:
        if what not in self._logged:  # once: invalid requests must not fill the log
            self._logged.add(what)
            # Without the error's text and traceback: both may contain a credential.
            log.error("an extension of isthmus.identity failed", extension=self._name, with_=what)


def verifiers_of(configuration: Configuration) -> list[Verifier]:
    """The verifiers of extensions, in configured order.

    Raises:
        ConfigError: an extension cannot be used.
    """
    extensions = configuration.extensions.in_group("identity")
    return [
        ContainedVerifier(extension.name, cast("Verifier", extension.make("caller_of", "knows")))
        for extension in extensions
    ]


def extension_policy(configuration: Configuration) -> CustomPolicy | None:
    """The policies of all extensions combined; None without any.

    Raises:
        ConfigError: an extension cannot be used.
    """
    extensions = configuration.extensions.in_group("policy")
    policies = [(extension.name, cast("PolicyExtension", extension.make("allows"))) for extension in extensions]
    return _ExtensionPolicies(policies) if policies else None


class _ExtensionPolicies:
    """Allows a tool if all policies do; an exception counts as a refusal."""

    def __init__(self, policies: Sequence[tuple[str, PolicyExtension]]) -> None:
        self._policies = policies
        self._logged: set[str] = set()

    def __call__(self, caller_id: CallerId | None, server: ServerName, tool: FeatureName) -> bool:
        tenant, caller = ("", "") if caller_id is None else (caller_id.tenant, caller_id.name)
        for name, policy in self._policies:
            try:
                if policy.allows(tenant, caller, server, tool) is not True:
                    return False
            except Exception:
                if name not in self._logged:
                    self._logged.add(name)
                    log.exception("an extension of isthmus.policy failed; the tool is refused", extension=name)
                return False
        return True


async def open_extension_journal(configuration: Configuration) -> ClosableJournal:
    """Open an extension's journal at the address of `[storage]`.

    Raises:
        ConfigError: the journal cannot be opened.
    """
    storage = configuration.storage
    extension = next(each for each in configuration.extensions.in_group("storage") if each.name == storage.scheme)
    opening = cast("Callable[[str], Awaitable[ClosableJournal]]", extension.make())
    place = Place(configuration.file, STORAGE).at("url")
    try:
        journal = await opening(storage.url or "")
    except Exception as error:
        # Without the error's text, which may contain the address with a password.
        said = f"cannot be used: isthmus.storage {extension.name} failed with {type(error).__name__}"
        raise ConfigError(place.finding(said, code=BAD_EXTENSION)) from error
    if lacking := [name for name in JOURNAL_METHODS if not callable(getattr(journal, name, None))]:
        said = f"cannot be used: the journal of isthmus.storage {extension.name} lacks {', '.join(lacking)}"
        raise ConfigError(place.finding(said, code=BAD_EXTENSION))
    return journal
