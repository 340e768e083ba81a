"""A store stays on the etcd cluster where it began, whoever opens it, and whatever is restored or away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tensorhold
from servers import REPOSITORY, Cluster
from steward import running_steward
from test_command import answer, run

STORE = ("--store", "run-7")


def with_b(home: Cluster, other: Cluster) -> None:
    """New stores begin on `b`."""
    run(home, "clusters", "add", "b", *other.etcd)
    run(home, "clusters", "close", "home")


def on(home: Cluster) -> dict[str, list[str]]:
    return {row["cluster"]: row["stores"] for row in answer(home, "clusters")["clusters"]}


def test_a_steward_from_before_the_first_cluster_removes_nothing_of_a_store_on_another(start_cluster: Callable[..., Cluster]) -> None:
    home, other = start_cluster(segment_mib=256), start_cluster(holders=0)
    with tensorhold.open("older-run", **home.settings()) as store:
        # The home's revisions are far above those of the new cluster: nothing looks as if it came from a later index.
        for number in range(50):
            store.put(f"s{number}", {"x": b"1"}, groups=["g"])
            [lease] = store.take("g")
            lease.get()
            lease.ack()
    with running_steward(home, {"look_every": "500ms", "others": {"audit_every": "3s"}}) as steward:
        deadline = time.monotonic() + 60
        while not steward.ready() and time.monotonic() < deadline:
            time.sleep(0.2)
        with_b(home, other)
        with tensorhold.open("run-7", **home.settings()) as store:
            refs = [store.put(f"sample-{number}", {"x": bytes([number]) * 100_000}, groups=["trainers"]) for number in range(4)]
            assert on(home) == {"home": ["older-run"], "b": ["run-7"]}
            # Two audits of that store at least.
            deadline = time.monotonic() + 60
            while sum("audited" in line and "run-7" in line for line in steward.log) < 2 and time.monotonic() < deadline:
                time.sleep(0.2)
            assert sum("audited" in line and "run-7" in line for line in steward.log) >= 2, steward.log
            for number, ref in enumerate(refs):
                assert bytes(store.get(ref)["x"].tobytes()) == bytes([number]) * 100_000
    run(home, "audit", "--repair", *STORE)
    with tensorhold.open("run-7", **home.settings()) as store:
        assert all(found is not None for found in store.find([ref.sample for ref in refs]))


SLEEPER = """
import json, sys
import tensorhold
settings = json.loads(sys.argv[1])
store = tensorhold.open("run-7", **settings)
store.put("before", {"x": b"1" * 1000}, groups=["trainers"])
other = tensorhold.open("run-8", lazy=True, **settings)
print("open", flush=True)
for line in sys.stdin:
    name = line.strip()
    for one in (store, other):
        one.put(name, {"x": b"2" * 1000}, groups=["trainers"], timeout=30)
    print("put", flush=True)
"""


def test_a_process_that_slept_through_it_all_puts_where_everybody_looks(start_cluster: Callable[..., Cluster]) -> None:
    home, other = start_cluster(segment_mib=256), start_cluster(holders=0)
    command = [sys.executable, "-c", SLEEPER, json.dumps(home.settings())]
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY / "python")}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables) as early:
        assert early.stdin is not None and early.stdout is not None
        try:
            assert early.stdout.readline() == "open\n"
            early.send_signal(signal.SIGSTOP)
            with_b(home, other)
            deadline = time.monotonic() + 60
            while answer(home, "sessions", *STORE)["items"] and time.monotonic() < deadline:
                time.sleep(0.5)
            assert answer(home, "sessions", *STORE)["items"] == [], "it has slept past its session"
            # Begun while it slept, and not yet opened by it.
            with tensorhold.open("run-8", **home.settings()) as store:
                store.put("first", {"x": b"1"}, groups=["trainers"])
            early.send_signal(signal.SIGCONT)
            early.stdin.write("after\n")
            early.stdin.flush()
            assert early.stdout.readline() == "put\n"
        finally:
            early.kill()
    assert on(home) == {"home": ["run-7"], "b": ["run-8"]}
    for name, samples in (("run-7", ["before", "after"]), ("run-8", ["first", "after"])):
        with tensorhold.open(name, **home.settings()) as store:
            assert all(found is not None for found in store.find(samples)), name


@contextmanager
def restored(home: Cluster, snapshot: Path) -> Iterator[None]:
    """The home, restored to this snapshot, as docs/etcd-restore.md has it."""
    pid = home.pids["etcd-0"]
    command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    variables = dict(pair.split("=", 1) for pair in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in pair)
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes() == b"":
                break
        except FileNotFoundError:
            break
        time.sleep(0.05)
    data = next(one.split("=", 1)[1] for one in command if one.startswith("--data-dir"))
    names = ("--name", "--initial-cluster=", "--initial-advertise-peer-urls", "--initial-cluster-token")
    restore = [str(REPOSITORY / ".etcd/bin/etcdutl"), "snapshot", "restore", str(snapshot)]
    restore += ["--bump-revision", "1000000000", "--mark-compacted", "--data-dir", f"{data}.restored"]
    subprocess.run(restore + [one for one in command if one.startswith(names)], check=True, capture_output=True, timeout=60)
    again = [f"--data-dir={data}.restored" if one.startswith("--data-dir") else one for one in command]
    null = subprocess.DEVNULL
    with subprocess.Popen(again, env=variables, stdout=null, stderr=null) as process:
        try:
            yield
        finally:
            process.kill()


def test_a_restored_home_has_no_store_a_second_time(start_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    home, other = start_cluster(segment_mib=256), start_cluster(holders=0)
    with_b(home, other)
    with tensorhold.open("older-run", **home.settings()):
        pass
    snapshot = tmp_path / "home.db"
    save = [str(REPOSITORY / ".etcd/bin/etcdctl"), "--endpoints", home.etcd[0], "snapshot", "save", str(snapshot)]
    subprocess.run(save, check=True, capture_output=True, timeout=60)
    old = tensorhold.open("run-7", **home.settings())
    try:
        kept = old.put("kept", {"x": b"k" * 100_000}, groups=["trainers"])
        with restored(home, snapshot):
            # Its guard cannot ask b: no store begins, and those that the home knows open.
            os.kill(other.pids["etcd-0"], signal.SIGSTOP)
            assert "it knows these clusters: home, b" in run(home, "restore-guard", code=4)
            run(home, "restore-guard", "--yes", "--timeout", "20s", code=1)
            run(home, "clusters", "open", "home")
            run(home, "clusters", "close", "b")
            with pytest.raises(tensorhold.Unavailable, match="clusters check"):
                tensorhold.open("run-7", **home.settings())
            os.kill(other.pids["etcd-0"], signal.SIGCONT)
            deadline = time.monotonic() + 60
            while True:
                try:
                    assert "run-7 is on cluster b" in run(home, "clusters", "check")
                    break
                except AssertionError:
                    if time.monotonic() > deadline:
                        raise
            assert on(home)["b"] == ["older-run", "run-7"]
            with tensorhold.open("run-7", **home.settings()) as newer:
                [lease] = newer.take("trainers", timeout=20)
                assert lease.ref == kept
                assert bytes(lease.get()["x"].tobytes()) == b"k" * 100_000
                assert old.find(["kept"])[0] is not None, "both see one store"
            run(home, "audit", "--repair", *STORE)
            assert bytes(old.get(kept)["x"].tobytes()) == b"k" * 100_000
    finally:
        old.close()


def test_a_dead_cluster_keeps_nobody_from_the_others(start_cluster: Callable[..., Cluster]) -> None:
    home, other, dead = start_cluster(segment_mib=256), start_cluster(holders=0), start_cluster(holders=0)
    run(home, "clusters", "add", "dead", *dead.etcd)
    run(home, "clusters", "close", "dead")
    with_b(home, other)
    os.kill(dead.pids["etcd-0"], signal.SIGKILL)
    assert set(on(home)) == {"home", "b", "dead"}
    with tensorhold.open("run-7", **home.settings()) as store:
        store.put("s", {"x": b"1"}, groups=["g"])
        assert "close it first" in run(home, "clusters", "remove", "b", code=4)
        run(home, "clusters", "close", "b")
        assert "run-7" in run(home, "clusters", "remove", "b", code=4)
    assert answer(home, "clusters", "remove", "dead")["told"] is False
    assert set(on(home)) == {"home", "b"}


def test_a_new_store_never_begins_on_the_samples_of_another_index(start_cluster: Callable[..., Cluster]) -> None:
    home, theirs = start_cluster(segment_mib=256), start_cluster(segment_mib=64)
    with tensorhold.open("run-7", **theirs.settings()) as store:
        store.put("theirs", {"x": b"1"}, groups=["trainers"])
    assert "stores already" in run(home, "clusters", "add", "b", *theirs.etcd, code=2)
    with tensorhold.open("run-7", **theirs.settings()) as store:
        assert store.find(["theirs"])[0] is not None, "it is as it was"


def test_stores_are_used_while_clusters_come_and_go(start_cluster: Callable[..., Cluster]) -> None:
    home, other = start_cluster(segment_mib=256), start_cluster(holders=0)
    assert answer(home, "clusters")["clusters"] == [{"cluster": "home", "endpoints": home.etcd, "open": True, "stores": []}]
    assert "home itself" in run(home, "clusters", "add", "b", *home.etcd, code=2)
    used: list[str] = []
    failed: list[BaseException] = []

    def consume() -> None:
        try:
            with tensorhold.open("run-7", **home.settings()) as consumer:
                while len(used) < 40:
                    for lease in consumer.take("trainers", 4, timeout=10):
                        assert bytes(lease.get(as_="numpy")["x"]) == lease.sample.encode() * 100
                        lease.ack()
                        used.append(lease.sample)
        except BaseException as failure:  # told by the test itself
            failed.append(failure)

    with tensorhold.open("run-7", **home.settings()) as producer:
        thread = threading.Thread(target=consume)
        thread.start()
        for number in range(40):
            producer.put(f"sample-{number}", {"x": f"sample-{number}".encode() * 100}, groups=["trainers"])
            if number == 10:
                with_b(home, other)
        thread.join(60)
    assert not failed and not thread.is_alive(), failed
    assert sorted(used) == sorted(f"sample-{number}" for number in range(40))
    assert on(home) == {"home": ["run-7"], "b": []}
    run(home, "clusters", "close", "b")
    assert answer(home, "clusters", "remove", "b")["told"] is True
    assert set(on(home)) == {"home"}
