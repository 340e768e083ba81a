"""Records that cannot be read, samples that are too large for a record, budgets that differ: on real servers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import warnings
from collections.abc import Callable

import pytest
import torch

import tensorhold
import tensorhold.aio
from conftest import OpenStore
from tensorhold.specforge._removals import Removals
from servers import REPOSITORY, Cluster


def write(cluster: Cluster, key: str, value: bytes) -> None:
    """What any client with access to etcd can write."""
    command = [str(REPOSITORY / ".etcd/bin/etcdctl"), "--endpoints=" + ",".join(cluster.etcd), "put", f"/tensorhold/{key}"]
    subprocess.run(command, input=value, capture_output=True, check=True, timeout=30)


def test_what_cannot_be_read_is_listed_and_stops_nothing(
    cluster: Cluster, store: tensorhold.FeatureStore, store_name: str
) -> None:
    reference = store.put("good", {"x": torch.arange(10)}, groups=["g"])
    write(cluster, f"{store_name}/f/zzz/0000000000000001", b'{"generation":1,"reason":"SomethingNew"}')
    swept = store.sweep()
    assert (swept.quarantined, swept.later, swept.failed) == (1, 0, 0)
    (lease,) = store.take("g")
    assert lease.ref == reference
    lease.ack()
    store.drain()
    (record,) = store.quarantined()
    assert record.key == f"{store_name}/f/zzz/0000000000000001" and not record.in_place and record.why
    assert store.quarantined_bytes(record) == b'{"generation":1,"reason":"SomethingNew"}'
    assert record.nbytes == len(store.quarantined_bytes(record))
    assert store.quarantined(after=record) == []
    assert store.health()["passed_over"] == {"quarantined": 1, "later": 0}


def test_ten_thousand_tensors_are_refused_before_a_byte_moves(store: tensorhold.FeatureStore) -> None:
    many = {f"tensor-{n}": torch.zeros(1, dtype=torch.uint8) for n in range(10_000)}
    for groups in ([], ["g"]):
        with pytest.raises(tensorhold.Invalid, match="fewer tensors"):
            store.put("many", many, groups=groups)
    assert store.find(["many"]) == [None]
    assert store.health()["counters"]["bytes_put"] == 0


def test_another_budget_than_the_one_in_force_is_told(
    open_store: OpenStore, cluster: Cluster, store_name: str
) -> None:
    first = open_store(budget=1 << 20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_store(budget=1 << 20)
        open_store()
    with pytest.warns(RuntimeWarning, match=f"{1 << 20} bytes already.* {2 << 20} bytes"):
        second = open_store(budget=2 << 20)
    first.put("a", {"x": torch.zeros(1 << 19, dtype=torch.uint8)}, groups=())
    with pytest.raises(tensorhold.Capacity, match="whole budget"):
        second.put("b", {"x": torch.zeros((1 << 20) + 1, dtype=torch.uint8)}, groups=(), timeout=1)

    async def opened() -> None:
        settings = {"pool_bytes": 16 << 20, "sweep_every": None, **cluster.settings()}
        async with await tensorhold.aio.open(store_name, budget=3 << 20, **settings):
            pass

    with pytest.warns(RuntimeWarning, match=f"{3 << 20} bytes"):
        asyncio.run(opened())


def test_an_abort_that_is_tried_again_ends_what_was_meant_and_nothing_newer(
    start_cluster: Callable[..., Cluster],
) -> None:
    cluster = start_cluster(segment_mib=64)
    settings = {"pool_bytes": 16 << 20, "sweep_every": None, "timeout": 3.0, **cluster.settings()}
    with tensorhold.open("run", **settings) as store:
        removals = Removals(store)
        first = store.put("a", {"x": torch.zeros(10)}, groups=())
        store.put("b", {"x": torch.zeros(10)}, groups=())
        os.kill(cluster.pids["etcd-0"], signal.SIGSTOP)
        try:
            assert not removals.abort("a", first, 40), "it is owed"
            with pytest.raises(tensorhold.TensorholdError):
                removals.abort("b", None, 0)  # what is live later may be another than was meant
        finally:
            os.kill(cluster.pids["etcd-0"], signal.SIGCONT)
        assert len(removals) == 1
        newer = store.put("a", {"x": torch.ones(10)}, groups=(), timeout=20)
        assert removals.try_again()[0] == 1
        found = store.find(["a", "b"])
        assert [one.ref.generation if one else None for one in found][0] == newer.generation
        assert found[1] is not None
