"""A steward for tests: ``tensorhold steward`` in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from servers import REPOSITORY, Cluster, toml

WITHIN_S = 30.0


@dataclass
class Steward:
    """A steward that runs."""

    process: subprocess.Popen[str]
    url: str
    token: str | None = None
    log: list[str] = field(default_factory=list)

    def ask(self, path: str, *, method: str = "GET", body: Any = None, token: str | None = None) -> tuple[int, str]:
        """The status and the text of an answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, method=method, data=data)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        if given := token or self.token:
            request.add_header("Authorization", f"Bearer {given}")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=WITHIN_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def value(self, path: str) -> Any:
        """What a path answers, which must be well."""
        status, text = self.ask(path)
        assert status == 200, (status, text)
        return json.loads(text)

    def ready(self) -> bool:
        return self.ask("/readyz")[0] == 200

    def stop(self) -> str:
        """Stops it, and returns the rest of what it printed."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(WITHIN_S)
        assert self.process.stdout is not None
        return self.process.stdout.read()


def _first_value(lines: Iterable[str]) -> str:
    """The first JSON value of some lines, which may have several of them; empty if they end before it does."""
    text = ""
    for line in lines:
        text += line
        try:
            json.loads(text)
        except json.JSONDecodeError:
            continue
        return text
    return ""


@contextmanager
def running_steward(
    cluster: Cluster, settings: Mapping[str, Any] | None = None, *, token: str | None = None
) -> Iterator[Steward]:
    """A steward on a free port, with these settings below ``steward``. It is ended at the end of the block."""
    variables = {**os.environ, **cluster.variables(), "PYTHONPATH": str(REPOSITORY / "python")}
    with tempfile.NamedTemporaryFile("w", suffix=".toml", delete=False) as file:
        file.write(toml({"steward": settings or {}}))
    command = [sys.executable, "-m", "tensorhold", "steward", "--listen", "127.0.0.1:0", "--json", "--config", file.name]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)
    log: list[str] = []
    assert process.stderr is not None and process.stdout is not None
    reader = threading.Thread(target=log.extend, args=(process.stderr,), daemon=True)
    reader.start()
    try:
        said = json.loads(_first_value(process.stdout) or "null")
        assert said, "".join(log)
        yield Steward(process, f"http://{said['listen']}", token, log)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        reader.join(WITHIN_S)
        process.stdout.close()
        process.stderr.close()
        os.unlink(file.name)
