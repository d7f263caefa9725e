"""Copies what the console builds upon into `src/tealagents/console/vendor`: python scripts/vendor_console.py

The libraries come from npm in the versions below, each with its licence; the client comes from `clients/js`.
A browser knows no bare names (`import "preact"`) without an import map, which the console's policy forbids:
they are replaced by paths. The client, and libraries that are larger than they have to be, are shrunk. MSAL
is larger than all the rest, and most of it is for what the console does not do: it is bundled without that.
Nothing else is changed.
"""

import hashlib
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
    ("@azure/msal-browser", "5.29.0", {}, "LICENSE"),
    ("@azure/msal-common", "16.16.1", {}, "LICENSE"),
)

#: what MSAL is bundled with; esbuild would keep every constant of the namespaces that MSAL exports
BUNDLERS = ("rollup@4.68.8", "@rollup/plugin-node-resolve@16.0.3", "terser@5.51.2")
#: what the console uses of it
MSAL_ENTRY = 'export {CacheLookupPolicy, PublicClientApplication} from "@azure/msal-browser";'
#: modules for pop-up windows, hidden frames, brokers, bound tokens and storage beyond the tab: with code and
#: PKCE in one window nothing constructs their classes, and where something did, it would say so
MSAL_UNUSED = (
    "msal-browser/dist/broker/nativeBroker/PlatformAuthDOMHandler.mjs",
    "msal-browser/dist/broker/nativeBroker/PlatformAuthExtensionHandler.mjs",
    "msal-browser/dist/cache/LocalStorage.mjs",
    "msal-browser/dist/interaction_client/PlatformAuthInteractionClient.mjs",
    "msal-browser/dist/interaction_client/PopupClient.mjs",
    "msal-browser/dist/interaction_client/SilentAuthCodeClient.mjs",
    "msal-browser/dist/interaction_client/SilentIframeClient.mjs",
    "msal-browser/dist/utils/IframeMonitor.mjs",
    "msal-browser/dist/utils/PopupMonitor.mjs",
    "msal-common/dist-browser/crypto/DpopProofGenerator.mjs",
    "msal-common/dist-browser/crypto/PopTokenGenerator.mjs",
)
#: modules whose classes are constructed in any case, and then not used
MSAL_IDLE = (
    "msal-browser/dist/crypto/TokenBindingKeyManager.mjs",
    "msal-common/dist-browser/authority/RegionDiscovery.mjs",
)
#: what its parts call the time that something takes
MSAL_MEASUREMENTS = (
    *("measurement", "rootMeasurement", "atrMeasurement", "atsMeasurement", "atbcMeasurement"),
    *("atPopupMeasurement", "discoveryMeasurement", "initMeasurement", "ssoCapableMeasurement"),
    *("ssoSilentMeasurement", "acquireTokenByCodeAsyncMeasurement", "lateMeasurement"),
    *("signTokenBindingJwtMeasurement", "publicKeyThumbMeasurement", "awaitConcurrentIframeMeasure"),
    *("inProgressEvent", "performanceEvent"),
)
#: calls that only write its log, count or measure, of which the console keeps none
MSAL_SILENT = tuple(
    f"{receiver}{access}{name}"
    for receivers, names in (
        (
            ("logger", "commonLogger"),
            "trace tracePii verbose verbosePii info infoPii warning warningPii error errorPii",
        ),
        (
            ("performanceClient", "telemetryClient"),
            "addFields addGlobalFields incrementFields startMeasurement",
        ),
        (MSAL_MEASUREMENTS, "add discard end increment"),
    )
    for owned in receivers
    for receiver in (owned, f"this.{owned}")
    for access in (".", "?.")
    for name in names.split()
)

#: the client's modules but `index.js`, which only says what of them is public
CLIENT_MODULES = ("errors", "retry", "sse", "list", "wire", "calls", "stream", "client")

#: what is shrunk: the others gain nothing by it
SHRUNK = (
    *("client.js", "dompurify.js", "eventsource-parser.js", "marked.js"),
    *("preact.js", "preact-hooks.js"),
)

#: bare names, and the files that stand for them
PATHS = {"preact": "preact.js", "eventsource-parser": "eventsource-parser.js"}

_IMPORT = re.compile(r"""(\bfrom\s*|\bimport\s*)(["'])([^"'./][^"']*)\2""")
_OWN_IMPORT = re.compile(r"""^import \{[^}]*\} from "\./[^"]*";\n""", re.MULTILINE)
#: all but what the console imports, or knows by its name: other names are shortened
_OWN_EXPORT = re.compile(
    r"^export (?!class (?:Client|ConnectionLost|UnexpectedAnswer)\b|function sleep\b)", re.MULTILINE
)
_EXPORTS = re.compile(r"^export \{([^}]*)\}", re.MULTILINE)
#: the list of names at the end of a module
_LISTED = re.compile(r"\bexport ?\{([^}]*)\}(?=;?\s*\Z)")
_SOURCE_MAP = re.compile(r"^//# sourceMappingURL=.*$\n?", re.MULTILINE)


def with_paths(source: str, folder: str) -> str:
    """The module with paths in place of bare names; `folder` leads from it to the vendor folder."""

    def path(found: re.Match[str]) -> str:
        before, quote, name = found.groups()
        return f"{before}{quote}{folder}{PATHS[name]}{quote}" if name in PATHS else found[0]

    return _IMPORT.sub(path, _SOURCE_MAP.sub("", source))


def client() -> str:
    """The client as one module: its own, each behind those that it imports."""
    source = "".join((CLIENT / f"{name}.js").read_text(encoding="utf-8") for name in CLIENT_MODULES)
    return with_paths(_OWN_IMPORT.sub("", _OWN_EXPORT.sub("", source)), "./")


def notice_of_client() -> str:
    """What the vendored client begins with: it names the modules that it was made of."""
    return f"/*! clients/js/src, SHA-256 {hashlib.sha256(client().encode()).hexdigest()[:16]} */\n"


def fetch(package: str, version: str, files: dict[str, str], licence: str, scratch: Path) -> None:
    packed = json.loads(
        _run("npm", "pack", "--json", "--pack-destination", str(scratch), f"{package}@{version}")
    )
    entry = packed[0] if isinstance(packed, list) else next(iter(packed.values()))
    with tarfile.open(scratch / entry["filename"].replace("@", "").replace("/", "-")) as archive:
        for there, here in {**files, licence: f"licences/{package.replace('/', '-')}.txt"}.items():
            member = archive.extractfile(f"package/{there}")
            assert member is not None, f"{package} has no {there}"
            write(here, with_paths(member.read().decode(), "./"))


def left_out(module: str, *, idle: bool = False) -> str:
    """A module with the same exports, of which none can be used; what is `idle` may be constructed."""
    names = [
        each.split(" as ")[-1].strip() for found in _EXPORTS.findall(module) for each in found.split(",")
    ]
    made = "" if idle else 'throw new Error("This build of MSAL goes without it.");'
    unused = f"class Unused {{ constructor() {{ {made} }} }}"
    return f"{unused}\nexport {{{', '.join(f'Unused as {name}' for name in names)}}};\n"


def msal(scratch: Path) -> str:
    """MSAL as one module, with what the console uses of it."""
    versions = {name: version for name, version, *_ in PACKAGES}
    packages = [f"{name}@{version}" for name, version in versions.items() if name.startswith("@azure/")]
    _run("npm", "install", "--ignore-scripts", "--prefix", str(scratch), *packages, *BUNDLERS)
    modules = scratch / "node_modules"
    for name in (*MSAL_UNUSED, *MSAL_IDLE):
        path = modules / "@azure" / name
        module = left_out(path.read_text(encoding="utf-8"), idle=name in MSAL_IDLE)
        path.write_text(module, encoding="utf-8")
    (scratch / "entry.js").write_text(MSAL_ENTRY, encoding="utf-8")
    compress = {"passes": 3, "ecma": 2020, "pure_funcs": MSAL_SILENT, "pure_getters": True}
    options = {"module": True, "compress": compress, "mangle": True, "format": {"comments": False}}
    (scratch / "terser.json").write_text(json.dumps(options), encoding="utf-8")
    bundle = str(scratch / "bundle.js")
    rollup, terser = (str(modules / ".bin" / name) for name in ("rollup", "terser"))
    resolve = ("--plugin", "node-resolve", "--failAfterWarnings")
    _run(rollup, str(scratch / "entry.js"), "--format", "es", "--file", bundle, *resolve)
    made = _run(terser, bundle, "--config-file", str(scratch / "terser.json"))
    names = " and ".join(f"{name} {versions[name]}" for name in ("@azure/msal-browser", "@azure/msal-common"))
    return f"/*! {names}, (c) Microsoft Corporation, MIT; without what the console does not use */\n{made}"


def narrowed(name: str) -> str:
    """A vendored module that exports, of the names in its list, those that something imports here."""
    users = {path.name: path.read_text(encoding="utf-8") for path in VENDOR.parent.rglob("*.js")}
    passed_on = [user for user, text in users.items() if f'export * from "../vendor/{name}"' in text]
    modules = "|".join(map(re.escape, (name, *passed_on)))
    taken = re.compile(rf"\{{([^}}]*)\}} ?from ?\"(?:\.\./vendor|\.)/(?:{modules})\"")
    lists = [found for text in users.values() for found in taken.findall(text)]
    wanted = {each.split()[0] for found in lists for each in _names(found)}

    def kept(found: re.Match[str]) -> str:
        return f"export{{{','.join(each for each in _names(found[1]) if each.split()[-1] in wanted)}}}"

    return _LISTED.sub(kept, (VENDOR / name).read_text(encoding="utf-8"))


def _names(listed: str) -> list[str]:
    return [each.strip() for each in listed.split(",") if each.strip()]


def shrunk(name: str, scratch: Path) -> str:
    """A vendored module without what only its readers need; notices, as of licences, stay."""
    write(name, narrowed(name))
    terser, notices = str(scratch / "node_modules/.bin/terser"), "/^!|@license|Copyright/"
    compress = ("--compress", "passes=2,ecma=2020")
    return _run(terser, str(VENDOR / name), "--module", *compress, "--mangle", "--comments", notices)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def write(name: str, text: str) -> None:
    path = VENDOR / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.rstrip() + "\n", encoding="utf-8")


def main() -> None:
    shutil.rmtree(VENDOR, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        for package, version, files, licence in PACKAGES:
            fetch(package, version, files, licence, Path(scratch))
        write("msal-browser.js", msal(Path(scratch)))
        write("client.js", notice_of_client() + client())
        for name in SHRUNK:
            write(name, shrunk(name, Path(scratch)))
    listed = "".join(
        f"- {package} {version}: {', '.join(files.values()) or 'msal-browser.js'}\n"
        for package, version, files, _ in PACKAGES
    )
    listed += "- `client.js`: `clients/js/src`\n"
    write("README.md", f"Made by `scripts/vendor_console.py`; not to be edited.\n\n{listed}")


if __name__ == "__main__":
    main()
