"""Real servers for the alert tests: a Prometheus, an etcd node of our own, and the process of a client."""

from __future__ import annotations

import json
import multiprocessing
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

import yaml

import alerts_client
from servers import REPOSITORY
from waiting import START_S, until

RULES: Final = REPOSITORY / "ops/prometheus/rules.yml"
DASHBOARD: Final = REPOSITORY / "ops/grafana/tensorhold.json"
PROMETHEUS: Final = REPOSITORY / ".prometheus/bin/prometheus"
ETCD: Final = REPOSITORY / ".etcd/bin"

FASTER: Final = 60
"""How much faster than in ops/prometheus/rules.yml the time of the rules goes by: minutes are seconds."""
SCRAPE_MS: Final = 500

TIMES: Final = {
    "TensorholdNobodySweeps": ("tensorhold_clock_stood_still_seconds < 60", "tensorhold_clock_stood_still_seconds < 1"),
    "TensorholdReclaimSlow": ("> 10", f"> {10 / FASTER:.4f}"),
}
"""The limits that are times, and what they are here."""

_UNITS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def faster(duration: str) -> str:
    """``5m`` becomes ``5000ms``."""
    found = re.fullmatch(r"(\d+)([smhd])", duration)
    assert found, duration
    return f"{int(found[1]) * _UNITS[found[2]] // FASTER}ms"


def faster_rules() -> dict[str, Any]:
    """The rules with all their times divided; their expressions are otherwise those that are shipped."""
    rules: dict[str, Any] = yaml.safe_load(RULES.read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        if "for" in rule:
            rule["for"] = faster(rule["for"])
        if limit := TIMES.get(rule["alert"]):
            assert rule["expr"].count(limit[0]) == 1, rule["alert"]
            rule["expr"] = rule["expr"].replace(*limit)
        rule["expr"] = re.sub(r"\[(\d+\w)\]", lambda found: f"[{faster(found[1])}]", rule["expr"])
        rule["expr"] = re.sub(r"\boffset (\d+\w)\b", lambda found: f"offset {faster(found[1])}", rule["expr"])
    return rules


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def read(url: str, timeout: float = 10.0) -> str:
    with build_opener(ProxyHandler({})).open(url, timeout=timeout) as answer:
        text: str = answer.read().decode()
        return text


def answers(url: str) -> Callable[[], bool]:
    def asked() -> bool:
        try:
            return bool(read(url, 2.0))
        except OSError:
            return False

    return asked


def end(process: subprocess.Popen[Any]) -> None:
    """Ends a process of ours, also one that is stopped."""
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.kill()
    process.wait(30.0)


@dataclass
class Firing:
    """An alert that fires, or has fired."""

    labels: dict[str, str]
    began: float
    seen: float


@dataclass
class Prometheus:
    """A Prometheus that runs, and a thread that asks it which alerts fire."""

    url: str
    targets: Path
    began: float
    fired: list[Firing] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def scrape(self, **jobs: list[str]) -> None:
        """From now on these are scraped: addresses by job."""
        listed = [{"targets": at, "labels": {"job": job.replace("_", "-")}} for job, at in jobs.items()]
        # It must never see half of it.
        whole = self.targets.with_suffix(".new")
        whole.write_text(json.dumps(listed))
        whole.rename(self.targets)

    def ask(self, path: str, **query: str) -> Any:
        answer = json.loads(read(f"{self.url}/api/v1/{path}?{urlencode(query)}"))
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[Any]:
        found: list[Any] = self.ask("query", query=expression)["result"]
        return found

    def ever(self, expression: str) -> list[Any]:
        """What the query has returned at any time."""
        times = {"start": f"{self.began:.3f}", "end": f"{time.time():.3f}", "step": "1"}
        found: list[Any] = self.ask("query_range", query=expression, **times)["result"]
        return found

    def watch(self) -> None:
        while not self.stop.wait(0.1):
            try:
                active = self.ask("alerts")["alerts"]
            except OSError:
                continue  # it is asked again; a test that waits for an alert has a deadline
            now = time.monotonic()
            for labels in (alert["labels"] for alert in active if alert["state"] == "firing"):
                known = next((one for one in self.fired if one.labels == labels and now - one.seen < 3.0), None)
                if known:
                    known.seen = now
                else:
                    self.fired.append(Firing(labels, now, now))

    def fires(self, alert: str, since: float, within: float = 60.0, **labels: str) -> float:
        """Waits until the alert fires. Returns how many seconds after ``since`` it did."""
        wanted = {"alertname": alert, **labels}

        def found() -> list[Firing]:
            return [one for one in self.fired if one.seen >= since and wanted.items() <= one.labels.items()]

        def others() -> set[str]:
            return {one.labels["alertname"] for one in self.fired}

        ends = time.monotonic() + within
        while not found():
            if time.monotonic() > ends:
                rule = next(one for one in self.rules() if one["name"] == alert)
                raise AssertionError(f"{wanted} does not fire; {rule}; those that have fired: {sorted(others())}")
            time.sleep(0.05)
        took = max(0.0, found()[0].began - since)
        print(f"{alert} fired after {took:.1f} s")
        return took

    def ends(self, alert: str, within: float = 60.0, **labels: str) -> None:
        """Waits until the alert does not fire any more."""
        wanted = {"alertname": alert, **labels}

        def firing() -> bool:
            active = self.ask("alerts")["alerts"]
            return any(one["state"] == "firing" and wanted.items() <= one["labels"].items() for one in active)

        until(f"{alert} ends", lambda: not firing(), within)

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]


@contextmanager
def running_prometheus(folder: Path) -> Iterator[Prometheus]:
    """A Prometheus that evaluates our rules, on a free port."""
    assert PROMETHEUS.exists(), f"{PROMETHEUS} is missing: run .ci/setup, which fetches it"
    (folder / "rules.yml").write_text(yaml.safe_dump(faster_rules()))
    targets = folder / "targets.json"
    targets.write_text("[]")
    every = f"{SCRAPE_MS}ms"
    scrape = {"job_name": "any", "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}]}
    config = {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": ["rules.yml"],
        "scrape_configs": [scrape],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [str(PROMETHEUS), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn", "--storage.tsdb.retention.time=1h"]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    running = Prometheus(f"http://127.0.0.1:{port}", targets, time.time())
    watcher = threading.Thread(target=running.watch)
    try:
        until("Prometheus answers", answers(f"{running.url}/-/ready"), START_S)
        watcher.start()
        yield running
    finally:
        running.stop.set()
        if watcher.ident:
            watcher.join(30.0)
        end(process)


@dataclass
class EtcdNode:
    """An etcd of one node, whose process and data are ours to break."""

    folder: Path
    client: int
    peer: int
    quota: int
    process: subprocess.Popen[Any] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.client}"

    def start(self) -> None:
        peer = f"http://127.0.0.1:{self.peer}"
        command = [str(ETCD / "etcd"), "--name=own", f"--data-dir={self.folder}/data", f"--initial-cluster=own={peer}"]
        command += [f"--listen-client-urls={self.url}", f"--advertise-client-urls={self.url}"]
        command += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", "--log-level=error"]
        command += [f"--quota-backend-bytes={self.quota}", "--auto-compaction-mode=revision"]
        command += ["--auto-compaction-retention=1000"]
        with (self.folder / "etcd.log").open("a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        until("etcd answers", answers(f"{self.url}/health"), START_S)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def end(self) -> None:
        if self.process is not None:
            end(self.process)

    def replace(self) -> None:
        """Another etcd, without data, is at the same address."""
        self.end()
        shutil.rmtree(self.folder / "data")
        self.start()

    def ctl(self, *arguments: str, given: bytes = b"", may_fail: bool = False) -> str:
        command = [str(ETCD / "etcdctl"), f"--endpoints={self.url}", "--command-timeout=10s", *arguments]
        done = subprocess.run(command, input=given, capture_output=True, timeout=30)
        assert done.returncode == 0 or may_fail, done.stderr.decode()
        return done.stdout.decode()

    def file_bytes(self) -> int:
        (status,) = json.loads(self.ctl("endpoint", "status", "--write-out=json"))
        found: int = status["Status"]["dbSize"]
        return found

    def fill(self, to: float) -> None:
        """Writes other data until the file has reached a part of the quota, or nothing more is taken."""
        # An etcdctl takes its value from its input if there is none in its arguments.
        for number in range(1000):
            if self.file_bytes() >= to * self.quota:
                return
            before = self.ctl("alarm", "list")
            if "NOSPACE" in before:
                return
            self.ctl("put", f"/other/{number}-{time.monotonic_ns()}", given=bytes(512 << 10), may_fail=True)
        raise AssertionError("etcd does not fill")

    def make_room(self) -> None:
        """What docs/etcd-restore.md tells an operator to do."""
        self.ctl("del", "--prefix", "/other/")
        revision = json.loads(self.ctl("endpoint", "status", "--write-out=json"))[0]["Status"]["header"]["revision"]
        self.ctl("compact", "--physical", str(revision))
        self.ctl("defrag")
        self.ctl("alarm", "disarm")


@contextmanager
def running_etcd(folder: Path, quota: int) -> Iterator[EtcdNode]:
    node = EtcdNode(folder, free_port(), free_port(), quota)
    try:
        node.start()
        yield node
    finally:
        node.end()


class Client:
    """The process of a client: ``call`` runs a function of ``alerts_client`` in it. It ends with this one at the latest."""

    def __init__(self, settings: dict[str, Any]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=alerts_client.serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        try:
            self.port: int = self.call(alerts_client.start, settings)
        except BaseException:
            self.kill()
            raise

    def call(self, function: Callable[..., Any], *arguments: Any, within: float = 60.0) -> Any:
        self._pipe.send((function, arguments))
        assert self._pipe.poll(within), f"{function.__name__} takes too long"
        answer, error = self._pipe.recv()
        assert error is None, error
        return answer

    def kill(self) -> None:
        self._process.kill()
        self._process.join(30.0)
        self._pipe.close()

    def close(self) -> None:
        try:
            self.call(alerts_client.end)
        finally:
            self.kill()
