"""Starts two producers and a trainer, sees the trainer killed half-way, and starts it again."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import tensorhold
from examples.cluster import run, store_name
from examples.crash.trainer import Trained

SAMPLES = 64
WITHIN_S = 120.0


def start(program: str, *arguments: object) -> subprocess.Popen[bytes]:
    """A process of its own."""
    return subprocess.Popen([sys.executable, "-m", f"examples.crash.{program}", *map(str, arguments)])


def ended(process: subprocess.Popen[bytes], code: int = 0) -> None:
    """Waits for a process, which has to end with this code."""
    if process.wait(WITHIN_S) != code:
        raise SystemExit(f"a process ended with {process.returncode}, and not with {code}; it has said why above")


def main() -> None:
    name = store_name("crash")
    with tensorhold.open(name, role="launcher") as store, tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "checkpoint.pt"
        half = SAMPLES // 2
        started = [start("producer", name, first, half) for first in (0, half)]
        try:
            started.append(start("trainer", name, checkpoint, SAMPLES, "--killed-at", half))
            ended(started[-1], -signal.SIGKILL)
            print("launcher: starts the trainer again", flush=True)
            started.append(start("trainer", name, checkpoint, SAMPLES))
            for process in (*started[:2], started[-1]):
                ended(process)
        finally:
            for process in started:
                process.kill()  # does nothing to one that has ended
        trained = Trained.load(checkpoint)
        samples = [f"sample-{n:02}" for n in range(SAMPLES)]
        if sorted(trained.samples) != samples:
            raise SystemExit(f"launcher: not every sample was trained exactly once: {sorted(trained.samples)}")
        print(f"launcher: every one of {SAMPLES} samples was trained exactly once")
        print(f"launcher: samples left in the store: {sum(store.exists(samples))}")


if __name__ == "__main__":
    run(main)
