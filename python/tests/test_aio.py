"""The asyncio face: many calls at once, the loop never blocked, cancelled calls leave nothing behind."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import torch

import tensorhold
from tensorhold import Answered, aio
from servers import Cluster


@pytest_asyncio.fixture
async def store(cluster: Cluster, store_name: str) -> AsyncIterator[aio.FeatureStore]:
    async with await aio.open(store_name, **cluster.settings(), pool_bytes=64 << 20, sweep_every=None) as opened:
        yield opened


async def test_many_at_once(store: aio.FeatureStore) -> None:
    async def one(n: int) -> int:
        ref = await store.put(f"s{n}", {"x": torch.full((1000,), n)}, groups=["g"])
        async with await store.lease(ref, "g") as lease:
            got = await lease.get(as_="torch")
        assert lease.answered
        return int(got["x"][0])

    assert await asyncio.gather(*map(one, range(32))) == list(range(32))
    await store.drain()
    assert (await store.health())["counters"]["acks"] == 32


async def test_the_loop_runs_meanwhile(store: aio.FeatureStore) -> None:
    waiting = asyncio.ensure_future(store.take("g", timeout=5))
    longest, last = 0.0, time.monotonic()
    for _ in range(50):
        await asyncio.sleep(0.005)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    assert longest < 1
    await store.put("a", {"x": b"1"}, groups=["g"])
    (lease,) = await waiting
    assert await lease.ack() == Answered(True, "consumed", True)


async def test_errors_and_blocks(store: aio.FeatureStore) -> None:
    with pytest.raises(KeyError):
        await store.get("nobody")
    ref = await store.put("a", {"x": torch.arange(3)}, groups=["g"])
    (lease,) = await store.take("g")
    with pytest.raises(ZeroDivisionError):
        async with lease:
            raise ZeroDivisionError
    (again,) = await store.take("g", timeout=10)
    assert again.ref == ref and again.token > lease.token
    async with await store.read("a") as reader:
        await reader.renew()
        assert (await reader.get(["x"]))["x"].tobytes() == torch.arange(3).numpy().tobytes()
    await store.abort("a")
    with pytest.raises(tensorhold.Fenced):
        await again.get()
    with pytest.raises(TypeError, match="settings"):
        pickle.dumps(store)


async def test_a_cancelled_take_gives_its_sample_back(store: aio.FeatureStore) -> None:
    taking = asyncio.ensure_future(store.take("g", timeout=30))
    await asyncio.sleep(0.1)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    ref = await store.put("a", {"x": b"1"}, groups=["g"])
    # The call that no task waits for may get it first; then it releases it.
    (lease,) = await store.take("g", timeout=20)
    assert lease.ref == ref
    await lease.release()


async def test_every_call_is_there_and_says_what_it_does() -> None:
    for plain, face in [(tensorhold.FeatureStore, aio.FeatureStore), (tensorhold.Lease, aio.Lease)]:
        names = {name for name in vars(plain) if not name.startswith("_")}
        assert names == {name for name in vars(face) if not name.startswith("_")}
        for name in names:
            assert getattr(face, name).__doc__ or name in ("native",), f"{face.__name__}.{name}"


async def test_a_dead_master_is_told(cluster: Cluster) -> None:
    with pytest.raises(tensorhold.Unavailable, match="master"):
        await aio.open("s", **{**cluster.settings(), "master": "127.0.0.1:1"}, timeout=2)
