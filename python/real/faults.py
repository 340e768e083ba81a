"""Faults in the cluster under a serving engine: its processes are killed, and its pages are altered."""

from __future__ import annotations

import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from real import processes

REMOVED_WITHIN_S = 60.0
"""The engine removes nothing that a read lease protects."""


def kill(cluster: Any, name: str) -> list[str]:
    """Kills a process of the cluster. Returns its command."""
    pid = cluster.pids[name]
    command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    os.kill(pid, signal.SIGKILL)
    return command


@contextmanager
def started_again(command: list[str], log: Path) -> Iterator[None]:
    """A server of the cluster by the command that it had, until the end of the block."""
    with processes.started(command, processes.environment(), log):
        yield


def keys(cluster: Any) -> list[str]:
    """The names of all objects that the master knows."""
    with urllib.request.urlopen(f"{cluster.admin[0]}/get_all_keys", timeout=10) as answer:
        return sorted(answer.read().decode().split())


def altered(cluster: Any) -> dict[str, int]:
    """Alters every object that the master knows, in turns: one byte is another, the end is missing, or the bytes are
    those of another object. Returns how many."""
    from mooncake.store import MooncakeDistributedStore, ReplicateConfig

    os.environ.update(cluster.client_env)
    client = MooncakeDistributedStore()
    code = client.setup("127.0.0.1", cluster.metadata, 0, 64 << 20, "tcp", "", cluster.master)
    if code != 0:
        raise RuntimeError(f"Mooncake's setup returned {code}")
    try:
        names = keys(cluster)
        whole = {key: bytes(client.get(key)) for key in names}
        done = {"torn": 0, "truncated": 0, "replaced": 0}
        for nth, key in enumerate(names):
            kind = list(done)[nth % 3]
            before = whole[key]
            at = len(before) // 2
            after = {
                "torn": before[:at] + bytes([before[at] ^ 1]) + before[at + 1 :],
                "truncated": before[: len(before) - 64],
                "replaced": whole[names[nth - 1]],
            }[kind]
            _remove(client, key)
            code = client.put(key, after, ReplicateConfig())
            if code != 0:
                raise RuntimeError(f"Mooncake's put returned {code} for {key}")
            done[kind] += 1
        return done
    finally:
        client.close()


def _remove(client: Any, key: str) -> None:
    deadline = time.monotonic() + REMOVED_WITHIN_S
    while (code := client.remove(key)) != 0:
        if time.monotonic() > deadline:
            raise RuntimeError(f"Mooncake's remove returned {code} for {key}")
        time.sleep(0.2)
