"""The master, the environment and the holder of ``docs/ssd.md``, as they are printed there."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import uuid
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import numpy

import tensorhold
from tensorhold import errors
from real import processes
from servers import Cluster
from ssd_parts import MIB, printed

WITHIN_S = 60.0


def running(program: str, log: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A shell program, which ends with the block."""
    return processes.started(["bash", "-ec", program], processes.environment(), log)


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def test_samples_spill_with_the_flags_as_printed(cluster: Cluster, tmp_path: Path) -> None:
    rpc, admin = processes.free_ports(2)
    folder = tmp_path / "ssd"
    folder.mkdir()

    def here(text: str) -> str:
        mine = {"50051": str(rpc), "9003": str(admin), "/mnt/ssd/tensorhold": str(folder), "4 << 30": "64 << 20"}
        for one, other in mine.items():
            text = text.replace(one, other)
        return text

    master, exports = map(here, printed("Master and holders", "sh"))
    (holder,) = map(here, printed("Master and holders", "python"))
    script = tmp_path / "holder.py"
    script.write_text(holder)
    logs = {name: tmp_path / f"{name}.log" for name in ("master", "holder")}
    settings = {
        **cluster.settings(),
        "master": f"127.0.0.1:{rpc}",
        "admin": [f"http://127.0.0.1:{admin}"],
        "metadata": "P2PHANDSHAKE",
    }
    with running(f"exec {master}", logs["master"]), ExitStack() as stack:
        deadline = time.monotonic() + WITHIN_S
        while not listens(rpc):
            assert time.monotonic() < deadline, logs["master"].read_text()
            time.sleep(0.05)
        holding = stack.enter_context(running(f"{exports}\nexec {sys.executable} {script}", logs["holder"]))
        name = f"test-{uuid.uuid4().hex[:12]}"
        with tensorhold.open(name, residency="spill", pool_bytes=64 << 20, **settings) as store:
            tensors = {"x": numpy.full(MIB, 7, dtype=numpy.uint8)}
            put: list[tensorhold.SampleRef] = []
            while not put:
                assert holding.poll() is None and time.monotonic() < deadline, logs["holder"].read_text()
                try:
                    # The holder may not be there yet.
                    put = [store.put("run/0", tensors, groups=(), timeout=20)]
                except (errors.Capacity, errors.Unavailable):
                    time.sleep(0.2)
            assert any(path.is_file() for path in folder.rglob("*")), "it is in the folder"
            assert store.tiers(["run/0"]) == ["dram"]
            begun = time.monotonic()
            store.put("run/1", tensors, groups=(), timeout=20)
            # The last heartbeat has just been: by Mooncake's default the next one is ten seconds away.
            assert time.monotonic() - begun < 5, "a heartbeat or two"
