"""What Kustomize makes of a folder, as far as the folders of `deploy/` ask for it.

That is resources, patches that are merged, generated ConfigMaps and a namespace. Anything else is refused; a
test compares with Kustomize itself where it is installed.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]

_KNOWN = {"apiVersion", "kind", "namespace", "resources", "patches", "configMapGenerator"}


def documents(path: Path) -> list[Manifest]:
    """The manifests in a file."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def build(folder: Path) -> list[Manifest]:
    """The manifests of a folder with a `kustomization.yaml`."""
    [asked] = documents(folder / "kustomization.yaml")
    if unknown := asked.keys() - _KNOWN:
        raise ValueError(f"{folder}: {sorted(unknown)}")
    made = list(_resources(folder, asked))
    made += [_config_map(folder, **generator) for generator in asked.get("configMapGenerator", ())]
    for patch in asked.get("patches", ()):
        _patch(made, documents(folder / patch["path"]))
    for manifest in made:
        if manifest["kind"] != "Namespace":
            manifest["metadata"]["namespace"] = asked["namespace"]
    return made


def _resources(folder: Path, asked: Manifest) -> Iterator[Manifest]:
    for name in asked["resources"]:
        path = folder / name
        yield from build(path) if path.is_dir() else documents(path)


def _config_map(folder: Path, name: str, files: list[str] = [], envs: list[str] = []) -> Manifest:  # noqa: B006
    """Its name has no digest of the content; `plain` takes that off what Kustomize makes."""
    data = {file: (folder / file).read_text() for file in files}
    for file in envs:
        lines = (line for line in (folder / file).read_text().splitlines() if line and line[0] != "#")
        data |= dict(line.split("=", 1) for line in lines)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def _patch(manifests: list[Manifest], patches: list[Manifest]) -> None:
    for patch in patches:
        [target] = [manifest for manifest in manifests if key(manifest) == key(patch)]
        _merge(target, patch)


def _merge(into: Manifest, patch: Manifest) -> None:
    """Strategic merge: maps by their keys, lists by the names of their items."""
    for name, value in patch.items():
        known = into.get(name)
        if isinstance(known, dict):
            _merge(known, value)
        elif isinstance(known, list):
            for item in value:
                found = [other for other in known if other["name"] == item["name"]]
                if found:
                    _merge(found[0], item)
                else:
                    known.insert(0, item)
        else:
            into[name] = value


def key(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def plain(manifests: list[Manifest]) -> Mapping[tuple[str, str], Manifest]:
    """By kind and name, without digests in the names of ConfigMaps."""
    text = re.sub(r"(tealagents-(?:config|settings))-[a-z0-9]{10}\b", r"\1", yaml.safe_dump_all(manifests))
    return {key(manifest): manifest for manifest in yaml.safe_load_all(text)}
