"""What is installed is what was looked at: packages and images by digest, and no known password."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tealagents.llm.offline import OfflineModel

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements.lock", "requirements-image.lock", "requirements-build.lock")


def pinned(lock: str) -> dict[str, str]:
    """The entries of a lock by the name of the package: version, marker and digests."""
    text = re.sub(r"^ *#.*\n", "", (ROOT / lock).read_text(), flags=re.MULTILINE)
    entries = re.split(r"\n(?=\S)", text.strip())
    return {entry.partition("==")[0]: entry for entry in entries}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_is_pinned_with_digests(lock: str) -> None:
    """A package that was replaced in the index is refused."""
    for name, entry in pinned(lock).items():
        assert re.match(rf"{re.escape(name)}==[^ ]+ ", entry), entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), name


@pytest.mark.parametrize("lock", LOCKS[1:])
def test_locks_agree(lock: str) -> None:
    """The image and the build have the versions that were tested."""
    tested = pinned(LOCKS[0])
    version = re.compile(r"==([^ ]+)")
    for name, entry in pinned(lock).items():
        assert version.findall(entry)[0] in version.findall(tested[name]), name


def test_installs_ask_for_digests() -> None:
    """In the Makefile and in the image nothing of a lock is taken without its digest. What is installed
    without a lock is the project itself, built by what a lock holds."""
    for file in ("Makefile", "Dockerfile"):
        text = (ROOT / file).read_text().replace("\\\n", " ")
        commands = [c for c in re.split(r"\n|&&|\|\|", text) if re.search(r"pip (install|wheel)|uv build", c)]
        assert commands
        for command in commands:
            if "-r requirements" in command:
                assert "--require-hashes" in command
            else:
                assert "--no-deps" in command or "--no-build-isolation" in command


@pytest.mark.parametrize("file", ["Dockerfile", "compose.yaml"])
def test_a_health_check_of_the_image_calls_its_own_loopback(file: str) -> None:
    """Through no proxy, which may be set for all that the container calls."""
    checks = re.findall(r'"python", "-c",\s*(?:\\\s*)?"(.+)"\]', (ROOT / file).read_text())
    assert len(checks) == 1
    with OfflineModel() as model:
        code = re.sub(r"http://127\.0\.0\.1:[^']+", f"{model.base_url}/models", checks[0])
        env = {**os.environ, "http_proxy": "http://127.0.0.1:1", "no_proxy": ""}
        subprocess.run([sys.executable, "-c", code], env=env, check=True)


def test_every_image_is_pinned_by_digest() -> None:
    """In the Dockerfile and in compose, beside the tag that says what it is; another can be named."""
    pinned_image = r"[a-z/-]+:[\w.-]*\d[\w.-]*@sha256:[0-9a-f]{64}"
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)) == {"${PYTHON_IMAGE}"}
    assert re.search(rf"^ARG PYTHON_IMAGE={pinned_image}$", dockerfile, re.MULTILINE)
    assert not re.search(r"COPY --from=(?!build )|^# *syntax=", dockerfile, re.MULTILINE)
    for service in yaml.safe_load((ROOT / "compose.yaml").read_text())["services"].values():
        if "build" in service:
            assert service["build"]["args"] == ["PYTHON_IMAGE"]
        else:
            assert re.fullmatch(rf"\$\{{\w+_IMAGE:-{pinned_image}\}}", service["image"])


def test_compose_has_no_password_of_its_own() -> None:
    """The database's is demanded, without a default."""
    text = (ROOT / "compose.yaml").read_text()
    assert set(re.findall(r"\$\{POSTGRES_PASSWORD(..)", text)) == {":?"}
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()
