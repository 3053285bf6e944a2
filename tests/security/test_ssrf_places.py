"""Every place in the package that can hold an address is listed here, with its protection.

Found by walking the package: fields of values, and names of members that are read by hand. A new one fails this test
until somebody has said what it is, and put it into the matrix if callers or servers write it.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from types import ModuleType

import msgspec

import isthmus
from tests.security.source import strings, with_words
from tests.security.test_ssrf_matrix import FIELDS, WAYS
from tests.security.vectors import listed

ADDRESS = re.compile(
    r"url|uri|endpoint|href|jwks|issuer|location|webhook|origin|(?<!per_)address|resource_metadata|hosts?$",
    re.IGNORECASE,
)
MEMBER = re.compile(r"[A-Za-z_-]*(?:[uU]r[il]|URI|URL|endpoint|href|jwks|issuer|webhook)s?|location|refresh")
READERS = ("wire", "frontends", "upstream", "credentials", "identity")
"""The rooms that read what others write."""

OPERATORS = listed("""
    app.cassette.ReplayPlace.host app.dial.DialPlan.address app.dial.HubAddress.origin
    app.reload.ConfigurationSource.host app.state_folder.RunningHubInfo.origin
    cli.connect.Plan.url cli.rest_client.RemoteSource.url
    config.client_formats.HubOverHttp.url
    cli.dial.DialOptions.url cli.relay_tokens.RelayTokenOptions.url config.settings.Configuration.issuers
    config.settings.HubSettings.host core.access.approval_rules.ApprovalRule.webhook
    core.access.approval_rules.ApprovalRule.webhook_arguments
    config.settings.HubSettings.hosts config.settings.HubSettings.origins config.settings.HubSettings.public_url
    frontends.a2a.grpc.GrpcSettings.host frontends.a2a.settings.A2aSettings.grpc_url
    frontends.http.settings.HttpListenerSettings.host
    frontends.oauth.discovery.TrustedIssuer.issuer identity.settings.IssuerSettings.issuer
    identity.settings.IssuerSettings.jwks
    library.server_config.MCPServerConfig.endpoint library.server_config.MCPServerConfig.url
    model.credentials.OAuthSettings.authorization_endpoint model.credentials.OAuthSettings.device_endpoint
    model.credentials.OAuthSettings.idp_issuer model.credentials.OAuthSettings.idp_token_endpoint
    model.credentials.OAuthSettings.issuer model.credentials.OAuthSettings.origins
    model.credentials.OAuthSettings.token_endpoint storage.settings.StorageSettings.url
    telemetry.call_metrics.TelemetrySettings.otlp_endpoint telemetry.otlp.OtlpTarget.url
    upstream.server_settings.AgentSettings.origins upstream.server_settings.AgentSettings.url
    upstream.server_settings.HttpSettings.url
    upstream.server_settings.JsonRpcSettings.url upstream.server_settings.WebSocketSettings.url
""")
"""Configured by the operator: exempt from the deny table, and dialled as it was resolved (T14)."""

CALLERS = {
    "core.ports.TargetSpec.url": "mcp_target_url",
    "upstream.server_settings.TargetHttpSettings.url": "mcp_target_url",
    "upstream.targets.settings.TargetAddress.origin": "mcp_target_url",
    "upstream.targets.settings.TargetPattern.address": "mcp_target_url",
    "upstream.targets.named_servers.NamedServer.address": "mcp_target_url",
    "core.tasks.record.PushRecipient.url": "push",
    "core.tasks.record.PushRecipient.host": "push",
    "core.tasks.push_outbox.PushRequest.url": "push",
    "core.tasks.push_outbox._Due.host": "push",
    "core.tasks.push_delivery.Delivery.host": "push",
    "wire.a2a.operations.PushConfig.url": "push",
    "wire.a2a.v0_3.PushConfigObject.url": "push, 0.3",
    "wire.a2a.v0_3._PushConfigV03.url": "push, 0.3",
    "wire.a2a.v1_0._PushConfigV10.url": "push, 1.0",
    "model.tasks.FilePart.url": "file part",
    "wire.a2a.agentvault._VaultArtifact.url": "file part",
    "wire.a2a.agentvault._VaultFile.url": "file part",
    "wire.a2a.negotiate._ProbedPart.url": "file part",
    "wire.a2a.v0_3.FileContentObject.uri": "file part, 0.3",
    "wire.a2a.v1_0.PartV10.url": "file part, 1.0",
    "wire.a2a.v0_1._FileContent.uri": "file part",
    "wire.a2a.v0_3_rest._FileRest.fileWithUri": "file part",
    "wire.a2a.v0_3_rest._FileRest.file_with_uri": "file part",
}
"""Written by callers: by the beginning of the field's name in the matrix."""

SERVERS = {
    "upstream.a2a.card_to_tools.AgentEndpoint.origin": "card",
    "wire.a2a.cards.AgentInterface.url": "card",
    "credentials.discovery.Challenge.resource_metadata": "challenge",
}
"""Written by servers, and believed only within their own origin: by their name in the matrix."""

FETCHED = listed("""
    app.tokens._Metadata.issuer app.tokens._Metadata.jwks_uri
    credentials.discovery.ServerMetadata.authorization_endpoint credentials.discovery.ServerMetadata.issuer
    credentials.discovery.ServerMetadata.device_authorization_endpoint
    credentials.discovery.ServerMetadata.registration_endpoint credentials.discovery.ServerMetadata.token_endpoint
    credentials.token_endpoint.StoredLogin.issuer credentials.token_endpoint.StoredLogin.token_endpoint
    credentials.token_endpoint.StoredLogin.url
""")
"""Written by authorization servers, and fetched by a `Fetcher`, whose rules the matrix shows."""

UNTOUCHED = listed("""
    app.login.LoginPrompt.address cli.config.ConfigValue.origin cli.rest_client._PageToOpen.url
    config.settings.Configuration.origins
    core.tasks.live_task.NewTask.origin
    core.tasks.record._UrlElicitation.url core.tasks.record.TaskRecord.origin
    credentials.interactive_login.DeviceLogin.verification_uri
    credentials.interactive_login.DeviceLogin.verification_uri_complete frontends.a2a.task_view._Block.uri
    frontends.a2a.task_view._Resource.uri identity.jwt_callers.Bound.issuer identity.jwt_callers.Unproven.is_issuer_away
    identity.dpop_proofs.ProvenRequest.urls identity.settings.IssuerSettings.token_url
    library.provider_formats.ToolDef.origin
    config.client_formats.ClientDialect.bare_url upstream.server_settings.DialInServerSettings.url
    wire.a2a.cards.AgentExtension.uri wire.a2a.cards.OAuth.token_url
    wire.a2a.cards._ExtensionObject.uri wire.mcp.modern.ListenFilter.uris
    credentials.client_registration._Registered.token_endpoint_auth_method
    credentials.discovery.ServerMetadata.token_endpoint_auth_methods_supported
""")
"""Shown to people, compared or passed on, and never dialled; T17 has those that come from servers."""

GUARDED = ["transport.egress.HttpOrigin.host", "transport.websocket.WebSocketAddress.origin"]
"""What the guard itself is given."""

KNOWN = {*OPERATORS, *CALLERS, *SERVERS, *FETCHED, *UNTOUCHED, *GUARDED}

WORDS = listed("""
    authorizationUrl authorization_endpoint device_authorization_endpoint documentationUrl endpoint grpc_url iconUrl
    issuer jwks jwks_uri location mcp_target_url openIdConnectUrl redirect_uri redirect_uris registration_endpoint
    tokenUrl token_endpoint token_url uri url verification_uri webhookUrl
""")
"""Members that are read or written by hand."""


def modules() -> Iterator[ModuleType]:
    """All of the package, but for what needs a framework that is not installed here."""
    for found in pkgutil.walk_packages(isthmus.__path__, "isthmus."):
        if not found.name.startswith("isthmus.integrations") and not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def fields_of(kind: type) -> list[str]:
    """The names of what a value holds."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    if issubclass(kind, msgspec.Struct):
        return list(kind.__struct_fields__)
    return list(getattr(kind, "_fields", ())) if issubclass(kind, tuple) else []


def places() -> set[str]:
    """Every field that could hold an address, by its name."""
    found = set()
    for module in modules():
        for name, kind in vars(module).items():
            if inspect.isclass(kind) and kind.__module__ == module.__name__:
                room = module.__name__.removeprefix("isthmus.")
                found |= {f"{room}.{name}.{field}" for field in fields_of(kind) if ADDRESS.search(field)}
    return found


def test_every_field_that_could_hold_an_address_is_known() -> None:
    assert places() - KNOWN == set(), "say in this file what they are, and put them into the matrix"


def test_addresses_from_callers_and_servers_are_in_the_matrix() -> None:
    for place, start in CALLERS.items():
        assert any(field.startswith(start) for field in FIELDS), place
    assert set(SERVERS.values()) <= set(WAYS)


def members() -> set[str]:
    """Texts in the rooms that read others' words which look like the name of a member with an address."""
    return {
        text
        for name, found in with_words(f"[\"']{MEMBER.pattern}[\"']")
        if name.partition("/")[0] in READERS
        for text in strings(found)
        if MEMBER.fullmatch(text)
    }


def test_every_member_that_could_hold_an_address_is_known() -> None:
    assert members() - set(WORDS) == set(), "say in this file what they are, and put them into the matrix"
