"""The state folder of a hub: which configuration it belongs to, and how commands find the hub that runs with it.

A running hub keeps `running.json` locked. The system releases the lock when the hub ends in any way, so a file that can
be locked is left over from a killed hub. The file has the hub's address and a key that is valid for this run only: who
can read the folder's private files could also create a key there. `app.serve` writes it and the command line reads it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from isthmus.config.files import MAP_VARIABLE, derived_state, file_identity, home_folder, usual_state
from isthmus.config.finding_codes import OPEN_TO_NETWORK
from isthmus.config.findings import ConfigError, Place

if TYPE_CHECKING:  # commands that only look for a running hub load few modules
    from isthmus.config.settings import Configuration

RUNNING_FILE = "running.json"
RUNNING_BYTES_MAX = 64 * 1024

OWNER_FILE = "configuration"
"""Names the configuration that the folder belongs to. Folders of versions that had one for all lack it."""

KEYS = "keys"
EARLIER_FILES = {"keys": KEYS, "credentials": "logins", "journal.db": "tasks"}
"""Files of an earlier version that a user would miss, with what they contain."""


class RunningHubInfo(msgspec.Struct, frozen=True):
    """A running hub, for commands of the same user."""

    pid: int
    origin: str
    """Its address on this machine, such as http://127.0.0.1:8765."""
    key: str
    """The key of the local operator."""
    configuration: str
    """Identifies its configuration; see `configuration_name`."""


def new_operator_key() -> str:
    """Make the key of the local operator for one run of a hub."""
    return secrets.token_urlsafe(32)


def configuration_name(file: Path | None, environment: Mapping[str, str]) -> str:
    """Identify a configuration: its file, wherever a command is started, and further servers of the environment."""
    servers = environment.get(MAP_VARIABLE, "")
    return _name_of(file) + (f" {hashlib.sha256(servers.encode()).hexdigest()[:16]}" if servers else "")


def _name_of(file: Path | None) -> str:
    return "the default hub" if file is None else str(file_identity(file))


@contextmanager
def announced(state: Path, info: RunningHubInfo) -> Iterator[OSError | None]:
    """Let commands find the hub during this block.

    They do not find the second hub of one folder, nor one whose folder cannot be written; then this yields the error.
    """
    try:
        descriptor = _write_locked(state, info)
    except OSError as error:
        yield error
        return
    try:
        yield None
    finally:
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), os.stat(state / RUNNING_FILE)):
                os.unlink(state / RUNNING_FILE)
        os.close(descriptor)


def _write_locked(state: Path, info: RunningHubInfo) -> int:
    """Write the file and return the descriptor that holds its lock. Raises: OSError, also if another hub has it."""
    make_folder(state)
    draft = state / f"{RUNNING_FILE}.{info.pid}"
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, msgspec.json.encode(info))
        if find_running(state) is not None:
            raise FileExistsError(f"another hub runs with {state}")
        os.rename(draft, state / RUNNING_FILE)  # locked from the moment on that it has this name
    except BaseException:
        os.close(descriptor)
        with suppress(OSError):
            os.unlink(draft)
        raise
    return descriptor


def find_running(state: Path) -> RunningHubInfo | None:
    """The hub that runs with this folder; None if no hub does, or this user may not use it."""
    try:
        descriptor = os.open(state / RUNNING_FILE, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_uid not in (os.geteuid(), os.stat(state).st_uid):
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return msgspec.json.decode(os.read(descriptor, RUNNING_BYTES_MAX), type=RunningHubInfo)
        return None  # no process holds it: its hub was killed
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)


class NoStateFolder(OSError):
    """A state folder, or one above it, cannot be created: `HOME` may be wrong, or belong to somebody else."""

    fix = "set HOME or XDG_STATE_HOME to a folder that you may write, or [hub] state in the configuration"

    def __init__(self, folder: Path, error: OSError) -> None:
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        text = f"{folder} is not a folder" if is_file else f"the folder {folder} cannot be created: {error.strerror}"
        super().__init__(error.errno, text)


def make_folder(folder: Path) -> None:
    """Create a folder and those above it, for this user only.

    Raises:
        NoStateFolder: it cannot be created.
    """
    if not folder.is_dir():
        if folder != folder.parent:
            make_folder(folder.parent)
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise NoStateFolder(folder, error) from error


def is_derived(configuration: Configuration) -> bool:
    """Whether the state folder follows from the name of the file; otherwise a user chose it."""
    return Path(configuration.hub.state) == derived_state(configuration.file, os.environ, home_folder())


def claim(configuration: Configuration, *, is_open: bool, is_insecure: bool = False) -> str | None:
    """Note in the state folder that it belongs to the configuration; return a warning, or None.

    Raises:
        ConfigError: the hub would be open, and required keys before.
    """
    folder, warning = Path(configuration.hub.state), None
    if left := earlier_state(configuration):
        earlier = earlier_folder()
        keep = f'to keep using them, set [hub] state = "{earlier}"'
        if KEYS in left and is_open and not is_insecure:
            said = f"has no keys, but {earlier} has some of an earlier version; without them the hub would be open"
            advice = f"{keep}; to begin without them, start it once with --insecure"
            raise ConfigError(Place(None, str(folder)).finding(said, advice=advice, code=OPEN_TO_NETWORK))
        warning = f"{', '.join(left)} of an earlier version are in {earlier} and not used here; {keep}"
    write_owner(configuration)
    return warning


def earlier_state(configuration: Configuration) -> list[str]:
    """What an earlier version, which had one folder for all configurations, left there that may be this hub's.

    It is not moved: its owner is unknown. Empty once the hub has started with its own folder.
    """
    folder, earlier = Path(configuration.hub.state), earlier_folder()
    if folder == earlier or not is_derived(configuration) or (folder / OWNER_FILE).exists():
        return []
    return _content_without_owner(earlier)


def write_owner(configuration: Configuration) -> None:
    """Note whose folder this is; not in the folder of an earlier version, which may be everybody's."""
    folder = Path(configuration.hub.state)
    if not is_derived(configuration) or (folder == earlier_folder() and _content_without_owner(folder)):
        return
    with suppress(OSError):  # a hub also runs without a state folder
        make_folder(folder)
        (folder / OWNER_FILE).write_text(f"{_name_of(configuration.file)}\n")


def earlier_folder() -> Path:
    """The folder that all configurations shared."""
    return usual_state({}, home_folder())


def _content_without_owner(folder: Path) -> list[str]:
    if (folder / OWNER_FILE).exists():
        return []
    return [name for file, name in EARLIER_FILES.items() if (folder / file).exists()]
