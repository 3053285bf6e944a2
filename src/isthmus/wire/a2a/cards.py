"""Agent cards: the hub's own card written in the form of each generation, and the cards of other agents read.

The A2A frontend fills in an `AgentCard` and writes it as 1.0, as 1.0 merged with 0.3, as 0.3, 0.1 or AgentVault's form.
The links to agents read cards of 1.0 and 0.3. Reading is lenient: fields of the wrong type are ignored and long texts
are cut. Only a card without a name or an interface is rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw, Struct

from isthmus.model.tasks import ABSENT
from isthmus.wire.jsonrpc import Malformed, Payload, decode_object

BindingName: TypeAlias = Literal["JSONRPC", "HTTP+JSON", "GRPC"]
JSONRPC: BindingName = "JSONRPC"

SCHEMAS = "urn:isthmus:a2a:skill-schemas:1"
"""The extension with the input and output schemas of skills, by skill id. A skill itself has no field for them."""

HUBS = "urn:isthmus:a2a:hubs:1"
"""The extension that lists the hubs behind an agent. A hub that finds itself in the list ignores the agent's skills."""

GATEWAY_NAME = "MCP Gateway Agent"
GATEWAY_MODES = ("data",)
"""The name and modes that clients of 0.1 expect in the card of an MCP gateway."""

_LATEST_0_3 = "0.3.0"


class AgentInterface(Struct, frozen=True):
    """A URL of the agent, with its binding and version."""

    url: str
    binding: str = JSONRPC
    version: str = "1.0"
    tenant: str = ""


class AgentSkill(Struct, frozen=True):
    """A skill of the agent."""

    id: str
    name: str
    description: str
    tags: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    input_schema: Raw = ABSENT
    output_schema: Raw = ABSENT


class AgentExtension(Struct, frozen=True):
    """An extension of the protocol that the agent supports."""

    uri: str
    description: str = ""
    is_required: bool = False
    params: Raw = ABSENT


class ApiKey(Struct, frozen=True):
    """An API key in the header `name`."""

    name: str


class Http(Struct, frozen=True):
    """HTTP authentication, such as `Bearer`."""

    scheme: str


class OAuth(Struct, frozen=True):
    """OAuth 2.0 by client credentials."""

    token_url: str


Scheme: TypeAlias = ApiKey | Http | OAuth
"""How the hub's own callers can authenticate."""


class AgentCard(Struct, frozen=True):
    """An agent's card, in no generation's form. Clients prefer the first interface of a kind."""

    name: str
    description: str
    version: str
    interfaces: tuple[AgentInterface, ...]
    skills: tuple[AgentSkill, ...]
    modes: tuple[str, ...] = ()
    """The media types that the hub takes and gives."""
    can_stream: bool = True
    can_push: bool = False
    has_extended: bool = False
    """There is an extended card for authenticated callers."""
    extensions: tuple[AgentExtension, ...] = ()
    schemes: dict[str, Scheme] = {}
    """A caller needs to satisfy one of these."""

    def address(self, version: str, binding: str = JSONRPC) -> str:
        """The URL of this version and binding, or of another version if the card has no such interface."""
        fitting = [it.url for it in self.interfaces if it.binding == binding and it.version.startswith(version)]
        others = [it.url for it in self.interfaces if it.binding == binding]
        return (fitting or others or [""])[0]


Document: TypeAlias = dict[str, Any]

_encode = msgspec.json.Encoder().encode


def write_strict(card: AgentCard) -> bytes:
    """The card of 1.0 without fields of other generations."""
    return _encode(_latest(card))


def write_merged(card: AgentCard) -> bytes:
    """The card of 1.0 with the fields that clients of 0.3 need."""
    return _encode(_merged(_latest(card), _earlier(card)))


def write_0_3(card: AgentCard) -> bytes:
    """The card of 0.3."""
    return _encode(_earlier(card))


def _merged(one: Any, other: Any) -> Any:
    """Merge two documents; the first one wins where both have the same member."""
    if isinstance(one, dict) and isinstance(other, dict):
        shared = {key: _merged(value, other[key]) for key, value in one.items() if key in other}
        return {**other, **one, **shared}
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [_merged(*pair) for pair in zip(one, other, strict=True)]
    return one


def _without_empty(document: Mapping[str, Any]) -> Document:
    """A document without its empty members."""
    return {key: value for key, value in document.items() if value not in ("", None, [], {}, ABSENT)}


# 1.0.


def _latest(card: AgentCard) -> Document:
    interfaces = [
        {"url": each.url, "protocolBinding": each.binding, "protocolVersion": each.version} for each in card.interfaces
    ]
    security = {
        "securitySchemes": {name: _wrapped(scheme) for name, scheme in card.schemes.items()},
        "securityRequirements": [{"schemes": {name: {"list": []}}} for name in card.schemes],
    }
    return {
        **_common(card),
        "supportedInterfaces": interfaces,
        "capabilities": {**_capabilities(card), "extendedAgentCard": card.has_extended},
        **_without_empty(security),
    }


def _common(card: AgentCard) -> Document:
    """The fields that are the same in 1.0 and 0.3."""
    return {
        "name": card.name,
        "description": card.description,
        "version": card.version,
        "defaultInputModes": list(card.modes),
        "defaultOutputModes": list(card.modes),
        "skills": [_skill(skill) for skill in card.skills],
    }


def _capabilities(card: AgentCard) -> Document:
    schemas = {
        skill.id: _without_empty({"inputSchema": skill.input_schema, "outputSchema": skill.output_schema})
        for skill in card.skills
        if skill.input_schema or skill.output_schema
    }
    own: tuple[AgentExtension, ...] = ()
    if schemas:
        description = "JSON Schemas of the input and output of skills, by skill id"
        own = (AgentExtension(SCHEMAS, description, params=Raw(_encode({"skills": schemas}))),)
    extensions = [
        {
            **_without_empty({"uri": each.uri, "description": each.description, "params": each.params}),
            "required": each.is_required,
        }
        for each in (*card.extensions, *own)
    ]
    flags = {"streaming": card.can_stream, "pushNotifications": card.can_push}
    return {**flags, **_without_empty({"extensions": extensions})}


def _skill(skill: AgentSkill) -> Document:
    # Description and tags are required and must not be empty.
    description, tags = skill.description or skill.name, list(skill.tags) or ["mcp"]
    return {"id": skill.id, "name": skill.name, "description": description, "tags": tags}


def _wrapped(scheme: Scheme) -> Document:
    """A security scheme of 1.0: nested under the name of its type."""
    match scheme:
        case ApiKey():
            return {"apiKeySecurityScheme": {"location": "header", "name": scheme.name}}
        case Http():
            return {"httpAuthSecurityScheme": {"scheme": scheme.scheme}}
        case OAuth():
            return {"oauth2SecurityScheme": {"flows": _flows(scheme)}}


def _flows(scheme: OAuth) -> Document:
    return {"clientCredentials": {"tokenUrl": scheme.token_url, "scopes": {}}}


# 0.3.


def _earlier(card: AgentCard) -> Document:
    main = card.address("0.3")
    others = [it for it in card.interfaces if it.version.startswith("0.3") and it.url != main]
    interfaces = {"additionalInterfaces": [{"url": it.url, "transport": it.binding} for it in others]}
    return {
        **_common(card),
        "protocolVersion": _LATEST_0_3,
        "url": main,
        "preferredTransport": JSONRPC,
        "capabilities": {**_capabilities(card), "stateTransitionHistory": False},
        "supportsAuthenticatedExtendedCard": card.has_extended,
        **_without_empty({**interfaces, **_security(card)}),
    }


def _security(card: AgentCard) -> Document:
    return {
        "securitySchemes": {name: _flat(scheme) for name, scheme in card.schemes.items()},
        "security": [{name: []} for name in card.schemes],
    }


def _flat(scheme: Scheme) -> Document:
    """A security scheme of 0.3: the form of OpenAPI."""
    match scheme:
        case ApiKey():
            return {"type": "apiKey", "in": "header", "name": scheme.name}
        case Http():
            return {"type": "http", "scheme": scheme.scheme}
        case OAuth():
            return {"type": "oauth2", "flows": _flows(scheme)}


# 0.1.


def write_0_1(card: AgentCard) -> bytes:
    """The card of 0.1 and 0.2, as clients of an MCP gateway expect it."""
    modes = list(GATEWAY_MODES)
    skills = [{**_skill(skill), "inputModes": modes, "outputModes": modes} for skill in card.skills]
    flags = {"streaming": card.can_stream, "pushNotifications": card.can_push, "stateTransitionHistory": False}
    schemes = list(
        dict.fromkeys(
            scheme.scheme if isinstance(scheme, Http) else str(_flat(scheme)["type"])
            for scheme in card.schemes.values()
        )
    )
    said = {
        "description": card.description,
        "authentication": {"schemes": schemes} if schemes else {},
        # Clients of 0.2 read the same path, and need these to know where to send their key.
        **_security(card),
    }
    return _encode(
        {
            "name": GATEWAY_NAME,
            "url": card.address("0.1"),
            "version": card.version,
            **_without_empty(said),
            "capabilities": flags,
            "defaultInputModes": modes,
            "defaultOutputModes": modes,
            "skills": skills,
        }
    )


# AgentVault.

_LOOPBACK = ("127.0.0.1", "::1")


def write_agentvault(card: AgentCard, id: str, auth: str | None = None) -> bytes:
    """The card for AgentVault's clients. `id` is `organization/agent`; `auth` restricts the card to one scheme.

    A client uses `apiKey` if the card lists it at all, and fails if it has no key; otherwise `oauth2`, then `none`. It
    never uses `bearer`.
    """
    ways = [_auth(scheme, id.partition("/")[0]) for scheme in card.schemes.values()]
    ways = [way for way in ways if way["scheme"] == auth] or ways
    return _encode(
        {
            "schemaVersion": "1.0",
            "humanReadableId": id,
            "agentVersion": card.version,
            "name": card.name,
            "description": card.description,
            "url": _accepted(card.address("agentvault")),
            "provider": {"name": card.name},
            "capabilities": {
                "a2aVersion": "1.0",
                "supportedMessageParts": ["text", "data"],
                "supportsPushNotifications": card.can_push,
            },
            "authSchemes": ways or [{"scheme": "none"}],
            "skills": [
                {
                    "id": skill.id,
                    "name": skill.name,
                    "description": skill.description or skill.name,
                    **_without_empty({"input_schema": skill.input_schema, "output_schema": skill.output_schema}),
                }
                for skill in card.skills
            ],
        }
    )


def _accepted(url: str) -> str:
    """The URL as its clients accept it: plain HTTP only if the host is called localhost."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname not in _LOOPBACK:
        return url
    return parts._replace(netloc="localhost" if parts.port is None else f"localhost:{parts.port}").geturl()


def _auth(scheme: Scheme, service: str) -> Document:
    """One scheme. A client takes its credentials from variables named after the `service`."""
    match scheme:
        case ApiKey():
            return {"scheme": "apiKey", "service_identifier": service}
        case OAuth():
            return {"scheme": "oauth2", "service_identifier": service, "tokenUrl": scheme.token_url}
        case Http():
            return {"scheme": "bearer"}


# Reading the cards of other agents.

SKILLS_MAX = 1_000
INTERFACES_MAX = 32
TEXT_LENGTH_MAX = 4_096
"""Length of a name or a description."""

TEXTS_MAX = 64
"""Tags or examples of one skill."""

EXTENSIONS_MAX = 64

_JsonObject: TypeAlias = Mapping[str, Any]
_DOCUMENT = msgspec.json.Decoder(dict[str, Any])
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])


def read_card(body: Payload) -> AgentCard | str:
    """Read a card; a string says why it cannot be used."""
    checked = decode_object(bytes(body))
    if isinstance(checked, Malformed):
        return f"the card cannot be read: {checked.message}"
    try:
        values = _DOCUMENT.decode(checked)
    except msgspec.MsgspecError as error:
        return f"the card cannot be read: {error}"
    name = _text(values, "name")
    interfaces = _read_interfaces(values)
    if not name or not interfaces:
        return "the card has no name, or no interface"
    extensions = _read_extensions(checked)
    schemas = _read_schemas(extensions)
    given = values.get("capabilities")
    capabilities: _JsonObject = given if isinstance(given, dict) else {}
    is_extended = capabilities.get("extendedAgentCard") is True
    return AgentCard(
        name,
        _text(values, "description"),
        _text(values, "version"),
        interfaces,
        tuple(_read_skill(skill, schemas) for skill in _objects(values, "skills")[:SKILLS_MAX] if _text(skill, "id")),
        can_stream=capabilities.get("streaming") is True,
        can_push=capabilities.get("pushNotifications") is True,
        has_extended=is_extended or values.get("supportsAuthenticatedExtendedCard") is True,
        extensions=extensions,
    )


def _read_interfaces(values: _JsonObject) -> tuple[AgentInterface, ...]:
    """The interfaces by the fields of 1.0, else by those of 0.3."""
    found = [
        AgentInterface(
            _text(each, "url"), _text(each, "protocolBinding"), _text(each, "protocolVersion"), _text(each, "tenant")
        )
        for each in _objects(values, "supportedInterfaces")[:INTERFACES_MAX]
    ]
    if not found:
        version = _text(values, "protocolVersion") or "0.3"
        main = AgentInterface(_text(values, "url"), _text(values, "preferredTransport") or "JSONRPC", version)
        others = [
            AgentInterface(_text(each, "url"), _text(each, "transport"), version)
            for each in _objects(values, "additionalInterfaces")[:INTERFACES_MAX]
        ]
        found = [main, *(other for other in others if other != main)]
    return tuple(each for each in found if each.url and each.binding)


def _read_skill(values: _JsonObject, schemas: Mapping[str, Mapping[str, Raw]]) -> AgentSkill:
    id = _text(values, "id")
    own = schemas.get(id, {})
    return AgentSkill(
        id,
        _text(values, "name") or id,
        _text(values, "description"),
        _texts(values, "tags"),
        _texts(values, "examples"),
        own.get("inputSchema", ABSENT),
        own.get("outputSchema", ABSENT),
    )


class _ExtensionObject(msgspec.Struct):
    uri: str = ""
    description: str | None = None
    required: bool | None = None
    params: Raw = ABSENT


_EXTENSIONS = msgspec.json.Decoder(list[Raw])
_EXTENSION = msgspec.json.Decoder(_ExtensionObject)
_SCHEMAS = msgspec.json.Decoder(dict[str, dict[str, Raw]])


def _read_extensions(card: Raw) -> tuple[AgentExtension, ...]:
    """The extensions, with their parameters as exact JSON."""
    try:
        capabilities = _MEMBERS.decode(_MEMBERS.decode(card)["capabilities"])
        listed = _EXTENSIONS.decode(capabilities["extensions"])[:EXTENSIONS_MAX]
    except (msgspec.MsgspecError, KeyError):
        return ()
    extensions: list[AgentExtension] = []
    for raw in listed:
        with suppress(msgspec.MsgspecError):
            wire = _EXTENSION.decode(raw)
            description = (wire.description or "")[:TEXT_LENGTH_MAX]
            if wire.uri:
                extensions.append(AgentExtension(wire.uri, description, wire.required is True, wire.params))
    return tuple(extensions)


def _read_schemas(extensions: tuple[AgentExtension, ...]) -> dict[str, dict[str, Raw]]:
    """The schemas of skills that another hub gives in its extension."""
    try:
        params = next(each.params for each in extensions if each.uri == SCHEMAS)
        return _SCHEMAS.decode(_MEMBERS.decode(params)["skills"])
    except (msgspec.MsgspecError, KeyError, StopIteration):
        return {}


def _text(values: _JsonObject, name: str) -> str:
    value = values.get(name)
    return value[:TEXT_LENGTH_MAX] if isinstance(value, str) else ""


def _texts(values: _JsonObject, name: str) -> tuple[str, ...]:
    value = values.get(name)
    found = value if isinstance(value, list) else []
    return tuple(text[:TEXT_LENGTH_MAX] for text in found[:TEXTS_MAX] if isinstance(text, str))


def _objects(values: _JsonObject, name: str) -> list[_JsonObject]:
    value = values.get(name)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
