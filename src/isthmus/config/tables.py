"""Reading a table of plain values, such as `[limits]`: its types here, its ranges by the settings that it fills.

A bad value refuses the file, an unknown key is only told of. Called by the modules that read one such table each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from isthmus.config.files import Document
from isthmus.config.findings import ConfigError, Finding, Place

T = TypeVar("T")
Reader = Callable[[str, object], object]


def read_table(
    document: Document, root: str, readers: Mapping[str, Reader]
) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """Return the known values of one table in their types, and the unknown keys told of.

    Raises:
        ConfigError: a value has another type.
    """
    place = Place(document.file, root)
    table = document.section(root)
    try:
        known = {key: readers[key](key, value) for key, value in table.items() if key in readers}
    except ValueError as error:
        raise ConfigError(place.mistake(error)) from error
    return known, tuple(place.unknown(key, readers) for key in table if key not in readers)


def accepted(document: Document, root: str, make: Callable[[], T]) -> T:
    """Return what is made of a table's values.

    Raises:
        ConfigError: one of them is out of its range.
    """
    try:
        return make()
    except ValueError as error:
        raise ConfigError(Place(document.file, root).mistake(error)) from error
