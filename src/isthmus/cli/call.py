"""`isthmus call`, `prompt` and `read`: one call, its progress, and its result.

Names may be short, and values may be text: both are resolved here, by the hub's lists and by the tool's schema.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import click
import msgspec

from isthmus.cli.documents import FeatureList, ListedFeature, read_servers
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.hub import (
    CallFailure,
    HubCall,
    HubClient,
    HubSource,
    command_failed,
    open_hub,
)
from isthmus.cli.options import with_hub, with_json, with_wait
from isthmus.cli.output import harmless, print_error, print_output
from isthmus.cli.running import run_command
from isthmus.core.catalog.names import AmbiguousName, llm_form, resolve, suggestions
from isthmus.model.calls import Event, Progress, Result
from isthmus.model.names import FeatureName, ServerName
from isthmus.wire.jsonrpc import object_members, render
from isthmus.wire.mcp.lists import PROMPTS, TOOLS, ListShape

CLEAR_LINE = "\r\x1b[K"

Read: TypeAlias = Callable[[str], str]
"""Returns the text of a file, or of standard input for `-`; raises `OSError` or `UnicodeError`."""

HOW = "Write name=text, name:=JSON or name=@FILE (@- is standard input); or give all of them as --args JSON."


@click.command()
@click.argument("name")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE | KEY:=JSON | KEY=@FILE]...")
@click.option("--args", "whole", metavar="JSON", help="All arguments as one JSON object, or @FILE, or @- for stdin.")
@with_hub
@with_wait
@with_json
def call(
    name: str,
    arguments: tuple[str, ...],
    whole: str | None,
    source: HubSource,
    wait: float,
    *,
    is_json: bool,
) -> int:
    """Call a tool by its full name (files.read), or by a short name that is unique (read).

    Values are text, or JSON where the tool's schema wants a number, a boolean, a list or an object.
    """
    return run_command(call_tool(source, FeatureRequest(name, arguments, whole, is_json), wait=wait))


@click.command()
@click.argument("name")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE | KEY=@FILE]...")
@with_hub
@with_wait
@with_json
def prompt(name: str, arguments: tuple[str, ...], source: HubSource, wait: float, *, is_json: bool) -> int:
    """Get a prompt by its full name, or by a short name that is unique, and print it."""
    return run_command(write_prompt(source, FeatureRequest(name, arguments, None, is_json), wait=wait))


@click.command()
@click.argument("uri")
@with_hub
@with_wait
@with_json
def read(uri: str, source: HubSource, wait: float, *, is_json: bool) -> int:
    """Read a resource and print it."""
    return run_command(read_resource(source, uri, wait=wait, is_json=is_json))


@dataclass(frozen=True, slots=True)
class FeatureRequest:
    """A tool or prompt to call, as given on the command line."""

    name: str
    words: Sequence[str]
    whole: str | None
    """All arguments as one JSON object, instead of words."""
    is_json: bool


async def call_tool(source: HubSource, request: FeatureRequest, *, wait: float) -> Exit:
    """Call a tool and print its result.

    Raises:
        CommandFailed: the hub or the tool does not exist, an argument is wrong, or the call failed.
    """
    async with open_hub(source, wait=wait, name=request.name, is_to_call=True) as hub:
        tool = await _find_tool(hub, request.name)
        arguments = arguments_of(request.words, request.whole, tool.definition.get("inputSchema"), read_text)
        outcome = await _perform(hub, HubCall("tool", tool.name, arguments))
    return _print_outcome(outcome, tool.name, readable, is_json=request.is_json)


async def _find_tool(hub: HubClient, name: str) -> ListedFeature:
    """A listed tool, or a method of a server that has no list."""
    try:
        return choose(name, await hub.listing(TOOLS))
    except CommandFailed:
        server, _, method = name.partition(".")
        servers = read_servers(await hub.servers()) if method else []
        if not any(each.name == server and each.unlisted for each in servers):
            raise
        return ListedFeature(name, server, {})


async def write_prompt(source: HubSource, request: FeatureRequest, *, wait: float) -> Exit:
    """Get a prompt and print it.

    Raises:
        CommandFailed: as in `call_tool`.
    """
    async with open_hub(source, wait=wait, name=request.name, shape=PROMPTS, is_to_call=True) as hub:
        found = choose(request.name, await hub.listing(PROMPTS), PROMPTS)
        arguments = arguments_of(request.words, request.whole, None, read_text)
        outcome = await _perform(hub, HubCall("prompt", found.name, arguments))
    return _print_outcome(outcome, found.name, readable_messages, is_json=request.is_json)


async def read_resource(source: HubSource, uri: str, *, wait: float, is_json: bool) -> Exit:
    """Read a resource and print it.

    Raises:
        CommandFailed: as in `call_tool`.
    """
    async with open_hub(source, wait=wait, is_to_call=True) as hub:
        outcome = await _perform(hub, HubCall("resource", uri, msgspec.Raw(b"{}")))
    return _print_outcome(outcome, uri, readable_contents, is_json=is_json)


def read_text(name: str) -> str:
    """The text of a file, or of standard input for `-`."""
    content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    return content.decode()


async def _perform(hub: HubClient, request: HubCall) -> Result | CallFailure:
    """Wait for the outcome, and show progress meanwhile."""
    line = ProgressLine(sys.stderr)

    def show(event: Event) -> None:
        if isinstance(event, Progress):
            line.show(event)

    try:
        return await hub.perform(request, show)
    finally:
        line.clear()


def _print_outcome(
    outcome: Result | CallFailure, name: str, as_text: Callable[[msgspec.Raw], str], *, is_json: bool
) -> Exit:
    if isinstance(outcome, CallFailure):
        if is_json:
            print_output(msgspec.json.encode({"error": outcome}).decode())
        raise command_failed(outcome)
    if is_json:
        print_output(bytes(outcome.payload).decode())
        return Exit.CALL_FAILED if outcome.is_error else Exit.SUCCESS
    text = readable_value(outcome.payload) if outcome.is_bare else as_text(outcome.payload)
    if outcome.is_error:
        # On stderr: a file or pipe gets the result, or nothing.
        print_error(text)
        raise CommandFailed(
            Exit.CALL_FAILED,
            f"{harmless(name)} ran and reported an error (above)",
            "Fix the cause and call it again; `isthmus tools --json` shows the arguments of each tool.",
        )
    if text:
        print_output(text)
    return Exit.SUCCESS


# -- names -----------------------------------------------------------------------------------------------------------


def choose(name: str, listing: FeatureList, shape: ListShape = TOOLS) -> ListedFeature:
    """The listed feature with this full or short name.

    Raises:
        CommandFailed: no feature has the name, or several do.
    """
    exact = {offer.name: offer for offer in listing.offers}
    if name in exact:
        return exact[name]
    pairs = {}
    for offer in listing.offers:
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
        raise _unknown(name, listing, shape)
    return pairs[found]


def _unknown(name: str, listing: FeatureList, shape: ListShape) -> CommandFailed:
    missing = listing.absences
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
    advice = f"`isthmus {shape.member}` lists all {shape.noun}s."
    if near := suggestions(name, (offer.name for offer in listing.offers)):
        advice = f"Did you mean {' or '.join(near)}? {advice}"
    if missing:
        advice += f" Not connected, so not listed: {', '.join(sorted(missing))}."
    return CommandFailed(Exit.CALL_FAILED, f"there is no {shape.noun} {name!r}", advice)


# -- arguments -------------------------------------------------------------------------------------------------------


def arguments_of(words: Sequence[str], whole: str | None, schema: msgspec.Raw | None, read: Read) -> msgspec.Raw:
    """The arguments as one JSON object.

    Raises:
        CommandFailed: an argument is malformed; the message names it.
    """
    if whole is not None and words:
        raise _wrong("--args and name=value exclude each other")
    if whole is not None:
        value = _json("--args", _contents("--args", whole, read), "a JSON object")
        if object_members(value) is None:
            match msgspec.json.decode(value):
                case dict():
                    got = "one with a repeated name"
                case list():
                    got = "a list"
                case other:
                    got = _cut(msgspec.json.encode(other).decode())
            raise _wrong(f"--args must be a JSON object, got {got}")
        return msgspec.Raw(value)
    properties = _properties(schema)
    members: dict[str, bytes] = {}
    for word in words:
        name, value = _member(word, properties, read)
        if name in members:
            raise _wrong(f"{name} is given twice")
        members[name] = value
    return msgspec.Raw(render(members))


def _member(word: str, properties: Mapping[str, Any], read: Read) -> tuple[str, bytes]:
    name, equals, text = word.partition("=")
    is_json = name.endswith(":")
    name = name.removesuffix(":")
    if not equals or not name:
        raise _wrong(f"Expected name=value, got {word!r}")
    text = _contents(name, text, read)
    if is_json:
        return name, _json(name, text, "JSON")
    types = _types(properties.get(name))
    if types and "string" not in types:
        return name, _json(name, text, " or ".join(sorted(types)))
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


def _cut(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")


def _wrong(text: str) -> CommandFailed:
    return CommandFailed(Exit.USAGE, text, HOW)


def _properties(schema: msgspec.Raw | None) -> dict[str, Any]:
    """The schema of each argument; references into the same schema, as generators write them, are resolved."""
    try:
        root = msgspec.json.decode(schema) if schema is not None else {}
    except (msgspec.MsgspecError, RecursionError):
        return {}
    properties = root.get("properties") if isinstance(root, dict) else None
    if not isinstance(properties, dict):
        return {}
    return {name: _resolved(property, root) for name, property in properties.items()}


def _resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return schema
    found: Any = root
    for step in reference[2:].split("/"):
        found = found.get(step) if isinstance(found, dict) else None
    return found


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


# -- progress --------------------------------------------------------------------------------------------------------


class ProgressLine:
    """Shows the latest progress: on a terminal in one line that `clear` wipes, elsewhere in a line each."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._is_shown = False

    def show(self, event: Event) -> None:
        """Show one report."""
        text = progress_text(event)
        if self._is_terminal:
            # A line that wraps could not be cleared.
            room = shutil.get_terminal_size().columns - 1
            self._stream.write(CLEAR_LINE + text[:room])
            self._is_shown = True
        else:
            self._stream.write(f"progress: {text}\n")
        self._stream.flush()

    def clear(self) -> None:
        """Wipe the line from a terminal."""
        if self._is_shown:
            self._stream.write(CLEAR_LINE)
            self._stream.flush()
            self._is_shown = False


def progress_text(event: Event) -> str:
    """A report as `3/10 message`, with the parts that it has."""

    def text_of(key: str) -> str:
        raw = event.members.get(key)
        value = None if raw is None else msgspec.json.decode(raw)
        if raw is None or value is None:
            return ""
        return value if isinstance(value, str) else bytes(raw).decode()

    done, total, message = map(text_of, ("progress", "total", "message"))
    count = f"{done}/{total}" if done and total else done
    return harmless(f"{count} {message}".strip(), keep="")


# -- results as text -------------------------------------------------------------------------------------------------


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
            return f"[{kind}{_mime_type(block)}, {_size(data)}: --json shows it]"
        case {"type": "resource_link", "uri": str(uri)}:
            return f"[link {block.get('name', '')} {uri}]"
        case {"type": "resource", "resource": {"text": str(text)}}:
            return text
        case {"type": "resource", "resource": {"uri": str(uri), "blob": str(blob)} as resource}:
            return f"[resource {uri}{_mime_type(resource)}, {_size(blob)}: --json shows it]"
        case {"type": str(other)}:
            return f"[{other}: --json shows it]"
        case _:
            return "[content without a type: --json shows it]"


def _mime_type(block: dict[str, Any]) -> str:
    kind = block.get("mimeType")
    return f" {kind}" if isinstance(kind, str) else ""


def _size(base64: str) -> str:
    return f"{len(base64.rstrip('=')) * 3 // 4:,} bytes"
