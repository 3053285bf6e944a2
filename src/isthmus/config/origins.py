"""Where each value of a configuration was written, for `isthmus config show --origin`.

It names what was given; whatever it does not name is a default. Called by `config.load`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from isthmus.config.callers import ROOT as CALLERS
from isthmus.config.entries import Entry
from isthmus.config.files import Document
from isthmus.config.findings import Place
from isthmus.config.relay import AGENTS
from isthmus.config.relay import ROOT as RELAY
from isthmus.config.servers import Roster
from isthmus.config.settings import Origin

_PLACEHOLDER = re.compile(r"\$\{([^{}]*)\}")
_TABLES = ("hub", "log", "limits", "a2a", "tasks", "targets", "storage", "audit", "credentials", RELAY)


def origins_of(
    document: Document | None, roster: Roster, given: Mapping[str, object], variables: Mapping[str, str]
) -> dict[str, Origin]:
    """Return the origin of everything that is not a default, by its path.

    `variables` are those of the environment that stand in where a file says nothing, by the path they fill.
    """
    origins = {path: Origin(None, name) for path, name in variables.items()}
    if document is not None and document.dialect.has_hub:
        origins.update((*_of_tables(document), *_of_callers(document), *_of_agents(document)))
    origins.update({f"hub.{key}": Origin(None, f"--{key}") for key in given})
    for name in roster.servers:
        origins.update(_of_entry(Place(None, "servers").at(name), roster.entries[name]))
    return origins


def _of_tables(document: Document) -> Iterator[tuple[str, Origin]]:
    for root in _TABLES:
        place = Place(document.file, root)
        for key, value in document.section(root).items():
            path = f"hub.log_{key}" if root == "log" else place.at(key).path
            yield path, Origin(document.file, place.at(key).path, tuple(dict.fromkeys(_placeholders(value))))


def _of_callers(document: Document) -> Iterator[tuple[str, Origin]]:
    return _of_named(document.section(CALLERS), Place(document.file, CALLERS))


def _of_agents(document: Document) -> Iterator[tuple[str, Origin]]:
    agents = document.section(RELAY).get(AGENTS)
    return _of_named(agents if isinstance(agents, dict) else {}, Place(document.file, RELAY).at(AGENTS))


def _of_named(entries: Mapping[str, object], root: Place) -> Iterator[tuple[str, Origin]]:
    for name, fields in entries.items():
        place = root.at(name)
        yield place.path, Origin(root.file, place.path)
        for key, value in fields.items() if isinstance(fields, dict) else ():
            here = place.at(key).path
            yield here, Origin(root.file, here, tuple(dict.fromkeys(_placeholders(value))))


def _of_entry(place: Place, entry: Entry) -> Iterator[tuple[str, Origin]]:
    yield place.path, Origin(entry.place.file, entry.place.path)
    for key, value in entry.fields.items():
        origin = entry.at(key)
        yield place.at(key).path, Origin(origin.file, origin.path, tuple(dict.fromkeys(_placeholders(value))))


def _placeholders(value: object) -> Iterator[str]:
    """Yield what a value borrows, without defaults, which may be anything."""
    match value:
        case str():
            is_reference = value.startswith(("env:", "file:", "keyring:"))
            yield from [value] if is_reference else [found.partition(":-")[0] for found in _PLACEHOLDER.findall(value)]
        case list():
            yield from (name for item in value for name in _placeholders(item))
        case dict():
            yield from (name for item in value.values() for name in _placeholders(item))
        case _:
            pass
