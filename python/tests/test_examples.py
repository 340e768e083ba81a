"""The examples run as they are, and their types hold."""

from __future__ import annotations

import os
import subprocess
import sys

from servers import REPOSITORY, Cluster

EXAMPLES = REPOSITORY / "examples"


def test_the_quickstart_runs(cluster: Cluster) -> None:
    command = [sys.executable, str(EXAMPLES / "quickstart.py")]
    environment = {**os.environ, **cluster.variables(), "PYTHONPATH": str(REPOSITORY / "python"), "MC_LOG_LEVEL": "ERROR"}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert len(lines) == 4 and lines[-1] == "all samples are used and freed"
    assert all(f"sample-{n}#g" in ran.stdout for n in range(3))


def test_types_hold() -> None:
    command = [sys.executable, "-m", "mypy", "--strict"]
    checked = subprocess.run(command, cwd=REPOSITORY / "python", capture_output=True, text=True, timeout=600)
    assert checked.returncode == 0, checked.stdout


def test_the_asyncio_face_is_made_from_the_blocking_one() -> None:
    command = [sys.executable, str(REPOSITORY / "python/tools/asyncio_face.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stderr
