"""A program's permissions for its users become the hub's own grants, in any form."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.core.access.policy import Policy
from isthmus.library.permissions import grants_of, policy_of
from isthmus.library.public_types import UserContext, UserPermissions
from isthmus.model.callers import Grants
from tests.unit.library.catalogs import user

BUILTIN_ONLY = ("builtin.*",)


def test_a_program_that_asks_for_itself_may_use_everything() -> None:
    assert grants_of(None) == Grants(("*",))


@pytest.mark.parametrize("permissions", [None, UserPermissions(), UserPermissions(None)])
def test_a_user_without_permissions_may_use_the_built_in_tools(permissions: UserPermissions | None) -> None:
    assert grants_of(UserContext("ada", permissions=permissions)) == Grants(BUILTIN_ONLY)


def test_names_servers_and_the_star_are_granted_once_each() -> None:
    granted = grants_of(user("files.read", "web", "db.*", "files.read", "*"))
    assert granted.allow == ("files.read", "web", "db.*", "*")


@pytest.mark.parametrize("odd", ["", ".", "files.", ".read", "files.re*", "*.read", "may edit", "a" * 51, "agent:"])
def test_a_text_that_is_not_a_pattern_is_left_to_others(odd: str) -> None:
    assert grants_of(user(odd, "web.*")).allow == ("web.*",)
    assert grants_of(user(odd)).allow == BUILTIN_ONLY


@pytest.mark.parametrize("odd", [5, {"permissions": None}, [None, 7, b"*"], object(), SimpleNamespace(), "may edit"])
def test_malformed_permissions_grant_no_more_than_none(odd: Any) -> None:
    granted = {grants_of(UserContext("ada", permissions=odd)).allow}
    granted.add(grants_of(UserContext("ada", permissions=UserPermissions(odd))).allow)
    assert "*" not in {pattern for allow in granted for pattern in allow}


def test_one_text_is_one_permission_and_not_its_letters() -> None:
    whole: Any = "files.*"
    assert grants_of(UserContext("ada", permissions=UserPermissions(whole))).allow == ("files.*",)
    assert grants_of(UserContext("ada", permissions=whole)).allow == ("files.*",)


def test_a_user_of_another_kind_may_use_the_built_in_tools() -> None:
    stranger: Any = {"user_id": "ada"}
    assert grants_of(stranger).allow == BUILTIN_ONLY


@pytest.mark.parametrize(
    ("restricted", "denied"),
    [
        (["files.read", "web"], ("files.read", "web")),
        ("files.read", ("files.read",)),
        ([], ()),
        (None, ()),
        ("", ()),
        (["files.re*"], ("files.*",)),
        (["files."], ("files.*",)),
        (["*.read"], ("*",)),
        ([7], ("*",)),
        (True, ("*",)),
    ],
)
def test_restrictions_become_denials_and_err_on_the_strict_side(restricted: object, denied: tuple[str, ...]) -> None:
    assert grants_of(user("*", denied=restricted)) == Grants(("*",), denied)


def test_restrictions_of_another_kind_restrict_everything() -> None:
    odd: Any = [7]
    permissions = UserPermissions(["*"], restrictions=odd)
    assert grants_of(UserContext("ada", permissions=permissions)).deny == ("*",)


def test_the_compiled_form_is_the_hubs_own_and_made_once() -> None:
    granted = grants_of(user("files.read"))
    assert isinstance(policy_of(granted), Policy)
    assert policy_of(granted) is policy_of(grants_of(user("files.read")))
