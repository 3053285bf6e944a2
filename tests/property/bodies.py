"""Bodies that try to say two things at once, made from valid ones; every choice comes from one `Random`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.hubs import META

TOOLS = ("files.read", "files.delete", "web.search", "web.admin", "nobody.knows", "read", "delete")
"""What a caller may try to name; the first and third are all that it is granted."""

BREAKS = ("", "", "", "", " ", "\n", "\r", "\r\n", "\t", '\n{"jsonrpc":"2.0"}\n')
"""What may stand between two tokens, and once something that may not."""

SPELLINGS: tuple[Callable[[str], str], ...] = (
    str,
    str.upper,
    str.capitalize,
    str.title,
    lambda key: key.replace("s", "ſ"),  # both fold to an ASCII letter where case is ignored as in Go
    lambda key: key.replace("k", "\u212a"),
    lambda key: key + "\u0000",
    lambda key: f"\ufeff{key}",
    lambda key: f"{key} ",
)

SMUGGLED = (
    '"files.delete"',
    '"\\u0066iles.delete"',
    '"files.read\\u0000"',
    '"files.read\\n{\\"jsonrpc\\":\\"2.0\\"}"',
    '"files.read\u2028"',
    '"\\ud800"',
    '["files.delete"]',
    '{"name":"files.delete"}',
    "null",
    "0",
    "-0.0",
    "1e999",
    "NaN",
    "9" * 400,
    "true",
    '""',
    '{"name":"files.delete","name":"files.read"}',
    '{"text":"a\\nb","\\"":1,"}{":"\\\\\\""}',
    "[" * 70 + "]" * 70,
)


@dataclass(slots=True)
class Object:
    """A JSON object as it is written: members may repeat."""

    members: list[tuple[str, Object | str]] = field(default_factory=list)


def written(value: Any) -> Object | str:
    """A value as a tree of objects; everything else is its text."""
    if isinstance(value, dict):
        return Object([(json.dumps(key), written(member)) for key, member in value.items()])
    return json.dumps(value, ensure_ascii=False)


def objects_of(node: Object | str) -> list[Object]:
    """An object and every object in it."""
    if isinstance(node, str):
        return []
    return [node, *(inner for _, member in node.members for inner in objects_of(member))]


def request(random: Random) -> Object:
    """A valid request to call a tool, of either era."""
    params: dict[str, Any] = {"name": random.choice(TOOLS), "arguments": {"text": "a\nb", "deep": {"name": "x"}}}
    if random.random() < 0.5:
        params["_meta"] = META if random.random() < 0.7 else {"progressToken": 1, "traceparent": "00"}
    body = {"jsonrpc": "2.0", "id": random.choice([1, "1", 0, "", 2**53 + 1]), "method": "tools/call", "params": params}
    made = written(body)
    assert isinstance(made, Object)
    return made


def spelt(key: str, random: Random) -> str:
    """A key's JSON text in one of many spellings, perhaps with one character escaped that need not be."""
    name = random.choice(SPELLINGS)(json.loads(key))
    if name.isprintable() and name and random.random() < 0.3:
        at = random.randrange(len(name))
        return f'"{name[:at]}\\u{ord(name[at]):04x}{name[at + 1 :]}"'
    return json.dumps(name, ensure_ascii=random.random() < 0.5)


def mutate(body: Object, random: Random) -> None:
    """Change one thing somewhere."""
    target = random.choice(objects_of(body))
    at = random.randrange(len(target.members)) if target.members else 0
    key, value = target.members[at] if target.members else ('"name"', "1")
    match random.randrange(7):
        case 0 if target.members:
            del target.members[at]
        case 1:
            other: Object | str = random.choice(SMUGGLED)
            target.members.insert(random.randint(0, len(target.members)), (spelt(key, random), other))
        case 2:
            known = ('"name"', '"method"', '"params"', '"arguments"', '"_meta"', '"id"', '"progressToken"')
            new = spelt(random.choice(known), random)
            other = json.dumps(random.choice(TOOLS)) if random.random() < 0.5 else random.choice(SMUGGLED)
            target.members.insert(random.randint(0, len(target.members)), (new, other))
        case 3 if target.members:
            target.members[at] = (key, random.choice(SMUGGLED))
        case 4 if target.members:
            target.members[at] = (spelt(key, random), value)
        case 5:
            target.members.insert(random.randint(0, len(target.members)), (spelt(key, random), value))
        case _:
            random.shuffle(target.members)


def text_of(node: Object | str, random: Random, *, is_broken: bool) -> str:
    """The tree as text, with line breaks between tokens if asked for."""
    if isinstance(node, str):
        return node

    def gap() -> str:
        return random.choice(BREAKS) if is_broken and random.random() < 0.3 else ""

    members = [
        f"{gap()}{key}{gap()}:{gap()}{text_of(value, random, is_broken=is_broken)}{gap()}"
        for key, value in node.members
    ]
    return "{" + ",".join(members) + gap() + "}"


def structured(random: Random) -> bytes:
    """A body with a few members out of order, doubled, misspelt or replaced."""
    body = request(random)
    for _ in range(random.randrange(4)):
        mutate(body, random)
    text = text_of(body, random, is_broken=random.random() < 0.4)
    return around(text, random)


def around(text: str, random: Random) -> bytes:
    """The text in an encoding, perhaps with something before or after it."""
    data = text.encode("utf-8", "surrogatepass")
    match random.randrange(24):
        case 0:
            return b"\xef\xbb\xbf" + data
        case 1:
            return text.encode("utf-16", "surrogatepass")
        case 2:
            return b"[" + data + b"]"
        case 3:
            return data + data
        case 4:
            return data + b"\n" + data
        case 5:
            return b"\n\n " + data + b" \r\n"
        case _:
            return data


def torn(random: Random) -> bytes:
    """A structured body with a few bytes cut out, doubled, moved or replaced."""
    data = bytearray(structured(random))
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(data) + 1)
        match random.randrange(4):
            case 0:
                del data[at : at + random.randint(1, 8)]
            case 1:
                data[at:at] = data[random.randrange(len(data) + 1) :][: random.randint(1, 24)]
            case 2:
                data[at:at] = bytes([random.choice(b'"\\{}[],:\n\r\t ntu0e.')])
            case _:
                data[at : at + 1] = bytes([random.randrange(256)])
    return bytes(data)


def any_body(random: Random) -> bytes:
    """Mostly structured ones: random bytes rarely get past the first brace."""
    share = random.random()
    if share < 0.75:
        return structured(random)
    if share < 0.97:
        return torn(random)
    return bytes(random.randrange(256) for _ in range(random.randrange(40)))
