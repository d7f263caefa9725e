"""The context provider on Mem0."""

import gc
import hashlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
from threads_setup import CountedStore, Engine

from tealagents.domain.models import Caller, Item, Json, User
from tealagents.state.new_message import NewMessage
from tealagents.stores.memory import MemoryStore
from tealagents.testing.models import ScriptedModel
from tealagents.threads.components import open_provider
from tealagents.threads.context import Providers
from tealagents.threads.errors import ThreadConfigError
from tealagents.threads.mem0 import mem0_id

#: of their connections, closed when they are collected
pytestmark = [
    pytest.mark.skipif(find_spec("mem0") is None, reason="needs pip install 'tealagents[mem0]'"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning"),
]

DIMENSIONS = 32


def embedded(text: str) -> list[float]:
    """A vector of the words of a text: texts that share words lie close."""
    vector = [0.0] * DIMENSIONS
    for word in text.lower().replace(".", " ").replace("?", " ").split():
        vector[hashlib.md5(word.encode(), usedforsecurity=False).digest()[0] % DIMENSIONS] += 1.0
    return vector


class Embeddings(BaseHTTPRequestHandler):
    """`POST /v1/embeddings`, as OpenAI answers it."""

    def do_POST(self) -> None:
        body = msgspec.json.decode(self.rfile.read(int(self.headers["content-length"])))
        given = body["input"] if isinstance(body["input"], list) else [body["input"]]
        data = [{"index": n, "object": "embedding", "embedding": embedded(t)} for n, t in enumerate(given)]
        answer = msgspec.json.encode({"object": "list", "data": data, "model": "m", "usage": {}})
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: Any) -> None:
        """Says nothing."""


@pytest.fixture
def embeddings() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Embeddings)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def left_open() -> Iterator[None]:
    """Qdrant's client leaves a database open, of which Python warns from 3.13 on: it is collected here, and
    not in whichever test comes next."""
    yield
    gc.collect()
    gc.freeze()  # what its libraries have imported is not gone through again after each of the next


@pytest.fixture(autouse=True)
def loopback_only(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Other hosts that were looked up or called: there may be none."""
    strangers: list[str] = []
    look_up = socket.getaddrinfo

    def looked_up(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host not in ("127.0.0.1", "localhost", "::1", None):
            strangers.append(str(host))
            raise OSError(f"{host} is not loopback")
        return look_up(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    return strangers


def options(embeddings: str, folder: Path) -> Json:
    key = {"api_key": "key"}
    return {
        "infer": False,
        "directory": str(folder / "mem0"),
        "config": {
            "llm": {"provider": "openai", "config": {"openai_base_url": embeddings, **key}},
            "embedder": {
                "provider": "openai",
                "config": {"openai_base_url": embeddings, "embedding_dims": DIMENSIONS, **key},
            },
            "vector_store": {
                "provider": "qdrant",
                "config": {"path": str(folder / "vectors"), "embedding_model_dims": DIMENSIONS},
            },
            "history_db_path": str(folder / "history.db"),
        },
    }


@pytest.fixture
async def store() -> AsyncIterator[CountedStore]:
    async with CountedStore(MemoryStore()) as opened:
        yield opened


async def test_what_was_said_is_found_in_a_new_session(
    store: CountedStore, embeddings: str, tmp_path: Path, loopback_only: list[str]
) -> None:
    """For its user alone, without what was not to be stored, and without a call to any other host.
    covers: THREAD-10"""
    provider = open_provider("mem0", {**options(embeddings, tmp_path), "required": True})
    model = ScriptedModel()
    async with Providers([provider]) as providers, Engine(store, model, providers=providers) as engine:
        record = await engine.say("My cat is called Tom")
        assert record.status == "Completed", record.error
        await engine.say("My cat is a secret", client={"store": False})
        await engine.say("What is my cat called?")
        found = str(model.calls[-1].messages[1]["content"])
        assert "- My cat is called Tom" in found
        assert "secret" not in found
        engine.caller = type(engine.caller)(user=type(engine.caller.user)("t", "eve"))
        await engine.say("What is my cat called?")
        assert len(model.calls[-1].messages) == 2
    assert loopback_only == []


async def test_a_long_memory_is_cut_where_it_is_added(
    store: CountedStore, embeddings: str, tmp_path: Path
) -> None:
    """With a word of how much is missing: each request of the user would be sent all of it."""
    provider = open_provider("mem0", {**options(embeddings, tmp_path), "required": True})
    model = ScriptedModel()
    async with Providers([provider]) as providers, Engine(store, model, providers=providers) as engine:
        await engine.say("My cat is called Tom. " + "x" * 100_000)
        await engine.say("What is my cat called?")
    added = str(model.calls[-1].messages[1]["content"])
    assert "- My cat is called Tom. xxx" in added
    assert "2,000 of 100,022 characters" in added
    assert len(added) < 3000


async def test_a_message_without_words_is_answered_without_memories(
    store: CountedStore, embeddings: str, tmp_path: Path
) -> None:
    """An image alone, or blanks: Mem0 can search for neither, and nothing empty is remembered of them."""
    provider: Any = open_provider("mem0", {**options(embeddings, tmp_path), "required": True})
    model = ScriptedModel()
    async with Providers([provider]) as providers, Engine(store, model, providers=providers) as engine:
        for item in (Item("image", "data:image/png;base64,AAAA"), Item("text", " \n")):
            sent = await engine.service.submit(engine.caller, NewMessage(items=(item,)), None, streamed=False)
            record = await engine.service.outcome(sent)
            assert record.status == "Completed", record.error
        kept = await provider._memory.get_all(filters={"user_id": "t.ada"})
        assert all(each["memory"].strip() for each in kept["results"])


async def test_users_whose_names_have_blanks_have_memories_of_their_own(
    store: CountedStore, embeddings: str, tmp_path: Path
) -> None:
    """Within a name Mem0 refuses them, and at its ends it drops them."""
    provider = open_provider("mem0", {**options(embeddings, tmp_path), "required": True})
    model = ScriptedModel()
    names = ("ada", "ada ", "ada%20", "Ada Lovelace")
    async with Providers([provider]) as providers, Engine(store, model, providers=providers) as engine:
        for number, name in enumerate(names):
            engine.caller = Caller(user=User("t", name))
            record = await engine.say(f"My cat is called Tom{number}")
            assert record.status == "Completed", record.error
        for number, name in enumerate(names):
            engine.caller = Caller(user=User("t", name))
            await engine.say("What is my cat called?")
            known = str(model.calls[-1].messages[1]["content"])
            assert [other for other in range(len(names)) if f"Tom{other}" in known] == [number]


def test_no_user_is_known_to_mem0_as_another() -> None:
    """Even if a tenant is named as an encoded one would be; users of Entra are known by their keys."""
    users = [
        *(User("a ", "b"), User("%a%20", "b"), User("%25a%2520", "b"), User("a%20", "b")),
        *(User("", "a b"), User("", "a%20b"), User("%", "a%20b"), User("%", "a b")),
    ]
    assert len({mem0_id(user) for user in users}) == len(users)
    entra = User("11111111-2222-4333-8444-555555555555", "66666666-7777-4888-8999-000000000000")
    assert mem0_id(entra) == entra.key


def test_nothing_is_asked_for_at_import(tmp_path: Path) -> None:
    """Neither the package nor the network; the telemetry is off before it could ask. covers: THREAD-10"""
    code = """
import socket, sys
def refuse(*args, **kwargs): raise SystemExit(f"asked for {args}")
socket.getaddrinfo = socket.create_connection = refuse
import tealagents.threads.mem0 as ours
assert "mem0" not in sys.modules
ours._imported(sys.argv[1])
from mem0.memory import telemetry
assert telemetry.MEM0_TELEMETRY is False and telemetry.client_telemetry.posthog is None
"""
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_a_service_needs_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said with what to set."""
    monkeypatch.delenv("MEM0_API_KEY", raising=False)
    provider: Any = open_provider("mem0", {})
    with pytest.raises(ThreadConfigError, match="MEM0_API_KEY"):
        provider._opened()


def test_the_folder_that_is_made_for_its_files_is_private(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They hold what users said, and are not sealed."""
    monkeypatch.delenv("MEM0_API_KEY", raising=False)
    provider: Any = open_provider("mem0", {"directory": str(tmp_path / "memories" / "mem0")})
    with pytest.raises(ThreadConfigError, match="MEM0_API_KEY"):
        provider._opened()
    assert (tmp_path / "memories" / "mem0").stat().st_mode & 0o777 == 0o700


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra: before anything is opened, or of a package of Mem0's when it is imported."""
    provider: Any = open_provider("mem0", {})
    monkeypatch.setitem(sys.modules, "mem0", None)
    with pytest.raises(ThreadConfigError, match=r"pip install 'tealagents\[mem0\]'"):
        open_provider("mem0", {})
    with pytest.raises(ThreadConfigError, match=r"pip install 'tealagents\[mem0\]'"):
        provider._opened()
    assert os.environ["MEM0_TELEMETRY"] == "False"
