"""One example of every kind of fault, made from the constructors: a new kind is tested in every frontend at once."""

from __future__ import annotations

import inspect

from isthmus.model.fault_table import Fault, leaves
from isthmus.model.names import ServerName

SERVER = ServerName("files")

_ARGUMENTS = {
    "str": "some text",
    "int": 7,
    "float": 2.5,
    "float | None": 2.5,
    "ServerName": SERVER,
    "Executed": "unknown",
}
"""A value for each type that a fault is made from."""


def _example(kind: type[Fault]) -> Fault:
    given = {
        name: _ARGUMENTS[parameter.annotation]
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.default is parameter.empty
    }
    return kind(**given)  # type: ignore[arg-type]


EVERY_FAULT = tuple(_example(kind) for kind in leaves())
