"""Copies what the console builds upon into `src/tealagents/console/vendor`: python scripts/vendor_console.py

The libraries come from npm in the versions below, each with its licence; the client comes from `clients/js`.
A browser knows no bare names (`import "preact"`) without an import map, which the console's policy forbids:
they are replaced by paths. Nothing else is changed.
"""

import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENDOR = ROOT / "src/tealagents/console/vendor"
CLIENT = ROOT / "clients/js/src"

#: package, its version, the files taken of it (what it is called there, and here), its licence's file
PACKAGES: tuple[tuple[str, str, dict[str, str], str], ...] = (
    (
        "preact",
        "11.2.0",
        {"dist/preact.mjs": "preact.js", "hooks/dist/hooks.mjs": "preact-hooks.js"},
        "LICENSE",
    ),
    ("htm", "3.1.1", {"dist/htm.module.js": "htm.js"}, "LICENSE"),
    ("marked", "18.2.1", {"lib/marked.esm.js": "marked.js"}, "LICENSE"),
    ("dompurify", "3.4.18", {"dist/purify.min.js": "dompurify.js"}, "LICENSE"),
    ("eventsource-parser", "3.1.1", {"dist/index.js": "eventsource-parser.js"}, "LICENSE"),
    ("@azure/msal-browser", "5.29.0", {"lib/msal-browser.min.js": "msal-browser.js"}, "LICENSE"),
)

#: bare names, and the files that stand for them
PATHS = {"preact": "preact.js", "eventsource-parser": "eventsource-parser.js"}

_IMPORT = re.compile(r"""(\bfrom\s*|\bimport\s*)(["'])([^"'./][^"']*)\2""")
_SOURCE_MAP = re.compile(r"^//# sourceMappingURL=.*$\n?", re.MULTILINE)


def with_paths(source: str, folder: str) -> str:
    """The module with paths in place of bare names; `folder` leads from it to the vendor folder."""

    def path(found: re.Match[str]) -> str:
        before, quote, name = found.groups()
        return f"{before}{quote}{folder}{PATHS[name]}{quote}" if name in PATHS else found[0]

    return _IMPORT.sub(path, _SOURCE_MAP.sub("", source))


def client_files() -> dict[str, str]:
    """The client's modules as the console serves them."""
    return {
        f"client/{path.name}": with_paths(path.read_text(encoding="utf-8"), "../")
        for path in sorted(CLIENT.glob("*.js"))
    }


def fetch(package: str, version: str, files: dict[str, str], licence: str, scratch: Path) -> None:
    packed = json.loads(
        subprocess.run(
            ["npm", "pack", "--json", "--pack-destination", str(scratch), f"{package}@{version}"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    )
    entry = packed[0] if isinstance(packed, list) else next(iter(packed.values()))
    with tarfile.open(scratch / entry["filename"].replace("@", "").replace("/", "-")) as archive:
        for there, here in {**files, licence: f"licences/{package.replace('/', '-')}.txt"}.items():
            member = archive.extractfile(f"package/{there}")
            assert member is not None, f"{package} has no {there}"
            write(here, with_paths(member.read().decode(), "./"))


def write(name: str, text: str) -> None:
    path = VENDOR / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.rstrip() + "\n", encoding="utf-8")


def main() -> None:
    shutil.rmtree(VENDOR, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        for package, version, files, licence in PACKAGES:
            fetch(package, version, files, licence, Path(scratch))
    for name, text in client_files().items():
        write(name, text)
    listed = "".join(
        f"- {package} {version}: {', '.join(files.values())}\n" for package, version, files, _ in PACKAGES
    )
    write(
        "README.md",
        f"Made by `scripts/vendor_console.py`; not to be edited.\n\n{listed}- `client/`: `clients/js/src`\n",
    )


if __name__ == "__main__":
    main()
