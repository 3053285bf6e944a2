"""The process that reads long messages for the hub: `python -m isthmus.app.parser_worker`.

A request on stdin is a function and its arguments; the response on stdout is what it returned or raised. Both are a
pickle, followed by the long texts in it. Raw JSON of a response that lies in a text of the request is sent as its
position. `app.parser_process` starts the process, and kills it if a response takes too long.
"""

from __future__ import annotations

import codecs
import ctypes
import io
import os
import pickle
import struct
import sys
from collections.abc import Generator, Sequence
from types import ModuleType
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias

from msgspec import Raw

from isthmus.app.process_setup import keep_memory
from isthmus.model.json_members import known_members, with_members
from isthmus.model.tasks import ABSENT
from isthmus.wire import jsonrpc

LONG_TEXT_BYTES = 16 * 1024
"""Longer texts stand behind the pickle, so that they can be sent and read in slices."""

SLICE_BYTES = 256 * 1024
"""What is decoded at once."""

HEAD: Final = struct.Struct("!II")
"""The length of the pickle and the number of texts, the lengths of which follow."""

Text: TypeAlias = bytes | memoryview


# -- positions of raw JSON ---------------------------------------------------------------------------------------------


class _View(ctypes.Structure):
    """The beginning of CPython's `Py_buffer`, with room for the rest."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("owner", ctypes.c_void_p),
        ("length", ctypes.c_ssize_t),
        ("rest", ctypes.c_void_p * 16),
    )


def _place(value: Raw | Text) -> tuple[int, int]:
    """The address and the length of a buffer."""
    view = _View()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(value), ctypes.byref(view), 0)
    found = view.address or 0, view.length
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))
    return found


class _Pickler(pickle.Pickler):
    """Writes long texts beside the pickle, and `known` texts and their parts as positions."""

    def __init__(self, file: BinaryIO, known: Sequence[Text | str] = ()) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._known = [(index, *_place(text)) for index, text in enumerate(known) if not isinstance(text, str)]
        self._known_strings = {id(text): index for index, text in enumerate(known) if isinstance(text, str)}
        self.texts: list[Text] = []
        self.given: list[Text | str] = []
        """The same, strings as they are."""

    def persistent_id(self, value: object) -> tuple[Any, ...] | None:
        if isinstance(value, Raw):
            if not value:
                return ("absent",)  # an object of its own, which encoders leave out
            members = known_members(value)
            address, length = _place(value)
            for index, start, size in self._known:
                if start <= address and address + length <= start + size:
                    return ("part", index, address - start, length, members)
            if length > LONG_TEXT_BYTES:
                return ("raw", self._beside(memoryview(value)), members)
        elif isinstance(value, str) and len(value) > LONG_TEXT_BYTES:
            if (known := self._known_strings.get(id(value))) is not None:
                return ("given", known)
            return ("text", self._beside(value.encode("utf-8", "surrogatepass"), value))
        elif isinstance(value, memoryview) or (isinstance(value, bytes) and len(value) > LONG_TEXT_BYTES):
            return ("text", self._beside(value))
        elif isinstance(value, ModuleType):
            return ("module", value.__name__)
        return None

    def _beside(self, text: Text, given: str | None = None) -> int:
        self.texts.append(text)
        self.given.append(text if given is None else given)
        return len(self.texts) - 1


class _Unpickler(pickle.Unpickler):  # noqa: S301 - between a hub and its own child
    """Reads what `_Pickler` wrote. The process does whatever the hub asks; the hub loads only classes of its own."""

    def __init__(self, file: BinaryIO, texts: Sequence[Text | str], known: Sequence[Any] | None) -> None:
        super().__init__(file)
        self._texts = texts
        self._known = () if known is None else known
        self._is_response = known is not None

    def find_class(self, module: str, name: str) -> Any:
        if not self._is_response or module.partition(".")[0] == "isthmus" or (module, name) in _LOADED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not for the hub")

    def persistent_load(self, pid: tuple[Any, ...]) -> object:
        if pid[0] == "absent":
            return ABSENT
        if pid[0] == "part":
            _, index, at, length, members = pid
            raw = Raw(memoryview(self._known[index])[at : at + length])
        elif pid[0] == "raw":
            _, index, members = pid
            raw = Raw(self._texts[index])
        elif pid[0] == "module":
            return self.find_class(pid[1], "__name__") and sys.modules[pid[1]]
        else:
            return (self._known if pid[0] == "given" else self._texts)[pid[1]]
        return raw if members is None else with_members(raw, members)


_LOADED = frozenset(
    [("msgspec", "Raw"), ("msgspec._core", "Raw"), ("functools", "partial"), ("builtins", "frozenset")]
    + [("builtins", name) for name in ("set", "tuple", "list", "dict", "MemoryError", "RecursionError", "ValueError")]
    + [("msgspec._core", "UNSET"), ("msgspec", "UNSET"), ("msgspec._core", "UnsetType")]
)


class Frame(NamedTuple):
    """What to write for a value."""

    parts: list[Text]
    """A head with its pickle, and the long texts in it."""
    given: list[Text | str]
    """The long texts, strings as they are."""


def frame(value: object, known: Sequence[Text | str] = ()) -> Frame:
    """Write a value; `known` are the long texts of the request, if it is a response."""
    file = io.BytesIO()
    pickler = _Pickler(file, known)
    pickler.dump(value)
    pickled, texts = file.getvalue(), pickler.texts
    lengths = struct.pack(f"!{len(texts)}Q", *map(len, texts))
    are_strings = bytes(isinstance(text, str) for text in pickler.given)
    head = b"".join((HEAD.pack(len(pickled), len(texts)), lengths, are_strings, pickled))
    return Frame([head, *texts], pickler.given)


class FrameHead:
    """The lengths in the head of a frame."""

    def __init__(self, head: bytes, rest: bytes) -> None:
        self.pickled, count = HEAD.unpack(head)
        self.lengths = struct.unpack_from(f"!{count}Q", rest)
        self.are_strings = rest[8 * count : 9 * count]

    @staticmethod
    def rest_bytes(head: bytes) -> int:
        """How long the rest of a head is."""
        count: int = HEAD.unpack(head)[1]
        return 9 * count


def string_passes(text: Text) -> Generator[None, None, str]:
    """Decode a string in slices."""
    decoder, parts = codecs.getincrementaldecoder("utf-8")("surrogatepass"), []
    for at in range(0, len(text), SLICE_BYTES):
        parts.append(decoder.decode(text[at : at + SLICE_BYTES], at + SLICE_BYTES >= len(text)))
        yield
    return "".join(parts)


def load(pickled: bytes, texts: Sequence[Text | str], known: Sequence[Text | str] | None = None) -> Any:
    """The value of a frame; `known` are the long texts of the request, if it is a response."""
    return _Unpickler(io.BytesIO(pickled), texts, known).load()


# -- the process -------------------------------------------------------------------------------------------------------


def is_ready() -> bool:
    """The hub's first request: answering it shows that the process has started."""
    return True


def serve(requests: BinaryIO, responses: BinaryIO) -> None:
    """Answer requests until the input ends."""
    while len(head := requests.read(HEAD.size)) == HEAD.size:
        lengths = FrameHead(head, requests.read(FrameHead.rest_bytes(head)))
        pickled = requests.read(lengths.pickled)
        read = [requests.read(length) for length in lengths.lengths]
        known = [
            jsonrpc.finish(string_passes(text)) if is_string else text
            for text, is_string in zip(read, lengths.are_strings, strict=True)
        ]
        del read
        responses.writelines(_response(pickled, known).parts)
        responses.flush()
        del known


def _response(pickled: bytes, known: Sequence[Text | str]) -> Frame:
    """Whether the work was done, and its result or error; None if this process cannot do it."""
    try:
        work = load(pickled, known)
        try:
            done = work()
        except Exception as error:  # noqa: BLE001 - the hub raises or reports it
            is_own = type(error).__module__.startswith("isthmus.")
            return frame((False, error if is_own else f"{type(error).__name__}: {error}"[:ERROR_LENGTH_MAX]))
        return frame((True, done), known)
    except Exception as error:  # noqa: BLE001 - something that pickle does not know
        return frame((None, f"{type(error).__name__}: {error}"[:ERROR_LENGTH_MAX]))


ERROR_LENGTH_MAX = 300

if __name__ == "__main__":
    if hasattr(os, "sched_setscheduler"):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # the hub may have a real-time priority
    keep_memory()
    serve(sys.stdin.buffer, sys.stdout.buffer)
