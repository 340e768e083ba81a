"""The console script: the command inside the extension module, with the package's engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import tensorhold
from servers import REPOSITORY, Cluster
from steward import WITHIN_S, running_steward
from waiting import until


def run(cluster: Cluster | None, *arguments: str, code: int = 0, more: dict[str, str] | None = None) -> str:
    """Runs the command, and returns what it prints."""
    variables = {**os.environ, **(cluster.variables() if cluster else {}), **(more or {})}
    variables["PYTHONPATH"] = str(REPOSITORY / "python")
    command = [sys.executable, "-m", "tensorhold", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env=variables)
    assert ran.returncode == code, (ran.stdout, ran.stderr)
    return ran.stdout if code == 0 else ran.stderr


def answer(cluster: Cluster | None, *arguments: str) -> Any:
    return json.loads(run(cluster, *arguments, "--json"))


def test_a_sample_is_seen_explained_and_removed(cluster: Cluster) -> None:
    with tensorhold.open("command", role="trainer-3", **cluster.settings()) as store:
        store.put("sample-1", {"x": b"committed"}, groups=["g"])
        named = ("--store", "command")
        assert answer(cluster, "status", *named)["items"][0]["samples"]["live"] == 1
        [record] = answer(cluster, "ls", *named)["items"]
        assert (record["sample"], record["state"], record["producer"]["role"]) == ("sample-1", "live", "trainer-3")
        [why] = answer(cluster, "why", "sample-1", *named)["items"]
        assert why["objects"]["items"][0]["dram_copies"] == 1
        assert [event["what"].split()[0] for event in why["history"]] == ["reserved", "committed"]
        assert "other processes have this store open" in run(cluster, "end", *named, code=4)
        # With the engine: the bytes are gone when the command returns.
        assert answer(cluster, "rm", "sample-1", *named)["items"][0]["outcome"] == "removed"
        assert store.find(["sample-1"]) == [None]
    assert answer(cluster, "end", *named)["ended"] == 0


def test_a_wrong_command_line_is_code_2(cluster: Cluster) -> None:
    assert "unrecognized subcommand" in run(cluster, "lss", code=2)


def test_up_serves_a_program_and_down_ends_it(tmp_path: Path) -> None:
    folder = ("--dir", str(tmp_path / "state"))
    etcd = str(REPOSITORY / ".etcd/bin")
    path = {"PATH": etcd + os.pathsep + os.environ["PATH"]}
    try:
        started = json.loads(run(None, "up", "--memory", "64MiB", *folder, "--json", more=path))
        assert started["state"] == "started" and all(process["running"] for process in started["processes"])
        at = started["endpoints"]
        with tensorhold.open("first", master=at["master"], admin=at["admin"], metadata=at["metadata"], etcd=at["etcd"]) as store:
            store.put("sample-1", {"x": b"committed"}, groups=["g"])
            assert "group g waits for it" in run(None, "why", "sample-1", *folder)
    finally:
        ended = json.loads(run(None, "down", *folder, "--json"))
    assert ended["ended"] == ["holder", "master", "etcd"]


def test_a_steward_finds_a_store_looks_after_it_and_stops(cluster: Cluster) -> None:
    with running_steward(cluster, {"look_every": "200ms"}) as steward:
        until("it is ready", steward.ready, WITHIN_S)
        with tensorhold.open("found", sweep_every=None, **cluster.settings()) as store:
            # Nobody but the steward sweeps this store: it has begun after the steward.
            until("it looks after the store", lambda: steward.ask("/v1/stores/found")[0] == 200, WITHIN_S)
            until("it sweeps", lambda: bool(steward.value("/v1/stores/found")["sweeps"]), WITHIN_S)
            assert steward.value("/v1/stores/found")["on_duty"]
            store.put("sample-1", {"x": b"committed"}, groups=["g"])
            assert steward.value("/v1/etcd")[0]["trouble"] is None
        assert json.loads(steward.stop()) == {"state": "stopped"}
        assert steward.process.returncode == 0
    assert any("looking after a store" in line for line in steward.log), steward.log


def test_a_steward_waits_for_its_cluster() -> None:
    nobody = "http://127.0.0.1:1"
    nowhere = Cluster("127.0.0.1:1", "P2PHANDSHAKE", [nobody], [nobody], client_env={}, pids={}, logs={})
    with running_steward(nowhere) as steward:
        status, text = steward.ask("/readyz")
        assert status == 503 and "cannot be listed" in text, (status, text)
        assert steward.ask("/healthz")[0] == 200
        steward.stop()
        assert steward.process.returncode == 0


def test_a_token_opens_the_interface_of_its_store_only(cluster: Cluster) -> None:
    made = answer(None, "token", "ops", "--store", "first-store", "--valid", "1h")
    options = {"stores": [{"store": "first-store"}, {"store": "second"}], "http": {"tokens": [made["entry"]]}}
    with running_steward(cluster, options, token=made["token"]) as steward:
        until("it is ready", steward.ready, WITHIN_S)
        assert steward.ask("/v1/stores/first-store")[0] == 200
        assert steward.ask("/v1/stores/second")[0] == 403
        assert steward.ask("/v1/stores/first-store/sweep", method="POST")[0] == 403, "it may only look"
        assert steward.ask("/v1/stores/first-store", token="th_another")[0] == 401
    assert made["token"] not in "".join(steward.log)


def test_a_benchmark_leaves_nothing(cluster: Cluster) -> None:
    measured = answer(cluster, "bench", "--samples", "5", "--bytes", "64KiB")
    assert [step["step"] for step in measured["steps"]][:4] == ["put", "take", "get", "ack"]
    assert all(step["median_ms"] > 0 for step in measured["steps"]), measured
    left = answer(cluster, "status")["items"]
    assert not [store for store in left if store["store"].startswith("bench-")], left
