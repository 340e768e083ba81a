"""Real clusters for tests, started by our own test kit: ``cargo xtask cluster hold``.

A cluster lives as long as its ``hold`` command, and that lives as long as the pipe to its standard input. So it ends
with this process, however this process ends; nothing is left behind. Each cluster has its own folder and ports, so any
number of them may run at once. ``TENSORHOLD_KEEP=1`` in the environment keeps the folder with the logs.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]

BUILD_WITHIN_S = 1800.0
"""A first build compiles everything the test kit needs."""
START_WITHIN_S = 180.0
"""The test kit has deadlines of its own, which say what was late; this one only catches what they do not."""
END_WITHIN_S = 30.0


def toml(settings: Mapping[str, Any]) -> str:
    """A file of settings. A text, a number and a list of JSON are those of TOML, too."""

    def of(value: Any) -> str:
        if isinstance(value, Mapping):
            return "{ " + ", ".join(f"{json.dumps(name)} = {of(one)}" for name, one in value.items() if one is not None) + " }"
        if isinstance(value, (list, tuple)):
            return "[" + ", ".join(of(one) for one in value) + "]"
        return json.dumps(value)

    return "".join(f"{name} = {of(value)}\n" for name, value in settings.items())


@dataclass(frozen=True)
class Cluster:
    """Where a running cluster listens, and which processes it has."""

    master: str
    """The address for clients: ``host:port``, or ``etcd://…`` with two masters."""
    metadata: str
    """Where transfer engines find each other."""
    admin: list[str]
    """The masters' HTTP addresses: admin calls and metrics."""
    etcd: list[str]
    """The client addresses of the etcd nodes."""
    client_env: dict[str, str]
    """What the environment of a client must hold."""
    pids: dict[str, int]
    """The processes by name: ``master-0``, ``holder-0``, ``etcd-0``; to be killed or stopped by a test."""
    logs: dict[str, Path]
    """Their output, by the same names."""

    def variables(self) -> dict[str, str]:
        """The environment in which ``tensorhold.open`` finds this cluster."""
        return {
            "TENSORHOLD_MASTER": self.master,
            "TENSORHOLD_METADATA": self.metadata,
            "TENSORHOLD_ADMIN": ",".join(self.admin),
            "TENSORHOLD_ETCD": ",".join(self.etcd),
            **self.client_env,
        }

    def settings(self) -> dict[str, Any]:
        """How ``tensorhold.open`` reaches this cluster."""
        return {
            "master": self.master,
            "metadata": self.metadata,
            "admin": self.admin,
            "etcd": self.etcd,
            "environment": {**self.client_env, "MC_LOG_LEVEL": "ERROR"},
        }

    @staticmethod
    def from_report(report: dict[str, Any]) -> Cluster:
        endpoints, processes = report["endpoints"], report["processes"]
        return Cluster(
            master=endpoints["master"],
            metadata=endpoints["metadata"],
            admin=endpoints["admin"],
            etcd=endpoints["etcd"],
            client_env=dict(endpoints["client_env"]),
            pids={process["name"]: process["pid"] for process in processes},
            logs={process["name"]: Path(process["log"]) for process in processes},
        )


@contextmanager
def running_cluster(
    *,
    holders: int = 1,
    segment_mib: int = 256,
    etcd: int = 1,
    lease_ttl: str = "5s",
    ssd: bool = False,
    ha: bool = False,
    master_flags: Sequence[str] = (),
) -> Iterator[Cluster]:
    """A master (two with ``ha``), its holders and ``etcd`` nodes of etcd: ready inside the block, gone after it."""
    command = [str(_xtask()), "cluster", "hold"]
    command += [f"--holders={holders}", f"--segment-mib={segment_mib}", f"--etcd={etcd}", f"--lease-ttl={lease_ttl}"]
    command += ["--ssd"] * ssd + ["--ha"] * ha + [f"--master-flag={flag}" for flag in master_flags]
    environment = {
        "TENSORHOLD_VENV": str(REPOSITORY / ".venv"),
        "TENSORHOLD_ETCD_BIN": str(REPOSITORY / ".etcd/bin"),
        **os.environ,
    }
    with tempfile.TemporaryFile("w+") as errors:
        # A session of its own: Ctrl-C is for pytest, which then ends the cluster in good order.
        holder = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            text=True,
            start_new_session=True,
        )
        try:
            line = _first_line(holder)
            if not line:
                holder.wait(END_WITHIN_S)
                errors.seek(0)
                raise RuntimeError(f"{' '.join(command)} started no cluster:\n{errors.read()}")
            yield Cluster.from_report(json.loads(line))
        finally:
            _end(holder)


def _first_line(holder: subprocess.Popen[str]) -> str:
    """The line that says that the cluster is ready; empty when the command ended, or had to be ended, before."""
    assert holder.stdout is not None
    too_late = threading.Timer(START_WITHIN_S, holder.kill)
    too_late.start()
    try:
        return holder.stdout.readline()
    finally:
        too_late.cancel()
        too_late.join()


def _end(holder: subprocess.Popen[str]) -> None:
    """Ends the cluster. A line, not only the end of input: a forked child may still have the pipe."""
    try:
        holder.communicate("down\n", timeout=END_WITHIN_S)
    except subprocess.TimeoutExpired:
        holder.kill()  # and the kernel kills the cluster's processes
        holder.communicate(timeout=END_WITHIN_S)


@cache
def _xtask() -> Path:
    """Our front door, built once per session; cargo says where it put it. ``TENSORHOLD_XTASK`` names one that is built."""
    if built_before := os.environ.get("TENSORHOLD_XTASK"):
        return Path(built_before)
    build = ["build", "--locked", "--quiet", "--package=xtask", "--message-format=json"]
    command = [os.environ.get("CARGO", "cargo"), *build]
    built = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=BUILD_WITHIN_S)
    if built.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{built.stderr}")
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    programs = [message["executable"] for message in messages if message.get("executable")]
    if len(programs) != 1:
        raise RuntimeError(f"{' '.join(command)} was expected to name one program, and named {programs}")
    return Path(programs[0])
