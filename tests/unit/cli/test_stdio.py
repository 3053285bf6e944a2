"""Standard output belongs to the protocol."""

from __future__ import annotations

import os

import pytest

from isthmus.cli import stdio as module
from isthmus.cli.stdio import take_stdout


def test_what_others_print_goes_to_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    (from_out, out), (from_err, err) = os.pipe(), os.pipe()
    monkeypatch.setattr(module, "STDOUT", out)
    monkeypatch.setattr(module, "STDERR", err)
    ours = take_stdout()
    os.write(ours, b"protocol")
    os.write(out, b"a stray print")
    assert os.read(from_out, 100) == b"protocol"
    assert os.read(from_err, 100) == b"a stray print"
    for descriptor in (from_out, out, from_err, err, ours):
        os.close(descriptor)
