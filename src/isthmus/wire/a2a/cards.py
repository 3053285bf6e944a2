"""An agent's card in each generation's form, written from one neutral value.

1.0 strictly, or merged with what clients of 0.3 look for; 0.3 and 0.1 alone; AgentVault's. What a card says of
addresses, permissions and abilities is decided by who fills in the value. Pure; called by the face.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw, Struct

from isthmus.model.conversation import ABSENT

BindingName: TypeAlias = Literal["JSONRPC", "HTTP+JSON", "GRPC"]
JSONRPC: BindingName = "JSONRPC"

SCHEMAS = "urn:isthmus:a2a:skill-schemas:1"
"""The extension whose params hold what skills have no place for: the schemas of what goes in and comes out, by id."""

HUBS = "urn:isthmus:a2a:hubs:1"
"""The extension whose params say which hubs are there: one that finds itself among them does not list its own tools."""

GATEWAY_NAME = "MCP Gateway Agent"
GATEWAY_MODES = ("data",)
"""What the first generation's clients of such an agent look for in its card."""

_LATEST_0_3 = "0.3.0"


class Interface(Struct, frozen=True):
    """Where the agent is spoken to, and how."""

    url: str
    binding: str = JSONRPC
    version: str = "1.0"
    tenant: str = ""


class Provider(Struct, frozen=True):
    """Who runs it."""

    organization: str
    url: str


class Skill(Struct, frozen=True):
    """Something that it can do."""

    id: str
    name: str
    description: str
    tags: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    input_modes: tuple[str, ...] = ()
    output_modes: tuple[str, ...] = ()
    input_schema: Raw = ABSENT
    output_schema: Raw = ABSENT


class Extension(Struct, frozen=True):
    """What it does beyond the protocol."""

    uri: str
    description: str = ""
    is_required: bool = False
    params: Raw = ABSENT


class ApiKey(Struct, frozen=True):
    """A key in a header of this name."""

    name: str
    description: str = ""


class Http(Struct, frozen=True):
    """A scheme of HTTP's own, as `Bearer`."""

    scheme: str
    bearer_format: str = ""
    description: str = ""


class OAuth(Struct, frozen=True):
    """OAuth 2.0: by an authorization code where there is a place to ask for one, else by client credentials."""

    token_url: str
    authorization_url: str = ""
    scopes: dict[str, str] = {}
    metadata_url: str = ""
    description: str = ""


class OpenId(Struct, frozen=True):
    """OpenID Connect."""

    url: str
    description: str = ""


class MutualTls(Struct, frozen=True):
    """A certificate of the client's."""

    description: str = ""


Scheme: TypeAlias = ApiKey | Http | OAuth | OpenId | MutualTls


class Card(Struct, frozen=True):
    """All that is said of an agent. The first interface of a kind is the one that clients should take."""

    name: str
    description: str
    version: str
    interfaces: tuple[Interface, ...]
    skills: tuple[Skill, ...]
    input_modes: tuple[str, ...]
    output_modes: tuple[str, ...]
    provider: Provider | None = None
    can_stream: bool = True
    can_push: bool = False
    has_extended: bool = False
    """There is another card for callers who prove who they are."""
    extensions: tuple[Extension, ...] = ()
    schemes: dict[str, Scheme] = {}
    requirements: tuple[dict[str, tuple[str, ...]], ...] = ()
    """Any of these lets a caller in: schemes with their scopes, all of which are needed together."""
    documentation_url: str = ""
    icon_url: str = ""

    def address(self, version: str, binding: str = JSONRPC) -> str:
        """Where this version is spoken by this binding, or by any if there is no such place."""
        fitting = [it.url for it in self.interfaces if it.binding == binding and it.version.startswith(version)]
        others = [it.url for it in self.interfaces if it.binding == binding]
        return (fitting or others or [""])[0]


Document: TypeAlias = dict[str, Any]

_encode = msgspec.json.Encoder().encode


def write_strict(card: Card) -> bytes:
    """The card of 1.0, and nothing else in it."""
    return _encode(_latest(card))


def write_merged(card: Card) -> bytes:
    """The card of 1.0 with all that clients of 0.3 look for."""
    return _encode(_merged(_latest(card), _earlier(card)))


def write_0_3(card: Card) -> bytes:
    """The card of 0.3."""
    return _encode(_earlier(card))


def _merged(one: Any, other: Any) -> Any:
    """Both together; where both have the same member, the first one's."""
    if isinstance(one, dict) and isinstance(other, dict):
        shared = {key: _merged(value, other[key]) for key, value in one.items() if key in other}
        return {**other, **one, **shared}
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [_merged(*pair) for pair in zip(one, other, strict=True)]
    return one


def _said(document: Mapping[str, Any]) -> Document:
    """Without the members that say nothing."""
    return {key: value for key, value in document.items() if value not in ("", None, [], {}, ABSENT)}


# 1.0.


def _latest(card: Card) -> Document:
    return {
        **_common(card),
        "supportedInterfaces": [_interface(interface) for interface in card.interfaces],
        "capabilities": {**_capabilities(card), "extendedAgentCard": card.has_extended},
        **_said(
            {
                "securitySchemes": {name: _wrapped(scheme) for name, scheme in card.schemes.items()},
                "securityRequirements": [_requirement(needed) for needed in card.requirements],
            }
        ),
    }


def _common(card: Card) -> Document:
    """What both generations have, in the same words."""
    return {
        "name": card.name,
        "description": card.description,
        "version": card.version,
        "defaultInputModes": list(card.input_modes),
        "defaultOutputModes": list(card.output_modes),
        "skills": [_skill(skill) for skill in card.skills],
        **_said(
            {
                "provider": _provider(card.provider),
                "documentationUrl": card.documentation_url,
                "iconUrl": card.icon_url,
            }
        ),
    }


def _provider(provider: Provider | None) -> Document:
    return {} if provider is None else {"organization": provider.organization, "url": provider.url}


def _interface(interface: Interface) -> Document:
    return _said(
        {
            "url": interface.url,
            "protocolBinding": interface.binding,
            "protocolVersion": interface.version,
            "tenant": interface.tenant,
        }
    )


def _capabilities(card: Card) -> Document:
    extensions = [_extension(extension) for extension in (*card.extensions, *_schemas(card))]
    flags = {"streaming": card.can_stream, "pushNotifications": card.can_push}
    return {**flags, **_said({"extensions": extensions})}


def _extension(extension: Extension) -> Document:
    said = {"uri": extension.uri, "description": extension.description, "params": extension.params}
    return {**_said(said), "required": extension.is_required}


def _schemas(card: Card) -> tuple[Extension, ...]:
    schemas = {
        skill.id: _said({"inputSchema": skill.input_schema, "outputSchema": skill.output_schema})
        for skill in card.skills
        if skill.input_schema or skill.output_schema
    }
    if not schemas:
        return ()
    words = "JSON Schemas of what a skill takes and gives, by the skill's id"
    return (Extension(SCHEMAS, words, params=Raw(_encode({"skills": schemas}))),)


def _skill(skill: Skill) -> Document:
    modes = {"inputModes": list(skill.input_modes), "outputModes": list(skill.output_modes)}
    return {
        "id": skill.id,
        "name": skill.name,
        # Both are required, and what is required must not be empty.
        "description": skill.description or skill.name,
        "tags": list(skill.tags) or ["mcp"],
        **_said({"examples": list(skill.examples), **modes}),
    }


def _requirement(needed: Mapping[str, tuple[str, ...]]) -> Document:
    return {"schemes": {name: {"list": list(scopes)} for name, scopes in needed.items()}}


def _wrapped(scheme: Scheme) -> Document:
    """A scheme as 1.0 has it: under the name of its kind."""
    match scheme:
        case ApiKey():
            named = {"location": "header", "name": scheme.name}
            return {"apiKeySecurityScheme": {**named, **_said({"description": scheme.description})}}
        case Http():
            said = {"bearerFormat": scheme.bearer_format, "description": scheme.description}
            return {"httpAuthSecurityScheme": {"scheme": scheme.scheme, **_said(said)}}
        case OAuth():
            said = {"oauth2MetadataUrl": scheme.metadata_url, "description": scheme.description}
            return {"oauth2SecurityScheme": {"flows": _flows(scheme), **_said(said)}}
        case OpenId():
            said = {"description": scheme.description}
            return {"openIdConnectSecurityScheme": {"openIdConnectUrl": scheme.url, **_said(said)}}
        case MutualTls():
            return {"mtlsSecurityScheme": _said({"description": scheme.description})}


def _flows(scheme: OAuth) -> Document:
    flow = {"tokenUrl": scheme.token_url, "scopes": dict(scheme.scopes)}
    if not scheme.authorization_url:
        return {"clientCredentials": flow}
    return {"authorizationCode": {"authorizationUrl": scheme.authorization_url, **flow}}


# 0.3.


def _earlier(card: Card) -> Document:
    main = card.address("0.3")
    others = [it for it in card.interfaces if it.version.startswith("0.3") and it.url != main]
    return {
        **_common(card),
        "protocolVersion": _LATEST_0_3,
        "url": main,
        "preferredTransport": JSONRPC,
        "capabilities": {**_capabilities(card), "stateTransitionHistory": False},
        "supportsAuthenticatedExtendedCard": card.has_extended,
        **_said(
            {
                "additionalInterfaces": [{"url": it.url, "transport": it.binding} for it in others],
                **_security(card),
            }
        ),
    }


def _security(card: Card) -> Document:
    return {
        "securitySchemes": {name: _flat(scheme) for name, scheme in card.schemes.items()},
        "security": [{name: list(scopes) for name, scopes in each.items()} for each in card.requirements],
    }


def _flat(scheme: Scheme) -> Document:
    """A scheme as 0.3 has it: OpenAPI's."""
    return {**_flat_kind(scheme), **_said({"description": scheme.description})}


def _flat_kind(scheme: Scheme) -> Document:
    match scheme:
        case ApiKey():
            return {"type": "apiKey", "in": "header", "name": scheme.name}
        case Http():
            return {"type": "http", "scheme": scheme.scheme, **_said({"bearerFormat": scheme.bearer_format})}
        case OAuth():
            return {"type": "oauth2", "flows": _flows(scheme)}
        case OpenId():
            return {"type": "openIdConnect", "openIdConnectUrl": scheme.url}
        case MutualTls():
            return {"type": "mutualTLS"}


# 0.1.


def write_0_1(card: Card) -> bytes:
    """The card of 0.1 and 0.2, in the words that clients of an MCP gateway know."""
    modes = list(GATEWAY_MODES)
    skills = [{**_skill(skill), "inputModes": modes, "outputModes": modes} for skill in card.skills]
    flags = {"streaming": card.can_stream, "pushNotifications": card.can_push, "stateTransitionHistory": False}
    schemes = list(dict.fromkeys(_named(scheme) for scheme in card.schemes.values()))
    said = {
        "description": card.description,
        "provider": _provider(card.provider),
        "documentationUrl": card.documentation_url,
        "authentication": {"schemes": schemes} if schemes else {},
        # Clients of 0.2 read the same path, and find here where their key belongs.
        **_security(card),
    }
    return _encode(
        {
            "name": GATEWAY_NAME,
            "url": card.address("0.1"),
            "version": card.version,
            **_said(said),
            "capabilities": flags,
            "defaultInputModes": modes,
            "defaultOutputModes": modes,
            "skills": skills,
        }
    )


def _named(scheme: Scheme) -> str:
    """A scheme by the name that its type has in OpenAPI, or in HTTP."""
    return scheme.scheme if isinstance(scheme, Http) else str(_flat(scheme)["type"])


# AgentVault.

_LOOPBACK = ("127.0.0.1", "::1")


def write_agentvault(card: Card, id: str, auth: str | None = None) -> bytes:
    """The card that AgentVault's clients read; `id` is as `organization/agent`, `auth` one scheme to list alone.

    A client takes `apiKey` where a card lists it, in whatever place, and fails if it has no key; then `oauth2`, then
    `none`. It never takes `bearer`.
    """
    provider = card.provider or Provider(card.name, "")
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
            "provider": _said({"name": provider.organization, "url": provider.url}),
            "capabilities": {
                "a2aVersion": "1.0",
                "supportedMessageParts": ["text", "data"],
                "supportsPushNotifications": card.can_push,
            },
            "authSchemes": ways or [{"scheme": "none"}],
            "skills": [_vault_skill(skill) for skill in card.skills],
        }
    )


def _accepted(url: str) -> str:
    """The address as its clients accept it: without TLS only where the host is called localhost."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname not in _LOOPBACK:
        return url
    return parts._replace(netloc="localhost" if parts.port is None else f"localhost:{parts.port}").geturl()


def _auth(scheme: Scheme, service: str) -> Document:
    """One way in. A client finds its credentials in variables that are named for the `service`."""
    match scheme:
        case ApiKey():
            return _said({"scheme": "apiKey", "service_identifier": service, "description": scheme.description})
        case OAuth():
            said = {"tokenUrl": scheme.token_url, "scopes": list(scheme.scopes), "description": scheme.description}
            return {"scheme": "oauth2", "service_identifier": service, **_said(said)}
        case Http() | OpenId() | MutualTls():
            return _said({"scheme": "bearer", "description": scheme.description})


def _vault_skill(skill: Skill) -> Document:
    schemas = {"input_schema": skill.input_schema, "output_schema": skill.output_schema}
    words = {"id": skill.id, "name": skill.name, "description": skill.description or skill.name}
    return {**words, **_said(schemas)}
