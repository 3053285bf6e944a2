"""The cards of other agents, of 1.0 and 0.3, read as leniently as their writers are many.

A card is a stranger's word: what is of the wrong type is left out, what is too long is cut, and only a card without a
name or a place to speak to is none. Called by the links to agents.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw

from isthmus.model.conversation import ABSENT
from isthmus.wire.a2a.cards import SCHEMAS, Card, Extension, Interface, Provider, Skill
from isthmus.wire.jsonrpc import Malformed, Payload, decode_object

SKILLS_MAX = 1_000
INTERFACES_MAX = 32
WORDS_MAX = 4_096
"""Of a name or a description, for people."""

MODES_MAX = 64
EXTENSIONS_MAX = 64

_Values: TypeAlias = Mapping[str, Any]
_DOCUMENT = msgspec.json.Decoder(dict[str, Any])
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])


def read_card(body: Payload) -> Card | str:
    """A card, or why it is none."""
    checked = decode_object(bytes(body))
    if isinstance(checked, Malformed):
        return f"the card cannot be read: {checked.message}"
    try:
        values = _DOCUMENT.decode(checked)
    except msgspec.MsgspecError as error:
        return f"the card cannot be read: {error}"
    name = _text(values, "name")
    interfaces = _interfaces(values)
    if not name or not interfaces:
        return "the card names no agent, or no place to speak to it"
    extensions = _extensions(checked)
    schemas = _schemas(extensions)
    abilities = _object(values, "capabilities")
    return Card(
        name,
        _text(values, "description"),
        _text(values, "version"),
        interfaces,
        tuple(_skill(skill, schemas) for skill in _objects(values, "skills")[:SKILLS_MAX] if _text(skill, "id")),
        _texts(values, "defaultInputModes"),
        _texts(values, "defaultOutputModes"),
        _provider(_object(values, "provider")),
        abilities.get("streaming") is True,
        abilities.get("pushNotifications") is True,
        abilities.get("extendedAgentCard") is True or values.get("supportsAuthenticatedExtendedCard") is True,
        extensions,
    )


def _interfaces(values: _Values) -> tuple[Interface, ...]:
    """Where 1.0 says it, else where 0.3 did."""
    found = [
        Interface(
            _text(each, "url"), _text(each, "protocolBinding"), _text(each, "protocolVersion"), _text(each, "tenant")
        )
        for each in _objects(values, "supportedInterfaces")[:INTERFACES_MAX]
    ]
    return tuple(each for each in found or _earlier(values) if each.url and each.binding)


def _earlier(values: _Values) -> list[Interface]:
    version = _text(values, "protocolVersion") or "0.3"
    main = Interface(_text(values, "url"), _text(values, "preferredTransport") or "JSONRPC", version)
    others = [
        Interface(_text(each, "url"), _text(each, "transport"), version)
        for each in _objects(values, "additionalInterfaces")[:INTERFACES_MAX]
    ]
    return [main, *(other for other in others if other != main)]


def _skill(values: _Values, schemas: Mapping[str, Mapping[str, Raw]]) -> Skill:
    id = _text(values, "id")
    own = schemas.get(id, {})
    return Skill(
        id,
        _text(values, "name") or id,
        _text(values, "description"),
        _texts(values, "tags"),
        _texts(values, "examples"),
        _texts(values, "inputModes"),
        _texts(values, "outputModes"),
        own.get("inputSchema", ABSENT),
        own.get("outputSchema", ABSENT),
    )


def _provider(values: _Values) -> Provider | None:
    organization = _text(values, "organization")
    return Provider(organization, _text(values, "url")) if organization else None


class _Extension(msgspec.Struct):
    uri: str = ""
    description: str | None = None
    required: bool | None = None
    params: Raw = ABSENT


_EXTENSIONS = msgspec.json.Decoder(list[Raw])
_EXTENSION = msgspec.json.Decoder(_Extension)
_SCHEMAS = msgspec.json.Decoder(dict[str, dict[str, Raw]])


def _extensions(card: Raw) -> tuple[Extension, ...]:
    """What it does beyond the protocol, the parameters as exact JSON."""
    try:
        capabilities = _MEMBERS.decode(_MEMBERS.decode(card)["capabilities"])
        listed = _EXTENSIONS.decode(capabilities["extensions"])[:EXTENSIONS_MAX]
    except (msgspec.MsgspecError, KeyError):
        return ()
    return tuple(extension for raw in listed if (extension := _extension(raw)) is not None)


def _extension(raw: Raw) -> Extension | None:
    try:
        wire = _EXTENSION.decode(raw)
    except msgspec.MsgspecError:
        return None
    words = (wire.description or "")[:WORDS_MAX]
    return Extension(wire.uri, words, wire.required is True, wire.params) if wire.uri else None


def _schemas(extensions: tuple[Extension, ...]) -> dict[str, dict[str, Raw]]:
    """What another hub says of its skills by the extension for it."""
    try:
        params = next(each.params for each in extensions if each.uri == SCHEMAS)
        return _SCHEMAS.decode(_MEMBERS.decode(params)["skills"])
    except (msgspec.MsgspecError, KeyError, StopIteration):
        return {}


def _text(values: _Values, name: str) -> str:
    value = values.get(name)
    return value[:WORDS_MAX] if isinstance(value, str) else ""


def _texts(values: _Values, name: str) -> tuple[str, ...]:
    value = values.get(name)
    found = value if isinstance(value, list) else []
    return tuple(text[:WORDS_MAX] for text in found[:MODES_MAX] if isinstance(text, str))


def _object(values: _Values, name: str) -> _Values:
    value = values.get(name)
    return value if isinstance(value, dict) else {}


def _objects(values: _Values, name: str) -> list[_Values]:
    value = values.get(name)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
