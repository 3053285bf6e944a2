"""The `[hub]`, `[log]` and `[limits]` tables of a file into the settings of the hub as a whole.

Types are checked here, ranges by the settings. Unlike a server's entry a bad value here refuses the file: a
hub that listens elsewhere than it was told is worse than none. Called by `config.load`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from isthmus.config import values
from isthmus.config.files import Document, located
from isthmus.config.findings import ConfigError, Finding, Place
from isthmus.config.settings import HubSettings
from isthmus.config.tables import Reader, accepted, read_table
from isthmus.core.settings import CALL_SECONDS, Limits

_HUB_READERS: Mapping[str, Reader] = {
    "host": values.text,
    "port": values.integer,
    "public_url": values.text,
    "names": values.text,
    "audit": values.text,
    "pin": values.text,
    "open_programs": values.text,
    "state": values.text,
    "tools": values.texts,
    "log_level": values.text,
    "log_format": values.text,
    "hosts": values.texts,
    "origins": values.texts,
    "allowed_hosts": values.texts,
    "allowed_origins": values.texts,
}
_EARLIER = {"allowed_hosts": "hosts", "allowed_origins": "origins"}
"""What settings were called, and are."""
_LOG_READERS: Mapping[str, Reader] = {"file": values.text, "format": values.text, "level": values.text}
_LIMITS_READERS: Mapping[str, Reader] = {
    limit.name: values.integer if isinstance(limit.default, int) else values.number for limit in fields(Limits)
}


def read_hub(
    document: Document | None, home: Path, given: Mapping[str, object], call_seconds: float | None = None
) -> tuple[HubSettings, tuple[Finding, ...]]:
    """Return the hub's settings and what is odd in them; `given` by the command line wins over the file.

    `call_seconds` stands in where the file has no `limits.call_seconds`.

    Raises:
        ConfigError: a value is not acceptable.
    """
    if document is None or not document.dialect.has_hub:
        return _hub({}, _limits({}, call_seconds), home, home, given), ()
    hub, told = read_table(document, "hub", _HUB_READERS)
    accepted(document, "hub", lambda: _rename(hub))
    # Elsewhere a `log` may be anything, and of anybody.
    log, told_of_log = read_table(document, "log", _LOG_READERS) if document.dialect.is_own else ({}, ())
    read, told_of_limits = read_table(document, "limits", _LIMITS_READERS)
    limits = accepted(document, "limits", lambda: _limits(read, call_seconds))
    accepted(document, "hub", lambda: HubSettings(**hub))
    accepted(document, "log", lambda: _check_log(log))
    hub.update({f"log_{key}": value for key, value in log.items()})
    return _hub(hub, limits, document.file.parent, home, given), (*told, *told_of_log, *told_of_limits)


def _rename(hub: dict[str, Any]) -> None:
    """Take what has an earlier name under its present one."""
    for earlier, name in _EARLIER.items():
        if earlier in hub:
            if name in hub:
                raise ValueError(f"{earlier} must be left out where {name} is given, not be beside it")
            hub[name] = hub.pop(earlier)


def _limits(read: Mapping[str, Any], call_seconds: float | None) -> Limits:
    if "call_seconds" in read:
        return Limits(**read)
    if call_seconds is None:
        call_seconds = CALL_SECONDS
    limits = Limits(**{"call_seconds": 0.001, **read})  # so that only what the file has can be wrong here
    return replace(limits, call_seconds=min(call_seconds, limits.hard_seconds))


def _check_log(log: Mapping[str, Any]) -> None:
    try:
        HubSettings(**{f"log_{key}": value for key, value in log.items()})
    except ValueError as error:
        raise ValueError(str(error).removeprefix("log_")) from error


def _hub(read: Mapping[str, Any], limits: Limits, folder: Path, home: Path, given: Mapping[str, Any]) -> HubSettings:
    paths = {"state": str(located(read.get("state", HubSettings().state), folder, home))}
    if read.get("log_file"):
        paths["log_file"] = str(located(read["log_file"], folder, home))
    try:
        return HubSettings(**{**read, "limits": limits, **paths, **given})
    except ValueError as error:
        # The file's own values were accepted before, so it is an option that is wrong.
        raise ConfigError(Place(None).mistake(ValueError(f"--{error}"))) from error
