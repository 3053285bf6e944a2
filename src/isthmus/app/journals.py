"""Which journal a hub has: a database, a file, or for want of both its memory. `serve` opens it and closes it."""

from __future__ import annotations

import sqlite3
from importlib.util import find_spec
from pathlib import Path

import structlog

from isthmus.app.extensions import opened_by_extension
from isthmus.config.files import home_folder, located
from isthmus.config.findings import ConfigError, Place
from isthmus.config.settings import Configuration, HubSettings
from isthmus.config.storage import ROOT as STORAGE
from isthmus.core.ports.journal import OpenJournal
from isthmus.storage.errors import StateInUse, StateUnusable
from isthmus.storage.memory import MemoryJournal
from isthmus.storage.sqlite import SqliteJournal

log = structlog.get_logger(__name__)


async def open_journal(configuration: Configuration) -> OpenJournal:
    """Where tasks are kept; in memory if the usual folder is another hub's, which is told.

    Raises:
        ConfigError: the database or the folder that was configured cannot be used.
    """
    if configuration.storage.is_foreign:
        return await opened_by_extension(configuration)
    if configuration.storage.url is not None:
        return await _in_database(configuration)
    return _in_folder(configuration.hub)


async def _in_database(configuration: Configuration) -> OpenJournal:
    place = Place(configuration.file, STORAGE).at("url")
    if find_spec("asyncpg") is None:
        advice = "get it with: pip install 'isthmus[postgres]'"
        raise ConfigError(place.finding("needs a library that is not installed", advice=advice))
    from isthmus.storage.postgres import PostgresJournal  # noqa: PLC0415 - only who wants it has the library

    try:
        return await PostgresJournal.open(configuration.storage)
    except (StateInUse, StateUnusable) as error:
        raise ConfigError(place.finding(f"cannot be used: {error}")) from error


def _in_folder(settings: HubSettings) -> OpenJournal:
    try:
        return SqliteJournal(Path(settings.state))
    except (StateInUse, OSError, sqlite3.Error) as error:
        if settings.state != str(located(HubSettings().state, Path(), home_folder())):
            raise ConfigError(Place(None, "hub.state").finding(f"cannot be used: {error}")) from error
        log.warning("tasks will not outlast this hub", reason=str(error))
        return MemoryJournal()
