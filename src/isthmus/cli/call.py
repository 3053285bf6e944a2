"""`isthmus call`, `prompt` and `read`: one call, with its progress, to its one outcome."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import msgspec

from isthmus.cli import hub
from isthmus.cli.documents import FeatureList, ListedFeature, UnavailableServer, read_listing, read_servers
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.hub import CallFailure, HubCall, HubClient, LocalSource, RemoteSource, open_hub
from isthmus.cli.output import harmless, print_error, print_output
from isthmus.config.settings import Configuration
from isthmus.core.catalog.names import BUILTIN, AmbiguousName, Pair, llm_form, resolve, suggestions
from isthmus.model.events import Event, Progress
from isthmus.model.names import FeatureName, ServerName
from isthmus.model.outcomes import Result
from isthmus.storage.memory import MemoryJournal
from isthmus.upstream.python.builtin import builtin_tools
from isthmus.wire.jsonrpc import object_members, render
from isthmus.wire.mcp.lists import PROMPTS, TOOLS, ListShape


def readable(payload: msgspec.Raw) -> str:
    """Return the text to print for a result; structured content only where there is no other."""
    members = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
    blocks = _blocks(members.get("content"))
    if blocks:
        return "\n".join(_block(block) for block in blocks)
    structured = members.get("structuredContent")
    return "" if structured is None else msgspec.json.format(bytes(structured), indent=2).decode()


def readable_value(payload: msgspec.Raw) -> str:
    """Return the text to print for what a plain server returned: a text as it is, anything else as JSON."""
    value = msgspec.json.decode(payload)
    return value if isinstance(value, str) else msgspec.json.format(bytes(payload), indent=2).decode()


def readable_messages(payload: msgspec.Raw) -> str:
    """Return the text to print for a prompt: each message under who says it."""
    members = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
    return "\n\n".join(_message(message) for message in _blocks(members.get("messages")))


def _message(message: Any) -> str:
    match message:
        case {"role": str(role), "content": content}:
            return f"{role}: {_block(content)}"
        case _:
            return "[something that is no message: --json shows it]"


def readable_contents(payload: msgspec.Raw) -> str:
    """Return the text to print for a resource; several parts follow one another."""
    members = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
    parts = _blocks(members.get("contents"))
    return "\n".join(_block({"type": "resource", "resource": part}) for part in parts)


def _blocks(content: msgspec.Raw | None) -> list[Any]:
    blocks = None if content is None else msgspec.json.decode(content)
    return blocks if isinstance(blocks, list) else []


def _block(block: Any) -> str:
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image" | "audio" as kind, "data": str(data)}:
            return f"[{kind}{_kind_of(block)}, {_size(data)}: --json shows it]"
        case {"type": "resource_link", "uri": str(uri)}:
            return f"[link {block.get('name', '')} {uri}]"
        case {"type": "resource", "resource": {"text": str(text)}}:
            return text
        case {"type": "resource", "resource": {"uri": str(uri), "blob": str(blob)} as resource}:
            return f"[resource {uri}{_kind_of(resource)}, {_size(blob)}: --json shows it]"
        case {"type": str(other)}:
            return f"[{other}: --json shows it]"
        case _:
            return "[something without a type: --json shows it]"


def _kind_of(block: dict[str, Any]) -> str:
    kind = block.get("mimeType")
    return f" {kind}" if isinstance(kind, str) else ""


def _size(base64: str) -> str:
    return f"{len(base64.rstrip('=')) * 3 // 4:,} bytes"


CLEAR = "\r\x1b[K"


class ProgressLine:
    """Shows the latest report; on a terminal `clear` wipes it away."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._is_shown = False

    def show(self, event: Event) -> None:
        """Show a report."""
        text = in_words(event)
        if self._is_terminal:
            # A line that wraps could not be wiped away again.
            room = shutil.get_terminal_size().columns - 1
            self._stream.write(CLEAR + text[:room])
            self._is_shown = True
        else:
            self._stream.write(f"progress: {text}\n")
        self._stream.flush()

    def clear(self) -> None:
        """Leave no trace on a terminal."""
        if self._is_shown:
            self._stream.write(CLEAR)
            self._stream.flush()
            self._is_shown = False


def in_words(event: Event) -> str:
    """Return a report as `3/10 message`, with whatever of the three is there."""
    done, total, message = (_log_text(event.members.get(key)) for key in ("progress", "total", "message"))
    count = f"{done}/{total}" if done and total else done
    return harmless(f"{count} {message}".strip(), keep="")


def _log_text(raw: msgspec.Raw | None) -> str:
    """Return a string's value, and anything else as it is written; null is nothing."""
    value = None if raw is None else msgspec.json.decode(raw)
    if raw is None or value is None:
        return ""
    return value if isinstance(value, str) else bytes(raw).decode()


def servers_for(name: str, configuration: Configuration, shape: ListShape = TOOLS) -> set[ServerName] | None:
    """Return which servers have to be started for `name`; None if any could have it.

    A full name needs its own server only, and a built-in tool none: nobody waits for the others.
    """
    server = ServerName(name.partition(".")[0])
    if shape is TOOLS and (server == BUILTIN or name in _builtin_names()):
        return set()
    if "." in name and any(server == configured.name for configured in configuration.servers):
        return {server}
    return None


def _builtin_names() -> set[str]:
    return {tool.name for tool in builtin_tools(MemoryJournal(), time.time)}


def choose(name: str, listing: FeatureList, shape: ListShape = TOOLS) -> ListedFeature:
    """Return the tool, or whatever the list is of, that is meant.

    Raises:
        CommandFailed: several could be meant, or none.
    """
    exact = {offer.name: offer for offer in listing.offers}
    if name in exact:
        return exact[name]
    pairs = {pair: offer for offer in listing.offers if (pair := _pair(offer)) is not None}
    try:
        found = resolve(name, pairs)
    except AmbiguousName as several:
        listed = "\n  ".join(several.candidates)
        text = f"{name!r} could be any of these:\n  {listed}"
        raise CommandFailed(Exit.USAGE, text, "Call it by its full name.") from None
    if found is None:
        raise _unknown(name, listing.offers, listing.absences, shape)
    return pairs[found]


def _pair(offer: ListedFeature) -> Pair | None:
    """Take a full name apart; names of another style have no parts, and only the whole of them counts."""
    server, dot, tool = offer.name.partition(".")
    return (ServerName(server), FeatureName(tool)) if dot else None


def _unknown(
    name: str, offers: Sequence[ListedFeature], absences: Mapping[str, UnavailableServer], shape: ListShape
) -> CommandFailed:
    server, dot, _ = name.partition(".")
    if not dot:  # perhaps a name that language models are given
        fitting = [each for each in absences if name.startswith(llm_form((ServerName(each), FeatureName(""))))]
        server = max(fitting, key=len, default="")
    if server in absences:
        gone = absences[server]
        why = gone.reason or f"it is {gone.state}"
        return CommandFailed(
            Exit.CALL_FAILED,
            f"cannot call {name}: server {server} is not connected: {why}",
            "executed: no. `isthmus doctor` says how each server stands.",
        )
    advice = f"`isthmus {shape.member}` lists what there is."
    if near := suggestions(name, (offer.name for offer in offers)):
        advice = f"Did you mean {' or '.join(near)}? {advice}"
    if absences:
        advice += f" Not connected, so not listed: {', '.join(sorted(absences))}."
    return CommandFailed(Exit.CALL_FAILED, f"there is no {shape.noun} {name!r}", advice)


Read: TypeAlias = Callable[[str], str]
"""Returns the text of a file, `-` being standard input; raises `OSError` or `UnicodeError`."""

HOW = "Write name=text, name:=JSON or name=@FILE (@- is standard input); or give all of them as --args JSON."


def arguments_of(words: Sequence[str], whole: str | None, schema: msgspec.Raw | None, read: Read) -> msgspec.Raw:
    """Return the arguments as one JSON object.

    Raises:
        CommandFailed: a word cannot be understood; the message names it.
    """
    if whole is not None and words:
        raise _wrong("--args and name=value exclude each other")
    if whole is not None:
        return _whole(_contents("--args", whole, read))
    properties = _properties(schema)
    members: dict[str, bytes] = {}
    for word in words:
        name, value = _member(word, properties, read)
        if name in members:
            raise _wrong(f"{name} is given twice")
        members[name] = value
    return msgspec.Raw(render(members))


def _whole(text: str) -> msgspec.Raw:
    value = _json("--args", text, "a JSON object")
    if object_members(value) is None:
        raise _wrong("--args must be a JSON object in which no name is repeated")
    return msgspec.Raw(value)


def _member(word: str, properties: Mapping[str, Any], read: Read) -> tuple[str, bytes]:
    name, equals, text = word.partition("=")
    is_json = name.endswith(":")
    name = name.removesuffix(":")
    if not equals or not name:
        raise _wrong(f"{word!r} is not an argument")
    text = _contents(name, text, read)
    kinds = _kinds(properties.get(name))
    if is_json:
        return name, _json(name, text, "JSON")
    if not kinds or "string" in kinds:
        return name, _text(name, text)
    return name, _json(name, text, " or ".join(sorted(kinds)))


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
    """Return JSON as it is written, once it is known to be JSON."""
    try:
        raw = text.strip().encode()
        msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise _wrong(f"{name} must be {wanted}, not {_cut(text)} ({error})") from None
    return raw


def _text(name: str, text: str) -> bytes:
    try:
        return msgspec.json.encode(text)
    except ValueError:  # UnicodeEncodeError: bytes that are no UTF-8 arrive as lone surrogates
        raise _wrong(f"{name} is not UTF-8 text") from None


def _cut(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")


def _wrong(text: str) -> CommandFailed:
    return CommandFailed(Exit.USAGE, text, HOW)


# -- what the schema says ------------------------------------------------------------------------------------


def _properties(schema: msgspec.Raw | None) -> dict[str, Any]:
    """Return the schema of each argument, with references of the kind that generators write followed."""
    try:
        root = msgspec.json.decode(schema) if schema is not None else {}
    except (msgspec.MsgspecError, RecursionError):
        return {}
    properties = root.get("properties") if isinstance(root, dict) else None
    if not isinstance(properties, dict):
        return {}
    return {name: _followed(property, root) for name, property in properties.items()}


def _followed(schema: Any, root: Mapping[str, Any]) -> Any:
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return schema
    found: Any = root
    for step in reference[2:].split("/"):
        found = found.get(step) if isinstance(found, dict) else None
    return found


def _kinds(schema: Any) -> set[str]:
    """Return the JSON types that an argument may have; none if the schema does not say."""
    if not isinstance(schema, dict):
        return set()
    named = schema.get("type", [])
    kinds = {kind for kind in ([named] if isinstance(named, str) else named) if isinstance(kind, str)}
    for key in ("anyOf", "oneOf"):
        for choice in schema.get(key) or ():
            kinds |= _kinds(choice)
    return kinds


@dataclass(frozen=True, slots=True)
class FeatureRequest:
    """What was asked for on the command line."""

    name: str
    words: Sequence[str]
    whole: str | None
    """All arguments as one JSON object, instead of words."""
    is_json: bool


async def call_tool(source: RemoteSource | LocalSource, wanted: FeatureRequest, *, wait: float) -> Exit:
    """Call a tool and print how it ended.

    Raises:
        CommandFailed: there is no such hub or tool, an argument is wrong, or the call ended in a fault.
    """
    async with open_hub(source, wait=wait, name=wanted.name, is_to_call=True) as hub:
        offer = await _chosen(hub, wanted.name)
        arguments = arguments_of(wanted.words, wanted.whole, offer.definition.get("inputSchema"), read_text)
        outcome = await _perform(hub, HubCall("tool", offer.name, arguments))
    return _tell(outcome, offer.name, readable, is_json=wanted.is_json)


async def _chosen(hub: HubClient, name: str) -> ListedFeature:
    """The tool that is meant: a listed one, or the method of a server that lists none."""
    try:
        return choose(name, read_listing(await hub.list(TOOLS), TOOLS))
    except CommandFailed:
        server, _, method = name.partition(".")
        told = read_servers(await hub.servers()) if method else []
        if not any(each.name == server and each.unlisted for each in told):
            raise
        return ListedFeature(name, server, {})


async def write_prompt(source: RemoteSource | LocalSource, wanted: FeatureRequest, *, wait: float) -> Exit:
    """Have a prompt written out and print it.

    Raises:
        CommandFailed: as of `call_tool`.
    """
    async with open_hub(source, wait=wait, name=wanted.name, shape=PROMPTS, is_to_call=True) as hub:
        offer = choose(wanted.name, read_listing(await hub.list(PROMPTS), PROMPTS), PROMPTS)
        arguments = arguments_of(wanted.words, wanted.whole, None, read_text)
        outcome = await _perform(hub, HubCall("prompt", offer.name, arguments))
    return _tell(outcome, offer.name, readable_messages, is_json=wanted.is_json)


async def read_resource(source: RemoteSource | LocalSource, uri: str, *, wait: float, is_json: bool) -> Exit:
    """Read a resource and print it.

    Raises:
        CommandFailed: as of `call_tool`.
    """
    async with open_hub(source, wait=wait, is_to_call=True) as hub:
        outcome = await _perform(hub, HubCall("resource", uri, msgspec.Raw(b"{}")))
    return _tell(outcome, uri, readable_contents, is_json=is_json)


def read_text(name: str) -> str:
    """Return the text of a file, or of standard input for `-`."""
    content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    return content.decode()


async def _perform(hub: HubClient, asked: HubCall) -> Result | CallFailure:
    """Wait for the outcome and show progress meanwhile."""
    line = ProgressLine(sys.stderr)

    def show(event: Event) -> None:
        if isinstance(event, Progress):
            line.show(event)

    try:
        return await hub.perform(asked, show)
    finally:
        line.clear()


# -- telling -------------------------------------------------------------------------------------------------


def _tell(outcome: Result | CallFailure, name: str, in_words: Callable[[msgspec.Raw], str], *, is_json: bool) -> Exit:
    if isinstance(outcome, CallFailure):
        if is_json:
            print_output(hub.failure_as_json(outcome).decode())
        raise hub.command_failed(outcome)
    if is_json:
        print_output(bytes(outcome.payload).decode())
        return Exit.CALL_FAILED if outcome.is_error else Exit.SUCCESS
    text = readable_value(outcome.payload) if outcome.is_bare else in_words(outcome.payload)
    return _tell_result(outcome, name, text)


def _tell_result(result: Result, name: str, text: str) -> Exit:
    if result.is_error:
        # On stderr: what is written to a file or a pipe should be what was asked for, or nothing.
        print_error(text)
        raise CommandFailed(
            Exit.CALL_FAILED,
            f"{harmless(name)} ran and reported an error (above)",
            "Mend what it complains of and call it again; `isthmus tools --json` shows what it takes.",
        )
    if text:
        print_output(text)
    return Exit.SUCCESS
