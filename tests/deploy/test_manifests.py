"""The folders for Kubernetes: all that is in them fits the API's schemas, and keeps what the page says."""

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kustomize import Manifest, build, documents, plain
from prometheus_server import Promtool

from tealagents.config import ConfigError, load
from tealagents.outbound.addresses import public_address
from tealagents.testing.pytest_servers import running

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
OVERLAYS = sorted(path.parent for path in (DEPLOY / "overlays").glob("*/kustomization.yaml"))
#: the oldest Kubernetes that the page speaks of, and the newest whose schemas are known
VERSIONS = ("1.29", kubernetes_validate.latest_version())
PARTS = {
    *("Namespace", "ServiceAccount", "ConfigMap", "Deployment", "Service", "HorizontalPodAutoscaler"),
    *("PodDisruptionBudget", "NetworkPolicy"),
}


def base(kind: str) -> Manifest:
    [found] = [manifest for manifest in build(DEPLOY / "base") if manifest["kind"] == kind]
    return found


def pods(folder: Path) -> Iterator[Manifest]:
    for manifest in build(folder):
        if manifest["kind"] in ("Deployment", "Job"):
            yield manifest["spec"]["template"]


def service() -> Manifest:
    """The container of the service, in the base."""
    container: Manifest = base("Deployment")["spec"]["template"]["spec"]["containers"][0]
    return container


overlays = pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)


@overlays
@pytest.mark.parametrize("version", VERSIONS)
def test_an_overlay_fits_the_schemas(overlay: Path, version: str) -> None:
    """Every manifest of it, with no field that the API does not know."""
    made = build(overlay)
    assert {manifest["kind"] for manifest in made} - {"Job"} == PARTS
    for manifest in made:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_a_field_that_the_api_does_not_know_is_found() -> None:
    """So that a mistake in a manifest is one for the test above, too."""
    wrong = base("Deployment")
    wrong["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


@overlays
def test_the_api_server_takes_the_address_blocks(overlay: Path) -> None:
    """What its schemas do not say: each `except` is within its `cidr`, and smaller.

    Go takes an IPv4 address that is mapped into IPv6 for IPv4, so that no IPv6 block contains it.
    """
    policies = [manifest for manifest in build(overlay) if manifest["kind"] == "NetworkPolicy"]
    peers = [peer for policy in policies for rule in policy["spec"]["egress"] for peer in rule["to"]]
    blocks = [peer["ipBlock"] for peer in peers if "ipBlock" in peer]
    assert any("except" in block for block in blocks)
    for block in blocks:
        around = ip_network(block["cidr"])
        for within in map(ip_network, block.get("except", ())):
            assert within.version == around.version
            assert within.network_address in around
            assert within.prefixlen > around.prefixlen
            assert getattr(within.network_address, "ipv4_mapped", None) is None


#: one of each block that no public service is in; some clusters give their pods those of 198.18 and 240
WITHIN = (
    *("0.0.0.1", "10.0.0.1", "100.64.0.1", "127.0.0.1", "169.254.169.254", "172.16.0.1", "192.0.0.8"),
    *("192.168.0.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "::1", "64:ff9b::a00:1", "64:ff9b:1::1"),
    *("2002:a00:1::1", "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1"),
)


@pytest.mark.parametrize("address", WITHIN)
async def test_a_pod_reaches_nothing_within_the_network_that_is_not_named(address: str) -> None:
    """What the service calls no public address is none to the network either."""
    host = f"[{address}]" if ":" in address else address
    assert await public_address(f"https://{host}/") is None
    (policy,) = documents(DEPLOY / "base" / "network-policy.yaml")
    peers = [peer for rule in policy["spec"]["egress"] for peer in rule["to"]]
    for block in (peer["ipBlock"] for peer in peers if "ipBlock" in peer):
        if (at := ip_address(address)) in ip_network(block["cidr"]):
            assert any(at in ip_network(within) for within in block["except"])


@overlays
def test_kustomize_makes_the_same(overlay: Path) -> None:
    """The tests look at what they merge themselves; where Kustomize is installed it agrees."""
    command = next(iter(kustomizes()), None)
    if command is None:
        pytest.skip("needs kustomize 5, or kubectl with it")
    done = subprocess.run([*command, str(overlay)], capture_output=True, text=True, check=True)
    assert plain(list(yaml.safe_load_all(done.stdout))) == plain(build(overlay))
    assert "deprecated" not in done.stderr


def test_a_folder_as_the_page_shows_builds(tmp_path: Path) -> None:
    """What the page says to write beside the folders is taken by Kustomize, and its agent is served."""
    command = next(iter(kustomizes()), None)
    if command is None:
        pytest.skip("needs kustomize 5, or kubectl with it")
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    own = shown_on_the_page(tmp_path)
    made = made_by(command, own)
    assert made["ConfigMap", "tealagents-config"]["data"] == {"config.yaml": "my: agent\n"}
    settings = made["ConfigMap", "tealagents-settings"]["data"]
    assert settings == {
        "TA_ENTRA_TENANT_ID": "<directory id>",
        "TA_ENTRA_AUDIENCE": "<client id> api://<client id>",
        "TA_ENTRA_SCOPES": "access_as_user",
        "TA_PUBLIC_URL": "https://agents.example.com",
    }
    [container] = made["Deployment", "tealagents"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.com/tealagents:0.1.0"
    for name, path in (("startupProbe", "live"), ("livenessProbe", "live"), ("readinessProbe", "ready")):
        assert container[name]["httpGet"] == {"path": f"/MyAgent/0.1/health/{path}", "port": "http"}


def test_the_migration_that_the_page_shows_is_that_of_ones_own_agent(tmp_path: Path) -> None:
    """Its job has the folder's image, config and settings, and no replica runs beside it."""
    command = next(iter(kustomizes()), None)
    if command is None:
        pytest.skip("needs kustomize 5, or kubectl with it")
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    own = made_by(command, shown_on_the_page(tmp_path))
    page = (ROOT / "docs" / "deploying.md").read_text()
    copying = re.findall(r"^\$ ((?:cp|sed) .*my-agent-migrate.*)$", page, re.MULTILINE)
    subprocess.run(["sh", "-ec", "\n".join(copying)], cwd=tmp_path, check=True)
    made = made_by(command, tmp_path / "my-agent-migrate")
    [container] = made["Job", "tealagents-migrate"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.com/tealagents:0.1.0"
    for name in ("tealagents-config", "tealagents-settings"):
        assert made["ConfigMap", name]["data"] == own["ConfigMap", name]["data"]
    assert made["Deployment", "tealagents"]["spec"]["replicas"] == 0


def shown_on_the_page(where: Path) -> Path:
    """The folder `my-agent`, as the page says to write it."""
    own = where / "my-agent"
    own.mkdir()
    page = (ROOT / "docs" / "deploying.md").read_text()
    for name in ("kustomization.yaml", "probes.yaml"):
        [block] = re.findall(rf"```yaml\n(# my-agent/{name}.*?)```", page, re.DOTALL)
        (own / name).write_text(block)
    (own / "config.yaml").write_text("my: agent\n")
    return own


def made_by(command: list[str], folder: Path) -> Mapping[tuple[str, str], Manifest]:
    """What Kustomize makes of a folder, by kind and name."""
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=True)
    return plain(list(yaml.safe_load_all(done.stdout)))


def kustomizes() -> Iterator[list[str]]:
    """The commands of Kustomize that are installed and new enough."""
    for command, version in (
        (["kustomize", "build"], ["kustomize", "version"]),
        (["kubectl", "kustomize"], ["kubectl", "version", "--client"]),
    ):
        if shutil.which(command[0]):
            said = subprocess.run(version, capture_output=True, text=True).stdout
            if re.search(r"(?:^|Kustomize Version: )v5", said, re.MULTILINE):
                yield command


@overlays
def test_pods_may_do_nothing_that_they_need_not(overlay: Path) -> None:
    """Not root, nothing writable but /tmp, no capability, no token of the cluster, bounded memory."""
    for pod in pods(overlay):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
        [container] = spec["containers"]
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["allowPrivilegeEscalation"] is rights["privileged"] is False
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"].keys() == {"memory", "ephemeral-storage"}
        assert [m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")] == ["/tmp"]


@overlays
def test_no_secret_is_in_a_file(overlay: Path) -> None:
    """Keys and the store's address come from a Secret that is made elsewhere, and all must be there."""
    secrets = {"TA_API_KEY", "TA_ENCRYPTION_KEY", "TA_AUDIT_KEY", "TA_PERSISTENCE"}
    assert "Secret" not in {manifest["kind"] for manifest in build(overlay)}
    found = set()
    for pod in pods(overlay):
        for variable in pod["spec"]["containers"][0]["env"]:
            if variable["name"] in secrets:
                reference = variable["valueFrom"]["secretKeyRef"]
                assert reference.keys() == {"name", "key"}
                found.add(variable["name"])
    assert found == secrets


def test_probes_and_ports_are_those_of_the_service() -> None:
    """The probes' paths begin as the config says; the ports are those the image and the variables name.

    covers: APP-7
    """
    settings = {"TA_ENTRA_TENANT_ID": "contoso.example", "TA_ENTRA_AUDIENCE": "api://assistant"}
    config = load(DEPLOY / "base" / "config.yaml", env=settings, dotenv=None)
    container = service()
    paths = {
        name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")
    }
    assert paths == {
        "startup": f"{config.prefix}/health/live",
        "liveness": f"{config.prefix}/health/live",
        "readiness": f"{config.prefix}/health/ready",
    }
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert f"EXPOSE {ports['http']}\n" in (ROOT / "Dockerfile").read_text()
    given = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert given["TA_METRICS_PORT"] == str(ports["metrics"])
    admitted = [rule["ports"][0]["port"] for rule in base("NetworkPolicy")["spec"]["ingress"]]
    assert admitted == [ports["http"], ports["metrics"]]
    assert [port["targetPort"] for port in base("Service")["spec"]["ports"]] == ["http"]


def test_what_a_runbook_rotates_comes_from_the_secret() -> None:
    """Both keys of the encryption; the pods start without the one that is there only afterwards."""
    page = (ROOT / "docs" / "operations.md").read_text()
    exported = set(re.findall(r"export (TA_\w*KEYS?)=", page))
    references = {each["name"]: each.get("valueFrom", {}).get("secretKeyRef") for each in service()["env"]}
    assert exported == {"TA_ENCRYPTION_KEY", "TA_ENCRYPTION_OLD_KEYS"}
    assert all(references.get(name) for name in exported)
    optional = [name for name, reference in references.items() if reference and reference.get("optional")]
    assert optional == ["TA_ENCRYPTION_OLD_KEYS"]


def test_what_was_not_filled_in_does_not_start() -> None:
    """The shipped config names what is missing and lets no one in."""
    settings = next(m for m in build(DEPLOY / "base") if m["metadata"]["name"] == "tealagents-settings")
    with pytest.raises(ConfigError, match="TA_ENTRA_TENANT_ID"):
        load(DEPLOY / "base" / "config.yaml", env=settings["data"], dotenv=None)


def test_a_process_has_the_time_to_drain() -> None:
    """What comes before and after a drain is counted in each grace period that is set or recommended."""
    from tealagents.cli.serve import GRACE_SECONDS
    from tealagents.engine.service import LAST_WRITES_SECONDS
    from tealagents.limits import Limits
    from tealagents.state.workers import LAST_BEAT_SECONDS
    from tealagents.telemetry.exporting import LAST_EXPORTS_SECONDS

    last = LAST_WRITES_SECONDS + GRACE_SECONDS + LAST_BEAT_SECONDS + LAST_EXPORTS_SECONDS
    stopping = Limits().drain_seconds + last
    grace = base("Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    pause = float(service()["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pause + stopping < grace
    page = (ROOT / "docs/operations.md").read_text()
    assert f"`terminationGracePeriodSeconds: {grace}`" in page
    texts = ((ROOT / "compose.yaml").read_text(), (ROOT / "Dockerfile").read_text(), page)
    periods = [re.findall(r"(?:stop_grace_period:|docker stop -t) (\d+)", text) for text in texts]
    assert all(len(found) == 1 and stopping < int(found[0]) for found in periods)


def test_selectors_find_the_pods() -> None:
    """Those of the service, and not the job; the network policies are for both."""
    labels = base("Deployment")["spec"]["template"]["metadata"]["labels"]
    [job] = [m for m in build(DEPLOY / "overlays" / "postgres-migrate") if m["kind"] == "Job"]
    of_job = job["spec"]["template"]["metadata"]["labels"]
    narrow = [
        base("Deployment")["spec"]["selector"]["matchLabels"],
        base("Service")["spec"]["selector"],
        base("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
    ]
    assert all(selector.items() <= labels.items() for selector in narrow)
    assert not any(selector.items() <= of_job.items() for selector in narrow)
    wide = [
        manifest["spec"]["podSelector"]["matchLabels"]
        for manifest in build(DEPLOY / "overlays" / "postgres-migrate")
        if manifest["kind"] == "NetworkPolicy"
    ]
    assert len(wide) == 2
    assert all(selector.items() <= labels.items() and selector.items() <= of_job.items() for selector in wide)


def test_the_autoscaler_reads_what_the_service_reports() -> None:
    """The metric it scales by is the one that the adapter makes of the one that is scraped."""
    [metric] = [
        m["pods"]["metric"]["name"] for m in base("HorizontalPodAutoscaler")["spec"]["metrics"] if "pods" in m
    ]
    [rule] = yaml.safe_load((DEPLOY / "prometheus" / "adapter.yaml").read_text())["rules"]["custom"]
    assert rule["seriesQuery"].startswith(metric + "{")
    assert "replicas" not in base("Deployment")["spec"]


def test_images_are_of_this_version() -> None:
    """A deployment names one version, that of the project."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for overlay in OVERLAYS:
        for pod in pods(overlay):
            assert pod["spec"]["containers"][0]["image"] == f"tealagents:{version}"


def test_prometheus_takes_the_scrape_configuration(tmp_path: Path) -> None:
    """All but how it finds pods, which not every build of Prometheus can do. Pods that ended are dropped."""
    config: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
    [job] = config["scrape_configs"]
    assert job["job_name"] == "tealagents"
    assert job.pop("kubernetes_sd_configs") == [{"role": "pod"}]
    [dropped] = [each for each in job["relabel_configs"] if each.get("action") == "drop"]
    assert dropped["source_labels"] == ["__meta_kubernetes_pod_phase"]
    assert re.fullmatch(dropped["regex"], "Failed")
    assert not re.fullmatch(dropped["regex"], "Running")
    shutil.copy(DEPLOY / "prometheus" / "alerts.yaml", tmp_path)
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    with running(Promtool) as tool:
        tool.run("check", "config", "prometheus.yaml", within=tmp_path)


def test_every_file_is_one_of_a_folder() -> None:
    """Nothing lies there that no overlay uses."""
    used = {DEPLOY / "base" / name for name in ("kustomization.yaml", "config.yaml", "settings.env")}
    for folder in (DEPLOY / "base", *OVERLAYS):
        [asked] = documents(folder / "kustomization.yaml")
        used.add(folder / "kustomization.yaml")
        used |= {folder / name for name in asked["resources"] if not (folder / name).is_dir()}
        used |= {folder / patch["path"] for patch in asked.get("patches", ())}
    there = {
        path for folder in ("base", "overlays") for path in (DEPLOY / folder).rglob("*") if path.is_file()
    }
    assert there == used
