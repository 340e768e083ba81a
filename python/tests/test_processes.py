"""Forks, spawned workers, and the end of a process."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import tensorhold
from tensorhold import FeatureStore, SampleRef
from servers import REPOSITORY, Cluster, running_cluster

WITHIN_S = 60.0


def in_child(act: Callable[[], None]) -> None:
    """Runs something in a forked child; an error there, or a child that hangs, is an error here."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        code = 1
        try:
            act()
            code = 0
        except BaseException:
            os.write(writer, traceback.format_exc().encode())
        finally:
            os._exit(code)
    os.close(writer)
    deadline = time.monotonic() + WITHIN_S
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            pytest.fail("the child hangs")
        time.sleep(0.02)
    with os.fdopen(reader) as said:
        assert ended[1] == 0, said.read()


class Samples(Dataset[torch.Tensor]):
    """What a training job has: references, and the store that they are in."""

    def __init__(self, store: FeatureStore, refs: list[SampleRef]) -> None:
        self.store, self.refs = store, refs

    def __len__(self) -> int:
        return len(self.refs)

    def __getitem__(self, at: int) -> torch.Tensor:
        return self.store.get(self.refs[at], as_="torch")["x"].clone()


RUN = """
import sys
sys.path[:0] = [{package!r}, {tests!r}]
import json, os
import tensorhold
settings = json.loads(sys.argv[2])
"""


def run(code: str, cluster: Cluster, store_name: str, *, status: int = 0) -> str:
    """Runs a program of its own: whether a fork is allowed depends on all that its process did before."""
    import json

    head = RUN.format(package=str(REPOSITORY / "python"), tests=str(REPOSITORY / "python/tests"))
    command = [sys.executable, "-c", head + code, store_name, json.dumps(cluster.settings())]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S * 2)
    assert ran.returncode == status, ran.stderr
    return ran.stdout


def test_a_store_that_was_used_says_so_in_a_forked_child(store: FeatureStore) -> None:
    store.put("a", {"x": b"1"}, groups=["g"])
    (lease,) = store.take("g")
    tensor = store.get("a")["x"]

    def child() -> None:
        begun = time.monotonic()
        with pytest.raises(tensorhold.Unsupported, match="multiprocessing_context"):
            store.get("a")
        with pytest.raises(tensorhold.Fenced, match="forked"):
            lease.ack()
        assert bytes(tensor.memoryview()) == b"1"  # a copy, as all memory of a child
        store.close()
        assert time.monotonic() - begun < 5

    in_child(child)
    # The parent has lost nothing by it.
    assert lease.get()["x"].tobytes() == b"1"
    lease.ack()


def test_a_child_that_drops_everything_leaves_the_parent_alone(store: FeatureStore) -> None:
    store.put("a", {"x": bytes(1000)}, groups=["g"])
    held: list[Any] = [*store.take("g"), store.get("a")]

    def child() -> None:
        held.clear()

    in_child(child)
    assert held[0].get()["x"].nbytes == 1000
    held[0].ack()


@pytest.mark.parametrize("opened", ["tensorhold.open(sys.argv[1]", "tensorhold.open_partitions(sys.argv[1], 2"])
def test_a_lazy_store_opens_in_each_forked_worker(cluster: Cluster, store_name: str, opened: str) -> None:
    said = run(
        """
from torch.utils.data import DataLoader
from test_processes import Samples
import subprocess
maker = '''
import sys, json, numpy, tensorhold
with tensorhold.open(sys.argv[1], **json.loads(sys.argv[2])) as store:
    print(*[store.put(f"s{n}", {"x": numpy.full((5000,), n)}, groups=()) for n in range(12)], sep="\\\\n")
'''
env = {**os.environ, "PYTHONPATH": sys.path[0]}
made = subprocess.run([sys.executable, "-c", maker, *sys.argv[1:3]], capture_output=True, text=True, env=env, check=True)
refs = [tensorhold.SampleRef.parse(line) for line in made.stdout.split()]
import mooncake.store  # imported before the fork, not used
store = tensorhold.open(sys.argv[1], lazy=True, **settings)
loader = DataLoader(Samples(store, refs), batch_size=3, num_workers=2, multiprocessing_context="fork")
print([int(v) for batch in loader for v in batch[:, 4999]])
print(store.get(refs[3], as_="torch")["x"][0].item())
store.close()
""".replace("tensorhold.open(sys.argv[1]", opened),
        cluster,
        store_name,
    )
    assert said.splitlines() == [str(list(range(12))), "3"]


def test_spawned_workers_get_a_store_of_their_own(store: FeatureStore) -> None:
    refs = [store.put(f"s{n}", {"x": torch.full((5000,), n)}, groups=()) for n in range(6)]
    loader = DataLoader(Samples(store, refs), batch_size=3, num_workers=1, multiprocessing_context="spawn")
    assert [int(value) for batch in loader for value in batch[:, 0]] == list(range(6))
    again: FeatureStore = pickle.loads(pickle.dumps(store))
    assert again.settings == store.settings
    with again:
        assert again.get(refs[2], as_="torch")["x"][0] == 2


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "store.close()", "del store, tensors, lease"])
def test_a_process_ends_well_whatever_it_left_open(cluster: Cluster, store_name: str, end: str) -> None:
    begun = time.monotonic()
    said = run(
        f"""
store = tensorhold.open(sys.argv[1], **settings)
store.put("a", {{"x": bytes(100000)}}, groups=["g"])
lease, = store.take("g")
tensors = lease.get(as_="numpy")
print("done", flush=True)
{end}
""",
        cluster,
        store_name,
    )
    assert said == "done\n" and time.monotonic() - begun < 40


def test_a_process_ends_well_while_a_callback_is_on_its_way(cluster: Cluster, store_name: str) -> None:
    # CPython ends threads that ask for its lock while it ends, and the C library aborts if that happens below Rust.
    said = run(
        """
import asyncio, time
import tensorhold.aio

class Output:
    # Takes its time when the interpreter flushes it for the last time.
    def __init__(self, to):
        self.write, self._flush = to.write, to.flush

    def flush(self):
        self._flush()
        if sys.is_finalizing():
            time.sleep(1.0)

sys.stdout = Output(sys.stdout)

async def main():
    loop = asyncio.get_running_loop()
    wake = loop.call_soon_threadsafe

    def slowly(*arguments, **more):
        handle = wake(*arguments, **more)
        time.sleep(0.5)
        print("woken", flush=True)
        return handle

    async with await tensorhold.aio.open(sys.argv[1], **settings):
        loop.call_soon_threadsafe = slowly

asyncio.run(main())
print("done", flush=True)
""",
        cluster,
        store_name,
    )
    assert said == "done\nwoken\n"


def test_a_process_ends_with_its_status_while_a_call_to_the_engine_hangs(store_name: str) -> None:
    # The exit handler that is registered first runs last: a status of 9 says that those of the engine's library ran, as
    # they do if the call returns before: so this process does not wait for it long.
    with running_cluster(segment_mib=64) as cluster:
        said = run(
            f"""
import ctypes, signal
libc = ctypes.CDLL(None)
libc.__cxa_atexit(ctypes.cast(libc._exit, ctypes.c_void_p), ctypes.c_void_p(9), None)
tensorhold._process.CLOSE_AT_EXIT_WITHIN_S = 1.0
store = tensorhold.open(sys.argv[1], **settings)
ref = store.put("a", {{"x": bytes(100000)}}, groups=["g"])
os.kill({cluster.pids["master-0"]}, signal.SIGSTOP)
try:
    store.get(ref, timeout=1.0)
except tensorhold.Unavailable:
    print("left behind", flush=True)
sys.exit(3)
""",
            cluster,
            store_name,
            status=3,
        )
    assert said == "left behind\n"


def test_a_worker_of_multiprocessing_closes_its_store(cluster: Cluster, store_name: str, store: FeatureStore) -> None:
    store.put("a", {"x": b"1"}, groups=["g"])
    worker = multiprocessing.get_context("spawn").Process(target=takes, args=(store_name, cluster.settings()))
    worker.start()
    worker.join(WITHIN_S)
    assert worker.exitcode == 0
    # It ended without an answer and in good order: no process has to wait for the end of its session.
    assert store.sweep().taken_back == 1
    assert [lease.sample for lease in store.take("g", timeout=8)] == ["a"]


def takes(store_name: str, settings: dict[str, Any]) -> None:
    global kept
    store = tensorhold.open(store_name, **settings)
    kept = store, store.take("g")
    assert [lease.sample for lease in kept[1]] == ["a"]  # looked at: it is not handed back as never taken


kept: Any = None


def test_a_forked_child_ends_by_sys_exit_with_its_status(cluster: Cluster, store_name: str) -> None:
    said = run(
        """
store = tensorhold.open(sys.argv[1], **settings)
store.put("a", {"x": bytes(100000)}, groups=())
child = os.fork()
if child == 0:
    print("the child's last words")
    sys.exit(7)
print("ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
assert len(store.get("a")["x"].tobytes()) == 100000
""",
        cluster,
        store_name,
    )
    assert said.splitlines()[-2:] == ["the child's last words", "ended with 7"]
