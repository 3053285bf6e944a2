"""Callers, tenants and issuers of a file."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.config.callers import read_callers, read_issuers, read_tenants
from isthmus.config.client_formats import CODEX, OWN
from isthmus.config.files import ParsedFile
from isthmus.config.finding_codes import UNKNOWN_SERVER
from isthmus.config.findings import ConfigError
from isthmus.config.load import load
from isthmus.config.variables import Variables
from isthmus.core.access.tenants import NO_TENANTS, Tenants, TenantSettings
from isthmus.identity.keys import digest_of
from isthmus.identity.settings import ALGORITHMS, IssuerSettings
from isthmus.model.callers import Caller, Grants

# -- Callers of a file: a mistake never widens access -------------------------------------------------------

FILE = Path("/etc/hub/isthmus.toml")
KEY, OTHER_KEY = "k3y-of-the-planner-0123", "an0ther-key-of-someone"
VARIABLES = Variables({"PLANNER_KEY": KEY, "SHORT": "abc"}, FILE.parent, Path("/home/me"))
GOOD = {"key": OTHER_KEY, "allow": ["*"]}


def read(callers: object) -> tuple[tuple[tuple[bytes, Caller], ...], list[str]]:
    found, _, findings = read_callers(ParsedFile(FILE, {"callers": callers}, OWN), VARIABLES)
    return found, [str(finding) for finding in findings]


def expiry(expires: object) -> float | None:
    entries = {"planner": {"key": KEY, "allow": ["*"], "expires": expires}, "good": GOOD}
    _, expiries, findings = read_callers(ParsedFile(FILE, {"callers": entries}, OWN), VARIABLES)
    assert digest_of(OTHER_KEY) not in expiries
    if findings:
        raise ValueError(str(findings[0]))
    return expiries.get(digest_of(KEY))


@pytest.mark.parametrize(
    "key",
    [KEY, "env:PLANNER_KEY", "${PLANNER_KEY}", f"sha256:{digest_of(KEY).hex()}"],
    ids=lambda key: key[:8],
)
def test_a_caller_has_a_key_and_grants(key: str) -> None:
    entry = {"key": key, "allow": ["files.*", "search.query"], "deny": ["files.delete"], "tenant": "blue"}
    callers, findings = read({"planner": entry})
    grants = Grants(("files.*", "search.query"), ("files.delete",))
    assert callers == ((digest_of(KEY), Caller("planner", "blue", grants)),)
    assert findings == []


def test_no_callers_are_no_mistake() -> None:
    assert read({}) == ((), [])


def test_a_caller_without_grants_may_call_nothing() -> None:
    callers, findings = read({"planner": {"key": KEY}})
    assert callers == ((digest_of(KEY), Caller("planner", "default", Grants(()))),)
    assert findings == ['isthmus.toml: callers.planner may call nothing (allow = ["*"] would allow everything)']


def test_a_caller_that_only_looks_after_the_hub_needs_no_grants() -> None:
    callers, findings = read({"watch": {"key": KEY, "operator": True}})
    assert [(caller.is_operator, caller.grants.allow) for _, caller in callers] == [(True, ())]
    assert findings == []


def test_a_caller_may_be_let_name_addresses() -> None:
    callers, findings = read(
        {"planner": {**GOOD, "targets": True}, "guest": {"key": KEY, "targets": "false", "allow": ["a"]}}
    )
    assert [caller.may_name_targets for _, caller in callers] == [True, False]
    assert findings == []


def test_a_caller_that_may_name_addresses_can_call_something() -> None:
    assert read({"planner": {"key": KEY, "targets": True}})[1] == []


def test_whether_it_may_is_a_truth_or_the_caller_is_left_out() -> None:
    callers, findings = read({"good": GOOD, "planner": {"key": KEY, "targets": "https://a.example"}})
    assert [caller.name for _, caller in callers] == ["good"]
    (finding,) = findings
    assert "targets must be true or false, not 'https://a.example'" in finding


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("secret", " must be a table, not a text"),
        ({"allow": ["*"]}, ".key must be given, not left out"),
        ({"key": None}, ".key must be given, not left out"),
        ({"key": 12345}, ".key must be a text, not a number"),
        ({"key": ""}, ".key must not be empty"),
        (
            {"key": "two words of a secret"},
            ".key must be printable ASCII without spaces (value hidden)",
        ),
        ({"key": "env:GONE"}, ".key must name a variable that is set, not env:GONE"),
        ({"key": "${GONE}"}, ".key must have only variables that are set, not ${GONE}"),
        (
            {"key": "keyring:"},
            ".key must be keyring:NAME or keyring:SERVICE/NAME, not keyring:",
        ),
        ({**GOOD, "allow": "*"}, ".allow must be a list of texts, not '*'"),
        ({**GOOD, "deny": "*"}, ".deny must be a list of texts, not '*'"),
        (
            {**GOOD, "deny": ["a", "f*"]},
            ".deny.1 must be *, server.*, server.tool, agent:KEY, tag:NAME or hint:NAME, not 'f*': "
            "* cannot be part of a name",
        ),
        ({**GOOD, "expose": "some"}, ".expose must be one of all, search, code, not 'some'"),
        ({**GOOD, "tenant": ""}, ".tenant must be a printable text, not ''"),
        ({**GOOD, "tenant": 5}, ".tenant must be a text, not 5"),
    ],
)
def test_a_broken_caller_is_left_out_and_costs_only_itself(entry: object, message: str) -> None:
    callers, findings = read({"good": {"key": KEY, "allow": ["*"]}, "bad": entry})
    assert [caller.name for _, caller in callers] == ["good"]
    assert findings == [f"isthmus.toml: callers.bad{message} (this caller is left out)"]


def test_a_mistyped_key_of_a_caller_gets_the_key_that_it_means() -> None:
    callers, findings = read({"good": GOOD, "bad": {**GOOD, "denny": ["*"]}})
    assert [caller.name for _, caller in callers] == ["good"]
    assert findings == [
        "isthmus.toml: callers.bad must have only key, expires, allow, deny, tenant, targets, set, expose,"
        " max_result_bytes, operator, frontends, not 'denny' (did you mean deny? This caller is left out)"
    ]


def test_a_caller_needs_a_name_that_can_be_logged() -> None:
    callers, findings = read({"good": GOOD, "two\nlines": {"key": KEY}})
    assert [caller.name for _, caller in callers] == ["good"]
    assert findings == [
        r'isthmus.toml: callers."two\nlines" must have a printable name, '
        r"not 'two\nlines' (this caller is left out)"
    ]


def test_a_caller_with_a_short_key_is_left_out_wherever_the_hub_listens() -> None:
    callers, findings = read({"good": GOOD, "weak": {"key": "env:SHORT", "allow": ["*"]}})
    assert [caller.name for _, caller in callers] == ["good"]
    assert findings == [
        "isthmus.toml: callers.weak.key must have 16 characters or more, not 3 "
        "(this caller is left out; make one with: openssl rand -hex 32)"
    ]


@pytest.mark.parametrize("key", ["changeme-changeme", "your-api-key-here", "a" * 16])
def test_a_key_is_tried_for_its_length_and_nothing_else(key: str) -> None:
    callers, findings = read({"planner": {"key": key, "allow": ["*"]}})
    assert ([digest for digest, _ in callers], findings) == ([digest_of(key)], [])


def test_a_caller_may_have_several_keys_while_one_takes_the_others_place() -> None:
    callers, findings = read({"planner": {"key": ["env:PLANNER_KEY", OTHER_KEY, KEY], "allow": ["*"]}})
    planner = Caller("planner", "default", Grants(("*",)))
    assert callers == ((digest_of(KEY), planner), (digest_of(OTHER_KEY), planner))
    assert findings == []


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([], ".key must be a text or a list of texts, not empty"),
        ([KEY, 5], ".key.1 must be a text, not a number"),
        ([KEY, "abc"], ".key.1 must have 16 characters or more, not 3"),
        ([KEY, "env:GONE"], ".key.1 must name a variable that is set, not env:GONE"),
        ([KEY, "two words"], ".key.1 must be printable ASCII without spaces (value hidden)"),
    ],
)
def test_one_bad_key_of_several_leaves_its_caller_out(keys: list[object], message: str) -> None:
    callers, (finding,) = read({"good": GOOD, "bad": {"key": keys, "allow": ["*"]}})
    assert [caller.name for _, caller in callers] == ["good"]
    assert finding.startswith(f"isthmus.toml: callers.bad{message} (this caller is left out")


def test_sharing_one_of_several_keys_leaves_both_callers_out() -> None:
    callers, findings = read({"good": {"key": "the-key-of-a-third"}, "a": {"key": [KEY, OTHER_KEY]}, "b": GOOD})
    assert [caller.name for _, caller in callers] == ["good"]
    assert "isthmus.toml: callers have the same key: a, b (these callers are left out)" in findings


@pytest.mark.parametrize(
    "expires",
    [
        datetime(2027, 1, 1, tzinfo=UTC),
        date(2027, 1, 1),
        "2027-01-01T00:00:00Z",
        "2027-01-01T02:00:00+02:00",
        "2027-01-01",
    ],
)
def test_keys_expire_at_a_time_that_is_the_same_everywhere(expires: object) -> None:
    assert expiry(expires) == 1_798_761_600


@pytest.mark.parametrize("expires", [datetime(2027, 1, 1), "2027-01-01T00:00:00", "90d", "soon", 5, True, [], ""])  # noqa: DTZ001
def test_a_caller_with_an_unreadable_end_is_left_out(expires: object) -> None:
    with pytest.raises(ValueError, match=r"callers\.planner\.expires must be a time with its zone, like 2027"):
        expiry(expires)


def test_callers_that_share_a_key_are_all_left_out() -> None:
    callers, findings = read(
        {
            "good": GOOD,
            "admin": {"key": KEY, "allow": ["*"]},
            "guest": {"key": "env:PLANNER_KEY", "allow": ["a"]},
        }
    )
    assert [caller.name for _, caller in callers] == ["good"]
    assert findings == ["isthmus.toml: callers have the same key: admin, guest (these callers are left out)"]


def test_a_hub_whose_callers_are_all_broken_is_refused_not_open() -> None:
    with pytest.raises(ConfigError) as refused:
        read({"a": {"key": "env:GONE"}, "b": 5})
    assert [finding.path for finding in refused.value.findings] == ["callers.a.key", "callers.b", "callers"]
    assert str(refused.value).endswith("callers are configured but none is usable, and the hub must not be open")


def test_something_else_in_place_of_the_callers_refuses_the_file() -> None:
    with pytest.raises(ConfigError, match=r"^isthmus.toml: callers must be a table, not a list$"):
        read([])


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.just("file:\0"))
SHAPES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)
KEYS = st.sampled_from(["key", "expires", "allow", "deny", "tenant", "targets", "other"])


@given(st.text(), st.one_of(SHAPES, st.dictionaries(KEYS, SHAPES)))
def test_no_entry_raises_or_touches_another_caller(name: str, entry: object) -> None:
    callers, _ = read({name: entry, "good caller": GOOD})
    assert "good caller" in [caller.name for _, caller in callers]


# -- tenants and frontends -----------------------------------------------------------------------------------------

BOUNDS = Grants(("*",), ("files.delete",))
TENANTS = Tenants({"acme": TenantSettings(BOUNDS)})


def read_held(entry: dict[str, object]) -> tuple[list[Caller], list[str]]:
    document = ParsedFile(FILE, {"callers": {"planner": {"key": KEY, "allow": ["files"], **entry}, "good": GOOD}}, OWN)
    found, _, findings = read_callers(document, VARIABLES, TENANTS)
    return [caller for _, caller in found if caller.name == "planner"], [str(finding) for finding in findings]


def test_a_caller_is_bounded_by_its_tenant() -> None:
    callers, findings = read_held({"tenant": "acme"})
    assert callers == [Caller("planner", "acme", Grants(("files",), within=BOUNDS))]
    assert findings == []


def test_a_caller_of_a_tenant_that_is_not_there_is_left_out() -> None:
    callers, findings = read_held({"tenant": "acne"})
    assert callers == []
    assert findings == [
        "isthmus.toml: callers.planner.tenant must be one of acme, not 'acne' (this caller is left out)"
    ]


def test_a_caller_without_a_tenant_has_the_default_one() -> None:
    assert read_held({})[0] == [Caller("planner", "default", Grants(("files",)))]


def test_a_caller_may_be_held_to_less_on_a_frontend() -> None:
    frontends = {"rest": {"allow": ["files.read"]}, "mcp": {"deny": ["tag:loud"]}}
    callers, findings = read_held({"frontends": frontends})
    held = (("rest", Grants(("files.read",))), ("mcp", Grants(("*",), ("tag:loud",))))
    assert callers == [Caller("planner", "default", Grants(("files",)), frontends=held)]  # type: ignore[arg-type]
    assert findings == []


def test_the_key_of_earlier_versions_leaves_the_caller_out_and_the_finding_names_the_new_one() -> None:
    callers, findings = read_held({"faces": {"rest": {"allow": ["files.read"]}}})
    assert callers == [], "without its restriction it would be allowed more"
    assert findings == [
        "isthmus.toml: callers.planner.faces must be renamed to frontends (this caller is left out)",
    ]


@pytest.mark.parametrize(
    ("frontends", "said"),
    [
        ({"http": {}}, ".frontends must be of mcp, sse, a2a, rest, not 'http'"),
        ({"rest": {"alow": []}}, ".frontends.rest must have only allow, deny, not 'alow'"),
        ({"rest": []}, ".frontends.rest must be a table, not a list"),
        (
            {"rest": {"deny": ["hint:loud"]}},
            ".frontends.rest.deny.0 must be *, server.*, server.tool, agent:KEY, tag:NAME",
        ),
        ([], ".frontends must be a table, not a list"),
    ],
)
def test_a_mistake_about_a_frontend_leaves_the_caller_out(frontends: object, said: str) -> None:
    callers, findings = read_held({"frontends": frontends})
    assert callers == []
    assert len(findings) == 1
    assert said in findings[0]


# -- The tenants of a file: a mistake never widens access ---------------------------------------------------


def read_of_tenants(tenants: object) -> tuple[Tenants, list[str]]:
    found, findings = read_tenants(ParsedFile(FILE, {"tenants": tenants}, OWN))
    return found, [str(finding) for finding in findings]


def test_without_a_file_or_a_table_no_caller_is_bound() -> None:
    assert read_tenants(None) == (NO_TENANTS, ())
    assert read_tenants(ParsedFile(FILE, {}, OWN)) == (NO_TENANTS, ())
    assert read_tenants(ParsedFile(FILE, {"tenants": {"acme": {"deny": ["*"]}}}, CODEX)) == (NO_TENANTS, ())


@pytest.mark.parametrize(
    ("entry", "settings"),
    [
        ({"allow": ["files.*"]}, TenantSettings(Grants(("files.*",)))),
        ({"deny": ["hint:destructive"]}, TenantSettings(Grants(("*",), ("hint:destructive",)))),
        ({"allow": []}, TenantSettings(Grants(()))),
        ({"max_calls": 20}, TenantSettings(None, 20)),
        ({}, TenantSettings()),
    ],
)
def test_a_tenants_entry_bounds_all_its_callers(entry: dict[str, object], settings: TenantSettings) -> None:
    assert read_of_tenants({"acme": entry}) == (Tenants({"acme": settings}), [])


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"denny": ["files"]}, "must have only allow, deny, max_calls, not 'denny'"),
        ({"allow": "files"}, ".allow must be a list of texts, not 'files'"),
        ({"deny": ["tag:"]}, "not 'tag:': the tag is missing"),
        ({"max_calls": 0}, ".max_calls must be at least 1, not 0"),
        ("files", "must be a table, not a text"),
    ],
)
def test_an_invalid_tenant_entry_denies_everything_to_its_callers(entry: object, said: str) -> None:
    found, findings = read_of_tenants({"acme": entry, "other": {"deny": ["web"]}})
    assert found.known["acme"] == TenantSettings(Grants(()))
    assert found.known["other"] == TenantSettings(Grants(("*",), ("web",)))
    assert len(findings) == 1
    assert said in findings[0]
    assert "callers of this tenant may call nothing" in findings[0]


# -- The issuers of a file; a mistake in one costs only that one, and never opens the hub -------------------

TEAM = "https://team.example"
ISSUERS_GOOD = {"issuer": "https://login.example", "audience": "https://hub.example", "allow": ["files.*"]}


def read_of_issuers(issuers: object, public_url: str | None = None) -> tuple[tuple[IssuerSettings, ...], list[str]]:
    found, received = read_issuers(ParsedFile(FILE, {"issuers": issuers}, OWN), public_url)
    return found, [str(finding) for finding in received]


def test_no_issuers_are_read_without_a_file_or_a_table() -> None:
    assert read_issuers(None, None) == ((), ())
    assert read_of_issuers({}) == ((), [])
    assert read_issuers(ParsedFile(FILE, {"issuers": {"corp": ISSUERS_GOOD}}, CODEX), None) == ((), ())


def test_an_entry_fills_the_settings() -> None:
    entry = {
        **ISSUERS_GOOD,
        "audience": ["https://hub.example", "api://hub"],
        "jwks": "https://login.example/keys",
        "algorithms": ["RS256"],
        "leeway": 5,
        "tenant": "acme",
        "tenant_claim": "org",
        "name_claim": "client_id",
        "deny": ["files.delete"],
        "scopes": {"files:write": ["files.write"]},
    }
    expected = IssuerSettings(
        name="corp",
        issuer="https://login.example",
        audience=("https://hub.example", "api://hub"),
        jwks="https://login.example/keys",
        algorithms=("RS256",),
        leeway=5,
        tenant="acme",
        tenant_claim="org",
        name_claim="client_id",
        grants=Grants(("files.*",), ("files.delete",)),
        scopes={"files:write": ("files.write",)},
    )
    assert read_of_issuers({"corp": entry}) == ((expected,), [])


def test_omitted_settings_have_safe_defaults() -> None:
    [settings], _ = read_of_issuers({"corp": ISSUERS_GOOD})
    assert settings.algorithms == ALGORITHMS
    assert (settings.tenant, settings.name_claim, settings.jwks) == ("default", "sub", None)
    entry = {key: value for key, value in ISSUERS_GOOD.items() if key != "audience"}
    [settings], _ = read_of_issuers({"corp": entry}, "https://hub.example/")
    assert settings.audience == ("https://hub.example", "https://hub.example/", "https://hub.example/mcp")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"audience": None}, "issuers.bad.audience must be given where the hub has no public_url, not left out"),
        ({"audience": 1}, "issuers.bad.audience must be a text, not 1"),
        ({"issuer": None}, "issuers.bad.issuer must be an https address"),
        ({"issuer": "https://login.example"}, "issuers.bad.issuer must be another than that of good"),
        ({"algorithms": ["HS256"]}, "issuers.bad.algorithms.0 must be one of RS256"),
        ({"leeway": 600}, "issuers.bad.leeway must be 0 to 60 seconds, not 600"),
        ({"allow": ["a.b.*"]}, "issuers.bad.allow.0 must"),
        ({"denny": ["files.delete"]}, "issuers.bad must have only issuer, audience"),
        ({"scopes": {"files:read": ["*.*"]}}, "issuers.bad.scopes.files:read.0 must"),
        ({"scopes": ["files:read"]}, "issuers.bad.scopes must be a table"),
        ({"tenant": " "}, "issuers.bad.tenant must be a printable text"),
    ],
)
def test_a_mistake_costs_its_own_entry(change: dict[str, Any], expected: str) -> None:
    bad = {**ISSUERS_GOOD, "issuer": "https://bad.example", **change}
    found, findings = read_of_issuers(
        {"good": ISSUERS_GOOD, "bad": {key: value for key, value in bad.items() if value is not None}}
    )
    assert [settings.name for settings in found] == ["good"]
    assert len(findings) == 1
    assert f"isthmus.toml: {expected}" in findings[0]
    assert findings[0].endswith(("(this issuer is left out)", "(did you mean deny? This issuer is left out)"))


def test_an_issuer_whose_tokens_allow_nothing_is_reported() -> None:
    found, [received] = read_of_issuers({"corp": {**ISSUERS_GOOD, "allow": []}})
    assert len(found) == 1
    assert "allows no calls" in received


def test_if_none_is_usable_the_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="issuers are configured but none is usable, and the hub must not be open"):
        read_of_issuers({"corp": 1})


def test_a_mistyped_table_refuses_the_file(tmp_path: Path) -> None:
    file = tmp_path / "isthmus.toml"
    file.write_text('[isuers.corp]\nissuer = "https://login.example"\n')
    with pytest.raises(ConfigError, match="isuers is not known and has no effect"):
        load(file, {}, tmp_path, tmp_path)


def test_a_file_with_issuers_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "isthmus.toml"
    file.write_text(
        '[issuers.corp]\nissuer = "https://login.example"\naudience = "https://hub.example"\nallow = ["*"]\n'
    )
    configuration = load(file, {}, tmp_path, tmp_path)
    assert [settings.name for settings in configuration.issuers] == ["corp"]
    assert configuration.warnings == ()


def test_an_issuer_whose_callers_would_be_called_like_one_of_the_file_is_left_out() -> None:
    """They would own each other's tasks."""
    table = {"issuers": {"corp": ISSUERS_GOOD, "team": {**ISSUERS_GOOD, "issuer": TEAM}}}
    found, received = read_issuers(ParsedFile(FILE, {**table, "callers": {"corp/alice": {}, "team": {}}}, OWN), None)
    assert [issuer.name for issuer in found] == ["team"]
    assert "issuers.corp must have another name: it conflicts with the caller 'corp/alice'" in str(received[0])


def test_a_tenant_is_one_that_is_configured_where_any_are() -> None:
    document = ParsedFile(
        FILE, {"issuers": {"corp": {**ISSUERS_GOOD, "tenant": "acne"}, "team": {**ISSUERS_GOOD, "issuer": TEAM}}}, OWN
    )
    found, received = read_issuers(document, None, Tenants({"acme": TenantSettings()}))
    assert [issuer.name for issuer in found] == ["team"]
    assert "issuers.corp.tenant must be one of acme, not 'acne'" in str(received[0])
    assert len(read_issuers(document, None)[0]) == 2, "where none are, any will do"


# -- Permissions that name a server which is not there ------------------------------------------------------

GRANTS_FILE = """
[servers.files]
command = "x"
[tenants.acme]
deny = ["fils.delete"]
[callers.ann]
key = "a-key-of-ann-0123456789"
allow = ["*", "files.*", "files", "builtin.echo", "tag:fils", "agent:fils", "gadget.look"]
deny = ["FILES", "hint:destructive"]
[callers.ann.frontends.rest]
allow = ["filez.read"]
[issuers.corp]
issuer = "https://login.example"
audience = "a"
allow = ["file"]
scopes = { "w" = ["flies.write"] }
"""
WRONG = {
    "callers.ann.deny.0": "files",
    "callers.ann.frontends.rest.allow.0": "files.read",
    "tenants.acme.deny.0": "files.delete",
    "issuers.corp.allow.0": "files",
    "issuers.corp.scopes.w.0": "files.write",
}


def findings(folder: Path, text: str) -> dict[str, str]:
    file = folder / "isthmus.toml"
    file.write_text(text)
    received = load(file, {}, folder, folder).warnings
    return {each.path: each.advice for each in received if each.code is UNKNOWN_SERVER}


def test_a_name_that_nearly_matches_a_server_is_reported_wherever_it_stands(tmp_path: Path) -> None:
    assert findings(tmp_path, GRANTS_FILE) == {path: f"did you mean {meant}?" for path, meant in WRONG.items()}


LIKE_LABELS = """
[servers.agent-fils]
command = "x"
[servers.tag-fils]
command = "x"
[servers.builtin2]
command = "x"
[callers.ann]
key = "a-key-of-ann-0123456789"
allow = ["agent:fils", "tag:fils", "builtin.echo", "bultin.echo"]
"""


def test_labels_agents_and_builtin_names_are_not_taken_for_similar_servers(tmp_path: Path) -> None:
    assert findings(tmp_path, LIKE_LABELS) == {"callers.ann.allow.3": "did you mean builtin.echo?"}


@pytest.mark.parametrize(
    "said", ["deny = 5", "deny = [5, {}]", "frontends = []", 'scopes = "x"', "frontends = { rest = 1 }"]
)
def test_values_that_are_not_lists_of_texts_are_reported_elsewhere(tmp_path: Path, said: str) -> None:
    callers = '[callers.ann]\nkey = "a-key-of-ann-0123456789"\nallow = ["*"]\n'
    assert findings(tmp_path, f"{callers}[callers.bob]\nkey = 'a-key-of-bob-0123456789'\n{said}\n") == {}
