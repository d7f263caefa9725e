"""From a URL to a store: schemes, options, third parties, and errors that say what to do."""

import asyncio
import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tealagents.mistakes import key_of
from tealagents.stores import STORES, StoreConfigError, plain_store
from tealagents.stores.base import StoreUrl
from tealagents.stores.memory import MemoryStore

ROOT = Path(__file__).parents[2]


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An installed package that brings a store of the scheme `shoebox`; the name of its class."""
    (tmp_path / "shoebox.py").write_text(
        "from tealagents.stores.memory import MemoryStore\n"
        "class Shoebox(MemoryStore): name = 'shoebox'\n"
        "class Lid: ...\n"
    )
    package = tmp_path / "shoebox-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: shoebox\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[tealagents.stores]\nshoebox = shoebox:Shoebox\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "shoebox:Shoebox"


def test_a_scheme_of_our_own() -> None:
    """A known scheme gives its store, not yet opened, with the options of the query and of keywords."""
    store = plain_store("memory://?watch_seconds=0.1")
    assert isinstance(store, MemoryStore)
    assert store.options.watch_seconds == 0.1
    assert plain_store("memory://", watch_seconds=0.2).options.watch_seconds == 0.2


def test_a_third_party_by_its_scheme(third_party: str) -> None:
    """A store of another package is found by the scheme that its entry point gives it, and is listed."""
    assert plain_store("shoebox://").name == "shoebox"
    assert "shoebox" in STORES.known()
    assert STORES.built_in.keys() < set(STORES.known())


@pytest.mark.parametrize("page", ["docs/stores.md", "docs/config.md", "configs/reference.yaml"])
def test_pages_name_each_store(page: str) -> None:
    """Every store that comes with the project is named by its scheme wherever the schemes are listed."""
    text = (ROOT / page).read_text().partition("## Stores\n")
    named = set(re.findall(r"\b(\w+)://", text[2] or text[0]))
    built_in = STORES.built_in
    assert set(built_in.values()) == {built_in[scheme] for scheme in named & built_in.keys()}


def test_options_are_documented() -> None:
    """The tables of stores.md have a row for each option that a store's URL takes after its `?`."""
    page = (ROOT / "docs/stores.md").read_text()
    named = {
        name
        for cell in re.findall(r"^\| (`.+?) \|", page, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", cell)
    }
    options = {
        key_of(name, field)
        for scheme in STORES.built_in
        for name, field in STORES.find(scheme).options_type.model_fields.items()
        if not field.is_required()  # what is required is the location
    }
    assert options - named == set()


@pytest.mark.parametrize("suffix", ["", "?watch_seconds=0.1", "://", "://?watch_seconds=0.1"])
def test_a_third_party_by_its_class(third_party: str, suffix: str) -> None:
    """A class can be named as module:Class, with or without slashes, with or without options."""
    store = plain_store(third_party + suffix)
    assert store.name == "shoebox"
    assert store.options.watch_seconds == (0.1 if "?" in suffix else 0.25)


@pytest.mark.parametrize(
    ("url", "reported"),
    [
        ("mongodb://host/db", r"Unknown store 'mongodb'. Known: dynamodb, file, memory"),
        ("state.db", r"Unknown store 'state.db'. Known:"),
        ("", r"Unknown store ''. Known:"),
        ("no_such_module:Store", r"'no_such_module:Store' cannot be imported: there is no module"),
        ("shoebox:Slipper", r"shoebox has no 'Slipper'"),
        ("shoebox:Lid", r"must extend tealagents.stores.base.BaseStore"),
        ("memory://?colour=red", r"colour: unknown key; the keys here are watch_seconds"),
        ("postgresql://host/db?colour=red", r"colour: unknown key; the keys here are .*\bschema, pool\b"),
        (
            "sqlite:///a.db?colour=red",
            r"colour: unknown key; the keys here are watch_seconds, busy_seconds\.$",
        ),
        ("sqlite:///a.db?pth=b.db", r"pth: unknown key; the keys here are watch_seconds, busy_seconds\.$"),
        ("sqlite:///a.db?busy_seconds=inf", r"busy_seconds: must be a finite number"),
        ("memory://?watch_seconds=never", r"watch_seconds: must be a number"),
        ("memory://?watch_seconds=0.1&watch_seconds=0.2", r"given twice"),
        ("memory://somewhere", r"takes no host or path"),
        ("redis://:hun/ter2@127.0.0.1:6379/0", r"^redis://…: "),
        ("redis://127.0.0.1:99999", r"^redis://…: its host or port cannot be read"),
        ("redis://[::1", r"^redis://…: its host or port cannot be read"),
        ("redis://127.0.0.1:0", r"^redis://…: its host or port cannot be read"),
        ("redis://:hunter2@a..b:6379/0", r"^redis://…: its host or port cannot be read"),
        ("postgresql://me:hunter2@[::1/db", r"^postgresql://…: its host or port cannot be read"),
        ("postgresql://me:hunter2@a..b/db", r"^postgresql://…: .* is not a host and a port"),
        ("postgresql://host,127.0.0.1:99999/db", r"^postgresql://…: .* is not a host and a port"),
        ("dynamodb://table?endpoint=http://a..b:1", r"endpoint: its host or port cannot be read"),
        ("dynamodb://table?endpoint=http://127.0.0.1:99999", r"endpoint: its host or port cannot be read"),
        ("dynamodb://table?endpoint=http://[::1", r"endpoint: its host or port cannot be read"),
        ("postgresql://me:12?hunter2@host/db", r"^postgresql://…: its host or port cannot be read"),
        ("postgres:me:hunter2@host/db", r"^postgres:…: write postgres://…, with two slashes"),
        ("postgres:/me:hunter2@host/db", r"^postgres:…: write postgres://…, with two slashes"),
        ("postgresql:me:hun?ter2@host", r"^postgresql:…: write postgresql://…, with two slashes"),
        ("redis:me:hunter2@host?a=1&a=2", r"^redis:…: write redis://…, with two slashes"),
        ("redis:me:hunter2@host?a=http://[", r"^redis:…: write redis://…, with two slashes"),
        ("mongodb:me:hunter2@host", r"^mongodb:…: write mongodb://…, with two slashes"),
        ("sqlite:///a.db?path=b.db", r"path is given twice"),
        ("rediss://host/0?ssl_ca_certs=no.pem", r"ssl_ca_certs: names a file that cannot be read: No such"),
        ("rediss://host/0?ssl_keyfile=/", r"ssl_keyfile: names a file that cannot be read: Is a directory"),
        (
            "postgresql://host/db?sslrootcert=no.pem",
            r"sslrootcert: names a file that cannot be read: No such",
        ),
        (
            "postgresql://host/db?sslmode=require&sslrootcert=system",
            r"sslrootcert: 'system' needs sslmode=verify-full",
        ),
    ],
)
def test_mistakes(third_party: str, url: str, reported: str) -> None:
    """What cannot be opened is an error of the configuration that says what is wrong or what there is."""
    with pytest.raises(StoreConfigError, match=reported) as raised:
        plain_store(url)
    assert "ter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("lacking", "remedy"),
    [("name", "a text"), ("shared", "True or False"), ("durable", "True or False")],
)
def test_a_class_without_what_it_has_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str, remedy: str
) -> None:
    """It is refused when the store is made, not where the attribute is first read."""
    values = {"name": "'shelf'", "shared": "False", "durable": "True"}
    lines = [f"    {each} = {value}" for each, value in values.items() if each != lacking]
    (tmp_path / f"shelf_without_{lacking}.py").write_text(
        "from tealagents.stores.base import BaseStore\n"
        "class Shelf(BaseStore):\n"
        "    async def read(self, partition, keys): ...\n"
        "    async def scan(self, partition, prefix, *, after=None, limit=100, reverse=False): ...\n"
        "    async def commit(self, partition, commit): ...\n" + "\n".join(lines)
    )
    monkeypatch.syspath_prepend(tmp_path)
    name = f"shelf_without_{lacking}:Shelf"
    with pytest.raises(StoreConfigError, match=f"^The store '{name}' has no {lacking}: set it to {remedy}.$"):
        plain_store(name)


def test_an_option_given_twice() -> None:
    """An option that comes both in the query and as a keyword is refused."""
    with pytest.raises(StoreConfigError, match="watch_seconds is given twice"):
        plain_store("memory://?watch_seconds=0.1", watch_seconds=0.2)


@pytest.mark.parametrize(
    ("scheme", "driver", "extra"),
    [
        ("postgresql", "asyncpg", "postgres"),
        ("redis", "redis", "redis"),
        ("dynamodb", "aiobotocore", "dynamodb"),
    ],
)
def test_a_missing_driver(monkeypatch: pytest.MonkeyPatch, scheme: str, driver: str, extra: str) -> None:
    """A store whose driver is not installed says what to install."""
    ours = STORES.built_in[scheme].partition(":")[0]  # and the modules beside it, which hold the driver
    for module in [name for name in sys.modules if name.split(".")[0] == driver or name.startswith(ours)]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [Missing(driver), *sys.meta_path])
    with pytest.raises(StoreConfigError, match=rf"pip install 'tealagents\[{extra}\]'"):
        plain_store(f"{scheme}://host/name")


class Missing:
    """An import system in which one package is not installed."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> None:
        if name.split(".")[0] == self.package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_passwords_are_not_shown() -> None:
    """Neither the text of a URL's error nor what is shown of it holds its password."""
    url = "postgresql://alice:hunter2@host:5432/db"
    parsed = StoreUrl.parse(url)
    assert parsed.netloc == "alice:hunter2@host:5432"
    for text in (parsed.safe, repr(parsed), f"{parsed}"):
        assert "hunter2" not in text
        assert "host:5432/db" in text
    with pytest.raises(StoreConfigError) as refused:
        plain_store(url.replace("postgresql", "memory") + "?password=hunter3")
    assert "hunter" not in str(refused.value)
    for password in ("hun/ter2", "hun#ter2", "h@n/ter2"):  # that are not percent-encoded
        assert StoreUrl.parse(f"my.stores:Mine://alice:{password}@host/db").safe == "my.stores:Mine://…"


@pytest.mark.parametrize("url", ["file://{}/made/with/state", "sqlite:///{}/made/with/state.db"])
async def test_a_store_in_new_folders_is_found_after_a_power_failure(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of the folders above it are on the disk too: what is in a lost folder is lost."""
    synced: set[str] = set()
    real = os.fsync

    def noting(handle: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    monkeypatch.setattr(os, "fsync", noting)
    async with plain_store(url.format(tmp_path)):
        assert synced >= set(map(str, (tmp_path, tmp_path / "made", tmp_path / "made" / "with")))


async def test_what_is_under_way_is_done_although_a_close_that_waits_for_it_is_canceled() -> None:
    store, may_end = MemoryStore(), asyncio.Event()
    under_way = asyncio.ensure_future(store.shielded(may_end.wait()))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(store.__aexit__(None, None, None))
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait((closing,))
    may_end.set()
    assert await under_way
