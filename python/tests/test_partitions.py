"""A store that is divided by sample id among two etcds. docs/operations.md shows it."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pytest

import tensorhold
from tensorhold import _process, aio
from tensorhold._calls import Pending, Together
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


def test_every_sample_is_used_once_over_two_clusters(home: Cluster) -> None:
    used: list[tuple[str, str]] = []
    failed: list[BaseException] = []
    done = threading.Event()

    given_up = threading.Event()

    def consume() -> None:
        try:
            with tensorhold.open_partitions("train", 4, **settings(home)) as consumer:
                while not (given_up.is_set() or (done.is_set() and len(used) >= SAMPLES)):
                    for lease in consumer.take("trainers", 4, timeout=2):
                        name = lease.sample
                        assert bytes(lease.get(as_="numpy")["x"]) == name.encode() * 100
                        lease.ack()
                        used.append((consumer.of(name).name, name))
        except BaseException as failure:  # told by the test itself
            failed.append(failure)

    threads = [threading.Thread(target=consume) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        with tensorhold.open_partitions("train", 4, **settings(home)) as producer:
            names = [f"sample-{number}" for number in range(SAMPLES)]
            for number, name in enumerate(names):
                producer.put(name, {"x": name.encode() * 100}, groups=["trainers"])
                if number == SAMPLES // 2:
                    # They go round the clusters: two here, two there.
                    stores = {row["cluster"]: row["stores"] for row in answer(home, "clusters")["clusters"]}
                    assert sorted(len(some) for some in stores.values()) == [2, 2], stores
            done.set()
            for thread in threads:
                thread.join(60)
            assert not failed, failed
            assert Counter(name for _, name in used) == Counter(names)
            assert len({store for store, _ in used}) == 4
            assert producer.find(names[:8]) == [None] * 8
    finally:
        given_up.set()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    for number in range(4):
        store = ("--store", f"train.{number}-of-4")
        assert answer(home, "status", *store)["items"][0]["samples"]["live"] == 0
        run(home, "audit", *store)


def test_calls_go_to_the_partition_of_their_sample(home: Cluster) -> None:
    with tensorhold.open_partitions("calls", 3, budget=3 << 20, **settings(home)) as store:
        assert [one.name for one in store.stores] == ["calls.0-of-3", "calls.1-of-3", "calls.2-of-3"]
        assert {one.health()["free_budget"] for one in store.stores} == {1 << 20}
        items = [tensorhold.PutItem(f"s-{number}", {"x": bytes([number]) * 10}, groups=["a"]) for number in range(20)]
        refs = store.put_many(items)
        assert [ref.sample for ref in refs if isinstance(ref, tensorhold.SampleRef)] == [item.sample for item in items]
        found = store.find([*(item.sample for item in items), "other"])
        assert [one and one.ref.sample for one in found] == [*(item.sample for item in items), None]
        for number, item in enumerate(items):
            assert bytes(store.get(item.sample, as_="numpy")["x"]) == bytes([number]) * 10
            assert store.of(item.sample).exists([item.sample]) == [True]
        leases: list[tensorhold.Lease] = []
        while len(leases) < 20:
            leases += store.take("a", 20)
        assert bytes(store.get(leases[0], as_="numpy")["x"]) == bytes([int(leases[0].sample[2:])]) * 10
        assert all(isinstance(answered, tensorhold.Answered) for answered in store.ack_many(leases))
        assert store.take("a", timeout=2) == []
        again = pickle.loads(pickle.dumps(store))
        assert again.of("s-1").name == store.of("s-1").name
    for count in (0, 65):
        with pytest.raises(tensorhold.Invalid):
            tensorhold.open_partitions("calls", count, budget=1 << 20, **settings(home))


def test_an_error_is_that_of_its_items_only(home: Cluster) -> None:
    with tensorhold.open_partitions("errors", 2, **settings(home)) as store:
        names = ["", *(f"s-{number}" for number in range(8))]
        one, other = (store.of("s-0"), next(each for each in store.stores if each is not store.of("s-0")))
        of_one, of_other = ([name for name in names[1:] if store.of(name) is each] for each in (one, other))
        assert of_one and of_other

        def put() -> dict[str, Any]:
            items = [tensorhold.PutItem(name, {"x": b"x"}, groups=["a"]) for name in names]
            return dict(zip(names, store.put_many(items), strict=True))

        results = put()
        assert isinstance(results.pop(""), tensorhold.Invalid)
        assert {name: ref.sample for name, ref in results.items()} == {name: name for name in names[1:]}
        with pytest.raises(tensorhold.Invalid, match="not one string"):
            store.find("abc")
        with pytest.raises(tensorhold.Invalid):
            store.find(names)
        leases: list[tensorhold.Lease] = []
        while len(leases) < 8:
            leases += store.take("a", 8)
        one.close()  # a call there fails before it begins
        results = put()
        assert all(isinstance(results[name], tensorhold.Unavailable) for name in of_one), results
        assert all(isinstance(results[name], tensorhold.SampleRef) for name in of_other), results
        answers = dict(zip((lease.sample for lease in leases), store.ack_many(leases), strict=True))
        assert all(isinstance(answers[name], tensorhold.Unavailable) for name in of_one), answers
        assert not any(isinstance(answers[name], tensorhold.Unavailable) for name in of_other), answers
        with pytest.raises(tensorhold.Unavailable, match="closed"):
            store.find(names[1:])


class Operation:
    """In place of one of the compiled module: it has an outcome from the beginning, or never."""

    def __init__(self, *outcome: Any) -> None:
        self.outcome = outcome
        self.cancelled = False

    def wait(self) -> Any:
        [outcome] = self.outcome
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    result = wait

    def on_done(self, listener: Callable[[], None]) -> None:
        if self.outcome:
            listener()

    def cancel(self) -> None:
        self.cancelled = True


def together(*calls: Any) -> Together[Any, list[Any]]:
    """Begins these operations; an error is raised instead."""

    def begin(call: Any) -> Pending[Any]:
        if isinstance(call, BaseException):
            raise call
        return Pending(call, lambda result: result)

    return Together([partial(begin, call) for call in calls], list)


def test_a_call_that_fails_leaves_the_others_alone() -> None:
    refused, away = tensorhold.Unavailable("refused"), tensorhold.Unavailable("away")

    def operations() -> list[Any]:
        return [Operation("a"), refused, Operation(away), Operation("d")]

    async def awaited() -> list[Any]:
        return await together(*operations())

    assert together(*operations()).wait() == ["a", refused, away, "d"]
    assert asyncio.run(awaited()) == ["a", refused, away, "d"]


@pytest.mark.parametrize("leaves", [KeyboardInterrupt, TypeError])
def test_a_caller_that_leaves_cancels_all_calls(leaves: type[BaseException]) -> None:
    others = [Operation(), Operation()]
    with pytest.raises(leaves):
        together(*others, leaves())
    assert all(other.cancelled for other in others)
    others = [Operation(), Operation()]
    with pytest.raises(leaves):
        together(Operation(leaves()), *others).wait()
    assert all(other.cancelled for other in others)


def test_a_cancelled_task_cancels_all_calls() -> None:
    calls = [Operation("a"), Operation(), Operation()]

    async def leave() -> None:
        async def wait() -> None:
            await together(*calls)

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait(), 0.1)

    asyncio.run(leave())
    assert all(call.cancelled for call in calls[1:])


class Core:
    """In place of an open store. Its close ends when all have begun; the first one fails, or never ends."""

    def __init__(self, begun: list[Core], hangs: bool = False) -> None:
        self.begun = begun
        self.hangs = hangs

    def close(self, within: float) -> Core:
        self.begun.append(self)
        return self

    def wait(self) -> None:
        assert len(self.begun) == 3
        if self is self.begun[0]:
            raise tensorhold.Unavailable("away")

    result = wait

    def on_done(self, listener: Callable[[], None]) -> None:
        if not self.hangs:
            listener()

    def cancel(self) -> None:
        pass


def opened(stores: Iterable[Any], hangs: bool = False) -> list[Core]:
    """Gives stores such cores. Returns those that are closing."""
    begun: list[Core] = []
    for store in stores:
        store._native, store._pid = Core(begun, hangs), os.getpid()
    return begun


def test_partitions_close_at_the_same_time(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    store = tensorhold.open_partitions("closing", 3, lazy=True)
    begun = opened(store.stores)
    with pytest.raises(tensorhold.Unavailable, match="away"):
        store.close()
    assert len(begun) == 3
    begun = opened(store.stores)
    monkeypatch.setattr(_process, "_open", weakref.WeakSet(store.stores))
    _process._close_all()
    assert len(begun) == 3
    assert [record.message for record in caplog.records if "at exit" in record.message]

    async def use() -> None:
        awaited = aio.PartitionedStore(aio.FeatureStore(one.settings) for one in store.stores)
        begun = opened(awaited.stores)
        with pytest.raises(tensorhold.Unavailable, match="away"):
            await awaited.close()
        assert len(begun) == 3
        begun = opened(awaited.stores, hangs=True)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(awaited.close(), 0.1)
        assert len(begun) == 3

    asyncio.run(use())


def test_partitions_share_no_client() -> None:
    with pytest.raises(tensorhold.Invalid, match="client"):
        tensorhold.open_partitions("clients", 2, client=object())
    with pytest.raises(tensorhold.Invalid, match="client"):
        asyncio.run(aio.open_partitions("clients", 2, client=object()))


def test_a_budget_of_the_environment_is_divided_too(home: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORHOLD_BUDGET", str(4 << 20))
    with tensorhold.open_partitions("budget", 2, **settings(home)) as store:
        assert {one.health()["free_budget"] for one in store.stores} == {2 << 20}


def test_a_partition_that_cannot_be_opened_leaves_no_session(home: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = tensorhold.FeatureStore.connect

    def refused(store: tensorhold.FeatureStore) -> Any:
        if store.name == "half.1-of-2":
            raise tensorhold.Unavailable("away", operation="test")
        return connect(store)

    monkeypatch.setattr(tensorhold.FeatureStore, "connect", refused)
    with pytest.raises(tensorhold.Unavailable, match="away"):
        tensorhold.open_partitions("half", 2, **settings(home))
    monkeypatch.undo()
    with tensorhold.open("half.0-of-2", **settings(home)) as one:
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
            put = await store.put_many([tensorhold.PutItem(f"s-{number}", {"x": b"x"}, groups=()) for number in range(4)])
            assert len(put) == 4 and all(isinstance(ref, tensorhold.SampleRef) for ref in put)
            leaving = asyncio.create_task(store.take("a", timeout=30))
            await asyncio.sleep(0.2)
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving

    asyncio.run(use())
