"""The console's files: complete in the wheel, small, loaded once, and from one source."""

import gzip
import re
import runpy
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect
from tabs import Tabs

from tealagents.cli.application import with_console_on_loopback
from tealagents.config import load
from tealagents.llm.offline import OfflineModel
from tealagents.testing.service import ServiceProcess, ServiceThread, agent_config, offline_service
from tealagents.testing.waits import until

ROOT = Path(__file__).parents[2]
CONSOLE = ROOT / "src/tealagents/console"
LARGEST_SUM = 150_000


def _modules() -> Iterator[Path]:
    yield from (path for path in sorted(CONSOLE.rglob("*.js")))


def test_all_scripts_together_are_small() -> None:
    """Compressed, all that a page can load is below 150 KB, Entra's library included."""
    assert sum(len(gzip.compress(path.read_bytes())) for path in _modules()) <= LARGEST_SUM


def test_the_client_is_that_of_the_repository() -> None:
    """What is vendored of `clients/js` is what `scripts/vendor_console.py` makes of it."""
    script = runpy.run_path(str(ROOT / "scripts/vendor_console.py"))
    assert {"index", *script["CLIENT_MODULES"]} == {path.stem for path in script["CLIENT"].glob("*.js")}
    there = (CONSOLE / "vendor/client.js").read_text()
    assert there.startswith(script["notice_of_client"]()), "run: python scripts/vendor_console.py"


def test_libraries_export_what_is_imported() -> None:
    """What `scripts/vendor_console.py` leaves of their exports is what is there, neither less nor more."""
    script = runpy.run_path(str(ROOT / "scripts/vendor_console.py"))
    for name in script["SHRUNK"]:
        assert script["narrowed"](name) == (CONSOLE / "vendor" / name).read_text(), name


def test_every_library_has_its_licence() -> None:
    """Each package that is vendored is listed with its version, and its licence lies beside it."""
    script = runpy.run_path(str(ROOT / "scripts/vendor_console.py"))
    listed = (CONSOLE / "vendor/README.md").read_text()
    for name, version, files, _ in script["PACKAGES"]:
        assert f"- {name} {version}: " in listed
        assert (CONSOLE / f"vendor/licences/{name.replace('/', '-')}.txt").stat().st_size > 500
        assert all((CONSOLE / "vendor" / file).is_file() for file in files.values())


def test_the_page_preloads_what_it_imports() -> None:
    """Each module but Entra's is asked for at once, not one after the other was read."""
    page = (CONSOLE / "index.html").read_text()
    wanted = {str(path.relative_to(CONSOLE)) for path in _modules()}
    lazily = {"app/entra.js", "app/main.js", "vendor/msal-browser.js"}
    assert set(re.findall(r'modulepreload" href="([^"]+)"', page)) == wanted - lazily


def test_files_are_revalidated_and_compressed(service: ServiceThread) -> None:
    """A file that has not changed is not sent again; who refuses gzip gets it as it is."""
    with service.client(None) as client:
        first = client.get("/console/console.css", headers={"accept-encoding": "gzip"})
        assert first.headers["content-encoding"] == "gzip"
        again = client.get("/console/console.css", headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        for taken in ("identity", "gzip;q=0, identity", "identity, GZIP ; q=0.000"):
            plain = client.get("/console/console.css", headers={"accept-encoding": taken})
            assert "content-encoding" not in plain.headers
            assert plain.content == first.content
            assert plain.headers["etag"] == first.headers["etag"]
        assert first.headers["etag"].startswith("W/")  # the bytes differ
        for taken in ("br, gzip;q=0.5", "gzip;q=1.0, *;q=0"):
            packed = client.get("/console/console.css", headers={"accept-encoding": taken})
            assert packed.headers["content-encoding"] == "gzip"
        assert client.head("/console/").status_code == 200
        assert client.get("/console").headers["location"] == f"{service.prefix}/console/"


def test_what_a_page_loads_is_kept_until_there_is_another_version(service: ServiceThread) -> None:
    """What it names lies under a path that changes with the files. The path of another version, which an open
    page may still use, has these files as well, but they are not kept. The page is asked for each time."""
    with service.client(None) as client:
        page = client.get("/console/")
        assert page.headers["cache-control"] == "no-cache"
        links = re.findall(r'(?:href|src)="([^"]+)"', page.text)
        assert len(links) >= 30
        version, _, first = links[0].partition("/")
        assert {link.partition("/")[0] for link in links} == {version}
        for link in (*links, f"{version}/app/entra.js", f"{version}/vendor/msal-browser.js"):
            answer = client.get(f"/console/{link}")
            assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert answer.content == (CONSOLE / link.partition("/")[2]).read_bytes()
        other = client.get(f"/console/{'0' * 16}/{first}")
        assert (other.status_code, other.headers["cache-control"]) == (200, "no-cache")
        assert client.get("/console/config.json").headers["cache-control"] == "no-cache"
        for path in ("", "index.html", "config.json"):
            assert client.get(f"/console/{version}/{path}").status_code == 404


@pytest.mark.parametrize(
    "path", ["app", "../config.yaml", "app/../../api/console.py", "%2e%2e/py.typed", "nothing.js"]
)
def test_nothing_else_is_served(service: ServiceThread, path: str) -> None:
    """Only the files of the folder have an address."""
    with service.client(None) as client:
        answer = client.get(f"{service.url}/console/{path}")
    assert answer.status_code == 404


@pytest.mark.parametrize(
    ("host", "said", "served"),
    [
        ("127.0.0.1", "", True),
        ("0.0.0.0", "", False),
        ("0.0.0.0", "true", True),
        ("127.0.0.1", "false", False),
    ],
)
def test_where_it_is_served(host: str, said: str, served: bool) -> None:
    """`serve` does on loopback addresses, and elsewhere if enabled."""
    config = load(ROOT / "configs/hello.yaml", env={"TA_CONSOLE__ENABLED": said}, dotenv=None)
    assert with_console_on_loopback(config, host).console.enabled is served


def test_an_application_of_ones_own_serves_it_only_where_it_is_enabled() -> None:
    """Without a word in the config it is not there, and `GET /` does not name it."""
    with offline_service() as (running, _), running.client(None) as client:
        assert client.get("/console/").status_code == 404
        assert "console" not in client.get(f"{running.root}/").json()["agents"][0]


def test_the_wheel_alone_serves_it(tabs: Tabs, tmp_path: Path) -> None:
    """Unpacked anywhere, without the repository, it is the whole console; the start and `GET /` name it."""
    build = f"import hatchling.build; print(hatchling.build.build_wheel({str(tmp_path)!r}))"
    made = subprocess.run([sys.executable, "-c", build], cwd=ROOT, capture_output=True, text=True, check=True)
    with zipfile.ZipFile(tmp_path / made.stdout.split()[-1]) as wheel:
        wheel.extractall(tmp_path / "site")
    with OfflineModel() as model:
        env = {"TA_BASE_URL": model.base_url, "TA_API_KEY": "key", "TA_AUTH": "mock"}
        env |= {"PYTHONPATH": str(tmp_path / "site")}
        with ServiceProcess(agent_config(), env) as running:
            (listed,) = httpx.get(f"{running.root}/", trust_env=False).json()["agents"]
            assert listed["console"] == f"{running.prefix}/console/"
            # it is printed once connections are accepted
            until(lambda: f"console  {running.url}/console/" in running.log())
            tab = tabs.signed_in(f"{running.url}/console/", "ada")
            tab.say("My name is Ada.")
            expect(tab.text("Nice to meet you, Ada.")).to_be_visible()
            files = {str(path.relative_to(CONSOLE)) for path in CONSOLE.rglob("*") if path.is_file()}
            unpacked = tmp_path / "site/tealagents/console"
            assert files == {
                str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()
            }
