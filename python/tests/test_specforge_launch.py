"""SpecForge's launchers start other processes: Tensorhold is in all of them, and in no others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("specforge", reason="the adapter is for specforge")

from specforge.runtime.data_plane.mooncake_store import MooncakeFeatureStore

from tensorhold.specforge import TensorholdFeatureStore
from tensorhold.specforge._launch import HOOK, environment
from tensorhold.specforge._store import DRAINED_NEXT
from servers import REPOSITORY, Cluster

PACKAGE = str(REPOSITORY / "python")


def python(*arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with this PYTHONPATH, as a launcher's child is run."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": path}
    return subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True, timeout=300)


def test_the_hook_is_first_in_the_path_and_there_once() -> None:
    once = environment({"PYTHONPATH": f"/a{os.pathsep}/b"})
    assert once == {"PYTHONPATH": os.pathsep.join([str(HOOK), "/a", "/b"])}
    assert environment(once) == once
    assert environment({}) == {"PYTHONPATH": str(HOOK)}


def test_a_shell_is_told_the_variable() -> None:
    told = python("-m", "tensorhold.specforge", "env", path=PACKAGE)
    assert told.stdout == f"export PYTHONPATH={HOOK}{os.pathsep}{PACKAGE}\n", told.stderr


def test_a_process_with_the_hook_uses_tensorhold_and_runs_the_hidden_sitecustomize(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('another one')\n")
    ask = "from specforge.runtime.data_plane.mooncake_store import MooncakeFeatureStore as store; print(store.__module__)"
    told = python("-c", ask, path=os.pathsep.join([str(HOOK), str(tmp_path), PACKAGE]))
    assert told.stdout.split("\n")[:2] == ["another one", "tensorhold.specforge._store"], told.stderr


def test_other_programs_import_nothing_of_it() -> None:
    ask = "import sys; print([name for name in sys.modules if name.startswith(('tensorhold', 'torch', 'specforge'))])"
    assert python("-c", ask, path=os.pathsep.join([str(HOOK), PACKAGE])).stdout == "[]\n"


def test_a_process_without_tensorhold_ends_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "tensorhold.py").write_text("raise ImportError('not built')\n")
    told = python("-c", "import specforge.runtime.data_plane.mooncake_store", path=f"{HOOK}{os.pathsep}{tmp_path}")
    assert told.returncode != 0
    assert "Tensorhold cannot be imported here" in told.stderr


@pytest.mark.parametrize("backend", [None, "shared_dir", "mooncake"])
def test_a_run_that_would_not_use_mooncake_is_refused(tmp_path: Path, backend: str | None) -> None:
    where = {"control_dir": "/c", "backend": backend, "store_root": "/s", "producer_segment_size": 1}
    deployment = {"mode": "disaggregated", "disaggregated": where} if backend else {}
    run = {
        "run_id": "r",
        "output_dir": "/o",
        "model": {"target_model_path": "/t", "draft_model_config": "/d", "vocab_mapping_path": "/v"},
        "data": {"hidden_states_path": "/h"},
        "deployment": deployment,
    }
    (tmp_path / "run.json").write_text(json.dumps(run))
    told = python("-m", "tensorhold.specforge", "train", "-c", str(tmp_path / "run.json"), "--plan", path=PACKAGE)
    refused = "this run keeps no samples in Mooncake" in told.stderr
    assert refused == (backend != "mooncake"), told.stderr
    assert told.returncode != 0 or backend == "mooncake"


def tensors() -> dict[str, torch.Tensor]:
    return {"hidden_states": torch.arange(64, dtype=torch.float32)}


@pytest.fixture
def held(cluster: Cluster, store_name: str) -> Callable[..., TensorholdFeatureStore]:
    return lambda **settings: TensorholdFeatureStore(
        store_id=store_name, **{"pool_bytes": 64 << 20, **cluster.settings(), **settings}
    )


def test_a_mixed_run_is_refused_and_says_what_to_do(
    cluster: Cluster, store_name: str, held: Callable[..., TensorholdFeatureStore]
) -> None:
    setup = {
        "local_hostname": "127.0.0.1",
        "metadata_server": cluster.metadata,
        "master_server_addr": cluster.master,
        "global_segment_size": 0,
        "local_buffer_size": 16 << 20,
    }
    plain = MooncakeFeatureStore(store_id=store_name, setup_kwargs=setup)
    with held() as store:
        ours = store.put(tensors(), sample_id="ours", metadata={})
        with pytest.raises(ValueError, match="python -m tensorhold.specforge"):
            plain.get(ours)
        theirs = plain.put(tensors(), sample_id="theirs", metadata={})
        for retain in (False, True):
            with held(retain_on_release=retain) as reader, pytest.raises(KeyError, match="python -m tensorhold.specforge"):
                reader.get(theirs)
        plain.abort("theirs")


def test_a_retained_read_takes_no_lease(held: Callable[..., TensorholdFeatureStore]) -> None:
    with held(retain_on_release=True) as store:
        ref = store.put(tensors(), sample_id="s", metadata={})
        got, handle = store.get(ref)
        assert torch.equal(got["hidden_states"], tensors()["hidden_states"])
        (found,) = store._store.find(["s"])
        assert found is not None and found.readers == 0
        store.release(handle)
        store.get(ref)
        store.abort("s")
        with pytest.raises(KeyError):
            store.get(ref)


def test_the_samples_of_a_step_end_together_at_the_drain(held: Callable[..., TensorholdFeatureStore]) -> None:
    with held(retain_on_release=True) as store, held() as other:
        refs = [store.put(tensors(), sample_id=f"s{n}", metadata={}) for n in range(8)]
        names = [ref.sample_id for ref in refs]
        for name in names:
            store.abort(name, reason=DRAINED_NEXT)
        with pytest.raises(KeyError):
            store.get(refs[0])
        assert other._store.exists(names) == [True] * 8, "nothing was asked of the index yet"
        assert store.drain_sample_removals(names)["removed"] == 8
        assert other._store.exists(names) == [False] * 8
        with pytest.raises(KeyError):
            other.get(refs[0])


def test_what_specforges_main_branch_passes_and_calls(held: Callable[..., TensorholdFeatureStore]) -> None:
    new = {"receive_buffers": "pinned", "receive_pool_bytes": 64 << 20, "max_quarantined_bytes": 8 << 30, "pool_bytes": 64 << 20}
    with held(retain_on_release=True, **new) as store, held() as other:
        refs = [store.put(tensors(), sample_id=f"s{n}", metadata={}) for n in range(4)]
        for ref in refs:
            store.abort(ref.sample_id, reason=DRAINED_NEXT)
        told = store.retry_sample_removals([refs[0].sample_id])
        assert (told["removed"], told["remaining_ids"], told["release_pending"]) == (1, [], 0)
        with pytest.raises(KeyError):
            other.get(refs[3])
    with pytest.raises(ValueError, match="receive_buffers='cuda' is not supported"):
        held(receive_buffers="cuda")
    with pytest.raises(ValueError, match="nvlink"):
        held(setup_kwargs={"protocol": "nvlink"})


def test_a_store_is_ended_with_all_that_it_holds(held: Callable[..., TensorholdFeatureStore]) -> None:
    import tensorhold

    with held() as store:
        for n in range(300):
            store.put(tensors(), sample_id=f"s{n}", metadata={})
        with held() as other, pytest.raises(tensorhold.Conflict, match="other processes have this store open"):
            other._store.end()
        assert store._store.end() == 300
        assert store._store.find([f"s{n}" for n in range(300)]) == [None] * 300
        assert store._store.health()["pending_frees"] == 0
        assert store._store.end() == 0
