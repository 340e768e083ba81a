"""Processes of a framework: started in a session of their own, ended with all their children, and never waited for
without a deadline."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WITHIN_S = 900.0
"""An engine takes half a minute to import and start; a machine that others use too takes many times that."""
END_WITHIN_S = 60.0
"""For a process that was killed."""


@dataclass(frozen=True)
class Ended:
    """What a process reported, and all that it logged."""

    report: dict[str, Any]
    log: str


class Failed(RuntimeError):
    """A process ended with an error. Its message has the end of the log."""


class Stuck(RuntimeError):
    """A process or a request ran into its deadline."""


def environment(**more: str) -> dict[str, str]:
    """For every process here: offline, on one thread, and with this folder's parent on its path."""
    path = [str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        # For the servers, and for ninja: some engines compile small extensions.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(path),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "MC_TCP_BIND_ADDRESS": "127.0.0.1",
        **more,
    }


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that were free a moment ago."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def logged(log: Path) -> str:
    """All of a log. Processes that are killed may leave half a character."""
    return log.read_text(errors="replace")


def end_of(log: Path) -> str:
    """The part of a log that tells why a process failed."""
    return logged(log)[-6000:]


@contextmanager
def started(command: Sequence[str], env: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that writes to this log. It and all its children end with the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output, start_new_session=True)
    try:
        yield process
    finally:
        # Launchers start processes in sessions of their own: found by their parents, before these are gone.
        for pid in [*descendants(process.pid), process.pid]:
            with suppress(ProcessLookupError):  # it has ended
                os.kill(pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(END_WITHIN_S)


def descendants(of: int) -> list[int]:
    """All processes below one, the youngest generation first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # it has ended
                # The name, in brackets, may hold anything; the state and the parent follow it.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, generation = [], [of]
    while generation:
        generation = [child for parent in generation for child in children.get(parent, [])]
        found.append(generation)
    return [pid for generation in reversed(found) for pid in generation]


def run(module: str, settings: dict[str, Any], **more: str) -> Ended:
    """Runs ``python -m real.MODULE SETTINGS REPORT`` to its end, and reads its report."""
    with tempfile.TemporaryDirectory() as folder:
        log, report = Path(folder) / "log", Path(folder) / "report.json"
        command = [sys.executable, "-m", f"real.{module}", json.dumps(settings), str(report)]
        with started(command, environment(**more), log) as process:
            try:
                code = process.wait(WITHIN_S)
            except subprocess.TimeoutExpired:
                raise Stuck(f"real.{module} has not ended within {WITHIN_S:.0f} s:\n{end_of(log)}") from None
        if code != 0:
            raise Failed(f"real.{module} ended with {code}:\n{end_of(log)}")
        return Ended(json.loads(report.read_text()), logged(log))
