"""Without its framework an integration names the package to install."""

from __future__ import annotations

import importlib
import sys

import pytest


def test_without_google_adk_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("isthmus.integrations.adk")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "google.adk", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'isthmus\[adk\]'"):
        importlib.import_module("isthmus.integrations.adk")


@pytest.mark.parametrize(
    ("module", "framework", "extra"),
    [
        ("langchain", "langchain", "langchain"),
        ("openai_agents", "agents", "openai-agents"),
        ("pydantic_ai", "pydantic_ai", "pydantic-ai"),
    ],
)
def test_without_another_framework_it_is_named(
    monkeypatch: pytest.MonkeyPatch, module: str, framework: str, extra: str
) -> None:
    monkeypatch.delitem(sys.modules, f"isthmus.integrations.{module}", raising=False)
    monkeypatch.setitem(sys.modules, framework, None)
    with pytest.raises(ModuleNotFoundError, match=rf"pip install 'isthmus\[{extra}\]'"):
        importlib.import_module(f"isthmus.integrations.{module}")
