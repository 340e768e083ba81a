"""Callers that leave: cancelled tasks, timeouts, Ctrl-C. A result that no caller saw is not counted, kept or
committed."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tensorhold
import tensorhold.aio
from conftest import OpenStore
from tensorhold import FeatureStore
from servers import REPOSITORY, Cluster
from test_waiting import interrupted
from waiting import PROMPTLY_S, until

GROUP = "trainers"


def attempts(store: FeatureStore, sample: str) -> int | None:
    found = store.find([sample])[0]
    return None if found is None else found.groups[GROUP].attempts


def idle(store: FeatureStore) -> bool:
    return bool(store.health()["operations"] == 0)


def consume(store: FeatureStore, sample: str) -> None:
    """Takes a sample, as its first taker, and frees it."""
    (lease,) = store.take(GROUP, timeout=PROMPTLY_S)
    assert (lease.sample, attempts(store, sample)) == (sample, 1)
    lease.ack()
    store.drain()


async def test_takes_that_ran_out_of_wait_for_cost_a_later_sample_no_attempt(cluster: Cluster, store: FeatureStore) -> None:
    async with await tensorhold.aio.open(store.name, **cluster.settings()) as consumer:
        for _ in range(3):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(consumer.take(GROUP), 0.3)
        store.put("sample-1", {"x": torch.ones(1000)}, groups=[GROUP], max_attempts=3)
        (lease,) = await consumer.take(GROUP, timeout=PROMPTLY_S)
        assert (lease.sample, attempts(store, "sample-1")) == ("sample-1", 1)
        await lease.ack()


async def test_takes_cancelled_at_any_moment_cost_no_attempt(cluster: Cluster, store: FeatureStore) -> None:
    store.put("sample-1", {"x": torch.ones(1000)}, groups=[GROUP], max_attempts=1)
    async with await tensorhold.aio.open(store.name, **cluster.settings()) as consumer:
        for step in range(60):
            task = asyncio.ensure_future(consumer.take(GROUP, timeout=5))
            timer = asyncio.get_running_loop().call_later(step * 0.0005, task.cancel)
            try:
                (lease,) = await task
            except asyncio.CancelledError:
                continue
            timer.cancel()  # it has the task, and that has the lease
            del lease, task  # it came first; the caller has not looked at it
    consume(store, "sample-1")


def test_ctrl_c_in_a_take_costs_a_later_sample_no_attempt(store: FeatureStore) -> None:
    with interrupted(0.3), pytest.raises(KeyboardInterrupt):
        store.take(GROUP, timeout=60)
    until("the take ends", lambda: idle(store))
    store.put("sample-1", {"x": torch.ones(1000)}, groups=[GROUP], max_attempts=1)
    consume(store, "sample-1")


def test_a_call_that_nobody_has_any_more_is_cancelled(store: FeatureStore) -> None:
    pending = store._calls.take(GROUP, 1, 60)
    del pending
    gc.collect()
    until("the take ends", lambda: idle(store))
    store.put("sample-1", {"x": torch.ones(1000)}, groups=[GROUP], max_attempts=1)
    consume(store, "sample-1")


@pytest.mark.parametrize("what", ["take", "lease", "lease_many"])
def test_a_lease_that_was_there_but_never_fetched_costs_no_attempt(store: FeatureStore, what: str) -> None:
    ref = store.put("sample-1", {"x": torch.ones(1000)}, groups=[GROUP], max_attempts=1)
    begin: dict[str, Callable[[], Any]] = {
        "take": lambda: store._calls.take(GROUP, 1, 60),
        "lease": lambda: store._calls.lease(ref, GROUP, 60),
        "lease_many": lambda: store._calls.lease_many([ref], GROUP, 60),
    }
    pending = begin[what]()
    until("it is taken", lambda: attempts(store, "sample-1") == 1)
    del pending
    until("it goes back", lambda: attempts(store, "sample-1") == 0)
    consume(store, "sample-1")


def test_a_read_that_was_there_but_never_fetched_is_let_go_of(store: FeatureStore) -> None:
    ref = store.put("sample-1", {"x": torch.ones(1000)}, groups=[GROUP])

    def readers() -> int:
        found = store.find(["sample-1"])[0]
        assert found is not None
        return found.readers

    pending = store._calls.lease_shared(ref, 60)
    until("it is read", lambda: readers() == 1)
    del pending
    until("it is let go of", lambda: readers() == 0)


def test_ctrl_c_in_a_put_that_waits_for_quota_takes_it_back(open_store: OpenStore) -> None:
    store = open_store(budget=1_000_000)
    first = store.put("first", {"x": torch.ones(900_000, dtype=torch.uint8)}, groups=())
    with interrupted(0.3), pytest.raises(KeyboardInterrupt):
        store.put("second", {"x": torch.ones(900_000, dtype=torch.uint8)}, groups=(), timeout=60)
    until("the put ends", lambda: idle(store))
    store.retire(first)
    store.drain()
    assert store.find(["second"]) == [None]
    whole = store.put("whole", {"x": torch.ones(1_000_000, dtype=torch.uint8)}, groups=(), timeout=PROMPTLY_S)
    store.retire(whole)


def test_pool_memory_of_a_get_whose_caller_left_comes_back(open_store: OpenStore) -> None:
    store = open_store()
    ref = store.put("sample-1", {"x": torch.ones(50_000_000, dtype=torch.uint8)}, groups=())
    for seconds in (0.001, 0.01, 0.05):
        pending = store._calls.get(ref, None, None, "tensor", None, 60)
        time.sleep(seconds)
        del pending
    until("memory comes back", lambda: idle(store) and store.health()["pool"]["lent"] == 0)
    assert bool((store.get(ref, as_="torch")["x"] == 1).all())


def test_a_short_storm_of_callers_that_leave_harms_nothing() -> None:
    python = REPOSITORY / "python"
    path = os.pathsep.join(str(folder) for folder in (python, python / "tests"))
    ended = subprocess.run(
        [sys.executable, str(python / "bench/storm.py"), "--quick", "--json", "--seed", str(uuid.uuid4().int % 10**6)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=False,
    )
    figures = json.loads(ended.stdout.strip().rsplit("\n", 1)[-1])
    assert figures["holds"] and figures["cancelled"] >= 100, figures
