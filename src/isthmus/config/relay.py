"""The `[relay]` table into the settings of its three parts: tokens, servers that dial in, the face that devices call.

A bad value refuses the file. An agent's entry costs only itself, and a mistake in one never widens access: it is left
out whole, and where it may have forbidden something, everything is. Called by `config.load`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from isthmus.config import codes, values
from isthmus.config.callers import patterns
from isthmus.config.files import Document
from isthmus.config.findings import Finding, Mistake, Place, nearest
from isthmus.config.settings import RelayParts
from isthmus.config.tables import Reader, accepted, read_table
from isthmus.config.variables import Borrowed, Variables
from isthmus.frontends.relay.settings import RelaySettings
from isthmus.identity.keys import KeyTooShort, check_length
from isthmus.identity.relay import TokenSettings, check_name
from isthmus.model.names import parse_server_name
from isthmus.model.relay import AgentRules
from isthmus.upstream.dialin.settings import DialInSettings

ROOT = "relay"
AGENTS = "agents"

_READERS: Mapping[str, Reader] = {
    "enabled": values.flag,
    "key": values.text,
    "compatible": values.flag,
    "compatible_agents": values.text,
    "revoked": values.texts,
    "aggregate": values.text,
    "wait": values.number,
    "timeout": values.number,
    "frame_bytes": values.integer,
    "grace": values.number,
    "forget": values.number,
    "max_servers": values.integer,
    "max_tools": values.integer,
    "max_agent_connections": values.integer,
    "max_connections": values.integer,
    AGENTS: values.table,
}
_AGENT_KEYS = ("name", "allow", "deny", "grace")
_NOTHING = AgentRules(deny=("*",))


def read_relay(document: Document | None, variables: Variables) -> tuple[RelayParts, tuple[Finding, ...]]:
    """Return the settings of the relay and what is odd in them.

    Raises:
        ConfigError: a value is not acceptable.
    """
    if document is None or not document.dialect.has_hub:
        return RelayParts(), ()
    read, told = read_table(document, ROOT, _READERS)
    place = Place(document.file, ROOT)
    read[AGENTS], told_of_agents = _agents(read.get(AGENTS, {}), place.at(AGENTS))
    read["key"] = accepted(document, ROOT, lambda: _key(read.get("key"), variables))
    return accepted(document, ROOT, lambda: _parts(read)), (*told, *told_of_agents)


def _parts(read: Mapping[str, Any]) -> RelayParts:
    return RelayParts(
        tokens=TokenSettings(**_of(read, TokenSettings)),
        dialin=DialInSettings(**_of(read, DialInSettings)),
        face=RelaySettings(**_of(read, RelaySettings)),
    )


def _of(read: Mapping[str, Any], kind: type[TokenSettings | DialInSettings | RelaySettings]) -> dict[str, Any]:
    return {item.name: read[item.name] for item in fields(kind) if item.name in read}


# -- the key ---------------------------------------------------------------------------------------------------------


def _key(text: str | None, variables: Variables) -> str | None:
    if text is None:
        return None
    borrowed = Borrowed()
    key = variables.secret("key", text, borrowed)
    if borrowed.unresolved:
        found = borrowed.unresolved[0]
        raise Mistake(codes.UNRESOLVED_VARIABLE, f"key must have only variables that are set, not {found}")
    TokenSettings(key)  # which refuses what cannot be a key at all
    try:
        check_length(key)
    except KeyTooShort as error:
        raise Mistake(codes.WEAK_KEY, str(error)) from None
    return key


# -- agents ----------------------------------------------------------------------------------------------------------


def _agents(entries: Mapping[str, object], place: Place) -> tuple[dict[str, AgentRules], list[Finding]]:
    agents: dict[str, AgentRules] = {}
    findings: list[Finding] = []
    for key, entry in entries.items():
        try:
            agents[key] = _rules(key, entry)
        except ValueError as error:
            if may_forbid := _may_forbid(entry):
                agents[key] = _NOTHING
            advice = "until then its devices see nothing" if may_forbid else "this entry is left out"
            findings.append(place.at(key).mistake(error, advice=advice, code=codes.BAD_AGENT))
    return agents, findings


def _rules(key: str, entry: object) -> AgentRules:
    _check_agent(key)
    if not isinstance(entry, dict):
        raise ValueError("must be a table, not another value")
    for word in entry:
        if word not in _AGENT_KEYS:
            raise ValueError(f"must have only {', '.join(_AGENT_KEYS)}, not {values.shown(word)}")
    return AgentRules(_name(entry), patterns("allow", entry), patterns("deny", entry), _grace(entry))


def _check_agent(key: str) -> None:
    """Raises: ValueError if no token can be of this agent, by its tenant and name or, in the usual one, by its name."""
    tenant, slash, agent = key.partition("/")
    try:
        check_name("agent", agent if slash else key)
        if slash:
            check_name("tenant", tenant)
    except ValueError as error:
        raise ValueError(f"must be under the name of an agent, not {values.shown(key)}: {error}") from error


def _name(entry: Mapping[str, object]) -> str | None:
    if entry.get("name") is None:
        return None
    try:
        return parse_server_name(values.text("name", entry["name"]))
    except ValueError as error:
        raise ValueError(f"name must {str(error).partition(' must ')[2]}") from error


def _grace(entry: Mapping[str, object]) -> float | None:
    if entry.get("grace") is None:
        return None
    return DialInSettings(grace=values.number("grace", entry["grace"])).grace


def _may_forbid(entry: object) -> bool:
    """Whether somebody may have written a `deny`, however misspelt; what is no table may have meant anything."""
    return not isinstance(entry, dict) or any(nearest(word, _AGENT_KEYS) == "deny" for word in entry)
