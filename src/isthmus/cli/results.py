"""A result as a person reads it, of a tool, a prompt or a resource: texts as they are, all else in a line.

`--json` shows what this leaves out. Nothing is printed here.
"""

from __future__ import annotations

from typing import Any

import msgspec


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
