"""Results as text for people: what is printed, what is saved to files, and what a pager shows."""

from __future__ import annotations

import base64
import binascii
import math
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.output import harmless, print_error, print_output

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
