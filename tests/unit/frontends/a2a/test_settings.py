"""Settings of the agent."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.frontends.a2a.settings import A2aSettings


def test_nothing_need_be_said() -> None:
    settings = A2aSettings()
    assert (settings.name, settings.text_tool, settings.card, settings.keep) == ("Isthmus", None, "merged", 604800.0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", " "),
        ("description", ""),
        ("text_tool", ""),
        ("card", "loose"),
        ("keep", 0),
        ("keep_bytes", 65_535),
        ("keep", -1.0),
        ("keep", float("inf")),
        ("keep", float("nan")),
        ("grpc_port", -1),
        ("grpc_port", 65536),
        ("grpc_url", ""),
    ],
)
def test_a_value_out_of_range_is_named(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{key} must"):
        A2aSettings(**{key: value})
