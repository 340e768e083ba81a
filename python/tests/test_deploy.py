"""What is in deploy/: it fits the schemas, names files, flags and services that exist, and its parts agree with each other.

``cargo xtask topology`` runs the services of compose.yaml; this looks at all of it without running any.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import kubernetes_validate
import pytest
import yaml

from servers import REPOSITORY

DEPLOY = REPOSITORY / "deploy"
COMPOSE = DEPLOY / "compose"
CONFIG = COMPOSE / "config"
CHART = DEPLOY / "helm/tensorhold"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
KUBERNETES = "1.31"
SECRETS = "/run/tensorhold"


def output(*command: str | Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "python")}
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=60, env=environment)
    return done.stdout + done.stderr


@cache
def flags_of(program: str) -> frozenset[str]:
    """The flags that a program knows, by its own help."""
    help_of: dict[str, tuple[str | Path, ...]] = {
        "etcd": (REPOSITORY / ".etcd/bin/etcd", "--help"),
        "tensorhold drain": (sys.executable, "-m", "tensorhold", "drain", "--help"),
        "tensorhold steward": (sys.executable, "-m", "tensorhold", "steward", "--help"),
        "mooncake_client": (Path(sys.executable).parent / "mooncake_client", "--help"),
        "mooncake_master": (Path(sys.executable).parent / "mooncake_master", "--help"),
        "prometheus": (REPOSITORY / ".prometheus/bin/prometheus", "--help"),
    }
    known = re.findall(r"^\s+(?:-\w, )?--?([a-z][\w.-]+)", output(*help_of[program]), flags=re.MULTILINE)
    assert len(known) > 5, program
    return frozenset(known)


def unknown_flags(program: str, arguments: list[str]) -> list[str]:
    given = [re.match(r"--([\w.-]+)", argument) for argument in arguments]
    return [flag[1] for flag in given if flag and flag[1] not in flags_of(program)]


def unknown_variables(environment: dict[str, Any]) -> list[str]:
    """The settings of etcd that are no flags of it."""
    etcd = [name for name in environment if name.startswith("ETCD_")]
    return [name for name in etcd if name.removeprefix("ETCD_").lower().replace("_", "-") not in flags_of("etcd")]


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


# The compose file


@cache
def compose() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    return read


def services() -> Iterator[tuple[str, dict[str, Any]]]:
    yield from compose()["services"].items()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an operator has after `prepare`."""
    folder = tmp_path_factory.mktemp("compose")
    subprocess.run([COMPOSE / "prepare"], check=True, timeout=60, env={"PATH": "/usr/bin:/bin", "FOLDER": str(folder)})
    return folder


def test_the_compose_file_fits_its_schema() -> None:
    schema = resources.files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    jsonschema.validate(compose(), json.loads(schema.read_text()))


def test_services_depend_on_services_that_there_are_and_that_can_be_waited_for() -> None:
    for name, service in services():
        for on, how in service.get("depends_on", {}).items():
            wanted = "healthcheck" if how["condition"] == "service_healthy" else "command"
            assert wanted in compose()["services"][on], f"{name} waits for {on}"


def test_every_file_that_a_service_is_given_is_there(prepared: Path) -> None:
    for name, service in services():
        mounts = dict(volume.removesuffix(":ro").split(":")[::-1] for volume in service.get("volumes", []))
        for source in mounts.values():
            folder = prepared if source.startswith(("./secrets", "./data")) else COMPOSE
            assert (folder / source).exists(), f"{name}: {source}"
        environment = [line.partition("=")[2] for file in service.get("env_file", []) for line in lines((COMPOSE / file).read_text())]
        environment += map(str, service.get("environment", {}).values())
        texts = [*service.get("command", []), *environment, *service.get("healthcheck", {}).get("test", [])]
        for place, source in mounts.items():
            folder = prepared if source.startswith(("./secrets", "./data")) else COMPOSE
            used = {found for text in texts for found in re.findall(rf"{re.escape(place)}/([\w./-]+)", text)}
            missing = [path for path in used if not (folder / source / path).exists()]
            assert missing == [], f"{name}: {missing} in {source}"


def test_files_name_services_that_there_are() -> None:
    known = set(compose()["services"])
    texts = [path.read_text() for path in CONFIG.iterdir() if path.is_file()] + [json.dumps(compose()["services"])]
    hosts = {found for text in texts for found in re.findall(r"(?<![\w.-])([a-z][\w-]*)(?=:(?:2379|2380|9003|9464|9090)\b)", text)}
    assert len(hosts) >= 11 and hosts <= known, hosts - known


def test_flags_and_settings_of_the_services_exist() -> None:
    for name, service in services():
        assert unknown_variables(service.get("environment", {})) == [], name
    assert unknown_flags("mooncake_master", lines((CONFIG / "master.flags").read_text())) == []
    assert unknown_flags("mooncake_client", lines((CONFIG / "holder.flags").read_text())) == []
    every = compose()["services"]
    for name in ("master-0", "master-1"):
        assert unknown_flags("mooncake_master", [flag for flag in every[name]["command"] if "flagfile" not in flag]) == []
    for name in ("steward-0", "steward-1"):
        assert unknown_flags("tensorhold steward", every[name]["command"]) == []
    assert unknown_flags("prometheus", every["prometheus"]["command"]) == []


def test_no_port_is_published_beyond_this_host() -> None:
    for name, service in services():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
    assert all(compose()["networks"][network]["internal"] for network in ("index", "mooncake"))


def test_every_service_is_restricted() -> None:
    for name, service in services():
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["user"].startswith("${TENSORHOLD_UID"), name


def test_prepare_gives_each_only_its_own_and_changes_nothing_when_run_again(prepared: Path) -> None:
    files = {path: path.read_bytes() for path in prepared.rglob("*") if path.is_file()}
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)
    keys = [path for path in files if path.suffix == ".key"]
    assert len({files[path] for path in keys}) == len(keys) > 10
    subprocess.run([COMPOSE / "prepare"], check=True, timeout=60, env={"PATH": "/usr/bin:/bin", "FOLDER": str(prepared)})
    assert {path: path.read_bytes() for path in prepared.rglob("*") if path.is_file()} == files


def test_prometheus_takes_its_configuration() -> None:
    promtool = REPOSITORY / ".prometheus/bin/promtool"
    said = output(promtool, "check", "config", "--syntax-only", CONFIG / "prometheus.yml")
    assert "SUCCESS" in said, said


# The chart


def values(**changed: Any) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((CHART / "ci/values.yaml").read_text())
    return {**read, **changed}


@cache
def rendered() -> list[dict[str, Any]]:
    with helm_python.Chart.load(str(CHART)) as chart:
        texts = chart.render(values(), name="run", namespace="tensors", revision=1, is_install=True)
    found = [one for name, text in texts.items() if name.endswith(".yaml") for one in yaml.safe_load_all(text)]
    return [one for one in found if one]


def of_kind(*kinds: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in rendered() if one["kind"] in kinds}


def workloads() -> dict[str, dict[str, Any]]:
    return of_kind("StatefulSet", "Deployment", "Job")


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    report = helm_python.lint(str(CHART), values(), strict=True)
    assert report["errors"] == [] and all(message["severity"] < 2 for message in report["messages"]), report


def test_what_the_chart_renders_fits_the_schemas_of_kubernetes() -> None:
    kinds = {one["kind"] for one in rendered()}
    assert kinds >= {"StatefulSet", "Deployment", "Job", "Service", "ConfigMap", "Secret", "NetworkPolicy", "PodDisruptionBudget"}
    for one in rendered():
        kubernetes_validate.validate(one, KUBERNETES, strict=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"steward": {"tokens": []}},
        {"steward": {"tokens": [{"name": "x", "sha256": "the token itself"}]}},
        {"etcd": {"replicas": 2}},
        {"tenants": ["root"]},
        {"holder": {"memory": "lots"}},
        {"mooncake": {}},
    ],
)
def test_values_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    report = helm_python.lint(str(CHART), values(**wrong))
    assert any("schema" in message["error"] for message in report["messages"]), report


def test_pods_find_what_they_mount_and_nothing_is_in_the_clear() -> None:
    secrets = {name: set(one["data"]) for name, one in of_kind("Secret").items()}
    configs = {name: set(one["data"]) for name, one in of_kind("ConfigMap").items()}
    assert {"run-authority", "run-tenant-a", "run-tenant-b"} <= set(secrets)
    settings = of_kind("ConfigMap")
    for name, workload in workloads().items():
        pod = workload["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] and pod["automountServiceAccountToken"] is False
        mounted: dict[str, set[str]] = {}
        for volume in pod.get("volumes", []):
            if "secret" in volume:
                assert volume["secret"]["secretName"] != "run-authority"
                mounted[volume["name"]] = secrets[volume["secret"]["secretName"]]
            elif "configMap" in volume:
                mounted[volume["name"]] = configs[volume["configMap"]["name"]]
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] and container["resources"]["limits"]["memory"]
            said = json.dumps(container)
            for source in container.get("envFrom", []):
                said += json.dumps(settings[source["configMapRef"]["name"]]["data"])
            if "tensorhold.toml" in said:
                said += settings["run-config"]["data"]["tensorhold.toml"]
            for mount in container["volumeMounts"]:
                used = set(re.findall(rf"{re.escape(mount['mountPath'])}/([\w.-]+\.\w+)", said))
                assert used <= mounted.get(mount["name"], used), f"{name}: {used}"


def test_every_service_of_the_chart_is_probed_guarded_and_kept() -> None:
    guarded = {one["spec"]["podSelector"]["matchLabels"].get("app.kubernetes.io/component") for one in of_kind("NetworkPolicy").values()}
    kept = {one["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] for one in of_kind("PodDisruptionBudget").values()}
    running = {name: one for name, one in workloads().items() if one["kind"] != "Job"}
    assert guarded - {None} == kept == {name.removeprefix("run-") for name in running}
    assert all("readinessProbe" in container for one in running.values() for container in one["spec"]["template"]["spec"]["containers"])


def test_the_names_in_the_settings_are_those_of_pods() -> None:
    pods = {
        f"{name}-{n}.{name}.tensors.svc"
        for name, one in of_kind("StatefulSet").items()
        for n in range(one["spec"]["replicas"])
    }
    said = json.dumps([of_kind("ConfigMap"), of_kind("StatefulSet"), of_kind("Job")])
    named = set(re.findall(r"(?<![\w-])[\w-]+\.[\w-]+\.tensors\.svc", said))
    assert len(named) == 8 and named <= pods, named - pods


def test_flags_and_settings_of_the_chart_exist() -> None:
    config = of_kind("ConfigMap")["run-config"]["data"]
    assert unknown_flags("mooncake_master", lines(config["master.flags"])) == []
    assert unknown_flags("mooncake_client", lines(config["holder.flags"])) == []
    assert unknown_flags("tensorhold steward", workloads()["run-steward"]["spec"]["template"]["spec"]["containers"][0]["command"]) == []
    for name in ("run-etcd", "run-mooncake-etcd"):
        environment = workloads()[name]["spec"]["template"]["spec"]["containers"][0]["env"]
        assert unknown_variables({one["name"]: "" for one in environment}) == []
    assert tomllib.loads(config["tensorhold.toml"])["steward"]["http"]["tokens"] == values()["steward"]["tokens"]


def test_the_scripts_of_the_chart_are_those_of_the_compose_file() -> None:
    scripts = {path.name: path.read_text() for path in (CHART / "files").iterdir()}
    assert scripts == {path.name: path.read_text() for path in CONFIG.glob("*.sh")}


# The units


def test_units_are_valid_and_exposed_little(tmp_path: Path) -> None:
    assert [unit.stem.removeprefix("tensorhold-") for unit in UNITS] == ["etcd", "holder", "master", "mooncake-etcd", "steward"]
    analyze = shutil.which("systemd-analyze")
    assert analyze, "systemd-analyze is missing: run .ci/setup, which installs it"
    for unit in UNITS:
        # The programs are not installed here.
        text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text(), flags=re.MULTILINE)
        (tmp_path / unit.name).write_text(text)
    said = output(analyze, "verify", "--man=no", *(tmp_path / unit.name for unit in UNITS))
    assert "tensorhold-" not in said, said
    for unit in UNITS:
        judged = output(analyze, "security", "--offline=true", "--no-pager", tmp_path / unit.name)
        exposure = re.search(r"Overall exposure level for \S+: ([\d.]+)", judged)
        assert exposure and float(exposure[1]) < 2.5, judged


def test_flags_and_settings_of_the_units_exist() -> None:
    environment = dict(line.split("=", 1) for line in lines((DEPLOY / "systemd/etcd.env").read_text()))
    assert unknown_variables(environment) == []
    given = dict(line.split("=", 1) for line in lines((DEPLOY / "systemd/cluster.env").read_text()))
    ours = dict(line.split("=", 1) for line in lines((CONFIG / "cluster.env").read_text()))
    assert given == {name: value for name, value in ours.items() if not value.startswith(SECRETS)}
    for unit in UNITS:
        command = re.findall(r"^ExecStart=(.*)$", unit.read_text(), flags=re.MULTILINE)[0].split()
        program = "tensorhold steward" if "steward" in unit.name else Path(command[0]).name
        assert unknown_flags(program, [flag for flag in command[1:] if "flagfile" not in flag]) == [], unit
        assert unknown_variables(dict.fromkeys(re.findall(r"(?<!\w)(ETCD_\w+)=", unit.read_text()), "")) == [], unit


def test_holders_are_drained_before_they_are_stopped_and_one_at_a_time() -> None:
    unit = (DEPLOY / "systemd/tensorhold-holder.service").read_text()
    [by_systemd] = re.findall(r"^ExecStop=-/opt/tensorhold/bin/(.*)$", unit, flags=re.MULTILINE)
    pod = workloads()["run-holder"]["spec"]["template"]["spec"]
    shell = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    for command, holder in ((by_systemd, "%H"), (shell[-1], '"$POD_IP"')):
        assert command.startswith(f"tensorhold drain {holder} --timeout 10m")
        assert unknown_flags("tensorhold drain", command.split()) == []
    # What stops it waits for that.
    assert "\nTimeoutStopSec=11min\n" in unit and pod["terminationGracePeriodSeconds"] == 11 * 60
    budget = of_kind("PodDisruptionBudget")["run-holder"]["spec"]
    assert budget["maxUnavailable"] == 1
    # The index lets it in.
    etcd = of_kind("NetworkPolicy")["run-etcd"]["spec"]["ingress"]
    let_in = [one for rule in etcd if rule["ports"][0]["port"] == 2379 for one in rule["from"]]
    parts = [one["podSelector"]["matchLabels"].get("app.kubernetes.io/component") for one in let_in]
    assert "holder" in parts


def test_the_image_has_every_program_that_is_started_from_it() -> None:
    text = (DEPLOY / "container/Containerfile").read_text()
    image = {"sh", "python", "curl", "tensorhold", "mooncake_master", "mooncake_client"}
    assert all(name in text for name in image - {"sh"}) and "etcd-client" in text and "USER 10001" in text
    for name, service in services():
        if "TENSORHOLD_IMAGE" in service["image"]:
            check = service.get("healthcheck", {}).get("test", ["CMD", "sh"])
            assert {service["command"][0], check[1]} <= image, name
