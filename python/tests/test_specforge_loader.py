"""SpecForge's own loader, on our store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch

pytest.importorskip("specforge", reason="the adapter is for specforge")

from specforge.runtime.data_plane.feature_dataloader import FeatureDataLoader
from specforge.runtime.data_plane.sample_ref_queue import SampleRefQueue

from tensorhold.specforge import TensorholdFeatureStore
from servers import Cluster

OpenFeatures = Callable[..., TensorholdFeatureStore]


@pytest.fixture
def open_features(cluster: Cluster, store_name: str) -> Iterator[OpenFeatures]:
    """Opens this test's store for SpecForge, as often as wanted: each is a member of its own, as a process would be."""
    with ExitStack() as opened:

        def features(**settings: Any) -> TensorholdFeatureStore:
            usual = {"pool_bytes": 128 << 20, "sweep_every": None, **cluster.settings(), **settings}
            return opened.enter_context(TensorholdFeatureStore(store_id=store_name, **usual))

        yield features


def tensors(n: int = 0) -> dict[str, torch.Tensor]:
    hidden = torch.arange(64, dtype=torch.float32).reshape(1, 8, 8) + n
    return {"hidden_states": hidden.to(torch.bfloat16), "input_ids": torch.arange(8).unsqueeze(0) + n}


def metadata(**more: Any) -> dict[str, Any]:
    return {"run_id": "run", "source_task_id": "task", "strategy": "eagle3", "num_tokens": 8, **more}


def test_specforges_loader_trains_on_it(open_features: OpenFeatures) -> None:
    features = open_features()
    queue = SampleRefQueue()
    queue.put([features.put(tensors(n), sample_id=f"s{n}", metadata=metadata()) for n in range(7)])
    loader = FeatureDataLoader(features, queue, batch_size=2, gc_interval_s=0.0)
    batches = list(loader)
    assert [batch.sample_ids for batch in batches] == [["s0", "s1"], ["s2", "s3"], ["s4", "s5"]]
    for at, batch in enumerate(batches):
        assert torch.equal(batch.tensors["input_ids"][1], tensors(2 * at + 1)["input_ids"])
    assert features.drain_pending_removals()["release_pending"] == 0
    health = features.health()
    assert (health["resident_samples"], health["active_leases"]) == (0, 0), "the odd one was aborted by the loader"


@pytest.mark.parametrize("workers", [0, 2])
def test_specforges_loader_goes_over_retained_samples_again(open_features: OpenFeatures, workers: int) -> None:
    features = open_features(retain_on_release=True)
    refs = [features.put(tensors(n), sample_id=f"s{n}", metadata=metadata()) for n in range(4)]
    loader = FeatureDataLoader(features, refs=refs, batch_size=2, num_workers=workers)
    for _ in range(2):
        seen = [batch.tensors["input_ids"][0] for batch in loader]
        assert [int(ids[0, 0]) for ids in seen] == [0, 2]
    assert features.health()["resident_samples"] == 4


def test_specforges_loader_prefetches_and_gives_back(open_features: OpenFeatures) -> None:
    features = open_features(retain_on_release=True)
    queue = SampleRefQueue()
    queue.put([features.put(tensors(n), sample_id=f"s{n}", metadata=metadata()) for n in range(6)])
    loader = FeatureDataLoader(features, queue, batch_size=2, num_workers=2)
    first = next(iter(loader))
    assert first.sample_ids == ["s0", "s1"]
    loader.close()
    assert queue.depth() + queue.in_flight() >= 4
    assert features.health()["active_leases"] == 0
