"""A store that is divided by sample id among two etcds. docs/operations.md shows it."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import aio
from servers import Cluster, running_cluster
from test_command import answer, run

SAMPLES = 400


@pytest.fixture(scope="module")
def home() -> Iterator[Cluster]:
    with running_cluster(segment_mib=256) as started, running_cluster(holders=0) as other:
        run(started, "clusters", "add", "b", *other.etcd)
        yield started


def settings(home: Cluster) -> dict[str, Any]:
    return {**home.settings(), "pool_bytes": 16 << 20, "sweep_every": 0.2}


def test_every_sample_is_used_once_while_a_partition_is_moved(home: Cluster) -> None:
    used: list[tuple[str, str]] = []
    failed: list[BaseException] = []
    done = threading.Event()

    def consume() -> None:
        try:
            with holdfast.open_partitions("train", 4, **settings(home)) as consumer:
                while not (done.is_set() and len(used) >= SAMPLES):
                    for lease in consumer.take("trainers", 4, timeout=0.5):
                        name = lease.sample
                        assert bytes(lease.get(as_="numpy")["x"]) == name.encode() * 100
                        lease.ack()
                        used.append((consumer.of(name).name, name))
        except BaseException as failure:  # told by the test itself
            failed.append(failure)

    threads = [threading.Thread(target=consume) for _ in range(2)]
    for thread in threads:
        thread.start()
    with holdfast.open_partitions("train", 4, **settings(home)) as producer:
        names = [f"sample-{number}" for number in range(SAMPLES)]
        for number, name in enumerate(names):
            producer.put(name, {"x": name.encode() * 100}, groups=["trainers"])
            if number == SAMPLES // 2:
                # They go round the clusters: two here, two there.
                stores = {row["cluster"]: row["stores"] for row in answer(home, "clusters")["clusters"]}
                assert sorted(len(some) for some in stores.values()) == [2, 2], stores
                moved = answer(home, "move", "home", "--store", stores["b"][0])
                assert moved["frozen_ms"] < 5000
        done.set()
        for thread in threads:
            thread.join(60)
        assert not failed, failed
        assert Counter(name for _, name in used) == Counter(names)
        assert len({store for store, _ in used}) == 4
        assert producer.find(names[:8]) == [None] * 8
    for number in range(4):
        store = ("--store", f"train.{number}-of-4")
        assert answer(home, "status", *store)["items"][0]["samples"]["live"] == 0
        run(home, "audit", *store)


def test_calls_go_to_the_partition_of_their_sample(home: Cluster) -> None:
    with holdfast.open_partitions("calls", 3, budget=3 << 20, **settings(home)) as store:
        assert [one.name for one in store.stores] == ["calls.0-of-3", "calls.1-of-3", "calls.2-of-3"]
        assert {one.health()["free_budget"] for one in store.stores} == {1 << 20}
        items = [holdfast.PutItem(f"s-{number}", {"x": bytes([number]) * 10}, groups=["a"]) for number in range(20)]
        refs = store.put_many(items)
        assert [ref.sample for ref in refs if isinstance(ref, holdfast.SampleRef)] == [item.sample for item in items]
        found = store.find([*(item.sample for item in items), "other"])
        assert [one and one.ref.sample for one in found] == [*(item.sample for item in items), None]
        for number, item in enumerate(items):
            assert bytes(store.get(item.sample, as_="numpy")["x"]) == bytes([number]) * 10
            assert store.of(item.sample).exists([item.sample]) == [True]
        leases: list[holdfast.Lease] = []
        while len(leases) < 20:
            leases += store.take("a", 20)
        assert bytes(store.get(leases[0], as_="numpy")["x"]) == bytes([int(leases[0].sample[2:])]) * 10
        assert all(isinstance(answered, holdfast.Answered) for answered in store.ack_many(leases))
        assert store.take("a", timeout=0.2) == []
        again = pickle.loads(pickle.dumps(store))
        assert again.of("s-1").name == store.of("s-1").name
    for count in (0, 65):
        with pytest.raises(holdfast.Invalid):
            holdfast.open_partitions("calls", count, budget=1 << 20, **settings(home))


def test_a_budget_of_the_environment_is_divided_too(home: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_BUDGET", str(4 << 20))
    with holdfast.open_partitions("budget", 2, **settings(home)) as store:
        assert {one.health()["free_budget"] for one in store.stores} == {2 << 20}


def test_a_partition_that_cannot_be_opened_leaves_no_session(home: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = holdfast.FeatureStore.connect

    def refused(store: holdfast.FeatureStore) -> Any:
        if store.name == "half.1-of-2":
            raise holdfast.Unavailable("away", operation="test")
        return connect(store)

    monkeypatch.setattr(holdfast.FeatureStore, "connect", refused)
    with pytest.raises(holdfast.Unavailable, match="away"):
        holdfast.open_partitions("half", 2, **settings(home))
    monkeypatch.undo()
    with holdfast.open("half.0-of-2", **settings(home)) as one:
        assert len(one.sessions()) == 1


def test_it_can_be_awaited(home: Cluster) -> None:
    async def use() -> None:
        async with await aio.open_partitions("awaited", 2, **settings(home)) as store:
            waiting = asyncio.create_task(store.take("a", timeout=30))
            await asyncio.sleep(0.2)
            await store.of("s").put("s", {"x": b"bytes"}, groups=["a"])
            [lease] = await waiting
            assert bytes((await lease.get(as_="numpy"))["x"]) == b"bytes"
            await store.ack_many([lease])
            assert await store.find(["s"]) == [None]
            put = await store.put_many([holdfast.PutItem(f"s-{number}", {"x": b"x"}) for number in range(4)])
            assert len(put) == 4 and all(isinstance(ref, holdfast.SampleRef) for ref in put)
            leaving = asyncio.create_task(store.take("a", timeout=30))
            await asyncio.sleep(0.2)
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving

    asyncio.run(use())
