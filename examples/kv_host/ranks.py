"""Two ranks, one of which cannot read some of its pages: ``python -m examples.kv_host.ranks``. Needs what
``python -m examples.kv_host`` needs. The last line is JSON.

Each rank is a process with half of the model (tensor parallelism: half of the heads, half of the MLP; sums over both ranks,
by gloo, twice in each layer), half of every page in pools of its own, and its own planner, tier and store.

1. Four requests are computed, and both ranks store their halves of the pages.
2. Both ranks start again with empty pools. Meanwhile rank 1 has lost pages, and others of its own are altered: its gets
   stop there, those of rank 0 do not. Both publish the smaller count and compute the rest.
3. The device is too small for all requests, and one is aborted: pages are evicted, and requests are retracted.

In every round the ranks compare their plans and tokens, and the logits are those of the same two ranks without a cache.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from examples import cluster
from examples.kv_host import Aborted, Gloo, Host, generate, make
from examples.kv_host.group import Report
from examples.kv_host.inputs import PAGE_TOKENS, TOKENS, prompts, settings
from examples.kv_host.model import config
from tensorhold import kv

WITHIN_S = 240.0
"""For both processes: far more than they need."""
FOOTER_BYTES = 64
"""Behind every page, in its object."""

ALTERED, REMOVED = {1: 4, 3: 0}, {2: 6}
"""Of which requests rank 1 loses a page, and which one."""


class Recorder(Gloo):
    """Also keeps how operations ended on which the ranks did not agree."""

    def __init__(self, tp: kv.Rank, meeting: Path) -> None:
        super().__init__(tp, meeting)
        self.differences: list[list[tuple[int, str | None]]] = []

    def exchange(self, report: Report) -> Sequence[Report]:
        reports = super().exchange(report)
        for done in zip(*(one.done for one in reports), strict=True):
            ended = [(one.completed, one.failure) for one in done if one is not None]
            if len(ended) == len(reports) and len(set(ended)) > 1:
                self.differences.append(ended)
        return reports


def damage(store: kv.PageStore, host: Host, asked: Sequence[Sequence[int]]) -> None:
    """Removes some of this rank's pages from the store, and replaces others by objects of the same length."""
    from mooncake.store import MooncakeDistributedStore, ReplicateConfig

    def name(request: int, page: int) -> str:
        return host.namespace.object_name(kv.PageKeys(host.namespace, asked[request]).keys()[page])

    altered = [name(request, page) for request, page in ALTERED.items()]
    removed = [name(request, page) for request, page in REMOVED.items()]
    assert all(store.remove(altered + removed))
    client, where = MooncakeDistributedStore(), {"master": "127.0.0.1:50051", "metadata": "P2PHANDSHAKE", **settings()}
    assert client.setup("127.0.0.1", where["metadata"], 0, 16 << 20, "tcp", "", where["master"]) == 0
    for one in altered:
        assert client.put(one, bytes(host.pools.page_bytes + FOOTER_BYTES), ReplicateConfig()) == 0
    client.close()


async def served(host: Host, asked: Sequence[Sequence[int]], *, give_up: int | None = None) -> list[int]:
    """Asks on rank 0, follows on the others. Returns for each request how many of its tokens came from L3, and compares
    its answer with that of the model alone."""
    if host.group.tp.rank != 0:
        await host.follow()
        return []
    pending = [host.submit(prompt, TOKENS, timeout=120) for prompt in asked]
    if give_up is not None:
        host.abort(pending[give_up].id)
    results = await asyncio.gather(*pending, return_exceptions=True)
    for number, (result, (tokens, logits)) in enumerate(zip(results, PLAIN, strict=True)):
        if number == give_up:
            assert isinstance(result, Aborted)
        elif isinstance(result, BaseException):
            raise result
        else:
            assert result.tokens == tokens
            assert all(torch.equal(*pair) for pair in zip(result.logits, logits, strict=True))
    return [0 if isinstance(result, BaseException) else result.cached.l3 for result in results]


PLAIN: list[tuple[list[int], list[torch.Tensor]]] = []
"""What the same ranks generate without a cache."""


async def rank(number: int, folder: Path) -> dict[str, Any]:
    """One rank. Returns what it has seen."""
    torch.set_num_threads(1)
    group = Recorder(kv.Rank(number, 2), folder / "meeting")
    model = make(group.tp, group.add_up)
    asked = prompts(4, shared=0, own=74)
    PLAIN[:] = [generate(model, prompt, TOKENS, PAGE_TOKENS) for prompt in asked]
    told: dict[str, Any] = {"tokens": [tokens for tokens, _ in PLAIN]}
    with kv.PageStore(**settings()) as store:

        def host(**options: Any) -> Host:
            return Host(store, model, name=folder.name, group=group, **options)

        async with host() as first:
            told["first"] = await served(first, asked)
        if number == 1:
            damage(store, first, asked)
        before = len(group.differences)
        async with host() as again:
            told["after a restart"] = await served(again, asked)
        told["ended differently"] = group.differences[before:]
        async with host(device_pages=21) as small:
            told["on a small device"] = await served(small, asked, give_up=2)
        for ended in (first, again, small):
            for pool in ended.planner.pools():
                assert pool.owned == 0, "every page is free or in the index"
        told["evicted"], told["retracted"] = small.metrics.evicted_device_pages, small.metrics.retracted
        told["rounds"] = sum(ended.metrics.rounds for ended in (first, again, small))
        told["exchanges"] = group.exchanges
        told["plans"] = [ended.digest() for ended in (first, again, small)]
    group.close()
    return told


def run(number: int, folder: Path) -> None:
    """A rank's process."""

    def serve() -> None:
        seen = asyncio.run(rank(number, folder))
        (folder / f"rank-{number}.json").write_text(json.dumps(seen))

    cluster.run(serve)


def main() -> None:
    """Runs both ranks, compares what they have seen, and prints it."""
    os.environ.update({"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"})
    config()  # imports transformers, which takes seconds, once for both
    # Forked: nothing was opened yet, and no thread runs.
    forked = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="kv-host-") as folder:
        processes = [forked.Process(target=run, args=(number, Path(folder))) for number in range(2)]
        for process in processes:
            process.start()
        deadline = time.monotonic() + WITHIN_S
        try:
            for process in processes:
                process.join(max(0.0, deadline - time.monotonic()))
        finally:
            for process in processes:
                process.kill()  # does nothing to one that has ended
                process.join()
        codes = [process.exitcode for process in processes]
        if codes != [0, 0]:
            sys.exit(f"the ranks ended with {codes}")
        zero, one = (json.loads((Path(folder) / f"rank-{number}.json").read_text()) for number in range(2))
    for same in ("tokens", "rounds", "exchanges", "plans", "ended differently", "evicted", "retracted"):
        assert zero[same] == one[same], f"{same}: {zero[same]} on rank 0, {one[same]} on rank 1"
    print(json.dumps(zero))


if __name__ == "__main__":
    main()
