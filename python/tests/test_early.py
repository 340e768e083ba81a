"""References that carry a description, samples got together, and samples read ahead."""

from __future__ import annotations

import asyncio
import json
import pickle
from typing import Any

import pytest
import torch

import tensorhold
from conftest import OpenStore
from tensorhold import FeatureStore, GroupProgress, TensorholdError, SampleRef
from tensorhold import aio
from servers import Cluster
from waiting import until


def sample(n: int = 0) -> dict[str, torch.Tensor]:
    return {"x": torch.full((64,), n), "y": torch.arange(n + 1)}


def check(got: Any, n: int) -> None:
    assert got.keys() == {"x", "y"} and all(torch.equal(got[name], tensor) for name, tensor in sample(n).items())


def forged(ref: SampleRef, **fields: Any) -> SampleRef:
    assert ref.description is not None
    description = {**json.loads(ref.description), **fields}
    return SampleRef(ref.sample, ref.generation, json.dumps(description).encode())


def test_a_reference_carries_the_description_wherever_it_goes(store: FeatureStore) -> None:
    ref = store.put("a", sample(1), groups=["g"])
    assert ref.description is not None and "description" not in repr(ref)
    (found,), (lease,) = store.find(["a"]), store.take("g")
    assert found is not None and found.ref.description == lease.ref.description == ref.description
    for other in (pickle.loads(pickle.dumps(ref)), SampleRef.from_dict(json.loads(json.dumps(ref.to_dict())))):
        assert other == ref and other.description == ref.description
        check(store.get(other, as_="torch"), 1)
    # As an earlier release pickled it.
    earlier = SampleRef.__new__(SampleRef)
    earlier.__dict__.update({"sample": "a", "generation": ref.generation})
    assert earlier == ref and earlier.description is None
    check(store.get(earlier, as_="torch"), 1)
    many = store.put("many", {f"t{n}": torch.zeros(1) for n in range(100)}, groups=())
    assert many.description is None, "too long"
    assert len(store.get(many)) == 100


def test_what_a_reference_carries_is_never_believed(store: FeatureStore) -> None:
    ref = store.put("a", sample(1), groups=())
    assert ref.description is not None
    shape = ref.description.replace(b'"shape":[64]', b'"shape":[8,8]')
    kind = ref.description.replace(b"int64", b"float64")
    assert shape != ref.description != kind
    for carried in (shape, kind, b"", b"{}", b"\xff\x00", forged(ref, nonce=7).description, forged(ref, v=2).description):
        check(store.get(SampleRef("a", ref.generation, carried), as_="torch"), 1)
    with store.lease_shared(ref):  # keeps the bytes
        later = store.put("a", sample(2), groups=())
        with pytest.raises(tensorhold.Fenced):
            store.get(ref)
        with pytest.raises(tensorhold.Fenced):
            store.lease_get(ref)
        check(store.get(SampleRef("a", later.generation, ref.description), as_="torch"), 2)
    store.abort("a")
    for gone in (ref, later):
        with pytest.raises(tensorhold.NotFound):
            store.get(gone)


def test_a_reader_and_its_tensors_come_together(store: FeatureStore, open_store: OpenStore) -> None:
    ref = store.put("a", sample(1), groups=())
    for what in (ref, "a", SampleRef("a", ref.generation)):
        lease, tensors = store.lease_get(what, ["x"], as_="torch")
        assert tensors.keys() == {"x"} and torch.equal(tensors["x"], sample(1)["x"])
        (found,) = store.find(["a"])
        assert found is not None and found.readers == 1 and lease.ref == ref and lease.group is None
        lease.release()
    with pytest.raises(tensorhold.NotFound, match="no tensor"):
        store.lease_get(ref, ["other"])
    with pytest.raises(KeyError):
        store.lease_get("other")


def test_samples_are_got_together_and_each_has_its_own_result(store: FeatureStore) -> None:
    refs = [store.put(f"s{n}", sample(n), groups=["g"]) for n in range(4)]
    lease = store.lease(refs[3], "g")
    store.abort("s2")
    results = store.get_many([refs[0], "s1", refs[2], lease, "none"], as_="torch")
    for n, result in enumerate(results):
        if n in (2, 4):
            assert isinstance(result, tensorhold.NotFound)
        else:
            assert not isinstance(result, TensorholdError)
            check(result, n)
    (only,) = store.get_many(refs[:1], ["y"], as_="numpy")
    assert not isinstance(only, TensorholdError) and only["y"].tolist() == [0]
    assert store.get_many([]) == []


def test_a_stream_brings_every_sample_with_its_tensors(store: FeatureStore) -> None:
    for n in range(10):
        store.put(f"s{n}", sample(n), groups=["g"])
    seen = []
    for lease, tensors in store.stream("g", prefetch=3, as_="torch", idle=0.5):
        with lease:
            check(tensors, int(lease.sample[1:]))
            seen.append(lease.sample)
    assert sorted(seen) == [f"s{n}" for n in range(10)]
    store.drain()
    assert store.exists(seen) == [False] * 10


def test_a_stream_that_is_left_gives_back_what_nobody_used(store: FeatureStore) -> None:
    for n in range(6):
        store.put(f"s{n}", sample(n), groups=["g"])
    with store.stream("g", prefetch=3, idle=5) as stream:
        lease, _ = next(stream)
        lease.nack()
        used = lease.sample
    samples = [f"s{n}" for n in range(6)]
    given_back = [GroupProgress("waiting", int(sample == used)) for sample in samples]
    # The calls under way end by themselves, and give back what they have taken when they do.
    until("it gives back", lambda: [found and found.groups["g"] for found in store.find(samples)] == given_back)
    with pytest.raises(StopIteration):
        next(stream)
    with pytest.raises(tensorhold.Invalid):
        store.stream("g", prefetch=0)


def test_a_stream_goes_on_after_a_sample_that_cannot_be_got(store: FeatureStore) -> None:
    store.put("a", sample(1), groups=["g"], max_attempts=1)
    with store.stream("g", ["z"], prefetch=1, idle=0.5) as stream:
        with pytest.raises(tensorhold.NotFound, match="no tensor"):
            next(stream)
        assert next(stream, None) is None


def test_the_asyncio_face_has_the_same(cluster: Cluster, store_name: str) -> None:
    async def run() -> None:
        async with await aio.open(store_name, **cluster.settings(), pool_bytes=64 << 20, sweep_every=None) as store:
            refs = [await store.put(f"s{n}", sample(n), groups=["g"]) for n in range(5)]
            check(await store.get(refs[4], as_="torch"), 4)
            first, second = await store.get_many(refs[:2], as_="torch")
            check(first, 0)
            check(second, 1)
            lease, tensors = await store.lease_get(refs[2], as_="torch")
            check(tensors, 2)
            await lease.release()
            seen = set()
            async with store.stream("g", prefetch=2, as_="torch", idle=0.5) as stream:
                async for lease, tensors in stream:
                    async with lease:
                        check(tensors, int(lease.sample[1:]))
                        seen.add(lease.sample)
            assert len(seen) == 5

    asyncio.run(run())
