"""Storage settings: valid addresses, and the parts that are shown."""

from __future__ import annotations

import pytest

from isthmus.storage.settings import StorageSettings


def test_without_an_address_there_is_no_database() -> None:
    assert StorageSettings().url is None
    assert StorageSettings().shown is None


@pytest.mark.parametrize(
    ("url", "dialled", "schema", "shown"),
    [
        ("postgresql://h/d", "postgresql://h/d", "isthmus", "postgresql://h/d"),
        ("postgres://u@h:5433/d?schema=one", "postgres://u@h:5433/d", "one", "postgres://u@h:5433/d?schema=one"),
        (
            "postgresql://u:p%40ss@h/d?sslmode=require&schema=a_1",
            "postgresql://u:p%40ss@h/d?sslmode=require",
            "a_1",
            "postgresql://u:***@h/d?sslmode=require&schema=a_1",
        ),
        (
            "postgresql:///d?host=/run/pg&user=u&password=secret",
            "postgresql:///d?host=/run/pg&user=u&password=secret",
            "isthmus",
            "postgresql:///d?host=/run/pg&user=u",
        ),
    ],
)
def test_an_address_is_dialled_without_our_own_words_and_shown_without_secrets(
    url: str, dialled: str, schema: str, shown: str
) -> None:
    settings = StorageSettings(url)
    assert (settings.server_urls, settings.schema, settings.shown) == ((dialled,), schema, shown)
    assert "secret" not in repr(settings) + str(settings.shown)


@pytest.mark.parametrize(
    ("url", "dialled"),
    [
        ("postgresql://u:p,w@a:1,[::1]:2/d?schema=s", ["postgresql://u:p,w@a:1/d", "postgresql://u:p,w@[::1]:2/d"]),
        ("postgresql:///d?host=a,/run&port=1,2", ["postgresql:///d?host=a&port=1", "postgresql:///d?host=/run&port=2"]),
        ("postgresql://u@/d?host=a,b&port=1", ["postgresql://u@/d?host=a&port=1", "postgresql://u@/d?host=b&port=1"]),
        ("postgresql:///d?host=a,b", ["postgresql:///d?host=a", "postgresql:///d?host=b"]),
        ("postgresql:///d?host=a,b&port=1,2,3", ["postgresql:///d?host=a%2Cb&port=1%2C2%2C3"]),
    ],
)
def test_an_address_of_several_servers_is_that_of_each(url: str, dialled: list[str]) -> None:
    assert list(StorageSettings(url).server_urls) == dialled


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://h/d", "url must start with postgresql://, not 'mysql'"),
        ("secret", "url must start with postgresql://, not another word"),
        ("postgresql://u:secret@h/d e", "url must be an address without spaces"),
        ("postgresql://u:secret@[h/d", "url must be a valid address"),
        ("postgresql://h/d?schema=Mine", "url must have a schema of small letters, digits and _, not 'Mine'"),
        ('postgresql://h/d?schema=a"b', "url must have a schema of small letters, digits and _, not 'a\"b'"),
    ],
)
def test_another_address_is_refused_with_the_reason(url: str, message: str) -> None:
    with pytest.raises(ValueError, match="must") as refused:
        StorageSettings(url)
    assert str(refused.value) == message


@pytest.mark.parametrize("password", ["se/cret", "se?cret", "se#cret", "se/c@ret"])
def test_a_password_that_would_be_read_as_something_else_is_refused_and_not_quoted(password: str) -> None:
    with pytest.raises(ValueError, match=r"must have @, /, . and # of a password as %40, %2F, %3F and %23") as refused:
        StorageSettings(f"postgresql://u:{password}@h/d")
    assert "cret" not in str(refused.value)
