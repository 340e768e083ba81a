"""Samples larger than the pool: they come back whole, through a bounded amount of registered memory."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

import tensorhold
from conftest import OpenStore
from tensorhold.torchspec import EagleStore
from servers import Cluster

MIB = 1 << 20
WHOLE_S = 300.0
"""A machine that does other things too moves gigabytes slowly."""

StartCluster = Callable[..., Cluster]


def block(number: int) -> torch.Tensor:
    """A MiB that no other number has."""
    return (torch.arange(MIB // 4, dtype=torch.int32) * 2654435 + number * 40503).view(torch.uint8)


def filled(mib: int, first: int) -> torch.Tensor:
    tensor = torch.empty(mib * MIB, dtype=torch.uint8)
    for number, part in enumerate(tensor.view(-1, MIB)):
        part.copy_(block(first + number))
    return tensor


def is_whole(tensor: torch.Tensor, mib: int, first: int) -> bool:
    parts = tensor.view(-1, MIB)
    return len(parts) == mib and all(torch.equal(part, block(first + number)) for number, part in enumerate(parts))


def test_a_sample_of_1536_mib_comes_back_through_a_pool_of_256_mib(start_cluster: StartCluster) -> None:
    cluster = start_cluster(segment_mib=2304)
    settings = {"pool_bytes": 256 * MIB, "timeout": WHOLE_S, **cluster.settings()}
    with tensorhold.open("large", **settings) as store:
        ref = store.put("s", {"x": filled(1024, 0), "y": filled(511, 5000), "z": filled(1, 9000)}, groups=())
        got = store.get(ref)
        for name, mib, first in (("x", 1024, 0), ("y", 511, 5000), ("z", 1, 9000)):
            assert is_whole(got[name].torch(), mib, first), name
        health = store.health()
        assert health["pool"]["taken"] <= 256 * MIB, health["pool"]
        assert health["registrations"]["bytes"] <= (256 + 128) * MIB, health["registrations"]
        small = got["z"]
        del got
        # What was got in memory of its own is put, looked at and got into like any other.
        again = store.put("again", {"z": small}, groups=())
        assert is_whole(store.get(again, as_="torch")["z"], 1, 9000)
        small.torch().zero_()
        store.get(again, into={"z": small})
        assert is_whole(small.torch(), 1, 9000)


def test_large_gets_at_once_wait_for_no_one_even_if_all_results_are_kept(open_store: OpenStore) -> None:
    store = open_store(pool_bytes=32 * MIB, timeout=60.0)
    refs = [store.put(f"s{n}", {"x": filled(40, 100 * n)}, groups=()) for n in range(4)]
    kept: dict[int, torch.Tensor] = {}
    threads = [
        threading.Thread(target=lambda n=n, ref=ref: kept.update({n: store.get(ref, as_="torch")["x"]}))
        for n, ref in enumerate(refs)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(kept) == [0, 1, 2, 3], "each within its timeout"
    assert all(is_whole(tensor, 40, 100 * n) for n, tensor in kept.items())


def test_eagle_puts_at_once_never_wait_for_each_others_memory(open_store: OpenStore) -> None:
    store = open_store(pool_bytes=16 * MIB, timeout=20.0)
    hidden = torch.ones(1, 1024, 1024, dtype=torch.bfloat16)  # 2 MiB
    failed: list[BaseException] = []

    def put(eagle: EagleStore, name: str) -> None:
        try:
            for n in range(6):
                eagle.put(f"{name}-{n}", hidden, torch.arange(1000), hidden * 2, hidden * 3)
        except BaseException as error:
            failed.append(error)

    with EagleStore(store) as eagle:
        threads = [threading.Thread(target=put, args=(eagle, f"t{n}")) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed, failed
        eagle.flush()
        shapes = {name: tuple(hidden.shape) for name in ("hidden_states", "last_hidden_states", "target")}
        got = eagle.get("t3-5", {**shapes, "input_ids": (1000,)})
        assert torch.equal(got.target, hidden * 3)


def test_an_eagle_sample_larger_than_the_pool_is_put_and_got(open_store: OpenStore) -> None:
    hidden = torch.randn(1, 4096, 2048).to(torch.bfloat16)  # 16 MiB
    with EagleStore(open_store(pool_bytes=8 * MIB, timeout=60.0)) as eagle:
        eagle.put("large", hidden, torch.arange(1000), None)
        hidden_states = hidden.clone()
        hidden.zero_()  # it is the caller's again
        eagle.flush()
        got = eagle.get("large", {"hidden_states": tuple(hidden.shape), "input_ids": (1000,)})
        assert torch.equal(got.hidden_states, hidden_states)
