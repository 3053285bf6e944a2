"""Documents of a hub are read, and invalid ones are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.cli.documents import MissingServerInfo, ServerInfo, read_listing, read_servers
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.wire.mcp.lists import RESOURCES, TOOLS


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_a_list_is_read_with_the_missing_servers() -> None:
    received = {"tools": [{"name": "files.read", "x": 1}, {"name": "odd"}]}
    missing = {"web": {"state": "retrying", "reason": None, "listed": True}}
    listing = read_listing(encoded({**received, "missing": missing}), TOOLS)
    assert [(offer.name, offer.server) for offer in listing.features] == [("files.read", "files"), ("odd", "")]
    assert bytes(listing.features[0].definition["x"]) == b"1"
    assert listing.missing == {"web": MissingServerInfo("retrying", None, is_listed=True)}


def test_a_resources_name_is_its_uri_and_names_no_server() -> None:
    listing = read_listing(encoded({"resources": [{"uri": "file://a.b"}], "missing": {}}), RESOURCES)
    assert [(offer.name, offer.server) for offer in listing.features] == [("file://a.b", "")]


def test_servers_are_read_with_any_amount_of_detail() -> None:
    received = {"servers": [{"name": "a", "state": "ready", "resourceTemplates": 2, "later": 1}]}
    assert read_servers(encoded(received)) == [ServerInfo("a", "ready", resource_templates=2)]


@pytest.mark.parametrize("document", [b"", b"<html>", b"[]", b"{}", b'{"tools":3,"missing":{}}', b'{"tools":[]}'])
def test_another_document_is_no_hubs(document: bytes) -> None:
    with pytest.raises(CommandFailed) as failed:
        read_listing(document, TOOLS)
    assert failed.value.exit == Exit.UNREACHABLE
    with pytest.raises(CommandFailed):
        read_servers(document)
