"""Taking a holder out as docs/operations.md prints it, with the console script."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import tensorhold
from servers import REPOSITORY, Cluster
from test_book import blocks_of
from test_command import answer

[PRINTED] = [block.text for block in blocks_of(REPOSITORY / "docs/operations.md") if block.note.endswith("test_drain.py")]
SAMPLES = 24


def holder_of(cluster: Cluster, sample: str) -> str:
    [why] = answer(cluster, "why", sample)["items"]
    [name] = why["objects"]["items"][0]["dram_on"]
    return str(name)


def test_a_holder_is_taken_out_as_operations_md_prints_it(start_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = start_cluster(holders=2, segment_mib=64)
    command = tmp_path / "tensorhold"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tensorhold "$@"\n')
    command.chmod(0o755)
    with tensorhold.open("run-7", pool_bytes=64 << 20, **cluster.settings()) as store:
        for number in range(SAMPLES):
            store.put(f"sample-{number}", {"x": bytes([number]) * 1000}, groups=["trainers"])
        holders = {holder_of(cluster, f"sample-{number}") for number in range(SAMPLES)}
        assert len(holders) == 2
        holder = "holder-0"
        name = cluster.logs[holder].read_text().split("tensorhold holder ready ")[1].split()[0]
        assert name in holders

        environment = {**os.environ, **cluster.variables(), "HOLDER": name, "PYTHONPATH": str(REPOSITORY / "python")}
        environment["PATH"] = os.pathsep.join([str(tmp_path), environment["PATH"]])
        shell = ["bash", "-euo", "pipefail", "-c", PRINTED]
        done = subprocess.run(shell, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done
        assert f"holder {name} is drained: safe to stop" in done.stdout, done
        assert answer(cluster, "ls", "--holder", name)["items"] == []

        os.kill(cluster.pids[holder], signal.SIGKILL)
        taken = {}
        while leases := store.take("trainers", count=SAMPLES, timeout=1):
            for lease in leases:
                taken[lease.ref.sample] = lease.get()["x"].tobytes()
                lease.ack()
        assert taken == {f"sample-{number}": bytes([number]) * 1000 for number in range(SAMPLES)}
