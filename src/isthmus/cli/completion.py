"""`isthmus completion`: completion for shells, and the names that it completes.

A shell runs `isthmus` with a variable set at every press of the tab key, so names of commands, tools and servers must
come at once: they are read from the configuration and from the lists that hubs have stored, and no command's module is
loaded for them. No server is started. click completes the rest, such as options.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from isthmus.cli import COMPLETE_VARIABLE
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.output import first_line, print_error, print_output
from isthmus.model.names import legal_server_name

if TYPE_CHECKING:
    from isthmus.config.files import ParsedFile

SHELLS = ("bash", "zsh", "fish")
LISTS_FOLDER = "lists"
"""As in `storage.server_lists`, which takes too long to load here."""

LISTS_BYTES_MAX = 8 * 1024 * 1024
"""How much of the stored lists is read: more would take too long, and completes no better."""

KEYS_FILE = "keys/keys.json"
"""As in `app.key_files`."""

FLAGS = frozenset(
    {"--json", "--private", "--no-input", "--no-pager", "--device", "--list", "-f", "--follow", "--project", "--stdio"}
    | {"--print", "--undo", "--yes", "-y", "--dry-run", "--replace", "--open"}
)
"""Options without a value, of the commands whose names are completed here: a name may follow them."""

FILE_OPTIONS = ("--config", "--file", "--save", "--diff")
"""Options whose value is a path."""

LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.option("--install", "is_install", is_flag=True, help="Write it where the shell looks for it.")
def completion(shell: str, *, is_install: bool) -> int:
    """Print the completion script of a shell, or install it.

    Commands, options, servers, tools and their arguments are completed. Tools are those that the servers of this
    configuration listed last.
    """
    script = _script(shell)
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


_CHANGES = {
    "bash": [
        ("    done\n\n    return 0", "    done\n    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace\n\n    return 0")
    ],
    "zsh": [
        ("    local -a response\n", "    local -a response\n    local -a suffix\n"),
        (
            '"$type" == "plain" ]]; then\n',
            '"$type" == "plain" ]]; then\n            [[ "$key" == *= ]] && suffix=(-S "")\n',
        ),
        ("completions_with_descriptions -U", 'completions_with_descriptions -U "${suffix[@]}"'),
        ("compadd -U -V unsorted", 'compadd -U -V unsorted "${suffix[@]}"'),
        # The body of the file is also that of later calls, which complete nothing if they only register it again.
        ("$zsh_eval_context[-1] == loadautofunc", '"$funcstack[1]" == "_isthmus"'),
    ],
    "fish": [('string split "," $completion', 'string split --max 1 "," -- $completion')],
}
"""What click's scripts lack: no space after `name=` (fish knows), a second completion in zsh, commas in fish."""


def _script(shell: str) -> str:
    script = _shell(shell, click.get_current_context().find_root().command).source()
    for before, after in _CHANGES[shell]:
        script = script.replace(before, after)
    return script


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


def _shell(shell: str, group: click.Command) -> ShellComplete:
    kind = get_completion_class(shell)
    assert kind is not None
    return kind(group, {}, "isthmus", COMPLETE_VARIABLE)


# -- what a shell asks for ---------------------------------------------------------------------------------------------


def complete(instruction: str, group: click.Group, commands: Mapping[str, str]) -> bool:
    """Print names for a shell, in its format. Returns False for everything that click completes.

    `commands` are those of the group, each with its line in the help.
    """
    shell, _, what = instruction.partition("_")
    if shell not in SHELLS or what != "complete":
        return False
    completer = _shell(shell, group)
    words, incomplete = completer.get_completion_args()
    items = _items(words, incomplete, commands)
    if items is None:
        return False
    lines = [completer.format_completion(item) for item in items if item.value.startswith(incomplete)]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return True


def _items(words: Sequence[str], incomplete: str, commands: Mapping[str, str]) -> Iterable[CompletionItem] | None:
    """The names that can stand here; None if it is not for a name."""
    if incomplete.startswith("-"):
        return None
    if not words:
        return (CompletionItem(name, help=text) for name, text in commands.items())
    command, *rest = words
    named, options, open_option = _split(rest)
    file = Path(options["--config"]) if "--config" in options else None
    try:
        if open_option in FILE_OPTIONS:  # the shell completes paths; click would load the command for it
            return [CompletionItem(incomplete, type="file")]
        if open_option is not None:  # its value is next
            names = server_names(file) if open_option == "--server" else None
        elif command in ("call", "tools", "prompt", "prompts", "logs", "restart") and _is_elsewhere(options):
            names = []  # only that hub knows
        elif command in ("call", "tools", "prompt", "prompts"):
            if not named:
                return list(_offers("prompts" if command.startswith("prompt") else "tools", file))
            given = [word.partition("=")[0] for word in named[1:]]
            return list(_arguments(named[0], given, file)) if command == "call" else []
        else:
            names = _names(command, named, file)
    except Exception:  # noqa: BLE001 - a shell is no place for an error; the command itself says it
        return []
    return None if names is None else [CompletionItem(name) for name in names if name not in named]


def _names(command: str, named: Sequence[str], file: Path | None) -> list[str] | None:
    """The servers, clients or callers that a command takes; None if it takes none of them."""
    match command:
        case "remove" | "enable" | "disable" | "login" | "logout" | "logs" | "restart":
            return server_names(file)
        case "connect" | "import":
            return client_names(command)
        case "access":
            return [] if named else caller_names(file)
        case "token" if named in (["revoke"], ["rotate"]):
            return _key_names(file)
        case _:
            return None


def _split(words: Sequence[str]) -> tuple[list[str], dict[str, str], str | None]:
    """The words of a line that are no options, the options with values, and an option whose value is still missing."""
    named: list[str] = []
    options: dict[str, str] = {}
    waiting: str | None = None
    for word in words:
        if word == "=" and waiting is not None:  # bash splits a line there
            continue
        if waiting is not None:
            options[waiting], waiting = word, None
        elif not word.startswith("-"):
            named.append(word)
        elif "=" in word:
            name, _, value = word.partition("=")
            options[name] = value
        elif word not in FLAGS:
            waiting = word
    return named, options, waiting


def _is_elsewhere(options: Mapping[str, str]) -> bool:
    """Whether the line names a hub of another machine."""
    from urllib.parse import urlsplit

    url = options.get("--hub", "")
    return bool(url) and urlsplit(url).hostname not in LOOPBACK


def client_names(command: str = "connect") -> list[str]:
    """The clients that a command knows."""
    from isthmus.config.client_formats import CLIENTS, WRITTEN_FORMS

    return [*CLIENTS, "all"] if command == "import" else [*WRITTEN_FORMS]


def server_names(file: Path | None = None) -> list[str]:
    """The servers of the configuration in use, as the hub calls them: every command takes these names."""
    document, _ = _configuration(file)
    names: list[str] = []
    for root in () if document is None else document.dialect.roots:
        table: Any = document.table if document is not None else {}
        for key in root:
            table = table.get(key, {}) if isinstance(table, dict) else {}
        names += [str(name) for name in table] if isinstance(table, dict) else []
    names = list(dict.fromkeys(names))
    if all(legal_server_name(name) == name for name in names):
        return names
    from isthmus.config.entries_to_settings import server_names as names_in_hub

    called = names_in_hub(names)
    return [called[name] for name in names]


def caller_names(file: Path | None) -> list[str]:
    """The callers of the configuration, and those with keys."""
    document, _ = _configuration(file)
    written = document.section("callers") if document is not None and document.dialect.has_hub else {}
    return list(dict.fromkeys([*written, *_key_names(file)]))


def _key_names(file: Path | None) -> list[str]:
    """The names of the keys that were created and not revoked."""
    import msgspec

    _, state = _configuration(file)
    try:
        keys = msgspec.json.decode((state / KEYS_FILE).read_bytes())["keys"]
    except FileNotFoundError:
        return []
    return list(dict.fromkeys(str(key["name"]) for key in keys if not key.get("revoked_at")))


def _configuration(named: Path | None) -> tuple[ParsedFile | None, Path]:
    """The configuration in use as written, and its state folder."""
    from isthmus.config.files import find_file, home_folder, read_document, state_folder

    file = find_file(named, os.environ, Path.cwd(), home_folder())
    document = None if file is None else read_document(file)
    return document, state_folder(document, os.environ, home_folder())


def _offers(member: str, file: Path | None) -> Iterator[CompletionItem]:
    for server, lists in _stored(file).items():
        for entry in lists.get(member) or ():
            yield CompletionItem(f"{server}.{entry['name']}", help=first_line(entry.get("description") or ""))


def _arguments(tool: str, given: Sequence[str], file: Path | None) -> Iterator[CompletionItem]:
    """The arguments of a tool that are not given yet."""
    server, _, name = tool.partition(".")
    for entry in _stored(file).get(server, {}).get("tools") or ():
        if entry["name"] == name:
            for key, schema in (entry.get("inputSchema") or {}).get("properties", {}).items():
                if key not in given:
                    described = schema.get("description") if isinstance(schema, dict) else None
                    yield CompletionItem(f"{key}=", help=first_line(str(described or "")))


def _stored(configuration: Path | None) -> dict[str, dict[str, Any]]:
    """The last lists of each server, by its name; of several the newest."""
    import msgspec

    _, state = _configuration(configuration)
    files = sorted((state / LISTS_FOLDER).glob("*.json"), key=lambda file: file.stat().st_mtime)
    found: dict[str, dict[str, Any]] = {}
    total = 0
    present = set(server_names(configuration))
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
