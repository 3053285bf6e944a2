"""The `[hub]` and `[limits]` tables of a file into the settings of the hub as a whole.

Types are checked here, ranges by the settings. Unlike a server's entry a bad value here refuses the file: a
hub that listens elsewhere than it was told is worse than none. Called by `config.load`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from isthmus.config import values
from isthmus.config.files import Document, located
from isthmus.config.findings import ConfigError, Finding, Place
from isthmus.config.settings import HubSettings
from isthmus.core.settings import Limits

Reader = Callable[[str, object], object]

_HUB_READERS: Mapping[str, Reader] = {
    "host": values.text,
    "port": values.integer,
    "public_url": values.text,
    "names": values.text,
    "state": values.text,
    "log_level": values.text,
    "log_format": values.text,
    "allowed_hosts": values.texts,
    "allowed_origins": values.texts,
}
_LIMITS_READERS: Mapping[str, Reader] = {
    limit.name: values.integer if isinstance(limit.default, int) else values.number for limit in fields(Limits)
}


def read_hub(
    document: Document | None, home: Path, given: Mapping[str, object]
) -> tuple[HubSettings, tuple[Finding, ...]]:
    """Return the hub's settings and what is odd in them; `given` by the command line wins over the file.

    Raises:
        ConfigError: a value is not acceptable.
    """
    if document is None:
        return _hub({}, Limits(), home, home, given), ()
    hub, told = _read(document, "hub", _HUB_READERS)
    limits, told_of_limits = _read(document, "limits", _LIMITS_READERS)
    try:
        made = Limits(**limits)
    except ValueError as error:
        raise ConfigError(Place(document.file, "limits").mistake(error)) from error
    try:
        HubSettings(**hub)
    except ValueError as error:
        raise ConfigError(Place(document.file, "hub").mistake(error)) from error
    return _hub(hub, made, document.file.parent, home, given), (*told, *told_of_limits)


def _hub(read: Mapping[str, Any], limits: Limits, folder: Path, home: Path, given: Mapping[str, Any]) -> HubSettings:
    state = str(located(read.get("state", HubSettings().state), folder, home))
    try:
        return HubSettings(**{**read, "limits": limits, "state": state, **given})
    except ValueError as error:
        # The file's own values were accepted before, so it is an option that is wrong.
        raise ConfigError(Place(None).mistake(ValueError(f"--{error}"))) from error


def _read(document: Document, root: str, readers: Mapping[str, Reader]) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """Return the known values of one table in their types, and the unknown keys told of."""
    place = Place(document.file, root)
    table = document.section(root)
    try:
        known = {key: readers[key](key, value) for key, value in table.items() if key in readers}
    except ValueError as error:
        raise ConfigError(place.mistake(error)) from error
    return known, tuple(place.unknown(key, readers) for key in table if key not in readers)
