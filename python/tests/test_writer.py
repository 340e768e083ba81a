"""Writers: several puts in flight, and what failed, by sample."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
import torch

import tensorhold
from tensorhold import aio
from servers import Cluster


@pytest.fixture
def store(cluster: Cluster, store_name: str) -> Iterator[tensorhold.FeatureStore]:
    with tensorhold.open(store_name, **cluster.settings(), pool_bytes=64 << 20, sweep_every=None) as opened:
        yield opened


@pytest_asyncio.fixture
async def astore(cluster: Cluster, store_name: str) -> AsyncIterator[aio.FeatureStore]:
    async with await aio.open(store_name, **cluster.settings(), pool_bytes=64 << 20, sweep_every=None) as opened:
        yield opened


def samples(count: int) -> Iterator[tuple[str, torch.Tensor]]:
    return ((f"s{n}", torch.full((5000,), n)) for n in range(count))


def test_all_are_put_when_the_block_ends(store: tensorhold.FeatureStore) -> None:
    with store.writer(in_flight=4) as writer:
        for sample, tensor in samples(40):
            writer.put(sample, {"x": tensor}, groups=["g"])
    found = store.find([f"s{n}" for n in range(40)])
    assert all(found)
    for n, one in enumerate(found):
        assert one is not None
        assert torch.equal(store.get(one.ref, as_="torch")["x"], torch.full((5000,), n))


def test_what_failed_is_told_by_sample_and_harms_no_other(store: tensorhold.FeatureStore) -> None:
    with pytest.raises(tensorhold.PutsFailed) as failed, store.writer(in_flight=8) as writer:
        for n in range(6):
            # A sample needs at least one attempt per group.
            writer.put(f"s{n}", {"x": torch.arange(10)}, groups=["g"], max_attempts=0 if n in (1, 4) else 3)
    assert sorted(failed.value.failed) == ["s1", "s4"]
    assert all(isinstance(error, tensorhold.Invalid) for error in failed.value.failed.values())
    assert "s1" in str(failed.value) and "1 more" in str(failed.value)
    assert sorted(pickle.loads(pickle.dumps(failed.value)).failed) == ["s1", "s4"]
    assert [found is not None for found in store.find([f"s{n}" for n in range(6)])] == [True, False, True, True, False, True]


def test_a_later_put_tells_of_an_earlier_failure_and_the_writer_goes_on(store: tensorhold.FeatureStore) -> None:
    writer = store.writer(in_flight=1)
    writer.put("bad", {"x": torch.arange(10)}, groups=(), max_attempts=0)
    with pytest.raises(tensorhold.PutsFailed, match="bad"):
        writer.put("next", {"x": torch.arange(10)}, groups=())
    assert store.find(["next"]) == [None], "it was not begun"
    writer.put("next", {"x": torch.arange(10)}, groups=())
    writer.flush()
    assert store.find(["next"]) != [None]
    with pytest.raises(tensorhold.Invalid, match="at least one"):
        store.writer(in_flight=0)


def test_a_block_that_raises_leaves_nothing_half_done(store: tensorhold.FeatureStore) -> None:
    with pytest.raises(ZeroDivisionError), store.writer(in_flight=4) as writer:
        for sample, tensor in samples(4):
            writer.put(sample, {"x": tensor}, groups=())
        raise ZeroDivisionError
    store.drain()
    for found in store.find([f"s{n}" for n in range(4)]):
        if found is not None:  # committed before the block raised
            assert set(store.get(found.ref)) == {"x"}


async def test_asyncio(astore: aio.FeatureStore) -> None:
    async with astore.writer(in_flight=3) as writer:
        for sample, tensor in samples(12):
            await writer.put(sample, {"x": tensor}, groups=["g"])
    assert all(await astore.find([f"s{n}" for n in range(12)]))
    with pytest.raises(tensorhold.PutsFailed):
        async with astore.writer() as writer:
            await writer.put("bad", {"x": torch.arange(3)}, groups=(), max_attempts=0)
