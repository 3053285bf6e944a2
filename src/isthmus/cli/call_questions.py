"""The questions of a server while a call runs (elicitation), and how a person or `--answer` answers them.

Questions go to standard error, and answers come from standard input, only where both are a terminal; a result in a file
or pipe stays clean. Without a terminal, `--answer` has the answers (`PresetAnswers`).
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias
from urllib.parse import urlsplit

import msgspec

from isthmus.cli.call_progress import StatusLine
from isthmus.cli.output import harmless, print_error
from isthmus.cli.rest_client import HubQuestion

BOLD, PLAIN = "\x1b[1m", "\x1b[0m"

LINE_BYTES_MAX = 64 * 1024
"""More than a terminal lets a person type in one line."""

ElicitAnswer: TypeAlias = dict[str, Any]
"""The result of an elicitation: `action`, and for a form that was accepted `content`."""

ACCEPT: ElicitAnswer = {"action": "accept"}
DECLINE: ElicitAnswer = {"action": "decline"}
CANCEL: ElicitAnswer = {"action": "cancel"}


class Answers(Protocol):
    """Answers the questions of one call."""

    async def answer(self, question: HubQuestion) -> ElicitAnswer:
        """The answer; cancelling this retracts the question."""


class InputClosed(Exception):
    """The person ended a question with Ctrl-D, or the terminal is gone."""


class FormField(msgspec.Struct, frozen=True):
    """One field of a form: a string, number, integer or boolean, one of several choices, or some of them."""

    name: str
    kind: Literal["text", "number", "integer", "yes or no", "choice", "choices"]
    title: str = ""
    description: str = ""
    is_required: bool = False
    default: Any = None
    choices: tuple[tuple[Any, str], ...] = ()
    """Values and what they are called."""
    schema: Mapping[str, Any] = {}

    def hint(self) -> str:
        """What may be written, in brackets."""
        needed = "" if self.is_required else ", optional"
        kind = "choices, such as 1,2" if self.kind == "choices" else self.schema.get("format") or self.kind
        return f"({kind}{needed})"


def read_form(params: Mapping[str, Any]) -> list[FormField]:
    """The fields of a form."""
    schema = params.get("requestedSchema")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    required = schema.get("required") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return []
    names = required if isinstance(required, list) else []
    return [_read_field(name, each, is_required=name in names) for name, each in properties.items()]


def _read_field(name: str, schema: Any, *, is_required: bool) -> FormField:
    schema = schema if isinstance(schema, dict) else {}
    items = schema.get("items")
    choices = _read_choices(items if isinstance(items, dict) else schema)
    kind: Literal["text", "number", "integer", "yes or no", "choice", "choices"] = "text"
    if schema.get("type") == "array":
        kind = "choices"
    elif choices:
        kind = "choice"
    else:
        match schema.get("type"):
            case "boolean":
                kind = "yes or no"
            case "number" | "integer" as number:
                kind = number
            case _:
                pass
    title, description = schema.get("title"), schema.get("description")
    return FormField(
        name,
        kind,
        title if isinstance(title, str) else "",
        description if isinstance(description, str) else "",
        is_required,
        schema.get("default"),
        choices,
        schema,
    )


def _read_choices(schema: Mapping[str, Any]) -> tuple[tuple[Any, str], ...]:
    for key in ("oneOf", "anyOf"):
        if isinstance(titled := schema.get(key), list):
            found = [each for each in titled if isinstance(each, dict) and "const" in each]
            return tuple((each["const"], str(each.get("title", each["const"]))) for each in found)
    values, names = schema.get("enum"), schema.get("enumNames")
    if not isinstance(values, list):
        return ()
    titles = names if isinstance(names, list) and len(names) == len(values) else values
    return tuple((value, str(title)) for value, title in zip(values, titles, strict=True))


def parse_field(field: FormField, text: str) -> Any:
    """The value of what a person wrote.

    Raises:
        ValueError: it does not fit; the message says what does.
    """
    text = text.strip()
    match field.kind:
        case "yes or no":
            answer = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}.get(text.lower())
            if answer is None:
                raise ValueError("write y or n")
            return answer
        case "choice":
            return _chosen(field, text)
        case "choices":
            return [_chosen(field, each.strip()) for each in text.split(",") if each.strip()]
        case "integer" | "number":
            return _number(field, text)
        case "text":
            return _text(field, text)


def _chosen(field: FormField, text: str) -> Any:
    for number, (value, title) in enumerate(field.choices, 1):
        if text in (str(number), str(value), title):
            return value
    several = ", several with commas between them" if field.kind == "choices" else ""
    raise ValueError(f"write a number from 1 to {len(field.choices)}, or one of the choices as it is{several}")


def _number(field: FormField, text: str) -> int | float:
    try:
        value = int(text) if field.kind == "integer" else float(text)
    except ValueError:
        raise ValueError(f"write {'a whole number' if field.kind == 'integer' else 'a number'}, not {text!r}") from None
    least, most = field.schema.get("minimum"), field.schema.get("maximum")
    if not math.isfinite(value):
        raise ValueError("write a number")
    if isinstance(least, int | float) and value < least:
        raise ValueError(f"the least is {least}")
    if isinstance(most, int | float) and value > most:
        raise ValueError(f"the most is {most}")
    return value


def _text(field: FormField, text: str) -> str:
    least, most = field.schema.get("minLength"), field.schema.get("maxLength")
    if isinstance(least, int) and len(text) < least:
        raise ValueError(f"write at least {least} characters")
    if isinstance(most, int) and len(text) > most:
        raise ValueError(f"write at most {most} characters")
    match field.schema.get("format"):
        case "email" if "@" not in text.strip("@"):
            raise ValueError("write an e-mail address")
        case "uri" if not urlsplit(text).scheme:
            raise ValueError("write an address such as https://example.com")
    return text


class TerminalAnswers:
    """Asks the person at the terminal. Ctrl-D cancels a question, Ctrl-C the call."""

    def __init__(self, server: str, line: StatusLine) -> None:
        self._server = server
        self._line = line
        self._lock = asyncio.Lock()

    async def answer(self, question: HubQuestion) -> ElicitAnswer:
        """The answer; cancelling this retracts the question."""
        params = question.read_params()
        async with self._lock:
            self._line.pause()
            try:
                return await (self._open_page(params) if params.get("mode") == "url" else self._fill(params))
            except InputClosed:
                print_error("")
                return CANCEL
            finally:
                self._line.resume()

    async def _fill(self, params: Mapping[str, Any]) -> ElicitAnswer:
        print_error(f"{self._server} asks: {params.get('message', '')}")
        fields = read_form(params)
        if not fields:
            return {**ACCEPT, "content": {}} if await self._confirm("Accept?", default=None) else DECLINE
        content: dict[str, Any] = {}
        for field in fields:
            if (value := await self._ask(field)) is not None:
                content[field.name] = value
        return {**ACCEPT, "content": content} if await self._confirm("Send?", default=True) else DECLINE

    async def _ask(self, field: FormField) -> Any:
        """A value for the field; None to leave it out."""
        if field.description:
            print_error(f"  {field.description}")
        for number, (_, title) in enumerate(field.choices, 1):
            print_error(f"    {number}  {title}")
        default = "" if field.default is None else f" [{_shown(field, field.default)}]"
        prompt = f"  {field.title or field.name} {field.hint()}{default}: "
        while True:
            text = await read_line(prompt)
            if not text.strip() and field.default is not None:
                return field.default
            if not text.strip() and not field.is_required:
                return None
            try:
                if text.strip():
                    return parse_field(field, text)
                print_error("    It is required: write a value, or press Ctrl-D to cancel.")
            except ValueError as wrong:
                print_error(f"    {str(wrong)[:1].upper()}{str(wrong)[1:]}.")

    async def _open_page(self, params: Mapping[str, Any]) -> ElicitAnswer:
        url = str(params.get("url", ""))
        print_error(f"{self._server} asks you to open a page: {params.get('message', '')}")
        sys.stderr.write(f"  {highlighted(url)}\n")
        host = urlsplit(url).hostname or "no host"
        if not await self._confirm(f"Will you open it? Only if you trust {harmless(host, keep='')}.", default=False):
            return DECLINE
        print_error("  Open it in a browser now.")
        return ACCEPT

    async def _confirm(self, text: str, *, default: bool | None) -> bool:
        choices = {True: "Y/n", False: "y/N", None: "y/n"}[default]
        while True:
            answer = (await read_line(f"  {text} [{choices}] ")).strip().lower()
            if not answer and default is not None:
                return default
            if answer in ("y", "yes", "n", "no"):
                return answer.startswith("y")
            print_error("    Write y or n.")


class PresetAnswers:
    """Answers from `--answer`: what to do with questions, and values for the fields of forms.

    A form is accepted if a field of it was given, or everything is. What these do not answer is asked at the terminal,
    if there is one, and otherwise cancelled. If one of them was wrong, `is_wrong` is set then.
    """

    def __init__(self, given: Sequence[str], terminal: TerminalAnswers | None) -> None:
        """See `with_answers` for the form of `given`.

        Raises:
            ValueError: it has another form.
        """
        self._terminal = terminal
        self._action: str | None = None
        self._values: dict[str, tuple[str, bool]] = {}
        """The text of each, and whether it is JSON."""
        for word in given:
            name, equals, text = word.partition("=")
            if not equals and word in ("accept", "decline", "cancel"):
                self._action = word
                continue
            is_json = name.endswith(":")
            name = name.removesuffix(":")
            if not equals or not name:
                raise ValueError(f"{word!r} is neither NAME=VALUE nor accept, decline or cancel")
            if is_json:
                try:
                    msgspec.json.decode(text.encode())
                except (ValueError, RecursionError) as error:
                    raise ValueError(f"{name} must be JSON, got {text!r} ({error})") from None
            self._values[name] = (text, is_json)
        self.unanswered: list[HubQuestion] = []
        self.is_wrong = False
        self._asked: set[str] = set()
        """The fields of all forms."""

    async def answer(self, question: HubQuestion) -> ElicitAnswer:
        """The answer; cancelling this retracts the question."""
        params = question.read_params()
        if self._action in ("decline", "cancel"):
            return {"action": self._action}
        if params.get("mode") == "url":
            if self._action == "accept":
                print_error(f"The server asks you to open {params.get('url', '')}")
                return ACCEPT
            return await self._otherwise(question)
        fields = read_form(params)
        self._asked |= {field.name for field in fields}
        if wrong := self._misspelt([field.name for field in fields]):
            return await self._refuse(question, wrong)
        if self._action != "accept" and not any(field.name in self._values for field in fields):
            return await self._otherwise(question)  # nothing was given
        content: dict[str, Any] = {}
        missing = []
        for field in fields:
            if field.name in self._values:
                try:
                    content[field.name] = self._value(field)
                except ValueError as error:
                    return await self._refuse(question, f"--answer {field.name}: {error}")
            elif field.default is not None:
                content[field.name] = field.default
            elif field.is_required:
                missing.append(field.name)
        if missing:
            words = " ".join(f"--answer {name}=…" for name in missing)
            return await self._refuse(question, f"--answer: {' and '.join(missing)} must be given too: add {words}")
        return {**ACCEPT, "content": content}

    @property
    def unused(self) -> list[str]:
        """The names that were given and that no form had, if there was a form."""
        return [name for name in self._values if name not in self._asked] if self._asked else []

    def _misspelt(self, fields: Sequence[str]) -> str:
        """What is wrong with the names that were given, for a form with these fields.

        A name may belong to another question, unless it is like a field of this one, or no other name fits.
        """
        for name in self._values.keys() - set(fields):
            import difflib

            if near := difflib.get_close_matches(name, set(fields) - self._values.keys(), n=1):
                return f"--answer: {name} is not a field of this question; did you mean {near[0]}?"
        if self._values and self._action is None and not self._values.keys() & set(fields):
            names = " and ".join(self._values)
            return (
                f"--answer: {names} {'is not a field' if len(self._values) == 1 else 'are not fields'} of this question"
            )
        return ""

    async def _refuse(self, question: HubQuestion, why: str) -> ElicitAnswer:
        print_error(why)
        self.is_wrong = self.is_wrong or self._terminal is None
        return await self._otherwise(question)

    async def _otherwise(self, question: HubQuestion) -> ElicitAnswer:
        if self._terminal is not None:
            return await self._terminal.answer(question)
        self.unanswered.append(question)
        return CANCEL

    def _value(self, field: FormField) -> Any:
        text, is_json = self._values[field.name]
        if not is_json:
            return parse_field(field, text)
        value = msgspec.json.decode(text.encode())
        kinds: dict[str, type | tuple[type, ...]] = {
            "text": str,
            "integer": int,
            "number": (int, float),
            "yes or no": bool,
            "choices": list,
        }
        if not isinstance(value, kinds.get(field.kind, object)) or (
            isinstance(value, bool) and field.kind in ("integer", "number")
        ):
            raise ValueError(f"it must be {field.kind}, not {text}")
        return value


def print_unanswered(server: str, questions: Sequence[HubQuestion]) -> None:
    """Say what a server asked without getting an answer, and how to give one."""
    for question in questions:
        params = question.read_params()
        print_error(f"{server} asked, and got no answer: {params.get('message', '')}")
        if params.get("mode") == "url":
            print_error(f"  It wants you to open {params.get('url', '')}")
            print_error("Call it in a terminal, or add --answer accept once you trust that page.")
            continue
        fields = read_form(params)
        for field in fields:
            choices = f": {', '.join(str(value) for value, _ in field.choices)}" if field.choices else ""
            print_error(f"  {field.name} {field.hint()}{choices}")
        needed = [field for field in fields if field.is_required] or fields
        example = " ".join(f"--answer {field.name}=…" for field in needed) or "--answer accept"
        print_error(f"Call it in a terminal, or add {example}")


def _shown(field: FormField, value: Any) -> str:
    if field.kind == "yes or no":
        return "y" if value else "n"
    names = {str(each): title for each, title in field.choices}
    if isinstance(value, list):
        return ", ".join(names.get(str(each), str(each)) for each in value)
    return names.get(str(value), str(value))


def highlighted(url: str) -> str:
    """An address for a terminal, with its host in bold: it decides whom the page belongs to."""
    shown = harmless(url, keep="")
    host = harmless(urlsplit(url).hostname or "", keep="")
    before, found, after = shown.partition(host) if host else (shown, "", "")
    return f"{before}{BOLD}{found}{PLAIN}{after}" if found else shown


async def read_line(prompt: str) -> str:
    """A line from the terminal. It reads when there is something, so that a signal or a retraction ends it at once.

    Raises:
        InputClosed: the person pressed Ctrl-D.
    """
    sys.stderr.write(harmless(prompt, keep=""))
    sys.stderr.flush()
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    read = bytearray()
    while True:
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_reader(descriptor, lambda: None if ready.done() else ready.set_result(None))  # noqa: B023 - see below
        try:
            await ready  # so each function sees its own future
        finally:
            loop.remove_reader(descriptor)
        try:
            chunk = os.read(descriptor, LINE_BYTES_MAX)
        except OSError:
            chunk = b""
        if not chunk:
            raise InputClosed
        read += chunk
        if chunk.endswith(b"\n"):
            return read.decode(errors="replace").rstrip("\r\n")
