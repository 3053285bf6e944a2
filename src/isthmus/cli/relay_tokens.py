"""`isthmus token relay|revoke|read`: makes the relay's addresses, revokes tokens, and says what one claims.

The keys of callers are in `cli.keys`.

It works on the key and the state folder as the hub does, and needs none that runs. What it prints for the person who
asked is a secret; nothing else that it says quotes a token.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec

from isthmus.app.relay_keys import KnownAgents, Revocations, key_file, note_issued, relay_key, revoke
from isthmus.cli.addresses import (
    EVERY_ADDRESS,
    configured_origin,
    device_address,
    health_address,
    relay_base,
    server_address,
)
from isthmus.cli.durations import seconds_of
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.output import aligned, say, write, write_json
from isthmus.cli.sources import configuration_for_keys, configuration_of
from isthmus.config.settings import Configuration
from isthmus.identity import relay as identity
from isthmus.identity.relay import RelayTokens, is_clean
from isthmus.model.relay import Claim, Role

SERVER_ID_LENGTH_MAX = 64
STDIN_BYTES = 64 * 1024
"""Far more than any token, or the address with it."""

KEY_SHOWN = "KEY"
"""Stands in an address for the relay's key, where that was not asked for."""

WHY = {
    identity.NONE_SHOWN: "there is none",
    identity.NOT_DECRYPTED: "it was not made with this hub's key, or is damaged",
    identity.NOT_READ: "it was made with this hub's key, and what it says cannot be used",
    identity.NO_AGENT: "it names no agent",
    identity.NOT_COMPATIBLE: "it is of the original's kind, which [relay] compatible = false refuses",
    identity.UNKNOWN_AGENT: "it is of the original's kind, for an agent that is neither configured nor has such a token"
    " from this hub (see [relay] compatible_agents)",
    identity.SPLICEABLE: "its parts are all in tokens of other agents, so that anyone with those can make it",
    identity.FORGED: "it was not made with this hub's key, or was changed",
    identity.EXPIRED: "it has expired",
    identity.REVOKED: "it was revoked",
}
"""Why a token is refused, for the person at the terminal; sockets are closed in the original's words."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What kind of token is to be made, for which address."""

    agent: str
    server_id: str | None = None
    role: Role | None = None
    tenant: str | None = None
    expires: str | None = None
    is_compatible: bool = False
    url: str | None = None
    has_health: bool = False
    is_json: bool = False


@dataclass(frozen=True, slots=True)
class Minted:
    """A token, what it claims, and the addresses with it."""

    token: str
    claim: Claim
    server: str | None
    device: str | None
    xiaozhi: str | None
    """What a xiaozhi server's configuration takes for its devices: it wants `/mcp/`, and calls at `/call/` itself."""
    health: str | None
    """Where its manager asks how the relay is, with the key."""


# -- making ----------------------------------------------------------------------------------------------------------


def mint_token(file: Path | None, wanted: Wanted) -> Exit:
    """Print the addresses of an agent, each ready to paste.

    Raises:
        CommandFailed: there can be no such token, or no key.
    """
    _check(wanted)
    configuration = configuration_of(file)
    base = relay_base(wanted.url or configuration.hub.public_url or configured_origin(configuration.hub))
    minted = _minted(wanted, configuration, base)
    if wanted.is_json:
        write_json(_as_json(minted))
    else:
        without_key = health_address(base, KEY_SHOWN) if wanted.role is None else None
        write("\n".join(aligned(list(_rows(minted, without_key)))))
    for note in _notes(wanted, minted, configuration):
        say(note)
    return Exit.WELL


def _check(wanted: Wanted) -> None:
    """Raises: CommandFailed if the options contradict each other, or one is out of its range."""
    if wanted.is_compatible and (wanted.role or wanted.tenant or wanted.expires):
        said = "--compatible excludes --role, --tenant and --expires: the original's tokens have none of these"
        raise CommandFailed(Exit.USAGE, said, "Leave --compatible out to have a token that says them.")
    if wanted.server_id is not None:
        if wanted.role == "device":
            said = "--server-id is a server's, and --role device makes no address for one"
            raise CommandFailed(Exit.USAGE, said, "Leave one of them out.")
        if not (0 < len(wanted.server_id) <= SERVER_ID_LENGTH_MAX and wanted.server_id.isprintable()):
            said = f"--server-id must be 1 to {SERVER_ID_LENGTH_MAX} printable characters, not {wanted.server_id!r}"
            raise CommandFailed(Exit.USAGE, said, "Choose another.")


def _minted(wanted: Wanted, configuration: Configuration, base: str) -> Minted:
    tokens = tokens_of(configuration)
    token = _compatible(wanted, tokens, configuration) if wanted.is_compatible else _own(wanted, tokens)
    claim = tokens_of(configuration).prove(token)  # which knows the agent by now
    assert isinstance(claim, Claim), "what was just made can be read"
    server = None if wanted.role == "device" else server_address(base, token, wanted.server_id)
    health = health_address(base, _key_of(configuration)) if wanted.has_health else None
    if wanted.role == "server":
        return Minted(token, claim, server, None, None, health)
    return Minted(token, claim, server, device_address(base, token), server_address(base, token), health)


def _own(wanted: Wanted, tokens: RelayTokens) -> str:
    asked = Claim(wanted.agent, role=wanted.role, expires_at=_end(wanted.expires))
    try:
        return tokens.mint(msgspec.structs.replace(asked, tenant=wanted.tenant) if wanted.tenant else asked)
    except ValueError as error:
        raise _unnameable(error) from None


def _compatible(wanted: Wanted, tokens: RelayTokens, configuration: Configuration) -> str:
    if not configuration.relay.tokens.compatible:
        said = "this hub does not accept the original's tokens: [relay] compatible is false"
        raise CommandFailed(Exit.CONFIGURATION, said, "Leave --compatible out.")
    try:
        token = tokens.mint_compatible(wanted.agent)
    except ValueError as error:
        raise _unnameable(error) from None
    if wanted.agent not in configuration.relay.face.agents:
        try:
            note_issued(wanted.agent, _state(configuration))
        except OSError as error:
            raise _unusable(_state(configuration), error) from error
    return token


def _unnameable(error: ValueError) -> CommandFailed:
    return CommandFailed(Exit.USAGE, f"the {error}", "Choose another name.")


def _end(expires: str | None) -> float | None:
    """When a token made now ends."""
    if expires is None:
        return None
    advice = "Leave it out for a token that does not end by itself."
    return round(time.time()) + seconds_of("--expires", expires, advice)


def _rows(minted: Minted, without_key: str | None) -> Iterator[tuple[str, str]]:
    if minted.server is not None:
        yield "server", minted.server
    if minted.device is not None:
        yield "device", minted.device
    if minted.xiaozhi is not None:
        yield "xiaozhi", minted.xiaozhi
    if (health := minted.health or without_key) is not None:
        yield "health", health
    if minted.claim.id:
        yield "id", minted.claim.id
        yield "expires", _shown(minted.claim.expires_at)


def _as_json(minted: Minted) -> bytes:
    addresses = {name: getattr(minted, name) for name in ("server", "device", "xiaozhi", "health")}
    return msgspec.json.encode({**_claimed(minted.claim), "token": minted.token, **addresses})


def _notes(wanted: Wanted, minted: Minted, configuration: Configuration) -> Iterator[str]:
    """What else the person should know, without the token."""
    if not configuration.relay.face.enabled:
        yield "The relay is switched off: [relay] enabled is false."
    if wanted.is_compatible:
        yield "It opens both ends for ever, and cannot be revoked but by another key."
        yield "Hubs with another state folder accept it only if they have [relay.agents] for this agent."
        if refused := tokens_of(configuration).spliceable():
            told = ", ".join(refused)
            yield f"Refused from now on, because this and other tokens have all parts of theirs: tokens of {told}."
    if wanted.url is None and configuration.hub.public_url is None and configuration.hub.host in EVERY_ADDRESS:
        yield "The addresses are for this machine: say with --url how others reach the hub."
    if minted.xiaozhi is not None and not is_clean(minted.xiaozhi):
        yield "A xiaozhi server refuses its address, because the host or path has `key` or `call` in it."
    if wanted.has_health:
        yield "The health address holds the relay's key, which makes tokens of every agent: keep it secret."
        if configuration.relay.tokens.compatible_agents == "known":
            yield 'The tokens that a manager makes with it need [relay] compatible_agents = "md5".'
    elif wanted.role is None and not wanted.is_json:
        own = configuration.relay.tokens.key is not None
        where = "what [relay] key says" if own else f"in {key_file(_state(configuration)).absolute()}"
        yield f"{KEY_SHOWN} in the health address, which a manager is given, is {where}; --health prints it."


# -- the others ------------------------------------------------------------------------------------------------------


def revoke_token(file: Path | None, id: str) -> Exit:
    """Note that a token of the relay is good no more.

    Raises:
        CommandFailed: it cannot be noted.
    """
    state = _state(configuration_for_keys(file)[0])
    try:
        revoke(id, state)
    except OSError as error:
        raise _unusable(state, error) from error
    write(f"revoked {id}")
    return Exit.WELL


def read_token(file: Path | None, *, is_json: bool) -> Exit:
    """Print what the token on standard input claims, and whether it is good.

    Raises:
        CommandFailed: this hub did not make it.
    """
    token = _token_in(_given())
    tokens = tokens_of(configuration_of(file))
    claim, read = tokens.prove(token), tokens.read(token)
    if isinstance(claim, str):
        raise CommandFailed(
            Exit.NOT_ALLOWED, f"no token that this hub takes: {WHY[claim]}", "Make one: isthmus token relay AGENT"
        )
    state = read if isinstance(read, str) else None
    if is_json:
        write_json(msgspec.json.encode({**_claimed(claim), "good": state is None, "reason": _why(state)}))
    else:
        told = {**_claimed(claim), "state": _why(state) or "good", "expires": _shown(claim.expires_at)}
        write("\n".join(aligned([(word, str(value)) for word, value in told.items() if value is not None])))
    return Exit.WELL if state is None else Exit.NOT_ALLOWED


def _why(state: str | None) -> str | None:
    return None if state is None else WHY[state]


def _given() -> str:
    """What is on standard input; a person is asked, and what they type is not shown."""
    if sys.stdin.isatty():
        import click

        asked: str = click.prompt("Token", hide_input=True, err=True)
        return asked
    return sys.stdin.buffer.read(STDIN_BYTES).decode(errors="replace")


def _token_in(text: str) -> str:
    """The token, also of an address that has it."""
    text = text.strip()
    try:
        found = parse_qs(urlsplit(text).query).get("token") if "://" in text else None
    except ValueError:
        found = None
    return found[0] if found else text


def _claimed(claim: Claim) -> dict[str, object]:
    return {
        "agent": claim.agent,
        "tenant": claim.tenant,
        "role": claim.role or "both",
        "id": claim.id or None,
        "expires": None if claim.expires_at is None else _shown(claim.expires_at),
    }


def _shown(expires_at: float | None) -> str:
    return "never" if expires_at is None else datetime.fromtimestamp(expires_at, UTC).isoformat(timespec="seconds")


def tokens_of(configuration: Configuration) -> RelayTokens:
    """The tokens of the hub that has this configuration.

    Raises:
        CommandFailed: its key can neither be read nor made.
    """
    settings = configuration.relay.tokens
    revocations = Revocations(_state(configuration), settings.revoked)
    known = KnownAgents(_state(configuration), configuration.relay.face.agents)
    return RelayTokens(_key_of(configuration), settings, time.time, revocations.has, known)


def _key_of(configuration: Configuration) -> str:
    state = _state(configuration)
    try:
        return relay_key(configuration.relay.tokens.key, state)
    except OSError as error:
        raise _unusable(state, error) from error
    except ValueError as error:
        raise CommandFailed(
            Exit.CONFIGURATION, str(error), "Tokens that were made before are good no more then."
        ) from None


def _state(configuration: Configuration) -> Path:
    return Path(configuration.hub.state)


def _unusable(state: Path, error: OSError) -> CommandFailed:
    said = f"the state folder {state} cannot be used: {error.strerror}"
    return CommandFailed(
        Exit.CONFIGURATION, said, "Run this as the user that the hub runs as, or name another under [hub]."
    )
