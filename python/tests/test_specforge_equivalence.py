"""The same calls, made to SpecForge's in-process store and to ours, have the same outcomes.

What is compared: which gets succeed and with which bytes, which raise KeyError, and how many samples and readers there
are after each call. References and handles of each store stay with that store.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

pytest.importorskip("specforge", reason="the adapter is for specforge")

from specforge.runtime.contracts import FeatureHandle, SampleRef
from specforge.runtime.data_plane.feature_store import FeatureStore, LocalFeatureStore

from conftest import OpenStore
from tensorhold.specforge import TensorholdFeatureStore

SAMPLES = ["a", "b", "c"]
STEPS = 120


class Side:
    """One of the two stores, with what was got from it, by order."""

    def __init__(self, store: FeatureStore) -> None:
        self.store = store
        self.refs: list[SampleRef] = []
        self.handles: list[FeatureHandle] = []

    def put(self, sample: str, value: int) -> Any:
        tensors = {"x": torch.full((3, 2), value), "y": torch.full((value % 5,), value, dtype=torch.bfloat16)}
        meta = {"run_id": "r", "num_tokens": value, "target_repr": "logits"}
        ref = self.store.put(tensors, sample_id=sample, metadata=meta)
        self.refs.append(ref)
        ours = ("generation", "tensorhold_description")
        carried = {name: value for name, value in ref.metadata.items() if name not in ours}
        return ref.feature_keys, ref.feature_specs, ref.estimated_bytes, ref.num_tokens, ref.strategy, carried

    def get(self, at: int, names: list[str] | None) -> Any:
        try:
            tensors, handle = self.store.get(self.refs[at], names=names)
        except KeyError:
            return KeyError
        self.handles.append(handle)
        return {name: (tensor.dtype, tensor.tolist()) for name, tensor in tensors.items()}

    def release(self, at: int) -> None:
        self.store.release(self.handles[at], reason="loaded")

    def abort(self, sample: str) -> None:
        self.store.abort(sample, reason="test")

    def counts(self) -> Any:
        health = self.store.health()
        return [health[name] for name in ("resident_samples", "resident_bytes", "active_leases", "release_pending")]


@pytest.mark.parametrize("seed", range(4))
def test_outcomes_are_those_of_the_local_store(open_store: OpenStore, seed: int) -> None:
    rng = random.Random(seed)
    ours = open_store()
    sides = [Side(LocalFeatureStore()), Side(TensorholdFeatureStore(store=ours))]
    for step in range(STEPS):
        act, sample = rng.choice(["put", "get", "get", "get", "release", "release", "abort"]), rng.choice(SAMPLES)
        recent = rng.randrange(1, 5)
        names = rng.choice([None, None, ["y"], ["y", "x"], ["missing"]])
        handles = len(sides[0].handles)
        results: list[Any] = []
        for side in sides:
            if act == "put" or not side.refs:
                results.append(side.put(sample, step))
            elif act == "get":
                results.append(side.get(-min(recent, len(side.refs)), names))
            elif act == "release" and handles:
                side.release(-min(recent, handles))
            elif act == "abort" and step % 3 == 0:
                side.abort(sample)
        assert results[:1] == results[1:], f"step {step}: {act} {sample}"
        ours.drain()
        assert sides[0].counts() == sides[1].counts(), f"after step {step}: {act} {sample}"
    assert len(sides[0].handles) >= 8, "the sequence says something"
