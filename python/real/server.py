"""A serving engine's HTTP server: up inside a block, asked with a deadline, and gone after it."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from real import processes


@dataclass(frozen=True)
class Served:
    """What a server generated for the prompts, and how many of their tokens came from Tensorhold."""

    tokens: list[list[int]]
    hit_tokens: int
    seconds: list[float]


@dataclass(frozen=True)
class Metrics:
    """Samples: name, labels, value."""

    samples: list[tuple[str, dict[str, str], float]]

    def sum(self, name: str, **labels: str) -> int:
        """All samples of this name with these labels together; 0 if there is none."""
        wanted = labels.items()
        return round(sum(value for one, has, value in self.samples if one == name and wanted <= has.items()))

    def by(self, name: str, label: str) -> dict[str, int]:
        """Samples of this name by the values of a label, as far as they are not 0."""
        values = {has[label] for one, has, _ in self.samples if one == name}
        sums = {value: self.sum(name, **{label: value}) for value in sorted(values)}
        return {value: found for value, found in sums.items() if found}


@dataclass(frozen=True)
class Server:
    """A running server."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    def post(self, path: str, body: Any = None, within: float = 300.0) -> bytes:
        """Asks, and waits for the answer."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=json.dumps(body or {}).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=within) as answer:
                return bytes(answer.read())
        except TimeoutError:
            raise self.stuck(f"the server has not answered {path} within {within:.0f} s") from None

    def metrics(self) -> Metrics:
        """What the server's page of metrics says."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        return Metrics([(one.name, dict(one.labels), one.value) for family in families for one in family.samples])

    def stuck(self, what: str) -> processes.Stuck:
        """An error, with the end of the log."""
        return processes.Stuck(f"{what}:\n{processes.end_of(self.log)}")

    def is_up(self) -> bool:
        """Whether it answers. Raises if it has ended."""
        if self.process.poll() is not None:
            raise processes.Failed(f"the server ended with {self.process.returncode}:\n{processes.end_of(self.log)}")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).close()
        except OSError:
            return False
        return True


@contextmanager
def running(command: Sequence[str], environment: dict[str, str], scratch: Path) -> Iterator[Server]:
    """A server by this command, to which ``--port`` is added."""
    (port,) = processes.free_ports(1)
    log = scratch / f"server-{uuid.uuid4().hex[:8]}.log"
    with processes.started([*command, "--port", str(port)], environment, log) as process:
        server = Server(port, process, log)
        deadline = time.monotonic() + processes.WITHIN_S
        while not server.is_up():
            if time.monotonic() > deadline:
                raise server.stuck("the server is not up")
            time.sleep(0.5)
        yield server
