"""A program that uses SpecForge's Mooncake store, before and after the switch to Tensorhold."""

from __future__ import annotations

import os

import torch
from specforge.runtime.contracts import SampleRef
from specforge.runtime.data_plane.feature_store import FeatureStore
from specforge.runtime.data_plane.mooncake_store import MooncakeFeatureStore

import tensorhold
from examples.cluster import run, store_name
from tensorhold.specforge import TensorholdFeatureStore

SETUP = {
    "local_hostname": "127.0.0.1",
    "metadata_server": os.environ.get("TENSORHOLD_METADATA", "P2PHANDSHAKE"),
    "master_server_addr": os.environ.get("TENSORHOLD_MASTER", "127.0.0.1:50051"),
    "global_segment_size": 0,
    "local_buffer_size": 16 << 20,
}
"""What the program gave to SpecForge's store. It stays as it is: Tensorhold takes the same."""


def put(store: FeatureStore, name: str) -> SampleRef:
    """As a producer of SpecForge does."""
    tensors = {"hidden_states": torch.arange(64, dtype=torch.float32)}
    return store.put(tensors, sample_id=name, metadata={"run_id": "migration"})


def use(store: FeatureStore, ref: SampleRef) -> float:
    """As a trainer of SpecForge does: the release of the last handle frees the sample."""
    tensors, handle = store.get(ref)
    total = float(tensors["hidden_states"].sum())
    store.release(handle)
    return total


def refusal(store: FeatureStore, ref: SampleRef) -> str:
    """The error of a store that is asked for a sample which it does not have."""
    try:
        store.get(ref)
    except (KeyError, ValueError) as refused:
        return f"{type(refused).__name__}: {refused}"
    return "none"


def main() -> None:
    name = store_name("specforge")
    with tensorhold.open(name) as store:
        store.exists(["first"])
        print("1. the master and etcd answer")

    before = MooncakeFeatureStore(store_id=name, setup_kwargs=SETUP)
    print(f"2. on SpecForge's own store: put, get, release; the sum is {use(before, put(before, 'first')):.0f}")

    # The one line that changes. Under SpecForge's launchers it is `python -m tensorhold.specforge train` instead.
    with (
        TensorholdFeatureStore(store_id=name, setup_kwargs=SETUP) as after,
        TensorholdFeatureStore(store_id=name, setup_kwargs=SETUP) as elsewhere,
    ):
        print(f"3. on Tensorhold: the same calls; the sum is {use(after, put(after, 'first')):.0f}")

        ref = put(after, "second")
        elsewhere.abort("second", reason="not needed")
        print(f"4. a get of a sample that another process aborted:\n   {refusal(after, ref)}")

        print(f"5. a process on the old store gets a sample of Tensorhold:\n   {refusal(before, put(after, 'third'))}")
        print(f"   a process on Tensorhold gets a sample of the old store:\n   {refusal(after, put(before, 'theirs'))}")
        before.abort("theirs")
        put(after, "fourth")

    with tensorhold.open(name) as store:
        print(f"6. the run is over; samples that nobody released, now freed: {store.end()}")


if __name__ == "__main__":
    run(main)
