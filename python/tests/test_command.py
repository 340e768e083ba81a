"""The console script: the command inside the extension module, with the package's engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import holdfast
from servers import REPOSITORY, Cluster


def run(cluster: Cluster | None, *arguments: str, code: int = 0, more: dict[str, str] | None = None) -> str:
    """Runs the command, and returns what it prints."""
    variables = {**os.environ, **(cluster.variables() if cluster else {}), **(more or {})}
    variables["PYTHONPATH"] = str(REPOSITORY / "python")
    command = [sys.executable, "-m", "holdfast", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env=variables)
    assert ran.returncode == code, (ran.stdout, ran.stderr)
    return ran.stdout if code == 0 else ran.stderr


def answer(cluster: Cluster | None, *arguments: str) -> Any:
    return json.loads(run(cluster, *arguments, "--json"))


def test_a_sample_is_seen_explained_and_removed(cluster: Cluster) -> None:
    with holdfast.open("command", role="trainer-3", **cluster.settings()) as store:
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
        with holdfast.open("first", master=at["master"], admin=at["admin"], metadata=at["metadata"], etcd=at["etcd"]) as store:
            store.put("sample-1", {"x": b"committed"}, groups=["g"])
            assert "group g waits for it" in run(None, "why", "sample-1", *folder)
    finally:
        ended = json.loads(run(None, "down", *folder, "--json"))
    assert ended["ended"] == ["holder", "master", "etcd"]
