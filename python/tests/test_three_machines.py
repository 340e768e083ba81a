"""docs/three-machines.md as an operator follows it: what `gather` makes is run as the units say, on three loopback
addresses, and the page's blocks are run as they are printed.

A unit is run by a shell that starts its command again two seconds after it has ended, as systemd does. What systemd gives
to a unit (%d, %S, EnvironmentFile) is translated; so are 0.0.0.0, which would listen beyond loopback, and the ports of
holders, which are on one loopback here.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from real import processes
from servers import REPOSITORY
from test_book import blocks_of

PAGE = REPOSITORY / "docs/three-machines.md"
PRINTED = [block.text for block in blocks_of(PAGE) if block.note.startswith("run by")]
NAMES = ("red", "green", "blue")
# Addresses of this process alone: several checkouts may be tested at once.
HOSTS = [f"127.{100 + os.getpid() // 250 % 100}.{1 + os.getpid() % 250}.{machine}" for machine in (1, 2, 3)]
UP_WITHIN_S = 180.0
BIN = Path(sys.executable).parent


def as_here(text: str, folder: Path) -> str:
    """A text of the page, with this test's addresses and folder."""
    for name, host in zip(NAMES, HOSTS, strict=True):
        text = re.sub(rf"\b{name}\b", host, text)
    return text.replace("deploy/systemd/machines", str(folder / "machines"))


def captured(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=UP_WITHIN_S
    )


class Operator:
    """Runs blocks of the page in the root of the repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        commands = folder / "bin"
        commands.mkdir()
        (commands / "tensorhold").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tensorhold "$@"\n')
        (commands / "tensorhold").chmod(0o755)
        path = [commands, BIN, REPOSITORY / ".etcd/bin", REPOSITORY / ".prometheus/bin", os.environ["PATH"]]
        # A cluster that this environment names would be another one.
        own = {name: value for name, value in os.environ.items() if not name.startswith(("TENSORHOLD_", "ETCD", "MC_"))}
        self.environment = {
            **own,
            "PATH": os.pathsep.join(map(str, path)),
            "PYTHONPATH": str(REPOSITORY / "python"),
            "FOLDER": str(folder / "machines"),
            # On loopback, the nodes of etcd see each other come from here.
            "NAMES": "IP:127.0.0.1",
            "MC_TCP_BIND_ADDRESS": HOSTS[0],
        }

    def command(self, printed: str) -> list[str]:
        return ["bash", "-euo", "pipefail", "-c", as_here(printed, self.folder)]

    def attempt(self, printed: str) -> subprocess.CompletedProcess[str]:
        return captured(self.command(printed), self.environment)

    def run(self, printed: str) -> str:
        done = self.attempt(printed)
        assert done.returncode == 0, f"{printed}\nended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def until(self, printed: str) -> None:
        """Tries a command until it succeeds."""
        deadline = time.monotonic() + UP_WITHIN_S
        while (done := self.attempt(printed)).returncode:
            logs = {log.name: processes.logged(log)[-600:] for log in self.folder.glob("*.log")}
            assert time.monotonic() < deadline, f"{printed}: not in time:\n{done.stderr}\n{json.dumps(logs, indent=1)}"
            time.sleep(1)


def started(unit: Path, machine: int, operator: Operator) -> tuple[list[str], dict[str, str]]:
    """The command of a unit, and its environment."""
    settings = unit.parents[1] / "tensorhold"
    name = unit.stem
    credentials = operator.folder / "credentials" / str(machine) / name
    credentials.mkdir(parents=True)

    def here(text: str) -> str:
        text = text.replace("%d", str(credentials)).replace("%S", str(operator.folder / f"state/{machine}"))
        text = text.replace(f"/run/credentials/{unit.name}", str(credentials)).replace("/etc/tensorhold/", f"{settings}/")
        return text.replace("/opt/tensorhold/bin/", "").replace("/usr/bin/", "").replace("0.0.0.0", HOSTS[machine])

    given: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        if (setting := re.match(r"(\w+)=(.*)", line)) is not None:
            given.setdefault(setting[1], []).append(here(setting[2]))
    for credential in given.get("LoadCredential", []):
        target, source = credential.split(":")
        (credentials / target).write_text(here(Path(source).read_text()))
    environment = {**operator.environment, "MC_TCP_BIND_ADDRESS": HOSTS[machine]}
    # What stands in the file counts more.
    variables = [part for line in given.get("Environment", []) for part in line.split()]
    for file in given.get("EnvironmentFile", []):
        variables += [here(line) for line in Path(file).read_text().splitlines() if line and line[0] != "#"]
    for variable in variables:
        key, value = variable.split("=", 1)
        environment[key] = value
    [command] = given["ExecStart"]
    if "holder" in name:
        command += f" --port={50052 + machine}"
    for flags in re.findall(r"--flagfile=(\S+)", command):
        # Less memory than a cluster has.
        Path(flags).write_text(here(Path(flags).read_text()).replace("=512MB", "=128MB"))
    again = f"while true; do {shlex.join(shlex.split(command))} || true; sleep 2; done"
    return ["bash", "-c", again], environment


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """All units are running, and users and roles are made: the page up to "See that it works"."""
    operator = Operator(tmp_path_factory.mktemp("three"))
    gather, roles = PRINTED[:2]
    operator.run(gather)
    with ExitStack() as stack:
        for machine, host in enumerate(HOSTS):
            for unit in sorted((operator.folder / f"machines/{host}/units").iterdir()):
                command, environment = started(unit, machine, operator)
                log = operator.folder / f"{unit.stem}-{machine}.log"
                stack.enter_context(processes.started(command, environment, log))
        operator.until(". deploy/systemd/machines/operator/env; etcdctl endpoint health")
        listed = operator.run(roles)
        assert len(re.findall(r"\btrue\b", listed)) == 1 and all(host in listed for host in HOSTS), listed
        operator.until(". deploy/systemd/machines/operator/env; tensorhold status | grep '3 holders'")
        yield operator


def test_an_operator_sees_who_holds_what(operator: Operator) -> None:
    said = operator.run(PRINTED[2])
    assert "0 problems" in said and "evaluators" in said, said


def test_the_stewards_answer_to_the_operators_token(operator: Operator) -> None:
    overview = json.loads(operator.run(PRINTED[3]))
    assert "stores" in overview, overview


def test_prometheus_finds_stewards_masters_and_etcds(operator: Operator) -> None:
    [port] = processes.free_ports(1)
    command = PRINTED[4].replace("127.0.0.1:9090", f"127.0.0.1:{port}")
    command = command.replace("target/prometheus", str(operator.folder / "tsdb"))
    log = operator.folder / "prometheus.log"
    deadline = time.monotonic() + UP_WITHIN_S
    targets: list[dict[str, Any]] = []
    with processes.started(operator.command(f"exec {command}"), operator.environment, log):
        # Two stewards, two masters, three etcds.
        while {target["health"] for target in targets} != {"up"} or len(targets) != 7:
            assert time.monotonic() < deadline, f"{targets}\n{processes.end_of(log)}"
            time.sleep(0.5)
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/targets", timeout=5) as answer:
                    targets = json.load(answer)["data"]["activeTargets"]
            except OSError:
                continue  # it does not listen yet


def test_a_tenant_reaches_its_own_store_only(operator: Operator) -> None:
    tenants = operator.folder / "machines/tenants"
    variables = (tenants / "cluster.env").read_text().replace("/run/tensorhold", str(tenants / "a"))
    given = dict(line.split("=", 1) for line in variables.splitlines() if line and line[0] != "#")
    environment = {**operator.environment, **given, "TENSORHOLD_KEY": f"file:{tenants / 'a/store.key'}"}
    put = "import tensorhold\nwith tensorhold.open('a') as store: store.put('s', {'x': b'sealed'}, groups=['trainers'])"
    ls = ["-m", "tensorhold", "ls", "--store"]
    for arguments, code in ((["-c", put], 0), ([*ls, "a"], 0), ([*ls, "first"], 4)):
        done = captured([sys.executable, *arguments], environment)
        assert done.returncode == code, f"{arguments}: {done}"
