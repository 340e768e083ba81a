"""Three ways to pass on a sample: the bare engine, SpecForge's own store, and Tensorhold.

Each puts the same tensors on the same master, gets them back, and cleans up after itself. Only puts and gets are timed;
see ``features.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import torch
from mooncake.store import MooncakeDistributedStore, ReplicateConfig
from specforge.runtime.data_plane.mooncake_store import MooncakeFeatureStore

import tensorhold
from servers import Cluster

Sample = dict[str, torch.Tensor]

TIMEOUT_S: Final = 60.0
USUAL: Final[dict[str, Any]] = {"pool_bytes": 1 << 30, "warm_bytes": 512 << 20, "timeout": TIMEOUT_S}
"""The settings of our stores."""
HIDDEN: Final = 4096
"""The hidden size of Qwen3-8B."""


def eagle_sample(tokens: int) -> Sample:
    """The five tensors of an EAGLE-3 sample: 128 MiB at 4,096 tokens, 4 MiB at 128."""
    mask = torch.ones(1, tokens, dtype=torch.int64)
    return {
        "hidden_state": torch.randn(1, tokens, 3 * HIDDEN).to(torch.bfloat16),
        "target": torch.randn(1, tokens, HIDDEN).to(torch.bfloat16),
        "input_ids": torch.arange(tokens).unsqueeze(0),
        "loss_mask": mask,
        "attention_mask": mask.clone(),
    }


def nbytes(tensor: torch.Tensor) -> int:
    """The size of a tensor in bytes."""
    return tensor.numel() * tensor.element_size()


def same(got: Mapping[str, torch.Tensor], given: Sample) -> bool:
    """Whether exactly the given tensors came back."""
    return got.keys() == given.keys() and all(torch.equal(got[name], tensor) for name, tensor in given.items())


class Contender(Protocol):
    """One of the three. Slots are places for samples in flight; each has its own source tensors."""

    def prepare(self, slots: list[Sample]) -> None:
        """Registers the samples that will be put, before anything is timed."""

    def put(self, slot: int, name: str) -> Any:
        """Puts the sample of a slot under a name. Returns the location of the sample."""

    def get(self, slot: int, where: Any) -> Mapping[str, torch.Tensor]:
        """Gets it back."""

    def free(self, where: Any) -> None:
        """Frees a sample that was put."""

    def settle(self) -> None:
        """Waits until everything that was freed is gone."""

    def close(self) -> None:
        """Closes the contender."""


def setup_arguments(cluster: Cluster) -> dict[str, Any]:
    """The arguments with which Mooncake's own client reaches a cluster."""
    return {
        "local_hostname": "127.0.0.1",
        "metadata_server": cluster.metadata,
        "global_segment_size": 0,
        "local_buffer_size": 64 << 20,
        "protocol": "tcp",
        "rdma_devices": "",
        "master_server_addr": cluster.master,
    }


class Bare:
    """The engine's own batch calls, from and into registered memory that is allocated in advance."""

    def __init__(self, cluster: Cluster) -> None:
        self.client = MooncakeDistributedStore()
        check(self.client.setup(*setup_arguments(cluster).values()) == 0, "the engine's client did not set up")
        self.pinned = ReplicateConfig()
        self.pinned.with_hard_pin = True
        self.slots: list[tuple[Sample, Sample]] = []

    def touch_all_memory(self) -> None:
        """Fills the pool and empties it: the first write to a page costs twice as much as any later one."""
        block = torch.ones(64 << 20, dtype=torch.uint8)
        self.client.register_buffer(block.data_ptr(), nbytes(block))
        keys: list[str] = []
        while self.client.put_from(f"touch/{len(keys)}", block.data_ptr(), nbytes(block), self.pinned) == 0:
            keys.append(f"touch/{len(keys)}")
        check(len(keys) > 0 and not any(self.client.batch_remove(keys, True)), "the pool was not touched")
        self.client.unregister_buffer(block.data_ptr())

    def prepare(self, slots: list[Sample]) -> None:
        self._forget()
        self.slots = [(sample, {name: torch.zeros_like(t) for name, t in sample.items()}) for sample in slots]
        for tensor in self._memory():
            check(self.client.register_buffer(tensor.data_ptr(), nbytes(tensor)) == 0, "memory was not registered")

    def _memory(self) -> list[torch.Tensor]:
        return [tensor for slot in self.slots for sample in slot for tensor in sample.values()]

    def _forget(self) -> None:
        for tensor in self._memory():
            self.client.unregister_buffer(tensor.data_ptr())
        self.slots = []

    def put(self, slot: int, name: str) -> list[str]:
        source, _ = self.slots[slot]
        keys = [f"bare/{name}/{tensor}" for tensor in source]
        pointers = [tensor.data_ptr() for tensor in source.values()]
        sizes = [nbytes(tensor) for tensor in source.values()]
        check(not any(self.client.batch_put_from(keys, pointers, sizes, self.pinned)), "a bare put failed")
        return keys

    def get(self, slot: int, where: list[str]) -> Mapping[str, torch.Tensor]:
        _, target = self.slots[slot]
        pointers = [tensor.data_ptr() for tensor in target.values()]
        sizes = [nbytes(tensor) for tensor in target.values()]
        check(list(self.client.batch_get_into(where, pointers, sizes)) == sizes, "a bare get failed")
        return target

    def free(self, where: list[str]) -> None:
        check(not any(self.client.batch_remove(where, True)), "a bare remove failed")

    def settle(self) -> None:
        pass

    def close(self) -> None:
        self._forget()
        self.client.close()


class SpecForge:
    """SpecForge's own store, unmodified."""

    def __init__(self, cluster: Cluster, bare: Bare) -> None:
        self.features = MooncakeFeatureStore(store_id="specforge", setup_kwargs=setup_arguments(cluster))
        self.bare = bare
        self.slots: list[Sample] = []
        self.handles: dict[str, Any] = {}

    def prepare(self, slots: list[Sample]) -> None:
        self.slots = slots

    def put(self, slot: int, name: str) -> Any:
        return self.features.put(self.slots[slot], sample_id=name, metadata={"run_id": "bench", "strategy": "eagle3"})

    def get(self, slot: int, where: Any) -> Mapping[str, torch.Tensor]:
        tensors, self.handles[where.sample_id] = self.features.get(where)
        return dict(tensors)

    def free(self, where: Any) -> None:
        if where.sample_id in self.handles:
            self.features.release(self.handles.pop(where.sample_id))
        else:  # it was not read
            self.features.abort(where.sample_id)
        # The store's own removal waits for the engine's lease on objects that were read; the next turn needs the room
        # now.
        generation = where.metadata["generation"]
        keys = [f"specforge/{where.sample_id}/g{generation}/{tensor}" for tensor in where.feature_keys]
        self.bare.client.batch_remove(keys, True)

    def settle(self) -> None:
        pass

    def close(self) -> None:
        pass  # it has no way to close


class Tensorhold:
    """Tensorhold from Python: tensors in, by pointer; tensors out, in memory of the pool, including lease and checks."""

    def __init__(self, cluster: Cluster, name: str, **settings: Any) -> None:
        self.store = tensorhold.open(f"bench-{name}", **{**USUAL, **cluster.settings(), **settings})
        self.slots: list[Sample] = []

    def prepare(self, slots: list[Sample]) -> None:
        self.slots = slots

    def put(self, slot: int, name: str) -> tensorhold.SampleRef:
        return self.store.put(name, self.slots[slot], groups=())

    def get(self, slot: int, where: tensorhold.SampleRef) -> Mapping[str, torch.Tensor]:
        return self.store.get(where, as_="torch")

    def free(self, where: tensorhold.SampleRef) -> None:
        self.store.retire(where)

    def settle(self) -> None:
        self.store.drain()

    def close(self) -> None:
        self.store.close()


class Pipeline:
    """A producer that keeps several puts of Tensorhold in flight, through a writer."""

    def __init__(self, cluster: Cluster, in_flight: int) -> None:
        self.in_flight = in_flight
        self._store = tensorhold.open("bench-pipeline", **{**USUAL, **cluster.settings()})

    def put(self, samples: Sequence[tuple[str, Sample]]) -> None:
        """Puts samples. Returns when all of them are visible to all processes."""
        with self._store.writer(in_flight=self.in_flight) as writer:
            for name, sample in samples:
                writer.put(name, sample, groups=())

    def free(self, names: Sequence[str]) -> None:
        """Frees samples that were put, and waits until they are gone."""
        refs = [found.ref for found in self._store.find(names) if found is not None]
        check(len(refs) == len(names), "a sample is missing")
        answers = self._store.retire_many(refs)
        check(not any(isinstance(answer, tensorhold.TensorholdError) for answer in answers), "a sample was not retired")
        self._store.drain()

    def close(self) -> None:
        self._store.close()


def check(holds: bool, what: str) -> None:
    """Raises if a step failed: benchmarking something that does not work is worthless."""
    if not holds:
        raise RuntimeError(what)
