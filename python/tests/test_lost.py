"""A producer learns which of its samples were lost, also if another process found out."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import urlopen

import pytest

import tensorhold
import tensorhold.aio
from conftest import OpenStore
from servers import Cluster


def lose(cluster: Cluster, engine: Any, store_name: str) -> int:
    """Takes all objects of the store away, as a holder that dies does. Returns how many there were."""
    with urlopen(f"{cluster.admin[0]}/get_all_keys", timeout=10) as answer:
        keys = [key for key in answer.read().decode().splitlines() if key.startswith(f"{store_name}/")]
    for key in keys:
        assert engine.remove(key, force=True) == 0
    return len(keys)


def read_until_lost(store: tensorhold.FeatureStore, sample: str) -> None:
    deadline = time.monotonic() + 30
    with store.lease_shared(sample) as lease:
        while True:
            try:
                lease.get()
            except tensorhold.NotFound:
                return
            except tensorhold.Unavailable:
                assert time.monotonic() < deadline, "never lost"
                time.sleep(0.1)


def test_a_producer_is_told_what_was_lost(
    open_store: OpenStore, cluster: Cluster, engine: Any, store_name: str
) -> None:
    producer, other, reader = (open_store(features={"loss_grace": 1.0}) for _ in range(3))
    assert producer.lost(timeout=0.2) == []
    mine = producer.put("mine", {"x": b"1234"}, groups=())
    theirs = other.put("theirs", {"x": b"5678"}, groups=())
    assert lose(cluster, engine, store_name) == 2
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(producer.lost, timeout=30)
        for sample in ("mine", "theirs"):
            try:
                read_until_lost(reader, sample)
            except tensorhold.Fenced:
                pass  # the lease ended with the sample
        assert waiting.result(timeout=40) == [mine]
    everyones: set[tensorhold.SampleRef] = set()
    while len(everyones) < 2:
        some = reader.lost(everyones=True, timeout=20)
        assert some, everyones
        everyones.update(some)
    assert everyones == {mine, theirs}
    assert producer.lost(timeout=0.2) == []
    # It makes the sample again.
    again = producer.put("mine", {"x": b"1234"}, groups=())
    assert again.generation > mine.generation


def test_closing_ends_the_wait(open_store: OpenStore) -> None:
    store = open_store()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(store.lost, timeout=60)
        time.sleep(0.3)
        store.close()
        with pytest.raises(tensorhold.Unavailable):
            waiting.result(timeout=10)


def test_the_asyncio_face_waits_too(cluster: Cluster, store_name: str) -> None:
    async def main() -> list[tensorhold.SampleRef]:
        async with await tensorhold.aio.open(store_name, sweep_every=None, **cluster.settings()) as store:
            return await store.lost(timeout=0.2)

    assert asyncio.run(main()) == []
