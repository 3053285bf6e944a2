"""`isthmus call`, `prompt` and `read`: one call, its progress, its questions, and its result.

Names may be short, and values may be text: both are resolved here, by the hub's lists and by the tool's schema.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import click
import msgspec

from isthmus.cli.call_progress import StatusLine
from isthmus.cli.call_questions import PresetAnswers, TerminalAnswers, print_unanswered
from isthmus.cli.documents import FeatureList, ListedFeature, ServerInfo, read_servers
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.find_hub import HubSource, open_hub, with_hub, with_set
from isthmus.cli.options import with_json, with_wait
from isthmus.cli.output import harmless, print_error, print_output
from isthmus.cli.rest_client import (
    EXECUTED,
    CallFailure,
    CallHeld,
    HubCall,
    HubClient,
    HubQuestion,
    command_failed,
)
from isthmus.cli.run_command import SIGTERM, run_command
from isthmus.core.catalog.names import AmbiguousName, llm_form, resolve, suggestions
from isthmus.model.callers import VIRTUAL_TOOLS
from isthmus.model.calls import Event, Progress, Result
from isthmus.model.names import FeatureName, ServerName
from isthmus.wire.jsonrpc import object_members, render
from isthmus.wire.mcp.lists import PROMPTS, TOOLS, ListShape

F = TypeVar("F", bound=Callable[..., Any])

Read: TypeAlias = Callable[[str], str]
"""Returns the text of a file, or of standard input for `-`; raises `OSError` or `UnicodeError`."""

NOT_ASKABLE = "It wants to ask something: call it in a terminal, or add --answer NAME=VALUE or --answer accept."

ERA_CANNOT_ASK = (
    'Its server cannot ask in MCP 2026-07-28: era = "legacy" in the server\'s entry of the configuration lets it ask, '
    "in a terminal or with --answer."
)

REFERENCES_MAX = 8
"""How many references of a schema are followed, one inside the other."""

HOW = "Write name=text, name:=JSON or name=@FILE (@- is standard input); or give all of them as --args JSON."
NOTHING_CALLED = "executed: no (nothing was called)."


def with_outcome(command: F) -> F:
    """Add what the commands that make a call share: `--answer`, `--no-input`, `--save`, `--no-pager` and `--json`.

    The command gets them as one `OutcomeOptions`.
    """

    @functools.wraps(command)
    def run(*words: Any, **options: Any) -> Any:
        outcome = OutcomeOptions(**{field.name: options.pop(field.name) for field in fields(OutcomeOptions)})
        return command(*words, options=outcome, **options)

    for option in (
        click.option("--no-pager", is_flag=True, help="Print long results at once."),
        click.option(
            "--save",
            metavar="PATH",
            help="Write images, sounds and files here: a folder, or a file if PATH has an extension.",
        ),
        click.option("--no-input", is_flag=True, help="Never ask anything at the terminal."),
        click.option(
            "--answer",
            "answers",
            multiple=True,
            metavar="NAME=VALUE",
            help="Answer the server's questions: a field of a form, or accept, decline or cancel. Repeatable.",
        ),
    ):
        run = option(run)
    return cast(F, with_json(run))


@click.command()
@click.argument("name")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE | KEY:=JSON | KEY=@FILE]...")
@click.option("--args", "whole", metavar="JSON", help="All arguments as one JSON object, or @FILE, or @- for stdin.")
@with_hub
@with_set
@with_wait
@with_outcome
def call(
    name: str,
    arguments: tuple[str, ...],
    whole: str | None,
    source: HubSource,
    wait: float,
    options: OutcomeOptions,
) -> int:
    """Call a tool by its full name (files.read), or by a short name that is unique (read).

    Values are text, or JSON where the tool's schema wants a number, a boolean, a list or an object.
    """
    return run_command(call_tool(source, FeatureRequest(name, arguments, whole), options, wait=wait))


@click.command()
@click.argument("name")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE | KEY=@FILE]...")
@with_hub
@with_set
@with_wait
@with_outcome
def prompt(name: str, arguments: tuple[str, ...], source: HubSource, wait: float, options: OutcomeOptions) -> int:
    """Get a prompt by its full name, or by a short name that is unique, and print it."""
    return run_command(write_prompt(source, FeatureRequest(name, arguments, None), options, wait=wait))


@click.command()
@click.argument("uri")
@with_hub
@with_set
@with_wait
@with_outcome
def read(uri: str, source: HubSource, wait: float, options: OutcomeOptions) -> int:
    """Read a resource and print it."""
    return run_command(read_resource(source, uri, options, wait=wait))


@dataclass(frozen=True, slots=True)
class FeatureRequest:
    """A tool or prompt to call, as given on the command line."""

    name: str
    words: Sequence[str]
    whole: str | None = None
    """All arguments as one JSON object, instead of words."""


@dataclass(frozen=True, slots=True)
class OutcomeOptions:
    """How a call answers questions, and what becomes of its result."""

    answers: Sequence[str] = ()
    no_input: bool = False
    save: str | None = None
    no_pager: bool = False
    is_json: bool = False

    @property
    def is_askable(self) -> bool:
        """Whether the call says to servers that it answers questions."""
        return bool(self.answers) or self.has_terminal

    @property
    def has_terminal(self) -> bool:
        """Whether a person can be asked."""
        return not self.no_input and sys.stdin.isatty() and sys.stderr.isatty()


NO_OPTIONS = OutcomeOptions()

STARTING_POLL_SECONDS = 0.2
"""How often a running hub is asked whether a server has started."""


async def call_tool(
    source: HubSource, request: FeatureRequest, options: OutcomeOptions = NO_OPTIONS, *, wait: float
) -> Exit:
    """Call a tool and print its result.

    Raises:
        CommandFailed: the hub or the tool does not exist, an argument is wrong, or the call failed.
    """
    conversation = Conversation(request.name, options, source.set_name)
    deadline = time.monotonic() + wait
    async with open_hub(source, wait=wait, name=request.name, is_to_call=True, is_askable=options.is_askable) as hub:
        tool = await _find_tool(hub, request.name, deadline)
        schema = tool.definition.get("inputSchema")
        arguments = arguments_of(request.words, request.whole, schema, read_text, tool.name, source.set_name)
        outcome = await conversation.perform(hub, HubCall("tool", tool.name, arguments))
    return conversation.print_outcome(outcome, tool.name, readable)


async def _find_tool(hub: HubClient, name: str, deadline: float) -> ListedFeature:
    """A listed tool, or a method of a server that has no list. Waits for a server that still starts, until `deadline`.

    A running hub may have started a moment ago, and `npx` fetches a package first.
    """
    server, _, method = name.partition(".")
    if method and (listed := await hub.find_tool(name)) is not None:  # most calls: no need to read all the others
        return listed
    while True:
        listing = await hub.listing(TOOLS)
        try:
            return choose(name, listing, set_name=hub.set_name)
        except CommandFailed:
            if (virtual := await _virtual_tool(hub, name)) is not None:
                return virtual
            starting = [missing for missing, gone in listing.missing.items() if gone.state == "starting"]
            if time.monotonic() > deadline or not (server in starting if method else starting):
                servers = read_servers(await hub.servers()) if method else []
                _check_enabled(name, servers)
                if not any(each.name == server and each.unlisted for each in servers):
                    raise
                return ListedFeature(name, server, {})
        await asyncio.sleep(STARTING_POLL_SECONDS)


async def find_listed(hub: HubClient, name: str, shape: ListShape) -> ListedFeature:
    """The listed feature with this full or short name.

    Raises:
        CommandFailed: no feature has the name, or several do.
    """
    listing = await hub.listing(shape)
    try:
        return choose(name, listing, shape, hub.set_name)
    except CommandFailed:
        if shape is TOOLS and (virtual := await _virtual_tool(hub, name)) is not None:
            return virtual
        _check_enabled(name, read_servers(await hub.servers()) if "." in name else ())
        raise


async def _virtual_tool(hub: HubClient, name: str) -> ListedFeature | None:
    """A tool of the hub itself, if it exposes that: commands list the servers' tools instead."""
    return await hub.find_tool(name) if name in VIRTUAL_TOOLS else None


def _check_enabled(name: str, servers: Iterable[ServerInfo]) -> None:
    """Say so if the server of a name is disabled: the lists leave it out.

    Raises:
        CommandFailed: it is.
    """
    server = name.partition(".")[0]
    if any(each.name == server and each.state == "disabled" for each in servers):
        text = f"{name} cannot be used: server {server} is disabled"
        raise CommandFailed(Exit.CALL_FAILED, text, f"executed: no. `isthmus enable {server}` switches it on.")


async def write_prompt(
    source: HubSource, request: FeatureRequest, options: OutcomeOptions = NO_OPTIONS, *, wait: float
) -> Exit:
    """Get a prompt and print it.

    Raises:
        CommandFailed: as in `call_tool`.
    """
    conversation = Conversation(request.name, options, source.set_name)
    async with open_hub(
        source, wait=wait, name=request.name, shape=PROMPTS, is_to_call=True, is_askable=options.is_askable
    ) as hub:
        found = await find_listed(hub, request.name, PROMPTS)
        arguments = arguments_of(request.words, request.whole, None, read_text)
        outcome = await conversation.perform(hub, HubCall("prompt", found.name, arguments))
    return conversation.print_outcome(outcome, found.name, readable_messages)


async def read_resource(source: HubSource, uri: str, options: OutcomeOptions = NO_OPTIONS, *, wait: float) -> Exit:
    """Read a resource and print it.

    Raises:
        CommandFailed: as in `call_tool`.
    """
    conversation = Conversation(uri, options)
    async with open_hub(source, wait=wait, is_to_call=True, is_askable=options.is_askable) as hub:
        outcome = await conversation.perform(hub, HubCall("resource", uri, msgspec.Raw(b"{}")))
    return conversation.print_outcome(outcome, uri, readable_contents)


def read_text(name: str) -> str:
    """The text of a file, or of standard input for `-`."""
    content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    return content.decode()


class Conversation:
    """One call with the person or the options that it has: progress, questions, and the result."""

    def __init__(self, name: str, options: OutcomeOptions, set_name: str | None = None) -> None:
        """Check what can be checked before the call.

        Raises:
            CommandFailed: an option cannot be used.
        """
        self._name = harmless(name, keep="")
        self._set_option = in_set(set_name)
        self._options = options
        self._line = StatusLine(sys.stderr, self._name)
        terminal = TerminalAnswers(self._name, self._line) if options.has_terminal else None
        try:
            self._given = PresetAnswers(options.answers, terminal)
        except ValueError as error:
            advice = "Write --answer NAME=VALUE or NAME:=JSON for a field, or --answer accept, decline or cancel."
            raise CommandFailed(Exit.USAGE, f"--answer: {error}", advice) from None
        check_target(options.save)

    async def perform(self, hub: HubClient, request: HubCall) -> Result | CallFailure:
        """Wait for the outcome, show progress and answer questions meanwhile.

        Raises:
            CommandFailed: a signal ended the command, which cancels the call at its server.
        """

        def show(event: Event | HubQuestion | CallHeld) -> None:
            if isinstance(event, CallHeld):
                self._line.clear()
                print_error(f"{event.message} Allow it with:\n  isthmus approvals allow {event.approval}")
            elif isinstance(event, Progress):
                self._line.show(event)
            elif isinstance(event, HubQuestion):
                self._given.unanswered.append(event)

        self._line.start()
        try:
            return await hub.perform(request, show, self._given.answer if self._options.is_askable else None)
        except asyncio.CancelledError as cancelled:
            exit = Exit.TERMINATED if SIGTERM in cancelled.args else Exit.INTERRUPTED
            raise CommandFailed(exit, "stopped: the call is cancelled", EXECUTED["unknown"]) from None
        finally:
            self._line.stop()

    def print_outcome(self, outcome: Result | CallFailure, name: str, as_text: Callable[[msgspec.Raw], str]) -> Exit:
        """Print the result, save its files, and say which questions had no answer.

        Raises:
            CommandFailed: the call failed.
        """
        print_unanswered(self._name, self._given.unanswered)
        if self._given.unused and not self._given.is_wrong:
            print_error(f"--answer: no question had a field {' or '.join(self._given.unused)}")
        try:
            exit = self._print(outcome, name, as_text)
        except CommandFailed as failed:
            if self._given.is_wrong:
                failed.exit = Exit.USAGE
            raise
        return Exit.USAGE if self._given.is_wrong else exit

    def _print(self, outcome: Result | CallFailure, name: str, as_text: Callable[[msgspec.Raw], str]) -> Exit:
        if isinstance(outcome, CallFailure):
            if self._options.is_json:
                print_output(msgspec.json.encode({"error": outcome}).decode())
            raise command_failed(outcome)
        if self._options.is_json:
            print_output(bytes(outcome.payload).decode())
            self._save(outcome, name)
            return Exit.CALL_FAILED if outcome.is_error else Exit.SUCCESS
        text = readable_value(outcome.payload) if outcome.is_bare else as_text(outcome.payload)
        if outcome.is_error:
            # On stderr: a file or pipe gets the result, or nothing.
            print_error(text)
            raise CommandFailed(
                Exit.CALL_FAILED,
                f"{harmless(name)} ran and reported an error (above)",
                *self._advice_to_ask(text.lower()),
                "Fix the cause and call it again; "
                f"`isthmus tools{self._set_option} {harmless(name)}` shows its arguments.",
            )
        if text:
            print_result(text, has_pager=not self._options.no_pager)
        self._save(outcome, name)
        return Exit.SUCCESS

    def _advice_to_ask(self, error: str) -> list[str]:
        """Servers that look first whether they can ask refuse in words of their own."""
        if "elicit" not in error:
            return []
        if "2026-07-28" in error or "unavailable on" in error:
            return [ERA_CANNOT_ASK]
        return [] if self._options.is_askable else [NOT_ASKABLE]

    def _save(self, outcome: Result, name: str) -> None:
        if self._options.save is not None and not outcome.is_bare:
            save_parts(outcome.payload, name, self._options.save)


# -- names -----------------------------------------------------------------------------------------------------------


def choose(name: str, listing: FeatureList, shape: ListShape = TOOLS, set_name: str | None = None) -> ListedFeature:
    """The listed feature with this full or short name.

    Raises:
        CommandFailed: no feature has the name, or several do.
    """
    exact = {offer.name: offer for offer in listing.features}
    if name in exact:
        return exact[name]
    pairs = {}
    for offer in listing.features:
        server, dot, feature = offer.name.partition(".")
        if dot:  # names in another style have no short form
            pairs[ServerName(server), FeatureName(feature)] = offer
    try:
        found = resolve(name, pairs)
    except AmbiguousName as several:
        candidates = "\n  ".join(several.candidates)
        text = f"{name!r} could be any of these:\n  {candidates}"
        raise CommandFailed(Exit.USAGE, text, "Call it by its full name.") from None
    if found is None:
        raise _unknown(name, listing, shape, set_name)
    return pairs[found]


def in_set(set_name: str | None) -> str:
    """The option that commands need to mean the same names."""
    return "" if set_name is None else f" --set {shlex.quote(set_name)}"


def _unknown(name: str, listing: FeatureList, shape: ListShape, set_name: str | None) -> CommandFailed:
    missing = listing.missing
    server, dot, _ = name.partition(".")
    if not dot:  # perhaps the form of a name that language models see
        fitting = [each for each in missing if name.startswith(llm_form((ServerName(each), FeatureName(""))))]
        server = max(fitting, key=len, default="")
    if server in missing:
        why = missing[server].reason or f"it is {missing[server].state}"
        return CommandFailed(
            Exit.CALL_FAILED,
            f"cannot call {name}: server {server} is not connected: {why}",
            "executed: no. `isthmus doctor` checks each server.",
        )
    if shape is TOOLS and (exposure := VIRTUAL_TOOLS.get(name)) is not None:
        advice = f'Set expose = "{exposure}" of [hub], of the set or of the caller.'
        return CommandFailed(Exit.CALL_FAILED, f'the hub\'s own tool {name!r} needs expose = "{exposure}"', advice)
    of_set = "" if set_name is None else " of the set"
    advice = f"`isthmus {shape.member}{in_set(set_name)}` lists all {shape.noun}s{of_set}."
    if shape is TOOLS and any(offer.server == name for offer in listing.features):
        advice = f"{name} is a server: `isthmus tools --server {name}` lists its tools."
    elif near := suggestions(name, (offer.name for offer in listing.features)):
        advice = f"Did you mean {' or '.join(near)}? {advice}"
    if missing:
        advice += f" Not connected, so not listed: {', '.join(sorted(missing))}."
    return CommandFailed(Exit.CALL_FAILED, f"there is no {shape.noun} {name!r}", advice)


# -- arguments -------------------------------------------------------------------------------------------------------


def arguments_of(
    words: Sequence[str],
    whole: str | None,
    schema: msgspec.Raw | None,
    read: Read,
    tool: str = "it",
    set_name: str | None = None,
) -> msgspec.Raw:
    """The arguments as one JSON object.

    Raises:
        CommandFailed: an argument is malformed; the message names it.
    """
    if whole is not None and words:
        raise _wrong("--args and name=value exclude each other")
    root = read_schema(schema)
    # References into the same schema, as generators write them, are followed.
    properties = {name: resolved(given, root) for name, given in properties_of(root).items()}
    if whole is not None:
        value = _json("--args", _contents("--args", whole, read), "a JSON object")
        if (given := object_members(value)) is None:
            match msgspec.json.decode(value):
                case dict():
                    got = "one with a repeated name"
                case list():
                    got = "a list"
                case other:
                    got = _cut(msgspec.json.encode(other).decode())
            raise _wrong(f"--args must be a JSON object, got {got}")
        _check_required(given, properties, root, tool, in_set(set_name))
        return msgspec.Raw(value)
    members: dict[str, bytes] = {}
    for word in words:
        name, value = _member(word, properties, read)
        if name in members:
            raise _wrong(f"{name} is given twice")
        members[name] = value
    _check_names(members, properties, root, tool)
    _check_required(members, properties, root, tool, in_set(set_name))
    return msgspec.Raw(render(members))


def _check_names(
    members: Mapping[str, bytes], properties: Mapping[str, Any], root: Mapping[str, Any], tool: str
) -> None:
    """Find a misspelt name, which many schemas let through and many servers ignore."""
    if not properties or root.get("additionalProperties") or root.get("patternProperties"):
        return  # the tool says that it takes other names
    for name in members.keys() - properties.keys():
        import difflib

        near = difflib.get_close_matches(name, properties.keys() - members.keys(), n=1)
        if near:
            text, advice = f"{name} is not an argument of {tool}; did you mean {near[0]}?", ""
        elif root.get("additionalProperties") is False:
            text, advice = f"{name} is not an argument of {tool}", f"It takes {', '.join(properties)}."
        else:
            continue
        raise CommandFailed(Exit.USAGE, text, *([advice] if advice else []), NOTHING_CALLED)


def _check_required(
    members: Mapping[str, Any], properties: Mapping[str, Any], root: Mapping[str, Any], tool: str, option: str
) -> None:
    """Find a missing argument, and say how to write it."""
    missing = [name for name in required_of(root) if name not in members] if properties else []
    if not missing:
        return
    words = " ".join(f"{name}={_placeholder(properties.get(name))}" for name in missing)
    text = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    text += f": add {words}" if members else f": isthmus call{option} {tool} {words}"
    advice = f"`isthmus tools{option} {tool}` shows its arguments."
    raise CommandFailed(Exit.USAGE, text, advice, NOTHING_CALLED)


def _placeholder(schema: Any) -> str:
    match sorted(_types(schema) - {"null"}):
        case ["integer" | "number"]:
            return "NUMBER"
        case ["boolean"]:
            return "true"
        case types if types and "string" not in types:
            return "JSON"
        case _:
            return "TEXT"


def _member(word: str, properties: Mapping[str, Any], read: Read) -> tuple[str, bytes]:
    name, equals, text = word.partition("=")
    is_json = name.endswith(":")
    name = name.removesuffix(":")
    if not equals or not name:
        raise _wrong(f"expected name=value, got {word!r}")
    text = _contents(name, text, read)
    if is_json:
        return name, _json(name, text, "JSON")
    types = _types(properties.get(name))
    if types and "string" not in types:
        return name, _typed(name, text, types)
    try:
        return name, msgspec.json.encode(text)
    except ValueError:  # bytes that are not UTF-8 arrive as lone surrogates
        raise _wrong(f"{name} is not UTF-8 text") from None


def _contents(name: str, text: str, read: Read) -> str:
    if not text.startswith("@"):
        return text
    try:
        return read(text[1:])
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        advice = f"If the text itself begins with @, write {name}:='\"{text}\"'."
        raise CommandFailed(Exit.USAGE, f"{name}: cannot read {text[1:]!r}: {why}", advice) from None


def _json(name: str, text: str, wanted: str) -> bytes:
    """Valid JSON, exactly as it was written."""
    try:
        raw = text.strip().encode()
        msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise _wrong(f"{name} must be {wanted}, got {_cut(text)} ({error})") from None
    return raw


SENTENCES = {
    "array": "a JSON array",
    "boolean": "true or false",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "a JSON object",
}


def _typed(name: str, text: str, types: set[str]) -> bytes:
    """JSON of one of these types."""
    wanted = " or ".join(SENTENCES.get(kind, kind) for kind in sorted(types))
    if types & {"array", "object"}:
        return _json(name, text, wanted)  # says also where it is malformed
    try:
        raw = text.strip().encode()
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        raise _wrong(f"{name} must be {wanted}, got {_cut(text)}") from None
    match value:
        case bool():
            fits = "boolean" in types
        case None:
            fits = "null" in types
        case int():
            fits = bool(types & {"integer", "number"})
        case float():
            fits = "number" in types or ("integer" in types and value.is_integer())
        case _:
            fits = False
    if not fits and types <= SENTENCES.keys():
        raise _wrong(f"{name} must be {wanted}, got {_cut(text)}")
    return raw


def _cut(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")


def _wrong(text: str) -> CommandFailed:
    return CommandFailed(Exit.USAGE, text, HOW, NOTHING_CALLED)


def read_schema(raw: msgspec.Raw | None) -> dict[str, Any]:
    """The schema of a tool; an empty one, which allows everything, if it cannot be read."""
    try:
        read = None if raw is None else msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        read = None
    return read if isinstance(read, dict) else {}


def properties_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of each argument."""
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def required_of(schema: Mapping[str, Any]) -> list[str]:
    """The arguments that a call needs."""
    found = schema.get("required")
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def resolved(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with its local reference followed; anything else becomes an empty one, which allows everything."""
    for _ in range(REFERENCES_MAX):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        found: Any = root
        for part in reference[2:].split("/"):
            found = found.get(part) if isinstance(found, dict) else None
        schema = {**(found if isinstance(found, dict) else {}), **{k: v for k, v in schema.items() if k != "$ref"}}
    return schema if isinstance(schema, dict) else {}


def _types(schema: Any) -> set[str]:
    """The JSON types that an argument may have; empty if the schema does not say."""
    if not isinstance(schema, dict):
        return set()
    named = schema.get("type", [])
    types = {kind for kind in ([named] if isinstance(named, str) else named) if isinstance(kind, str)}
    for key in ("anyOf", "oneOf"):
        for choice in schema.get(key) or ():
            types |= _types(choice)
    return types


# -- results as text and as files --------------------------------------------------------------------------------------


NAME_LENGTH_MAX = 80
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")

EXTENSIONS = {
    "audio/mpeg": ".mp3",
    "audio/ogg": ".ogg",
    "audio/wav": ".wav",
    "audio/x-wav": ".wav",
    "image/jpeg": ".jpg",
    "image/svg+xml": ".svg",
    "image/webp": ".webp",
}
"""Where Python's own table has another or none."""


# -- text ------------------------------------------------------------------------------------------------------------


def readable(payload: msgspec.Raw) -> str:
    """The text of a tool's result; structured content only if there is no other."""
    members = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
    blocks = _list_in(members.get("content"))
    if blocks:
        return "\n".join(_block_text(block) for block in blocks)
    structured = members.get("structuredContent")
    return "" if structured is None else msgspec.json.format(bytes(structured), indent=2).decode()


def readable_value(payload: msgspec.Raw) -> str:
    """The text of a bare value that a JSON-RPC server returned: a string as it is, anything else as JSON."""
    value = msgspec.json.decode(payload)
    return value if isinstance(value, str) else msgspec.json.format(bytes(payload), indent=2).decode()


def readable_messages(payload: msgspec.Raw) -> str:
    """The text of a prompt: each message after its role."""
    members = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
    texts = []
    for message in _list_in(members.get("messages")):
        match message:
            case {"role": str(role), "content": content}:
                texts.append(f"{role}: {_block_text(content)}")
            case _:
                texts.append("[not a message: --json shows it]")
    return "\n\n".join(texts)


def readable_contents(payload: msgspec.Raw) -> str:
    """The text of a resource, part after part."""
    members = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
    parts = _list_in(members.get("contents"))
    return "\n".join(_block_text({"type": "resource", "resource": part}) for part in parts)


def _list_in(content: msgspec.Raw | None) -> list[Any]:
    blocks = None if content is None else msgspec.json.decode(content)
    return blocks if isinstance(blocks, list) else []


def _block_text(block: Any) -> str:
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image" | "audio" as kind, "data": str(data)}:
            return f"[{kind}{_mime_type(block)}, {_size(data)}: --save writes it]"
        case {"type": "resource_link", "uri": str(uri)}:
            return f"[link {block.get('name', '')} {uri}]"
        case {"type": "resource", "resource": {"text": str(text)}}:
            return text
        case {"type": "resource", "resource": {"uri": str(uri), "blob": str(blob)} as resource}:
            return f"[resource {uri}{_mime_type(resource)}, {_size(blob)}: --save writes it]"
        case {"type": str(other)}:
            return f"[{other}: --json shows it]"
        case _:
            return "[content without a type: --json shows it]"


def _mime_type(block: dict[str, Any]) -> str:
    kind = block.get("mimeType")
    return f" {kind}" if isinstance(kind, str) else ""


def _size(base64: str) -> str:
    return f"{len(base64.rstrip('=')) * 3 // 4:,} bytes"


# -- files -----------------------------------------------------------------------------------------------------------


class BinaryPart(NamedTuple):
    """Data in a result that is not text."""

    kind: str
    mime_type: str
    data: str
    """As base64."""
    name: str = ""
    """The last part of its URI, if it has one."""


def binary_parts(payload: msgspec.Raw) -> Iterator[BinaryPart]:
    """The images, sounds and files of any result."""
    members = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
    blocks = _list_in(members.get("content"))
    blocks += [
        each["content"] for each in _list_in(members.get("messages")) if isinstance(each, dict) and "content" in each
    ]
    blocks += [{"type": "resource", "resource": each} for each in _list_in(members.get("contents"))]
    for block in blocks:
        match block:
            case {"type": "image" | "audio" as kind, "data": str(data)}:
                yield BinaryPart(kind, _mime_type(block).strip(), data)
            case {"type": "resource", "resource": {"uri": str(uri), "blob": str(blob)} as resource}:
                name = uri.partition("?")[0].rstrip("/").rpartition("/")[2]
                yield BinaryPart("file", _mime_type(resource).strip(), blob, name)
            case _:
                pass


def check_target(save: str | None) -> None:
    """Check before the call that what it returns can be saved.

    Raises:
        CommandFailed: the folder does not exist, or is a file.
    """
    if save is None:
        return
    path = Path(save)
    if not _is_folder(save):
        if not path.parent.is_dir():
            text = f"--save: there is no folder {str(path.parent)!r}"
            raise CommandFailed(Exit.USAGE, text, "Make it first, or name another.")
    elif path.exists() and not path.is_dir():
        text = f"--save: {save!r} is a file, and without an extension it means a folder"
        raise CommandFailed(Exit.USAGE, text, "Name a folder, or a file with an extension, such as chart.png.")


def _is_folder(save: str) -> bool:
    """Whether `--save` names a folder, which may not exist yet: with a slash at its end, or without an extension."""
    return save.endswith(("/", os.sep)) or Path(save).is_dir() or not Path(save).suffix


def save_parts(payload: msgspec.Raw, tool: str, save: str) -> None:
    """Write images, sounds and files into a folder or to a file, and say where. No file is replaced.

    Raises:
        CommandFailed: one cannot be written.
    """
    target, is_folder = Path(save), _is_folder(save)
    count = 0
    for count, part in enumerate(binary_parts(payload), 1):
        try:
            content = base64.b64decode(part.data, validate=True)
        except binascii.Error:
            print_error(f"{part.kind} {count} is not saved: its data is not valid base64")
            continue
        name = _name_of(part, tool)
        if is_folder:
            wanted = target / name
        else:  # further files may be of another kind
            wanted = target if count == 1 else target.with_suffix(Path(name).suffix or target.suffix)
        path = _write_new(wanted, content)
        replaced = "" if path == wanted else f" ({wanted.name} exists already)"
        kind = f"{part.kind}, {part.mime_type}" if part.mime_type else part.kind
        print_error(f"Saved {path} ({kind}, {len(content):,} bytes){replaced}")
    if not count:
        print_error("Nothing is saved: the result has no image, sound or file.")


def _write_new(wanted: Path, content: bytes) -> Path:
    """Write a new file, with a number in its name if that exists."""
    for number in range(1, 10_000):
        path = wanted if number == 1 else wanted.with_name(f"{wanted.stem}-{number}{wanted.suffix}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(content)
        except FileExistsError:
            continue
        except OSError as error:
            why = error.strerror or str(error)
            text = f"cannot save {str(path)!r}: {why}"
            raise CommandFailed(Exit.CALL_FAILED, text, "executed: yes (only the file is missing)") from None
        return path
    raise CommandFailed(Exit.CALL_FAILED, f"cannot save {str(wanted)!r}: too many files of that name exist")


def _name_of(part: BinaryPart, tool: str) -> str:
    """A name without anything that could lead out of the folder or be taken for an option."""
    named = _UNSAFE.sub("_", part.name).strip("._-")[-NAME_LENGTH_MAX:]
    if named:
        return named
    import mimetypes

    mime_type = part.mime_type.partition(";")[0].strip().lower()
    extension = EXTENSIONS.get(mime_type) or mimetypes.guess_extension(mime_type) or ".bin"
    return (_UNSAFE.sub("_", tool).strip("._-")[:NAME_LENGTH_MAX] or "result") + extension


# -- the screen ------------------------------------------------------------------------------------------------------


def print_result(text: str, *, has_pager: bool) -> None:
    """Print a result; on a terminal with a pager, if it is longer than the screen."""
    if not has_pager or not sys.stdout.isatty() or not sys.stdin.isatty() or os.environ.get("PAGER") in ("", "cat"):
        print_output(text)
        return
    import shutil  # it loads compressors

    columns, lines = shutil.get_terminal_size()
    text = harmless(text)
    if sum(max(1, math.ceil(len(line) / columns)) for line in text.splitlines()) < lines:
        print_output(text)
    else:
        # click runs $PAGER or less, and prints the text itself if neither exists.
        click.echo_via_pager(text if text.endswith("\n") else f"{text}\n", color=False)
