"""A store that is closed beside calls that wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import tensorhold
from conftest import OpenStore
from tensorhold import aio
from servers import Cluster
from waiting import PROMPTLY_S, until


def test_calls_that_wait_end_at_once_and_take_nothing(open_store: OpenStore) -> None:
    other, store = open_store(), open_store(pool_bytes=32 << 20)
    full = store.empty((32 << 20,), "uint8")  # all of the pool
    waits: dict[str, Callable[[], Any]] = {
        "take": lambda: store.take("g", timeout=600),
        "stream": lambda: next(iter(store.stream("g", idle=600))),
        "lost": lambda: store.lost(timeout=600),
        "empty": lambda: store.empty((1 << 20,), "uint8", timeout=600),
    }
    ended: dict[str, BaseException | None] = {}

    def wait(what: str, call: Callable[[], Any]) -> None:
        try:
            call()
            ended[what] = None
        except BaseException as error:
            ended[what] = error

    threads = [threading.Thread(target=wait, args=one, daemon=True) for one in waits.items()]
    for thread in threads:
        thread.start()
    until("the takes wait", lambda: store.health()["operations"] >= 2)
    begun = time.monotonic()
    store.close()
    for thread in threads:
        thread.join(PROMPTLY_S)
    assert time.monotonic() - begun < PROMPTLY_S
    assert set(ended) == set(waits)
    for what, error in ended.items():
        assert isinstance(error, tensorhold.Unavailable) and "this store is closed" in str(error), (what, error)
    assert len(other.sessions()) == 1, "its own"
    del full
    other.put("s", {"x": b"1"}, groups=["g"], max_attempts=1)
    (lease,) = other.take("g")
    lease.ack()
    assert other.dead_letters()[0] == []


def test_tasks_that_wait_end_at_once_and_take_nothing(cluster: Cluster, store_name: str) -> None:
    async def run() -> None:
        store = await aio.open(store_name, **cluster.settings())
        parts = await aio.open_partitions(f"{store_name}-parts", 2, **cluster.settings())
        waits = [asyncio.ensure_future(one.take("g", timeout=600)) for one in (store, parts)]
        while (await store.health())["operations"] < 1 or (await parts.stores[0].health())["operations"] < 1:
            await asyncio.sleep(0.02)
        begun = time.monotonic()
        await asyncio.gather(store.close(), parts.close())
        for wait in waits:
            with pytest.raises(tensorhold.Unavailable, match="this store is closed"):
                await wait
        assert time.monotonic() - begun < PROMPTLY_S

    asyncio.run(run())
