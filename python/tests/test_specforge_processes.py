"""What one process does to a sample, another sees: through our store, on a real cluster."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch

pytest.importorskip("specforge", reason="the adapter is for specforge")

from specforge.runtime.contracts import SampleRef
from specforge.runtime.data_plane.ref_serialization import ref_to_dict

from tensorhold.specforge import TensorholdFeatureStore
from servers import REPOSITORY, Cluster

OpenFeatures = Callable[..., TensorholdFeatureStore]

IN_ANOTHER_PROCESS = """
import json, sys
from tensorhold.specforge import TensorholdFeatureStore
from specforge.runtime.data_plane.ref_serialization import ref_from_dict
name, settings, ref, act = sys.argv[1], json.loads(sys.argv[2]), ref_from_dict(json.loads(sys.argv[3])), sys.argv[4]
with TensorholdFeatureStore(store_id=name, sweep_every=None, **settings) as store:
    if act == "abort":
        store.abort(ref.sample_id, reason="elsewhere")
    elif act == "use":
        tensors, handle = store.get(ref)
        store.release(handle)
    elif act == "die reading":
        store.get(ref)
        import os
        os._exit(0)
"""


@pytest.fixture
def open_features(cluster: Cluster, store_name: str) -> Iterator[OpenFeatures]:
    """Opens this test's store for SpecForge, as often as wanted: each is a member of its own, as a process would be."""
    with ExitStack() as opened:

        def features(**settings: Any) -> TensorholdFeatureStore:
            usual = {"pool_bytes": 128 << 20, "sweep_every": None, **cluster.settings(), **settings}
            return opened.enter_context(TensorholdFeatureStore(store_id=store_name, **usual))

        yield features


@pytest.fixture
def elsewhere(cluster: Cluster, store_name: str) -> Callable[..., None]:
    """Does something with a sample in another process."""

    def act(what: str, ref: SampleRef, **settings: Any) -> None:
        given = json.dumps({**cluster.settings(), **settings})
        command = [sys.executable, "-c", IN_ANOTHER_PROCESS, store_name, given]
        subprocess.run(
            [*command, json.dumps(ref_to_dict(ref)), what],
            check=True,
            timeout=120,
            env={"PYTHONPATH": str(REPOSITORY / "python")},
        )

    return act


def tensors(n: int = 0) -> dict[str, torch.Tensor]:
    hidden = torch.arange(64, dtype=torch.float32).reshape(1, 8, 8) + n
    return {"hidden_states": hidden.to(torch.bfloat16), "input_ids": torch.arange(8).unsqueeze(0) + n}


def test_a_reader_that_dies_keeps_nothing_for_ever(
    open_features: OpenFeatures, elsewhere: Callable[..., None]
) -> None:
    index = {"session_ttl": 2.0, "tick": 0.2, "grace_ticks": 2}  # it is soon noticed
    features = open_features(sweep_every=0.2, index=index)
    ref = features.put(tensors(), sample_id="a", metadata={})
    _, handle = features.get(ref)
    elsewhere("die reading", ref, index=index)
    features.release(handle)
    assert_within(30, lambda: features.gc()["force_freed"] == 1)
    with pytest.raises(KeyError):
        features.get(ref)


def assert_within(seconds: float, holds: Callable[[], bool]) -> None:
    until, pause = time.monotonic() + seconds, threading.Event()
    while not holds():
        assert time.monotonic() < until, "it did not come to hold in time"
        pause.wait(0.2)


@pytest.mark.parametrize("act", ["abort", "use"])
def test_what_another_process_ends_is_a_key_error_here(
    open_features: OpenFeatures, elsewhere: Callable[..., None], act: str
) -> None:
    features = open_features()
    ref = features.put(tensors(), sample_id="a", metadata={})
    if act == "abort":  # SpecForge's own suite has this one as a known gap: an abort under a reader of another process
        _, handle = features.get(ref)
    elsewhere(act, ref)
    with pytest.raises(KeyError):
        features.get(ref)
    if act == "abort":
        features.release(handle)
    features.abort("a", reason="again")
    assert features.health()["resident_samples"] == 0
