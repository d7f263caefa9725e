"""Store URLs: made absolute, and shown without their secrets."""

from pathlib import Path

import pytest

from tealagents.config import masked
from tealagents.config.urls import absolute_store
from tealagents.stores.base import StoreUrl

BASE = Path("/etc/agents")


@pytest.mark.parametrize(
    ("url", "absolute"),
    [
        ("sqlite:///state.db", "sqlite:////etc/agents/state.db"),
        ("sqlite:///./a/../state.db?watch_seconds=0.1", "sqlite:////etc/agents/state.db?watch_seconds=0.1"),
        ("sqlite:////var/state.db", "sqlite:////var/state.db"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("file:///var/state", "file:///var/state"),
        ("file://localhost/var/state", "file:///var/state"),
        ("file:state", "file:///etc/agents/state"),
        ("file:./state", "file:///etc/agents/state"),
        ("file:/var/state", "file:///var/state"),
        ("file://./state", "file:///etc/agents/state"),
        ("file://../state", "file:///etc/state"),
        ("memory://", "memory://"),
        ("postgresql://h/db", "postgresql://h/db"),
        ("dynamodb://table?region=x", "dynamodb://table?region=x"),
        ("my.stores:Mine?x=1", "my.stores:Mine?x=1"),
    ],
)
def test_relative_stores_become_absolute(url: str, absolute: str) -> None:
    """SQLite's third slash begins a relative path, a file URL's an absolute one; others have no paths."""
    assert absolute_store(url, BASE) == absolute


@pytest.mark.parametrize(
    "url",
    [
        "",
        "memory",
        "state.db",
        "sqlite:state.db",
        "sqlite://state.db",
        "file:",
        "file:///",
        "file://host/x",
        "a b",
    ],
)
def test_what_is_no_store_is_refused(url: str) -> None:
    """A URL that a store could misunderstand is refused with what to write."""
    with pytest.raises(ValueError, match=r"must be the URL|three slashes|file:///absolute"):
        absolute_store(url, BASE)


def test_odd_characters_of_the_folder_survive() -> None:
    """A folder whose name means something in a URL reaches the store as it is called."""
    url = absolute_store("sqlite:///state.db", Path("/srv/50% off? #1"))
    assert StoreUrl.parse(url).path == "//srv/50% off? #1/state.db"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@h:5432/db?sslmode=require", "postgresql://me:***@h:5432/db?sslmode=require"),
        ("redis://:secret@h", "redis://:***@h"),
        (
            "dynamodb://t?region=r&aws_secret_access_key=secret",
            "dynamodb://t?region=r&aws_secret_access_key=***",
        ),
        ("sqlite:////a/b.db", "sqlite:////a/b.db"),
        ("memory://", "memory://"),
        ("https://h/v1#f", "https://h/v1"),
        ("sqlite:////a b/c d.db?busy_seconds=3", "sqlite:////a b/c d.db?busy_seconds=3"),
        ("postgresql://me:the secret@h/db", "postgresql://me:***@h/db"),
        ("postgresql://me:secret@h/my db?a=b c", "postgresql://me:***@h/my db?a=b c"),
        ("dynamodb://t?aws_secret_access_key=the secret", "dynamodb://t?aws_secret_access_key=***"),
        ("my.stores:Mine?x=1", "my.stores:Mine?x=1"),
        ("my.stores:Mine://me:secret@h?token=secret", "my.stores:Mine://me:***@h?token=***"),
        ("postgresql://the user:secret@h/db", "postgresql://…"),
        ("postgresql://me: secret@h/db", "postgresql://…"),
        ("postgresql://me:secret@h/db\n", "postgresql://…"),
        ("postgres:me:secret@h/db", "postgres:…"),
        ("me.secret@h/db", "…"),
        ("my.stores:Mine://me:sec/ret@h", "my.stores:Mine://…"),
        ("redis://:sec/ret@h:6379/0", "redis://…"),
        ("postgresql://me:sec?ret@h/db", "postgresql://…"),
        ("postgresql://me:sec#ret@h/db", "postgresql://…"),
        ("postgresql://me:s@cr/et@h/db", "postgresql://…"),
        ("https://h/v1/@me?to=me@h", "https://h/v1/@me?to=me@h"),
    ],
)
def test_secrets_are_masked(url: str, shown: str) -> None:
    """What is printed of a URL has no secret in it."""
    assert masked(url) == shown
