"""Inputs and outputs of the library are validated when they are created."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.library.public_types import CHUNK_TYPES, ToolStreamChunk


@pytest.mark.parametrize("kind", CHUNK_TYPES)
def test_a_chunk_is_of_a_known_type(kind: Any) -> None:
    assert ToolStreamChunk("files.read", kind, {}).chunk_type == kind


@pytest.mark.parametrize("kind", ["banana", "", "Data", None, 7])
def test_a_chunk_of_another_type_is_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match=r"chunk_type must be one of data, progress, log, complete, error, not"):
        ToolStreamChunk("files.read", kind, {})
