"""gRPC where it is configured, and a clear word where its library is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.app.a2a import check_grpc, grpc_address
from isthmus.config.findings import ConfigError
from isthmus.config.settings import Configuration, HubSettings
from isthmus.frontends.a2a.settings import A2aSettings

FILE = Path("/etc/hub/isthmus.toml")


def having(grpc_port: int | None) -> Configuration:
    return Configuration(FILE, HubSettings(), a2a=A2aSettings(grpc_port=grpc_port))


def nothing(name: str) -> None:
    """No module is there, nor the package that it would be in."""
    if "." in name:
        raise ModuleNotFoundError(name)


def test_a_missing_library_is_named_with_the_way_to_get_it() -> None:
    with pytest.raises(ConfigError) as refused:
        check_grpc(having(50051), nothing)
    assert str(refused.value).startswith("isthmus.toml: a2a.grpc_port needs")
    assert "isthmus[grpc]" in str(refused.value)


def test_half_of_it_is_missing_too() -> None:
    with pytest.raises(ConfigError):
        check_grpc(having(50051), lambda name: object() if name == "grpc" else nothing(name))


def test_without_a_port_nothing_is_needed() -> None:
    check_grpc(having(None), nothing)


def test_with_the_library_all_is_well() -> None:
    check_grpc(having(0), lambda _: object())


@pytest.mark.parametrize(
    ("public_url", "address"),
    [
        (None, "localhost:50051"),
        ("https://hub.example/x", "hub.example:50051"),
        ("http://10.0.0.1:8080", "10.0.0.1:50051"),
        ("http://[::1]:8080", "[::1]:50051"),
    ],
)
def test_the_address_on_the_card_is_one_that_can_be_dialled(public_url: str | None, address: str) -> None:
    assert grpc_address(public_url, 50051) == address
