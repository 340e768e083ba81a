"""Requests make samples on one event loop; a full store slows them down, and blocks nothing."""

from __future__ import annotations

import asyncio

import numpy as np

import tensorhold.aio
from examples.cluster import run, store_name

SAMPLE_BYTES = 1 << 20
BUDGET = 4 * SAMPLE_BYTES
REQUESTS = 32


async def serve(store: tensorhold.aio.FeatureStore, request: int) -> None:
    """One request: computes a sample, and puts it. While the store is full, only this request waits."""
    hidden = np.full(SAMPLE_BYTES // 4, request, np.float32)
    await store.put(f"request-{request}", {"hidden": hidden}, groups=["trainers"])


async def consume(store: tensorhold.aio.FeatureStore, count: int) -> float:
    """A trainer, usually another process: gets samples and acknowledges them, which makes room. Returns their sum."""
    total, taken = 0.0, 0
    while taken < count:
        for lease in await store.take("trainers", count=4):
            async with lease:
                total += float((await lease.get(as_="numpy"))["hidden"][0])
            taken += 1
    return total


async def longest_pause(stop: asyncio.Event) -> float:
    """How long the event loop did nothing else, at the longest: what a health check of a server would have waited."""
    loop, longest = asyncio.get_running_loop(), 0.0
    while not stop.is_set():
        before = loop.time()
        await asyncio.sleep(0.01)
        longest = max(longest, loop.time() - before - 0.01)
    return longest


async def serve_all() -> None:
    async with await tensorhold.aio.open(store_name("aio"), budget=BUDGET) as store:
        stop = asyncio.Event()
        pulse = asyncio.create_task(longest_pause(stop))

        for request in range(4):
            await serve(store, request)
        print("4 requests are served, and the store is full")
        try:
            await asyncio.wait_for(serve(store, 4), timeout=0.5)
        except asyncio.TimeoutError:
            there = (await store.exists(["request-4"]))[0]
            print(f"a fifth one waits for room; its client leaves after 0.5 s; is its sample there? {there}")

        waiting = (serve(store, request) for request in range(4, REQUESTS))
        total, *_ = await asyncio.gather(consume(store, REQUESTS), *waiting)
        await store.drain()
        print(f"with a consumer, all {REQUESTS} are served; what it got is right: {total == sum(range(REQUESTS))}")
        stop.set()
        print(f"the event loop was never held up for longer than {await pulse * 1000:.0f} ms")


def main() -> None:
    asyncio.run(serve_all())


if __name__ == "__main__":
    run(main)
