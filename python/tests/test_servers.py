"""The fixtures' own promises: each cluster has its shape, and no process outlives the tests, however these end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from servers import Cluster, running_cluster

GONE_WITHIN_S = 20.0

HOLDS_A_CLUSTER = """
import json, sys
from servers import running_cluster
with running_cluster(segment_mib=16, etcd=0) as cluster:
    print(json.dumps(list(cluster.pids.values())), flush=True)
    sys.stdin.read()
"""


def runs(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # gone before, or while it was read
        return False


def wait_until_gone(pids: Iterable[int]) -> None:
    deadline = time.monotonic() + GONE_WITHIN_S
    left = list(pids)
    while left := [pid for pid in left if runs(pid)]:
        assert time.monotonic() < deadline, f"processes {left} still run"
        time.sleep(0.02)


def test_each_cluster_has_its_own_shape(cluster: Cluster, start_cluster: Callable[..., Cluster]) -> None:
    own = start_cluster(holders=2, segment_mib=16, etcd=1, lease_ttl="500ms", master_flags=["--client_ttl=3"])
    assert sorted(own.pids) == ["etcd-0", "holder-0", "holder-1", "master-0"]
    assert own.master != cluster.master and own.etcd != cluster.etcd
    assert "client_ttl=3" in own.logs["master-0"].read_text()
    with urllib.request.urlopen(f"{own.etcd[0]}/health", timeout=5) as answer:
        assert json.load(answer)["health"] == "true"


def test_a_cluster_ends_with_its_block_even_when_that_fails() -> None:
    with pytest.raises(ZeroDivisionError), running_cluster(segment_mib=16, etcd=0) as own:
        assert all(map(runs, own.pids.values()))
        raise ZeroDivisionError
    wait_until_gone(own.pids.values())


def test_a_cluster_ends_when_its_tests_are_killed() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", HOLDS_A_CLUSTER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as tests:
        assert tests.stdout is not None
        pids = json.loads(tests.stdout.readline())
        assert pids and all(map(runs, pids))
        tests.send_signal(signal.SIGKILL)
    wait_until_gone(pids)


def test_a_cluster_that_cannot_start_says_why() -> None:
    with pytest.raises(RuntimeError, match="1 or 3 nodes"), running_cluster(etcd=2):
        pass
