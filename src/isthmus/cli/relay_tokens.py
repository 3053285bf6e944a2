"""`isthmus token relay`, `read` and `revoke`: makes the relay's addresses, reads tokens, revokes them.

Works on the key and the state folder of the hub, whether or not the hub runs. Addresses hold a secret token; no other
output quotes one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import msgspec

from isthmus.app.relay_keys import KnownAgents, RelayStore, Revocations, key_file, note_issued, relay_key, revoke
from isthmus.app.shared_state import is_shared, relay_store
from isthmus.app.state_folder import find_running
from isthmus.cli.config import configuration_for_keys, configuration_of
from isthmus.cli.exits import CommandFailed, Exit, refused
from isthmus.cli.options import parse_duration
from isthmus.cli.output import aligned, print_error, print_json, print_output
from isthmus.config.findings import ConfigError
from isthmus.config.settings import EVERY_ADDRESS, Configuration, HubSettings, local_origin
from isthmus.identity.relay_tokens import WHY, RelayTokens, is_clean
from isthmus.model.relay import Claim, Role

RELAY_PATH = "/mcp_endpoint"

_SCHEMES = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}

SERVER_ID_LENGTH_MAX = 64
STDIN_BYTES = 64 * 1024
"""More than any token, or an address with one, can have."""

KEY_SHOWN = "KEY"
"""Stands for the relay's key in an address, unless --health asks for it."""


@dataclass(frozen=True, slots=True)
class RelayTokenOptions:
    """The token to make, and the hub's address."""

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
class RelayAddresses:
    """A token, its claims, and the addresses that contain it."""

    token: str
    claim: Claim
    server: str | None
    device: str | None
    xiaozhi: str | None
    """For the configuration of a xiaozhi server: it expects `/mcp/`, and uses `/call/` by itself."""
    health: str | None
    """Where a manager asks for the relay's health; contains the relay's key."""


# -- making ----------------------------------------------------------------------------------------------------------


def mint_token(file: Path | None, options: RelayTokenOptions) -> Exit:
    """Print the addresses of an agent, ready to paste.

    Raises:
        CommandFailed: the options are invalid, or the key cannot be read.
    """
    _check(options)
    configuration = configuration_of(file)
    hub = configuration.hub
    running = find_running(Path(hub.state))
    base = relay_base(options.url or hub.public_url or (running.origin if running else configured_origin(hub)))
    minted = _minted(options, configuration, base)
    if options.is_json:
        fields = {name: getattr(minted, name) for name in ("token", "server", "device", "xiaozhi", "health")}
        print_json(msgspec.json.encode({**_claimed(minted.claim), **fields}))
    else:
        without_key = health_address(base, KEY_SHOWN) if options.role is None else None
        addresses = {
            "server": minted.server,
            "device": minted.device,
            "xiaozhi": minted.xiaozhi,
            "health": minted.health or without_key,
        }
        rows = [(name, address) for name, address in addresses.items() if address is not None]
        if minted.claim.id:
            rows += [("id", minted.claim.id), ("expires", _shown(minted.claim.expires_at))]
        print_output("\n".join(aligned(rows)))
    for note in _notes(options, minted, configuration):
        print_error(note)
    return Exit.SUCCESS


def _check(options: RelayTokenOptions) -> None:
    """Raises: CommandFailed if options exclude each other, or one is out of range."""
    if options.is_compatible and (options.role or options.tenant or options.expires):
        text = "--compatible excludes --role, --tenant and --expires: the original relay's tokens cannot hold them"
        raise CommandFailed(Exit.USAGE, text, "Leave out --compatible, or the others.")
    if options.server_id is not None:
        if options.role == "device":
            text = "--server-id is for servers, but --role device makes no address for one"
            raise CommandFailed(Exit.USAGE, text, "Leave one of them out.")
        if not (0 < len(options.server_id) <= SERVER_ID_LENGTH_MAX and options.server_id.isprintable()):
            text = f"--server-id must be 1 to {SERVER_ID_LENGTH_MAX} printable characters, got {options.server_id!r}"
            raise CommandFailed(Exit.USAGE, text, "Choose another.")


def _minted(options: RelayTokenOptions, configuration: Configuration, base: str) -> RelayAddresses:
    tokens = tokens_of(configuration)
    token = _compatible(options, tokens, configuration) if options.is_compatible else _own(options, tokens)
    claim = tokens_of(configuration).prove(token)  # loaded again: the agent is known now
    assert isinstance(claim, Claim), "what was just made can be read"
    server = None if options.role == "device" else server_address(base, token, options.server_id)
    health = health_address(base, _key_of(configuration)) if options.has_health else None
    if options.role == "server":
        return RelayAddresses(token, claim, server, None, None, health)
    return RelayAddresses(token, claim, server, device_address(base, token), server_address(base, token), health)


def _own(options: RelayTokenOptions, tokens: RelayTokens) -> str:
    expires_at = None
    if options.expires is not None:
        advice = "Leave it out for a token that never expires."
        expires_at = round(time.time()) + parse_duration("--expires", options.expires, advice)
    claim = Claim(options.agent, role=options.role, expires_at=expires_at)
    try:
        return tokens.mint(msgspec.structs.replace(claim, tenant=options.tenant) if options.tenant else claim)
    except ValueError as error:
        raise _unnameable(error) from None


def _compatible(options: RelayTokenOptions, tokens: RelayTokens, configuration: Configuration) -> str:
    if not configuration.relay.tokens.compatible:
        text = "this hub does not accept the original relay's tokens: [relay] compatible is false"
        raise CommandFailed(Exit.CONFIGURATION, text, "Leave --compatible out.")
    try:
        token = tokens.mint_compatible(options.agent)
    except ValueError as error:
        raise _unnameable(error) from None
    if options.agent not in configuration.relay.frontend.agents:
        try:
            note_issued(options.agent, _store(configuration))
        except OSError as error:
            raise _unusable(_state(configuration), error) from error
    return token


def _unnameable(error: ValueError) -> CommandFailed:
    return CommandFailed(Exit.USAGE, f"the {error}", "Choose another name.")


def _notes(options: RelayTokenOptions, minted: RelayAddresses, configuration: Configuration) -> Iterator[str]:
    """What else the person should know."""
    if not configuration.relay.frontend.enabled:
        yield "The relay is switched off: [relay] enabled is false."
    if options.is_compatible:
        yield "It opens both ends for ever; only a new relay key revokes it."
        if not is_shared(configuration):
            yield "Hubs with another state folder accept it only if they have [relay.agents] for this agent."
        if refused := tokens_of(configuration).spliceable():
            agents = ", ".join(refused)
            yield f"Tokens of {agents} are refused from now on: they can be assembled from this and other tokens."
    if options.url is None and configuration.hub.public_url is None and configuration.hub.host in EVERY_ADDRESS:
        yield "The addresses work on this machine only: name the hub's public address with --url."
    if minted.xiaozhi is not None and not is_clean(minted.xiaozhi):
        yield "A xiaozhi server rejects its address, because the host or path contains `key` or `call`."
    if options.has_health:
        yield "The health address contains the relay's key, which makes tokens for every agent: keep it secret."
        if configuration.relay.tokens.compatible_agents == "known":
            yield 'The tokens that a manager makes with it need [relay] compatible_agents = "md5".'
    elif options.role is None and not options.is_json:
        own = configuration.relay.tokens.key is not None
        stored = "in the database" if is_shared(configuration) else f"in {key_file(_state(configuration)).absolute()}"
        where = "in [relay] key" if own else stored
        yield f"{KEY_SHOWN} in the health address, for a manager, is {where}; --health prints it."


# -- revoking and reading --------------------------------------------------------------------------------------------


def revoke_token(file: Path | None, id: str) -> Exit:
    """Revoke a token of the relay.

    Raises:
        CommandFailed: the state folder cannot be written.
    """
    configuration = configuration_for_keys(file)[0]
    try:
        revoke(id, _store(configuration))
    except OSError as error:
        raise _unusable(_state(configuration), error) from error
    print_output(f"revoked {id}")
    return Exit.SUCCESS


def read_token(file: Path | None, *, is_json: bool) -> Exit:
    """Print the claims of the token on standard input, and whether it is valid.

    Raises:
        CommandFailed: this hub did not make it.
    """
    if sys.stdin.isatty():  # typed without an echo
        import click

        text: str = click.prompt("Token", hide_input=True, err=True).strip()
    else:
        text = sys.stdin.buffer.read(STDIN_BYTES).decode(errors="replace").strip()
    try:  # the token may be part of an address
        found = parse_qs(urlsplit(text).query).get("token") if "://" in text else None
    except ValueError:
        found = None
    token = found[0] if found else text
    tokens = tokens_of(configuration_of(file))
    claim, read = tokens.prove(token), tokens.read(token)
    if isinstance(claim, str):
        raise CommandFailed(
            Exit.NOT_ALLOWED, f"this hub does not accept the token: {WHY[claim]}", "Make one: isthmus token relay AGENT"
        )
    state = read if isinstance(read, str) else None
    reason = None if state is None else WHY[state]
    if is_json:
        print_json(msgspec.json.encode({**_claimed(claim), "good": state is None, "reason": reason}))
    else:
        rows = {**_claimed(claim), "state": reason or "good", "expires": _shown(claim.expires_at)}
        print_output("\n".join(aligned([(word, str(value)) for word, value in rows.items() if value is not None])))
    return Exit.SUCCESS if state is None else Exit.NOT_ALLOWED


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
    """The tokens of a hub with this configuration.

    Raises:
        CommandFailed: its key can be neither read nor created.
    """
    settings = configuration.relay.tokens
    revocations = Revocations(_store(configuration), settings.revoked)
    known = KnownAgents(_store(configuration), configuration.relay.frontend.agents)
    return RelayTokens(_key_of(configuration), settings, time.time, revocations.has, known)


def _key_of(configuration: Configuration) -> str:
    state = _state(configuration)
    try:
        return relay_key(configuration.relay.tokens.key, _store(configuration))
    except OSError as error:
        raise _unusable(state, error) from error
    except ValueError as error:
        raise CommandFailed(
            Exit.CONFIGURATION, str(error), "With another key, all earlier tokens become invalid."
        ) from None


def _store(configuration: Configuration) -> RelayStore:
    try:
        return relay_store(configuration)
    except ConfigError as error:
        raise refused(error) from error


def _state(configuration: Configuration) -> Path:
    return Path(configuration.hub.state)


def _unusable(state: Path, error: OSError) -> CommandFailed:
    text = f"the state folder {state} cannot be used: {error.strerror or error}"
    return CommandFailed(
        Exit.CONFIGURATION, text, "Run this as the user that runs the hub, or name another folder under [hub]."
    )


# -- the addresses of a hub ------------------------------------------------------------------------------------------


def configured_origin(settings: HubSettings) -> str:
    """The address of the hub that a configuration describes.

    Raises:
        CommandFailed: the port is only known once the hub runs.
    """
    if settings.port == 0:
        text = "the hub's address is unknown: the configuration has port 0"
        raise CommandFailed(Exit.USAGE, text, "Name its address on the command line, or its port under [hub].")
    return local_origin(settings.host, settings.port)


def relay_base(url: str) -> str:
    """The start of the relay's addresses, from any address of the hub.

    Raises:
        CommandFailed: the address is invalid.
    """
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, has_host = urlsplit(""), False
    is_plain = not (parts.query or parts.fragment or "@" in parts.netloc or any(map(str.isspace, url)))
    if not has_host or not is_plain or parts.scheme not in _SCHEMES:
        text = "--url must be the hub's address like ws://hub.example:8765, without a query"
        raise CommandFailed(Exit.USAGE, text, "Write it as the servers and devices reach the hub.")
    path = parts.path.partition(RELAY_PATH)[0].rstrip("/")
    return f"{_SCHEMES[parts.scheme]}://{parts.netloc}{path}"


def server_address(base: str, token: str, server_id: str | None = None) -> str:
    """The address that a server dials."""
    named = "" if server_id is None else f"&server_id={quote(server_id, safe='')}"
    return f"{base}{RELAY_PATH}/mcp/?token={quote(token, safe='')}{named}"


def health_address(base: str, key: str) -> str:
    """Where a manager asks for the relay's health. It contains the key that makes tokens."""
    return f"http{base.removeprefix('ws')}{RELAY_PATH}/health?key={quote(key, safe='')}"


def device_address(base: str, token: str) -> str:
    """The address that a device calls."""
    return f"{base}{RELAY_PATH}/call/?token={quote(token, safe='')}"
