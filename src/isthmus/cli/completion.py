"""`isthmus completion`: completion for shells, and the names that it completes.

A shell runs `isthmus` with a variable set at every press of the tab key, so names of commands, tools and servers must
come at once: they are read from the configuration and from the lists that hubs have stored, and no command's module is
loaded for them. No server is started. click completes the rest, such as options.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.output import first_line, print_error, print_output
from isthmus.model.names import legal_server_name

if TYPE_CHECKING:
    from isthmus.config.files import Document

SHELLS = ("bash", "zsh", "fish")
LISTS_FOLDER = "lists"
"""As in `storage.server_lists`, which takes too long to load here."""

LISTS_BYTES_MAX = 8 * 1024 * 1024
"""How much of the stored lists is read: more would take too long, and nobody completes so many names."""

FLAGS = frozenset({"--json", "--private", "--quiet", "--verbose", "-q", "-v"})
"""Options without a value: a name may follow them."""


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.option("--install", "is_install", is_flag=True, help="Write it where the shell looks for it.")
def completion(shell: str, *, is_install: bool) -> int:
    """Print the completion script of a shell, or install it.

    Commands, options, servers, tools and their arguments are completed. Tools are those that the servers of this
    configuration listed last.
    """
    script = _shell(shell).source()
    if not is_install:
        print_output(script)
        return Exit.SUCCESS
    file, advice = _place(shell)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(script)
    except OSError as error:
        hint = f"Print it with `isthmus completion {shell}` and save it elsewhere."
        raise CommandFailed(Exit.CONFIGURATION, f"{file} cannot be written: {error.strerror}", hint) from error
    print_output(f"Wrote {file}.")
    print_error(advice)
    return Exit.SUCCESS


def _place(shell: str) -> tuple[Path, str]:
    """Where a shell looks for completions, and what is left to do."""
    home = Path.home()
    again = "It works in new shells."
    if shell == "fish":
        return _folder("XDG_CONFIG_HOME", home / ".config") / "fish/completions/isthmus.fish", again
    if shell == "zsh":
        advice = "Once, in ~/.zshrc: fpath+=(~/.zfunc); autoload -Uz compinit; compinit"
        return home / ".zfunc/_isthmus", f"{again} {advice}"
    file = _folder("XDG_DATA_HOME", home / ".local/share") / "bash-completion/completions/isthmus"
    return file, f"{again} It needs the package bash-completion; without it, add to ~/.bashrc: source {file}"


def _folder(variable: str, usual: Path) -> Path:
    named = Path(os.environ.get(variable, ""))
    return named if named.is_absolute() else usual


def _shell(shell: str) -> ShellComplete:
    from isthmus.cli.main import COMPLETE_VARIABLE, cli

    kind = get_completion_class(shell)
    assert kind is not None
    return kind(cli, {}, "isthmus", COMPLETE_VARIABLE)


# -- what a shell asks for ---------------------------------------------------------------------------------------------


def complete(instruction: str) -> bool:
    """Print names for a shell, in its format. Returns False for everything that click completes."""
    shell, _, what = instruction.partition("_")
    if shell not in SHELLS or what != "complete":
        return False
    completer = _shell(shell)
    words, incomplete = completer.get_completion_args()
    items = _items(words, incomplete)
    if items is None:
        return False
    lines = [completer.format_completion(item) for item in items if item.value.startswith(incomplete)]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return True


def _items(words: Sequence[str], incomplete: str) -> Iterable[CompletionItem] | None:
    """The names that can stand here; None if it is not for a name."""
    from isthmus.cli.main import COMMANDS

    if incomplete.startswith("-"):
        return None
    if not words:
        return (CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items())
    command, *rest = words
    if rest and rest[-1].startswith("-") and rest[-1] not in FLAGS and "=" not in rest[-1]:
        return None  # it may be the value of an option
    named = [word for word in rest if not word.startswith("-")]
    try:
        match command:
            case "call" | "tools" if not named or command == "tools":
                return _offers("tools")
            case "call":
                return _arguments(named[0], [word.partition("=")[0] for word in named[1:]])
            case "prompt":
                return _offers("prompts") if not named else []
            case "remove" | "enable" | "disable" | "login" | "logout" | "logs" | "restart":
                return [CompletionItem(name) for name in server_names() if name not in named]
            case "connect" | "import":
                return [CompletionItem(name) for name in client_names(command)]
            case _:
                return None
    except Exception:  # noqa: BLE001 - a shell is no place for an error; the command itself says it
        return []


def client_names(command: str = "connect") -> list[str]:
    """The clients that a command knows."""
    from isthmus.config.dialects import CLIENTS

    only_read = ("roo", "mcpproxy", "fastmcp")
    return [*CLIENTS, "all"] if command == "import" else [name for name in CLIENTS if name not in only_read]


def server_names() -> list[str]:
    """The servers of the configuration in use, as the hub calls them: every command takes these names."""
    document, _ = _configuration()
    names: list[str] = []
    for root in () if document is None else document.dialect.roots:
        table: Any = document.table if document is not None else {}
        for key in root:
            table = table.get(key, {}) if isinstance(table, dict) else {}
        names += [str(name) for name in table] if isinstance(table, dict) else []
    names = list(dict.fromkeys(names))
    if all(legal_server_name(name) == name for name in names):
        return names
    from isthmus.config.entry_conversion import server_names as names_in_hub

    called = names_in_hub(names)
    return [called[name] for name in names]


def _configuration() -> tuple[Document | None, Path]:
    """The configuration in use as written, and its state folder."""
    from isthmus.config.files import find_file, home_folder, read_document, state_folder

    file = find_file(None, os.environ, Path.cwd(), home_folder())
    document = None if file is None else read_document(file)
    return document, state_folder(document, os.environ, home_folder())


def _offers(member: str) -> Iterator[CompletionItem]:
    for server, lists in _stored().items():
        for entry in lists.get(member) or ():
            yield CompletionItem(f"{server}.{entry['name']}", help=first_line(entry.get("description") or ""))


def _arguments(tool: str, given: Sequence[str]) -> Iterator[CompletionItem]:
    """The arguments of a tool that are not given yet."""
    server, _, name = tool.partition(".")
    for entry in _stored().get(server, {}).get("tools") or ():
        if entry["name"] == name:
            for key, schema in (entry.get("inputSchema") or {}).get("properties", {}).items():
                if key not in given:
                    described = schema.get("description") if isinstance(schema, dict) else None
                    yield CompletionItem(f"{key}=", help=first_line(str(described or "")))


def _stored() -> dict[str, dict[str, Any]]:
    """The last lists of each server, by its name; of several the newest."""
    import msgspec

    _, state = _configuration()
    files = sorted((state / LISTS_FOLDER).glob("*.json"), key=lambda file: file.stat().st_mtime)
    found: dict[str, dict[str, Any]] = {}
    total = 0
    present = set(server_names())
    for file in files:
        total += file.stat().st_size
        if total > LISTS_BYTES_MAX:
            break
        try:
            lists = msgspec.json.decode(file.read_bytes())
        except (OSError, msgspec.MsgspecError):
            continue
        # A server of an imported file is not among those of the file itself.
        if isinstance(lists, dict) and isinstance(name := lists.get("server"), str):
            found[name] = lists
    return {name: lists for name, lists in found.items() if not present or name in present} or found
