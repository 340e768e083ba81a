"""SpecForge's own constructor arguments: each is honoured, or refused with its reason. On a real cluster."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from specforge.runtime.data_plane.mooncake_store import MooncakeFeatureStore

import tensorhold
from conftest import OpenStore
from tensorhold.specforge import TensorholdFeatureStore
from servers import REPOSITORY, Cluster, toml


def usual(cluster: Cluster) -> dict[str, Any]:
    return {"pool_bytes": 16 << 20, "sweep_every": None, **cluster.settings()}


def test_it_takes_every_argument_that_specforges_store_takes_with_the_same_default() -> None:
    theirs = inspect.signature(MooncakeFeatureStore.__init__).parameters
    ours = inspect.signature(TensorholdFeatureStore.__init__).parameters
    missing = [name for name in theirs if name not in ours]
    assert not missing, f"SpecForge's store takes {missing}; decide what they mean here"
    other = [name for name, one in theirs.items() if one.default != ours[name].default]
    assert not other, f"the defaults of {other} are not SpecForge's"


def test_copies_are_kept_as_replica_num_says(cluster: Cluster, store_name: str) -> None:
    with TensorholdFeatureStore(store_id=store_name, replica_num=2, max_release_attempts=5, **usual(cluster)) as features:
        assert features._store.settings.features["replicas"] == 2
        ref = features.put({"x": torch.ones(8)}, sample_id="a", metadata={})
        assert torch.equal(features.get(ref)[0]["x"], torch.ones(8))
    for wrong in ({"replica_num": 0}, {"max_release_attempts": 0}):
        with pytest.raises(ValueError):
            TensorholdFeatureStore(store_id=store_name, **wrong, **usual(cluster))  # type: ignore[arg-type]


def test_an_unpinned_store_is_refused_with_its_reason(cluster: Cluster, store_name: str, open_store: OpenStore) -> None:
    with pytest.raises(ValueError, match="hard_pin.*max_resident_bytes"):
        TensorholdFeatureStore(store_id=store_name, hard_pin=False, **usual(cluster))
    with pytest.raises(ValueError, match="already"):
        TensorholdFeatureStore(store=open_store(), replica_num=2)


def test_a_client_of_mooncakes_can_be_brought_along(cluster: Cluster, store_name: str) -> None:
    script = """
        import json, sys
        import torch
        from mooncake.store import MooncakeDistributedStore
        from tensorhold.specforge import TensorholdFeatureStore

        name, settings = sys.argv[1], json.loads(sys.argv[2])
        client = MooncakeDistributedStore()
        assert client.setup("127.0.0.1", settings["metadata"], 0, 16 << 20, "tcp", "", settings["master"]) == 0
        with TensorholdFeatureStore(store_id=name, store=client, **settings) as features:
            ref = features.put({"x": torch.arange(8)}, sample_id="a", metadata={})
            assert torch.equal(features.get(ref)[0]["x"], torch.arange(8))
        client.close()
    """
    ended = run(script, store_name, json.dumps(usual(cluster)), env=cluster.client_env)
    assert ended.returncode == 0, ended.stderr


def test_settings_that_launchers_cannot_pass_come_from_the_environment(
    cluster: Cluster, store_name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = {
        **cluster.settings(),
        "timeout": 17.0,
        "budget": 1 << 20,
        "external_sample_bytes": 4096,
        "features": {"chunk_bytes": 1 << 20},
        "pool_bytes": 16 << 20,
    }
    file = tmp_path / "tensorhold.toml"
    monkeypatch.setenv("TENSORHOLD_CONFIG", str(file))
    file.write_text(toml(told))
    monkeypatch.setenv("TENSORHOLD_POOL_BYTES", "32MiB")  # a variable counts more than the file
    with TensorholdFeatureStore(store_id=store_name, replica_num=1, sweep_every=None) as features:
        settings = features._store.settings
        assert (settings.timeout, settings.budget, settings.pool_bytes) == (17.0, 1 << 20, 32 << 20)
        assert settings.features == {"replicas": 1, "chunk_bytes": 1 << 20} and settings.sweep_every is None
        assert features.max_resident_bytes == 1 << 20
    for text, why in (("password = 'secret", "no TOML"), ("tiemout = 'secret'", "timeout"), (None, "cannot be read")):
        file.unlink() if text is None else file.write_text(text)
        with pytest.raises(ValueError, match=why) as caught:
            TensorholdFeatureStore(store_id=store_name)
        assert "secret" not in str(caught.value)


PRODUCER = """
    import json, os, signal, sys
    import torch
    from tensorhold.specforge import TensorholdFeatureStore

    name, how, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    setup = {"global_segment_size": 64 << 20, "local_buffer_size": 16 << 20}
    features = TensorholdFeatureStore(store_id=name, setup_kwargs=setup, **settings)
    for n in range(16):
        features.put({"x": torch.full((1 << 20,), n, dtype=torch.uint8)}, sample_id=f"s{n}", metadata={})
    print("put", flush=True)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    features.close()
"""


def run(script: str, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(part for part in sys.path if part)
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, **(env or {}), "PYTHONPATH": path},
    )


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_samples_of_a_process_that_was_to_lend_a_segment_outlive_it(
    start_cluster: Callable[..., Cluster], how: str
) -> None:
    cluster = start_cluster(segment_mib=64)
    ended = run(PRODUCER, "run", how, json.dumps(usual(cluster)))
    assert "put" in ended.stdout, ended.stderr
    assert ended.returncode == (-signal.SIGKILL if how == "killed" else 0)
    with tensorhold.open("run", **usual(cluster)) as store:
        lost = []
        for n in range(16):
            try:
                assert store.get(f"s{n}")["x"].tobytes() == bytes([n]) * (1 << 20)
            except tensorhold.TensorholdError as error:
                lost.append((n, str(error)))
        assert not lost, f"{len(lost)} of 16 samples went with the process that put them: {lost[0]}"
    assert "global_segment_size=67108864 is not lent" in ended.stderr


def test_a_cluster_without_memory_is_refused_with_the_command_that_mends_it(
    start_cluster: Callable[..., Cluster],
) -> None:
    cluster = start_cluster(holders=0)
    with pytest.raises(MemoryError) as caught:
        TensorholdFeatureStore(store_id="run", **usual(cluster))
    text = str(caught.value)
    assert "no memory" in text and cluster.master in text
    command = text[text.index("mooncake_client") : text.index("32GB")].split()
    command[-1] = command[-1] + "64MB"
    command = [part.replace("NAME_OF_THAT_HOST", "127.0.0.1") for part in command]
    program = REPOSITORY / ".venv" / "bin" / command[0]
    holder = subprocess.Popen(
        [str(program), *command[1:], "--port=0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **cluster.client_env},
    )
    try:
        for _ in range(60):
            try:
                features = TensorholdFeatureStore(store_id="run", **usual(cluster))
                break
            except MemoryError:
                assert holder.poll() is None, "the holder ended"
                time.sleep(0.5)
        else:
            raise AssertionError("the holder did not join")
        with features:
            ref = features.put({"x": torch.ones(8)}, sample_id="a", metadata={})
            assert torch.equal(features.get(ref)[0]["x"], torch.ones(8))
    finally:
        holder.kill()
        holder.wait(30)


def test_a_store_lends_no_memory(cluster: Cluster, store_name: str) -> None:
    with pytest.raises(tensorhold.Invalid, match="goes with the process.*mooncake_client"):
        tensorhold.open(store_name, **{**cluster.settings(), "engine": {"segment_bytes": 1 << 30}})
