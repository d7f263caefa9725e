"""Everything that reads bytes from outside, against a server that answers as no server should."""

import ast
import gzip
import json
import os
import subprocess
import sys
import traceback
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

import httpx2
import outbound_places
import pytest
from hostile_server import HostileServer, gzip_of_zeros
from outbound_places import PLACES, Ending
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from tools_setup import served

import tealagents
from tealagents.outbound.addresses import is_loopback, public_address
from tealagents.outbound.reading import MAX_HEADERS, BoundedClient, Fetched, Unacceptable, fetch

SOURCE = Path(tealagents.__file__).parent

#: of the answers to the client itself, in bytes
LIMIT = 400_000
MANNERS = (
    "gzip",
    "nested_gzip",
    "endless_body",
    "endless_error",
    "endless_stream",
    "dense_json",
    "deep_json",
    "huge_header",
    "redirect",
    "html",
)
SLOW_MANNERS = ("dribble", "dribbled_headers")
#: how a place may end: with an error that says what happened, of the kind that its callers expect
REPORTED = {"ToolFailed", "ToolsetError", "InvalidRequest", "KeysUnreadable", "ModelFailed", "ModelTimeout"}
#: megabytes over the idle process
MEMORY = 300
#: seconds in which a busy machine gives every event loop a turn; the probes of old took from 12 to 31
STALL = 8.0


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[HostileServer]:
    with HostileServer("html") as server:
        yield server


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is read from Linux's /proc")
@pytest.mark.parametrize(("manners", "how"), [(MANNERS, "apart"), (SLOW_MANNERS, "together")])
def test_no_place_is_hurt_by_what_it_reads(
    manners: Sequence[str], how: str, elsewhere: HostileServer
) -> None:
    """Each place ends in time, within the memory, with the loop free for others, and says why; nothing goes
    to where a redirect leads, nor to the proxy that is not for loopback."""
    with ExitStack() as stack:
        servers = [stack.enter_context(HostileServer(manner, elsewhere.url)) for manner in manners]
        output = subprocess.run(
            [sys.executable, outbound_places.__file__, how, *(server.url for server in servers)],
            env={**os.environ, "NO_PROXY": "", "HTTP_PROXY": elsewhere.url, "http_proxy": elsewhere.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=300,
            check=True,
        ).stdout
    lines = output.splitlines()
    for manner, line in zip(manners, lines, strict=True):
        endings = [Ending(*ending) for ending in json.loads(line)]
        assert [ending.place for ending in endings] == list(PLACES)
        hurt = [
            ending
            for ending in endings
            if ending.peak > MEMORY or ending.longest > STALL or not ending.text.strip()
        ]
        assert hurt == [], manner
        # what an operation of a service answers is the model's to read, whatever it is, as far as it goes
        assert [
            ending
            for ending in endings
            if ending.kind not in REPORTED
            and (ending.kind, ending.place) not in (("answer", "openapi_get"), ("answer", "openapi_post"))
        ] == [], manner
    assert elsewhere.asked == []


#: calls that open a way to the outside → their outcome
CLIENTS = {
    *("httpx.Client", "httpx.AsyncClient", "httpx.get", "httpx.post", "httpx.stream", "httpx.request"),
    *("httpx2.Client", "httpx2.AsyncClient", "httpx2.get", "httpx2.post", "httpx2.stream", "httpx2.request"),
    *("aiohttp.ClientSession", "requests.Session", "requests.get", "requests.post", "urlopen"),
    *("http.client.HTTPConnection", "http.client.HTTPSConnection", "websockets.connect"),
    *("socket.create_connection", "asyncio.open_connection", "open_connection"),
    *("streamable_http_client", "sse_client", "stdio_client", "BoundedClient", "ReportingClient"),
    *("openai.AsyncOpenAI", "openai.AsyncAzureOpenAI", "openai.OpenAI"),
    *("msal.ConfidentialClientApplication", "msal.PublicClientApplication", "msal.ManagedIdentityClient"),
    *("AsyncMemoryClient", "AsyncMemory.from_config", "MemoryClient", "get_session"),
    *("OTLPSpanExporter", "OTLPMetricExporter", "OTLPLogExporter", "PyJWKClient"),
}
#: modules whose clients are not in the table, and why they need not be
EXEMPT = {
    "outbound/reading.py": "the bounded client itself",
    "tools/mcp_connection.py": "the session on top of the transports that are in the table",
    "stores/dynamodb_service.py": "the operator's own database",
    "stores/pool.py": "the operator's own database",
    "stores/redis_nodes.py": "the operator's own database",
    "telemetry/exporting.py": "sends to the operator's collector, and reads no more than a status",
    "threads/mem0.py": "the operator's own memory service, by the library that it comes with",
    "cli/doctor/servers.py": "a command line's, which asks the operator's own service",
    "llm/addressing.py": "the SDK's client, which is given the wire that is in the table",
    "cli/token.py": "a command line's, not the service's",
    "cli/chat/__init__.py": "a command line's, not the service's",
    "cli/chat/finding.py": "a command line's, not the service's",
}


@pytest.fixture(scope="module")
def modules() -> dict[str, list[ast.AST]]:
    """Of each module of the service, all that its source holds."""
    names = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}
    return {
        name: list(ast.walk(ast.parse(path.read_text())))
        for name, path in names.items()
        if not name.startswith(("testing/", "client/", "llm/offline/"))
    }


def dotted(node: ast.expr) -> str:
    """A name with dots, as it stands in the source; empty where it is another expression."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def test_every_client_in_the_source_is_in_the_table(modules: dict[str, list[ast.AST]]) -> None:
    """A new way to the outside is either tried against the hostile server, or exempt for a reason; a client
    that another class is derived from is one, too."""
    found: set[str] = set()
    for name, nodes in modules.items():
        for node in nodes:
            called = [node.func] if isinstance(node, ast.Call) else []
            derived = node.bases if isinstance(node, ast.ClassDef) else []
            if CLIENTS & {dotted(one) for one in (*called, *derived)}:
                found.add(name)
    tried = {module for module, _ in PLACES.values()}
    assert found - tried - EXEMPT.keys() == set()
    assert tried - found == set()
    assert EXEMPT.keys() & tried == set()


def test_no_module_reads_with_a_client_that_is_not_bounded(modules: dict[str, list[ast.AST]]) -> None:
    """What the service reads from outside goes through `outbound`, or through the model's own wire."""
    unbounded = {"httpx", "requests", "urllib3", "http.client"}
    users = set()
    for name, nodes in modules.items():
        for node in nodes:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names.append(node.module or "")
            if unbounded & set(names):
                users.add(name)
    assert users <= EXEMPT.keys()


# --- the client itself ---------------------------------------------------------------------------


async def answered(url: str, **options: object) -> Fetched:
    async with BoundedClient(url, seconds=5, **options) as client:  # type: ignore[arg-type]
        return await fetch(client, "GET", url)


async def test_no_encoding_is_asked_for_whatever_the_caller_says() -> None:
    """The header that would invite a compressed answer is always the same."""
    asked: list[str] = []

    async def note(request: Request) -> PlainTextResponse:
        asked.append(request.headers["accept-encoding"])
        return PlainTextResponse("fine")

    with served(Starlette(routes=[Route("/", note)])) as url:
        assert (await answered(url, headers={"accept-encoding": "gzip"})).content == b"fine"
    assert asked == ["identity"]


@pytest.mark.parametrize(
    ("encoding", "body", "outcome"),
    [
        ("gzip", gzip.compress(b"fine" * 50_000), b"fine" * 50_000),
        ("X-GZIP", gzip.compress(b"fine"), b"fine"),
        ("deflate", zlib.compress(b"fine"), b"fine"),
        ("gzip", b"", b""),
        ("identity", b"fine", b"fine"),
        ("gzip", gzip.compress(bytes(LIMIT)), bytes(LIMIT)),
        ("gzip", gzip.compress(bytes(LIMIT + 1)), f"larger than {LIMIT:,} bytes"),
        ("gzip", gzip.compress(Random(1).randbytes(LIMIT + 1)), f"larger than {LIMIT:,} bytes"),
        # blocks that are empty: they never unpack to anything
        ("gzip", gzip.compress(b"")[:10] + b"\0\0\0\xff\xff" * LIMIT, f"larger than {LIMIT:,} bytes"),
        ("gzip", gzip_of_zeros(16), f"larger than {LIMIT:,} bytes"),
        ("gzip", gzip.compress(b"fine")[:-1], "the compressed answer is incomplete"),
        ("gzip", gzip.compress(b"fine") * 2, "more than one part"),
        ("gzip", b"fine", "cannot be unpacked"),
        ("gzip, gzip", gzip.compress(gzip.compress(b"fine")), "came in a content encoding"),
        ("br", b"fine", "came in a content encoding"),
    ],
    ids=range(15),
)
async def test_an_answer_that_is_compressed_all_the_same_is_unpacked(
    encoding: str, body: bytes, outcome: bytes | str
) -> None:
    """One layer, with the limit on the bytes before and after unpacking."""

    async def packed(request: Request) -> Response:
        return Response(body, headers={"content-encoding": encoding})

    with served(Starlette(routes=[Route("/", packed)])) as url:
        if isinstance(outcome, bytes):
            answer = await answered(url, limit=LIMIT)
            assert answer.content == outcome
            async with BoundedClient(url, seconds=60) as client:  # a caller that reads it in another way
                assert (await client.get(url)).content == outcome
        else:
            with pytest.raises(Unacceptable, match=outcome):
                await answered(url, limit=LIMIT)


async def test_the_beginning_of_a_compressed_answer_is_what_it_unpacks_to() -> None:
    """Even if it unpacks to a thousand times its size."""

    async def packed(request: Request) -> Response:
        return Response(gzip_of_zeros(16), headers={"content-encoding": "gzip"})

    with served(Starlette(routes=[Route("/", packed)])) as url:
        async with BoundedClient(url, seconds=60, limit=LIMIT) as client:
            answer = await fetch(client, "GET", url, cut=True)
    assert answer.cut
    assert LIMIT - 65_536 <= len(answer.content) <= LIMIT
    assert not any(answer.content)


@pytest.mark.parametrize("value", ["a canary\nof two lines", " canary", "canary "])
async def test_a_header_that_cannot_be_sent_is_not_quoted(value: str) -> None:
    """It may be a key, and an error's text is shown to the model and kept in the trace."""
    with served(Starlette()) as url:
        async with BoundedClient(url, seconds=60) as client:
            with pytest.raises(Unacceptable, match="a header of the request") as refused:
                await fetch(client, "GET", url, headers={"x-api-key": value})
    assert "canary" not in "".join(traceback.format_exception(refused.value))


async def test_headers_are_bounded_together() -> None:
    """Many headers of a common size are refused as one huge header is."""

    async def many(request: Request) -> PlainTextResponse:
        return PlainTextResponse("", headers={f"x-{n}": "x" * 1000 for n in range(MAX_HEADERS // 1000 + 1)})

    with served(Starlette(routes=[Route("/", many)])) as url, pytest.raises(Unacceptable, match="headers"):
        await answered(url)


@pytest.mark.parametrize(
    ("named", "read"),
    [
        ("text/plain; charset=latin-1", "iso8859-1"),
        ('text/plain;charset="windows-1252"', "cp1252"),
        ("text/plain; charset=punycode", "utf-8"),
        ("text/plain; charset=idna", "utf-8"),
        ("text/plain; charset=unheard-of", "utf-8"),
        ("text/plain", "utf-8"),
        ('text/plain; x="' + ';"' * 30_000, "utf-8"),
    ],
)
def test_only_charsets_are_charsets(named: str, read: str) -> None:
    """Python has codecs that are none, and take hours for a megabyte."""
    assert Fetched(200, "OK", httpx2.Headers({"content-type": named}), b"").charset == read


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://127.0.0.1:80/x", True),
        ("http://127.1.2.3", True),
        ("http://localhost:1", True),
        ("http://LOCALHOST", True),
        ("http://[::1]:80", True),
        ("http://[::ffff:127.0.0.1]", True),
        ("http://127.evil.example", False),
        ("http://127.0.0.1.evil.example", False),
        ("http://localhost.evil.example", False),
        ("http://10.0.0.1", False),
        ("http://[", False),
        ("", False),
    ],
)
def test_loopback_is_an_address(url: str, here: bool) -> None:
    """A name that begins like one is another machine's."""
    assert is_loopback(url) is here


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
        *("0.0.0.0", "[::1]", "[::]", "[fe80::1]", "[fc00::1]", "[::ffff:10.0.0.1]", "no-such-name.invalid"),
        # of IPv4 within IPv6: NAT64, 6to4, Teredo, IPv4-compatible; site-local, multicast
        *("[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::808:808]", "[2002:7f00:1::]", "[2001:0:808:808::f5ff:fffe]"),
        *("[::127.0.0.1]", "[fec0::1]", "[ff0e::1]", "224.0.0.1"),
    ],
)
async def test_private_addresses_are_not_public(host: str) -> None:
    """Nor is a name that stands for one, or for none."""
    assert await public_address(f"https://{host}/x") is None


@pytest.mark.parametrize("host", ["93.184.215.14", "2606:4700::1111", "64:ff9b::808:808", "2002:808:808::1"])
async def test_public_addresses_are_public(host: str) -> None:
    """An address that is written in a URL is taken as it is."""
    assert await public_address(f"https://{f'[{host}]' if ':' in host else host}/x") == host


@pytest.mark.parametrize(
    "host",
    [
        *(
            "127.1",
            "2130706433",
            "0x7f000001",
            "0177.0.0.1",
            "127.0.0.1.",
            "169.254.169.254.",
            "127。0。0。1",
        ),
        *("127%2e1", "localhos%74", "localhost", "localhost.", "a.localhost", "LOCALHOST", "a..b"),
    ],
)
async def test_behind_a_proxy_an_address_in_any_spelling_is_judged(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not surely a name is not sent on: the proxy's own machine and network are behind it."""
    monkeypatch.setenv("https_proxy", "http://proxy.invalid:3128")
    monkeypatch.setenv("no_proxy", "")
    assert await public_address(f"https://{host}/x") is None


@pytest.mark.parametrize(
    "host", ["as.example.com", "as.example.com.", "x--1.xn--p1ai", "bücher.example", "intra"]
)
async def test_behind_a_proxy_a_name_is_the_proxys_to_look_up(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent as it is written."""
    monkeypatch.setenv("https_proxy", "http://proxy.invalid:3128")
    monkeypatch.setenv("no_proxy", "")
    assert await public_address(f"https://{host}/x") == host
