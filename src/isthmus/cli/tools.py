"""`isthmus tools` and `prompts`: the lists, one entry with its arguments and an example, and a search for tools."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import click
import msgspec

from isthmus.cli.call import REFERENCES_MAX, find_listed, properties_of, read_schema, required_of, resolved
from isthmus.cli.documents import ListedFeature, read_servers
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.find_hub import HUB_VARIABLE, HubSource, open_hub, with_hub, with_set
from isthmus.cli.lists import line_of, list_features, print_features, print_missing
from isthmus.cli.options import WholeNumber, with_json, with_wait
from isthmus.cli.output import (
    harmless,
    print_error,
    print_json,
    print_output,
    print_table,
    terminal_width,
)
from isthmus.cli.rest_client import HubClient, RemoteSource
from isthmus.cli.run_command import quiet_logs, run_command
from isthmus.model.features import Tool
from isthmus.model.names import FeatureName, ServerName, legal_server_name
from isthmus.wire.mcp.lists import PROMPTS, TOOLS, ListShape
from isthmus.wire.mcp.messages import read_string

SEARCH = "search"
FOUND_MAX = 10
"""How many tools a search prints without `--limit`, as many as `search_tools` returns."""

DEPTH_MAX = 3
BREADTH_MAX = 12
"""How far an example goes into a schema, which may contain itself, and how many parts it has on each level."""

TYPE_WIDTH = 24
"""A longer type is not written out: the JSON has it."""

CHOICE = "choice"
"""The type of a value with more choices than fit; its description lists them."""


@click.command()
@click.argument("name", required=False)
@with_hub
@with_set
@with_wait
@with_json
def prompts(name: str | None, source: HubSource, wait: float, *, is_json: bool) -> int:
    """List the prompts, and the servers that are missing.

    With NAME: its description, its arguments, and a command to paste.
    """
    quiet_logs()
    if name is None:
        return run_command(list_features(source, PROMPTS, wait=wait, is_json=is_json))
    return run_command(show_entry(source, name, PROMPTS, wait=wait, is_json=is_json))


@click.command(
    short_help="List the tools, show one, or search them.",
    epilog="A name may be short where it is unique: `read_file` for `files.read_file`.",
)
@click.argument("words", nargs=-1, metavar="[NAME | search WORDS...]")
@click.option("--server", metavar="NAME", help="Only the tools of this server.")
@click.option(
    "--limit",
    type=WholeNumber(1, 100),
    metavar="N",
    help=f"With `search`: at most so many tools.  [default: {FOUND_MAX}]",
)
@with_hub
@with_set
@with_wait
@with_json
def tools(
    words: tuple[str, ...], server: str | None, limit: int | None, source: HubSource, wait: float, *, is_json: bool
) -> int:
    """List the tools, and the servers that are missing.

    With NAME: its description, its arguments, and a call to paste. With `search` and words: the tools that fit, the
    best first, in the order of the hub's `search_tools`.
    """
    if server is not None and source.set_name is not None:
        raise click.UsageError("--server and --set exclude each other: names of a set do not say of which server.")
    is_search = len(words) > 1 and words[0] == SEARCH
    if len(words) > 1 and not is_search:
        raise click.UsageError("Name one tool, or write `search` before the words.")
    if limit is not None and not is_search:
        raise click.UsageError("--limit is for `isthmus tools search WORDS`.")
    quiet_logs()
    server = None if server is None else legal_server_name(server)  # a client's file may call it `my server`
    if is_search:
        work = search_tools(source, words[1:], server, limit or FOUND_MAX, wait=wait, is_json=is_json)
    elif words:
        work = show_entry(source, words[0], TOOLS, wait=wait, is_json=is_json)
    else:
        work = list_tools(source, server, wait=wait, is_json=is_json)
    return run_command(work)


async def list_tools(source: HubSource, server: str | None, *, wait: float, is_json: bool) -> Exit:
    """Print the tools, of all servers or of one.

    Raises:
        CommandFailed: there is no such server, or the hub cannot be reached or started.
    """
    async with open_hub(source, wait=wait, name=None if server is None else f"{server}.") as hub:
        if is_json:
            document = await hub.list(TOOLS)
            await _check_server(hub, server)
            print_json(document if server is None else _only(document, server))
            return Exit.SUCCESS
        listing = await hub.listing(TOOLS)
        await _check_server(hub, server)
    offers = [offer for offer in listing.features if server in (None, offer.server)]
    print_features(offers, TOOLS)
    print_missing({name: gone for name, gone in listing.missing.items() if server in (None, name)})
    return Exit.SUCCESS


async def _check_server(hub: HubClient, server: str | None) -> None:
    """Raises `CommandFailed` if there is no such server."""
    known = [] if server is None else [server.name for server in read_servers(await hub.servers())]
    if server is not None and server not in known:
        raise CommandFailed(Exit.USAGE, f"there is no server {server!r}", f"Servers: {', '.join(known)}.")


def _only(document: bytes, server: str) -> bytes:
    members = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
    entries = msgspec.json.decode(members[TOOLS.member], type=list[dict[str, msgspec.Raw]])
    missing = msgspec.json.decode(members["missing"], type=dict[str, msgspec.Raw])
    return msgspec.json.encode(
        {
            TOOLS.member: [entry for entry in entries if str(json.loads(entry["name"])).startswith(f"{server}.")],
            "missing": {name: why for name, why in missing.items() if name == server},
        }
    )


# -- one tool or prompt ------------------------------------------------------------------------------------------------


async def show_entry(source: HubSource, name: str, shape: ListShape, *, wait: float, is_json: bool) -> Exit:
    """Print what a tool or prompt does, its arguments, and a call to paste.

    Raises:
        CommandFailed: the name is unknown, or the hub cannot be reached or started.
    """
    async with open_hub(source, wait=wait, name=name, shape=shape) as hub:
        tool = await find_listed(hub, name, shape)
    if is_json:
        print_json(msgspec.json.encode(tool.definition))
        return Exit.SUCCESS
    schema = read_schema(tool.definition.get("inputSchema")) if shape is TOOLS else schema_of_prompt(tool)
    arguments = arguments_in(schema)
    print_output(tool.name)
    for line in _wrapped(read_string(tool.definition.get("description")) or "(no description)"):
        print_output(f"  {line}" if line else "")
    if hints := hints_of(read_schema(tool.definition.get("annotations"))):
        print_output(f"\nHints: {', '.join(hints)}.")
    print_output("\nArguments:" if arguments else "\nIt takes no arguments.")
    if arguments:
        print_table(("  NAME", "TYPE", "NEEDED", "DESCRIPTION"), arguments, ("cyan", "", "", ""), is_wrapped=True)
    is_named = isinstance(source, RemoteSource) and HUB_VARIABLE not in os.environ
    address = source.url.removesuffix("/mcp") if isinstance(source, RemoteSource) and is_named else None
    command: Literal["call", "prompt"] = "call" if shape is TOOLS else "prompt"
    print_output(f"\nExample:\n  {example_call(tool.name, schema, address, source.set_name, command)}")
    return Exit.SUCCESS


def schema_of_prompt(prompt: ListedFeature) -> dict[str, Any]:
    """The arguments of a prompt, which are texts, as the schema of a tool that takes the same."""
    try:
        declared = msgspec.json.decode(prompt.definition.get("arguments", b"[]"), type=list[_PromptArgument] | None)
    except msgspec.MsgspecError:
        declared = None
    return {
        "properties": {each.name: {"type": "string", "description": each.description or ""} for each in declared or ()},
        "required": [each.name for each in declared or () if each.required],
    }


class _PromptArgument(msgspec.Struct):
    name: str
    description: str | None = None
    required: bool | None = False


def hints_of(annotations: Mapping[str, Any]) -> list[str]:
    """What the server says about the effects of a tool."""
    words = {
        "readOnlyHint": ("only reads", "changes something"),
        "destructiveHint": ("may destroy something", "only adds"),
        "idempotentHint": ("may be repeated", "not to be repeated"),
        "openWorldHint": ("reaches the outside world", "stays inside"),
    }
    hints = {key: value for key, value in annotations.items() if key in words and isinstance(value, bool)}
    if hints.get("readOnlyHint"):
        hints.pop("destructiveHint", None)
    return [words[key][0 if value else 1] for key, value in hints.items()]


def arguments_in(schema: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """The arguments of a tool as rows: name, type, whether it is needed, description. Needed ones come first."""
    required = required_of(schema)
    rows = []
    for name, given in properties_of(schema).items():
        described = resolved(given, schema)
        notes = [str(described.get("description", "")).strip()]
        if isinstance(choices := described.get("enum"), list) and type_text(described, schema) == CHOICE:
            notes.append(f"one of {', '.join(map(_brief, choices))}")
        if described.get("default") is not None:
            notes.append(f"default: {_brief(described['default'])}")
        text = "; ".join(" ".join(note.split()) for note in notes if note)
        needed = "yes" if name in required else "no"
        rows.append((f"  {name}", type_text(described, schema)[: TYPE_WIDTH + 8], needed, text))
    shown = [(harmless(a, keep=""), harmless(b, keep=""), c, harmless(d, keep="")) for a, b, c, d in rows]
    return sorted(shown, key=lambda row: row[2] != "yes")


def type_text(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int = 0) -> str:
    """The type of a value in a few words."""
    if depth > DEPTH_MAX:  # a schema may contain itself
        return "any"
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        text = "|".join(map(_brief, choices))
        return text if len(text) <= TYPE_WIDTH else CHOICE
    for key in ("anyOf", "oneOf"):
        if isinstance(ways := schema.get(key), list):
            texts = [type_text(resolved(way, root), root, depth + 1) for way in ways[:BREADTH_MAX]]
            return " or ".join(dict.fromkeys(text for text in texts if text != "null")) or "null"
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " or ".join(str(each) for each in kind if each != "null")
    if kind == "array":
        items = resolved(schema.get("items"), root)
        return f"list of {type_text(items, root, depth + 1)}" if items else "list"
    return str(kind)


def example_call(
    name: str,
    schema: Mapping[str, Any],
    hub: str | None = None,
    set_name: str | None = None,
    command: Literal["call", "prompt"] = "call",
) -> str:
    """A command that calls the tool, or gets the prompt, with all arguments that it needs."""
    required = required_of(schema)
    words = []
    for argument, given in properties_of(schema).items():
        if argument not in required:
            continue
        value = example_value(argument, resolved(given, schema), schema)
        is_plain = isinstance(value, str) and not value.startswith("@") and re.fullmatch(r"[\w.-]+", argument)
        text = f"{argument}={value}" if is_plain else f"{argument}:={json.dumps(value, ensure_ascii=False)}"
        words.append(shlex.quote(text))
    target = [] if hub is None else ["--hub", hub]
    target += [] if set_name is None else ["--set", shlex.quote(set_name)]
    return " ".join(["isthmus", command, *target, shlex.quote(name), *words])


def example_value(name: str, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int = 0) -> Any:
    """A value that fits a schema: one that the server names, else a simple one."""
    for key in ("examples", "enum"):
        if isinstance(given := schema.get(key), list) and given:
            return given[0]
    for key in ("const", "default"):
        if schema.get(key) is not None:
            return schema[key]
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(ways := schema.get(key), list) and depth < DEPTH_MAX:
            found = [resolved(way, root) for way in ways]
            way = next((each for each in found if each.get("type") != "null"), {})
            return example_value(name, way, root, depth + 1)
    kind = schema.get("type")
    kind = next((each for each in kind if each != "null"), "null") if isinstance(kind, list) else kind
    if kind == "object" and depth < DEPTH_MAX:
        inner = properties_of(schema)
        return {
            each: example_value(each, resolved(inner.get(each), root), root, depth + 1)
            for each in sorted(required_of(schema))[:BREADTH_MAX]
        }
    if kind == "array" and depth < DEPTH_MAX:
        least = schema.get("minItems", 1 if depth == 0 else 0)
        item = example_value(name, resolved(schema.get("items"), root), root, depth + 1)
        return [item] * (least if isinstance(least, int) and 0 <= least <= REFERENCES_MAX else 1)
    if kind in ("integer", "number"):
        least = schema.get("minimum", 1)
        return least if isinstance(least, int | float) and least > 1 else 1
    if kind == "boolean":
        return True
    return name.upper() if kind in ("string", None) else None


def _brief(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _wrapped(text: str) -> list[str]:
    """A description in lines that fit; its own paragraphs and lists stay."""
    width = terminal_width() - 2
    lines = []
    for line in textwrap.dedent(text).strip().splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        lines += textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False) or [""]
    return lines


# -- search ------------------------------------------------------------------------------------------------------------


async def search_tools(
    source: HubSource, words: Sequence[str], server: str | None, limit: int, *, wait: float, is_json: bool
) -> Exit:
    """Print the tools that fit the words best.

    Raises:
        CommandFailed: the hub cannot be reached or started.
    """
    async with open_hub(source, wait=wait, name=None if server is None else f"{server}.") as hub:
        listing = await hub.listing(TOOLS)
        await _check_server(hub, server)
    found = ranked(words, listing.features, server)
    if is_json:
        print_json(msgspec.json.encode({TOOLS.member: [offer.definition for offer in found[:limit]]}))
        return Exit.SUCCESS if found else Exit.CALL_FAILED
    if not found:
        print_error(f"No tool fits {' '.join(words)!r}. `isthmus tools` lists all.")
        print_missing({name: gone for name, gone in listing.missing.items() if server in (None, name)})
        return Exit.CALL_FAILED
    rows = [(offer.name, line_of(offer)) for offer in found[:limit]]
    print_table(("TOOL", "DESCRIPTION"), rows, ("cyan", ""))
    if len(found) > limit:
        print_error(f"{len(found) - limit} more fit less well; --limit shows more.")
    elif sys.stdout.isatty():
        print_error(f"\n`isthmus tools {found[0].name}` shows its arguments.")
    return Exit.SUCCESS


def ranked(words: Sequence[str], offers: Sequence[ListedFeature], server: str | None = None) -> list[ListedFeature]:
    """The tools that fit the words, the best first, as the hub's `search_tools` ranks them.

    Raises:
        CommandFailed: this Python cannot search.
    """
    # Only here: other commands need no index.
    from isthmus.core.catalog.search_ranking import CANDIDATES_MAX, NoFullTextSearch, ToolIndex
    from isthmus.core.catalog.view import Route

    by_name = {offer.name: offer for offer in offers}
    routes = {}
    for name, offer in by_name.items():
        own = name.removeprefix(f"{offer.server}.")
        routes[name] = Route(Tool.of(ServerName(offer.server), FeatureName(own), dict(offer.definition)), name)
    try:
        index = ToolIndex()
    except NoFullTextSearch as error:
        raise CommandFailed(Exit.CONFIGURATION, str(error), "`isthmus tools` lists all tools.") from error
    index.update(routes)
    match = index.search(" ".join(words), CANDIDATES_MAX, server=server)
    index.close()
    return [by_name[name] for name in match]
