"""The SGLang back end, driven as SGLang's controller drives it, with SGLang's own pools, on a real master."""

from __future__ import annotations

import ctypes
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import sglang_parts as parts
import torch

from real.sglang import backend
from servers import Cluster, running_cluster

pytestmark = pytest.mark.filterwarnings("ignore")  # SGLang's own, at import

parts.load()

Storage = Any
Make = Callable[..., Storage]


@pytest.fixture(scope="module")
def pages_cluster() -> Iterator[Cluster]:
    """One master and two holders; no test uses the etcd."""
    with running_cluster(holders=2, segment_mib=256) as running:
        os.environ.update({**running.client_env, "MC_LOG_LEVEL": "ERROR"})  # read when the engine is loaded
        yield running


@pytest.fixture(scope="module", autouse=True)
def scheduler() -> Iterator[None]:
    """The process is one of SGLang's schedulers."""
    with parts.published():
        yield


def options(cluster: Cluster, **more: Any) -> dict[str, Any]:
    """The extra config of a server on this cluster."""
    return backend(cluster, f"test-{uuid.uuid4().hex[:8]}", **{"frame_bytes": 4 << 20, **more})


@pytest.fixture
def make(pages_cluster: Cluster) -> Iterator[Make]:
    """Makes back ends through SGLang's own factory, as ``--hicache-storage-backend dynamic`` does."""
    from sglang.srt.mem_cache.storage import StorageBackendFactory

    tag = f"test-{uuid.uuid4().hex[:8]}"
    with ExitStack() as made:

        def one(pool: Any, extra: dict[str, Any] | None = None, **config: Any) -> Storage:
            given = {"extra_backend_tag": tag, **(extra or {})}
            settings = parts.storage_config(options(pages_cluster, **given), **config)
            storage = StorageBackendFactory.create_backend("dynamic", settings, pool)
            made.callback(storage.close)
            storage.register_mem_pool_host(pool)
            storage.on_host_pools_registered()
            return storage

        yield one


def hashes(count: int) -> list[str]:
    """Keys such as SGLang's: SHA-256 in hex."""
    return [uuid.uuid4().hex + uuid.uuid4().hex for _ in range(count)]


def round_trip(storage: Storage, pool: Any, keys: list[str]) -> None:
    """Backup, query, drop, prefetch: the calls of the controller's threads, one after the other."""
    count = len(keys)
    before = parts.page_bytes(pool, range(count))
    assert storage.batch_exists(keys) == 0
    assert storage.batch_set_v1(keys, parts.indices(pool, range(count))) == [True] * count
    assert storage.batch_exists(keys) == count
    parts.data(pool).zero_()
    # Into other pages than they came from, as after an eviction.
    places = list(reversed(range(count)))
    assert storage.batch_get_v1(keys, parts.indices(pool, places)) == [True] * count
    assert parts.page_bytes(pool, places) == before


@pytest.mark.parametrize("layout", ["page_first", "page_first_direct", "page_head", "layer_first"])
def test_pages_of_every_mha_layout_come_back_byte_identical(make: Make, layout: str) -> None:
    pool = parts.mha_pool(layout=layout)
    round_trip(make(pool), pool, hashes(8))


@pytest.mark.parametrize("least", [0, 1], ids=["through frames", "from where they lie"])
def test_sets_go_through_frames_or_past_them_and_pages_come_back(make: Make, least: int) -> None:
    pool = parts.mha_pool()
    storage = make(pool, {"direct_put_bytes": least})
    round_trip(storage, pool, hashes(8))
    page = torch.arange(4096, dtype=torch.int32)
    key = hashes(1)[0]
    assert storage.set(key, page)
    assert torch.equal(storage.get(key, torch.zeros_like(page)), page), "memory of one call, by the older interface"


@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
def test_pages_of_every_mla_layout_come_back_byte_identical(make: Make, layout: str) -> None:
    pool = parts.mla_pool(layout=layout)
    round_trip(make(pool, is_mla_model=True), pool, hashes(8))


def test_a_page_is_one_object_and_hits_count_from_the_start(make: Make, pages_cluster: Cluster) -> None:
    pool = parts.mha_pool()
    storage = make(pool)
    keys = hashes(4)
    assert storage.batch_set_v1(keys[:2], parts.indices(pool, [0, 1])) == [True, True]
    assert storage.batch_set_v1(keys[3:], parts.indices(pool, [3])) == [True]
    assert storage.batch_exists(keys) == 2
    assert storage.exists(keys[3]) and not storage.exists(keys[2])
    assert storage.batch_get_v1(keys, parts.indices(pool, range(4))) == [True, True, False, True]
    assert storage.page_stats()["pages_stored"] == 3
    assert storage.page_stats()["gets_missed"] == 1


def test_ranks_share_pages_of_mla_and_never_those_of_mha(make: Make) -> None:
    keys = hashes(2)
    for pools, mla in (((parts.mla_pool(), parts.mla_pool()), True), ((parts.mha_pool(), parts.mha_pool()), False)):
        writer = make(pools[0], is_mla_model=mla, tp_rank=0, tp_size=2)
        reader = make(pools[1], is_mla_model=mla, tp_rank=1, tp_size=2)
        assert writer.batch_set_v1(keys, parts.indices(pools[0], [0, 1])) == [True, True]
        assert reader.batch_exists(keys) == (2 if mla else 0)
        assert reader.batch_get_v1(keys, parts.indices(pools[1], [0, 1])) == [mla, mla]
        if mla:
            assert parts.page_bytes(pools[1], [0, 1]) == parts.page_bytes(pools[0], [0, 1])


def test_whatever_the_bytes_depend_on_is_in_the_name(make: Make) -> None:
    """All of it: ``test_sglang_names.py``."""
    pool = parts.mha_pool()
    keys = hashes(1)
    assert make(pool).batch_set_v1(keys, parts.indices(pool, [0])) == [True]
    assert make(pool).batch_exists(keys) == 1
    others: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
        (pool, {"extra_backend_tag": "another"}, {}),
        (pool, {"weights_version": "2"}, {}),
        (pool, {}, {"tp_size": 2}),
        (pool, {}, {"pp_size": 2}),
        (parts.mha_pool(page=8, pages=16), {}, {}),
        (parts.mha_pool(layout="page_head"), {}, {}),
        (parts.mha_pool(layers=8, heads=4), {}, {}),
    ]
    for other, extra, config in others:
        assert make(other, extra, **config).batch_exists(keys) == 0, (extra, config)


def test_pages_of_another_fp8_are_misses(make: Make) -> None:
    from sglang.srt.runtime_context import get_model

    pools = {"fp8_e4m3": parts.mha_pool(dtype=torch.float8_e4m3fn), "fp8_e5m2": parts.mha_pool(dtype=torch.float8_e5m2)}
    servers = {}
    for kind, pool in pools.items():
        with get_model().override(kv_cache_dtype=kind):
            servers[kind] = make(pool)
    writer, other = servers.values()
    pool, theirs = pools.values()
    assert pool.dtype == theirs.dtype == torch.uint8
    keys, where = hashes(4), parts.indices(pool, range(4))
    assert writer.batch_set_v1(keys, where) == [True] * 4
    before = parts.page_bytes(theirs, range(4))
    assert other.batch_exists(keys) == 0
    assert other.batch_get_v1(keys, where) == [False] * 4
    assert parts.page_bytes(theirs, range(4)) == before, "nothing was written"
    with get_model().override(kv_cache_dtype="fp8_e4m3"):
        assert make(theirs).batch_get_v1(keys, where) == [True] * 4
    assert parts.page_bytes(theirs, range(4)) == parts.page_bytes(pool, range(4))


def test_no_page_is_stored_or_found_once_the_weights_have_changed(make: Make) -> None:
    """SGLang's scheduler publishes the version that comes with an update; pages of former weights may be under way."""
    from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
    from sglang.srt.runtime_context import get_serving

    pool = parts.mha_pool()
    storage = make(pool)
    keys, late = hashes(2), hashes(2)
    where = parts.indices(pool, range(2))
    assert storage.batch_set_v1(keys, where) == [True] * 2
    with get_serving().override(weight_version="2"):
        assert storage.batch_exists(keys) == 0
        assert storage.batch_get_v1(keys, where) == [False] * 2
        assert storage.batch_set_v1(late, where) == [False] * 2
        assert storage.batch_set_v2([PoolTransfer(name=PoolName.KV, keys=late, host_indices=where)]) == {
            PoolName.KV: [False] * 2
        }
        assert not storage.set(late[0], parts.data(pool)[:4096])
        assert storage.get(late[0]) is None
        attached = make(pool)
        assert attached.batch_exists([*keys, *late]) == 0
        assert attached.batch_set_v1(late, where) == [True] * 2
        assert attached.batch_exists(late) == 2
    assert storage.batch_exists(keys) == 2
    assert storage.batch_exists(late) == 0


def test_ranks_of_another_tp_size_find_pages_whose_heads_are_split(make: Make) -> None:
    wide = parts.mha_pool(heads=8, layout="page_head")
    narrow = [parts.mha_pool(heads=4, layout="page_head") for _ in range(2)]
    split = {"tp_lcm_size": 2, "should_split_heads": True}
    keys = hashes(3)
    storage = make(wide, tp_size=1, **split)
    round_trip(storage, wide, keys)
    assert storage.page_stats()["pages_stored"] == 6, "two objects a page"
    # A server of two ranks has half the heads on each, and splits none of them.
    where = parts.indices(wide, [2, 1, 0])  # where the round trip has left them
    addresses, sizes = wide.get_split_heads_page_buffer_meta(where, 2)
    for rank, pool in enumerate(narrow):
        reader = make(pool, tp_rank=rank, tp_size=2)
        assert reader.batch_exists(keys) == 3
        assert reader.batch_get_v1(keys, parts.indices(pool, range(3))) == [True] * 3
        halves = [
            b"".join(ctypes.string_at(addresses[at + n], sizes[at + n]) for n in range(2))
            for at in range(2 * rank, len(addresses), 4)
        ]
        assert parts.page_bytes(pool, range(3)) == halves


def test_side_pools_follow_their_policies(make: Make) -> None:
    from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer

    kv, side = parts.mla_pool(), parts.mla_pool(layers=1)
    storage = make(kv, is_mla_model=True)
    storage.register_mem_host_pool_v2(kv, PoolName.KV)
    storage.register_mem_host_pool_v2(side, PoolName.INDEXER)
    storage.register_mem_host_pool_v2(side, PoolName.SWA)
    keys = hashes(5)
    where = parts.indices(kv, range(5))

    def transfer(name: Any, which: list[int], policy: Any = PoolHitPolicy.ALL_PAGES) -> Any:
        picked = [keys[at] for at in which]
        return PoolTransfer(name=name, keys=picked, host_indices=parts.indices(side, which), hit_policy=policy)

    assert storage.batch_set_v1(keys, where) == [True] * 5
    assert storage.batch_set_v2([transfer(PoolName.INDEXER, [0, 1, 2]), transfer(PoolName.SWA, [1, 2, 4])]) == {
        PoolName.INDEXER: [True] * 3,
        PoolName.SWA: [True] * 3,
    }
    every = storage.batch_exists_v2(keys, [transfer(PoolName.INDEXER, [0])])
    assert (every.kv_hit_pages, every.restorable_prefix_pages) == (3, [1, 2, 3])
    assert every.extra_pool_hit_pages == {PoolName.KV: 5, PoolName.INDEXER: 3}
    last = storage.batch_exists_v2(keys, [transfer(PoolName.SWA, [0], PoolHitPolicy.TRAILING_PAGES)])
    assert (last.kv_hit_pages, last.restorable_prefix_pages) == (5, [2, 3, 5]), "the window's last page is there"
    two = storage.batch_exists_v2(keys, [transfer(PoolName.SWA, [0, 1], PoolHitPolicy.TRAILING_PAGES)])
    assert two.restorable_prefix_pages == [3]
    both = storage.batch_exists_v2(
        keys, [transfer(PoolName.INDEXER, [0]), transfer(PoolName.SWA, [0], PoolHitPolicy.TRAILING_PAGES)]
    )
    assert (both.kv_hit_pages, both.restorable_prefix_pages) == (3, [2, 3])
    before = parts.page_bytes(side, [1, 2])
    parts.data(side).zero_()
    got = storage.batch_get_v2([transfer(PoolName.SWA, [1, 2, 3])])
    assert got == {PoolName.SWA: [True, True, False]}
    assert parts.page_bytes(side, [1, 2]) == before


def test_the_older_calls_work_too(make: Make) -> None:
    pool = parts.mha_pool()
    storage = make(pool, {"interface_v1": 0})
    keys = hashes(3)
    pages = [pool.get_data_page(at * pool.page_size) for at in range(2)]
    assert storage.batch_exists(keys) == 0
    assert storage.batch_set(keys[:2], pages)
    assert storage.batch_exists(keys) == 2
    got = storage.batch_get(keys, [pool.get_dummy_flat_data_page() for _ in keys])
    assert got[2] is None
    assert all(torch.equal(one.view(torch.uint8), page.view(torch.uint8)) for one, page in zip(got, pages))
    assert torch.equal(storage.get(keys[0]), pages[0].contiguous().view(torch.uint8).reshape(-1))
    assert storage.get(keys[2]) is None


def read_from() -> float:
    """How many pages this process was told to have read, from anywhere."""
    from prometheus_client import REGISTRY

    families = [family for family in REGISTRY.collect() if family.name == "sglang:tensorhold_gets"]
    return sum(one.value for family in families for one in family.samples if one.name.endswith("_total"))


def test_statistics_and_clear(make: Make) -> None:
    pool = parts.mha_pool()
    storage, other = make(pool), make(pool, {"extra_backend_tag": "other"})
    keys = hashes(3)
    for one in (storage, other):
        assert all(one.batch_set_v1(keys, parts.indices(pool, range(3))))
    assert storage.batch_get_v1([*keys, *hashes(1)], parts.indices(pool, range(4))) == [True] * 3 + [False]
    assert storage.batch_get_v1(hashes(2), parts.indices(pool, range(2))) == [False] * 2
    before = read_from()
    stats = storage.get_stats()
    assert read_from() - before == 3, "told with SGLang's metrics"
    assert (stats.prefetch_pgs, stats.backup_pgs) == ([3], [3])
    assert all(speed > 0 for speed in stats.prefetch_bandwidth + stats.backup_bandwidth)
    assert storage.get_stats().prefetch_pgs == []
    storage.clear()
    assert storage.batch_exists(keys) == 0
    assert other.batch_exists(keys) == 3, "others keep theirs"


def test_a_slip_in_the_options_is_refused_by_name(pages_cluster: Cluster) -> None:
    from tensorhold.sglang import TensorholdHiCacheStorage

    with pytest.raises(ValueError, match="mastr"):
        TensorholdHiCacheStorage(parts.storage_config(options(pages_cluster, mastr="x")), {})
    with pytest.raises(ValueError, match="frames"):
        TensorholdHiCacheStorage(parts.storage_config(options(pages_cluster, frames=0)), {})


def test_a_page_larger_than_a_frame_is_refused_when_the_pool_is_registered(make: Make) -> None:
    with pytest.raises(ValueError, match="frame_bytes"):
        make(parts.mha_pool(), {"frame_bytes": 64 << 10})


def test_a_short_object_is_a_hit_for_sglangs_own_back_end_and_refused_by_ours(
    make: Make, pages_cluster: Cluster
) -> None:
    """Another writer left half a page under the name: one of another layout, or one that was cut off."""
    from mooncake.store import MooncakeDistributedStore

    pool, key = parts.mha_pool(), hashes(1)
    where = parts.indices(pool, [0])
    addresses, sizes = pool.get_page_buffer_meta(where)
    client = MooncakeDistributedStore()
    assert client.setup("127.0.0.1", pages_cluster.metadata, 0, 16 << 20, "tcp", "", pages_cluster.master) == 0

    extra = {
        "master_server_address": pages_cluster.master,
        "metadata_server": pages_cluster.metadata,
        "global_segment_size": 0,
        "local_hostname": "127.0.0.1",
    }
    theirs = parts.mooncake_store_class()(parts.storage_config(extra))
    theirs.register_mem_pool_host(pool)
    names = [f"org-model-8b_{key[0]}_0_{part}" for part in "kv"]
    for name, size in zip(names, sizes, strict=True):
        assert client.put(name, b"\x05" * (size // 2)) == 0
    assert theirs.batch_exists(key) == 1
    assert theirs.batch_get_v1(key, where) == [True], "SGLang's own back end takes half a page for a page"

    ours = make(pool)
    name = ours._pools["kv"].names.all(key)[0]
    assert client.put(name, b"\x05" * (sum(sizes) // 2)) == 0
    assert ours.batch_exists(key) == 0, "an object of another length is not there"
    assert ours.batch_get_v1(key, where) == [False]
    assert ours.page_stats()["gets_wrong_length"] == 1
    # The wrong object is out of the way: the page can be set anew, and is then the page.
    parts.fill(pool)
    before = parts.page_bytes(pool, [0])
    assert ours.batch_set_v1(key, where) == [True]
    ctypes.memset(addresses[0], 0, sizes[0])
    assert ours.batch_get_v1(key, where) == [True]
    assert parts.page_bytes(pool, [0]) == before

    # The right length with other bytes is no better.
    other = hashes(1)
    name = ours._pools["kv"].names.all(other)[0]
    assert client.put(name, b"\x05" * (sum(sizes) + 64)) == 0
    assert ours.batch_exists(other) == 1, "presence is a hint"
    assert ours.batch_get_v1(other, where) == [False]
    assert ours.page_stats()["gets_corrupt"] == 1


def test_a_page_that_was_given_back_is_never_written_to_later() -> None:
    """A holder hangs, the get runs out of time, the pool uses the page for something else, the holder goes on."""
    from sglang.srt.mem_cache.storage import StorageBackendFactory

    with running_cluster(segment_mib=64) as cluster:
        pool, keys = parts.mha_pool(), hashes(8)
        where = parts.indices(pool, range(8))
        config = parts.storage_config(options(cluster, get_timeout=1.0))
        storage = StorageBackendFactory.create_backend("dynamic", config, pool)
        storage.register_mem_pool_host(pool)
        try:
            before = parts.page_bytes(pool, range(8))
            assert all(storage.batch_set_v1(keys, where))
            holder = cluster.pids["holder-0"]
            os.kill(holder, signal.SIGSTOP)
            begun = time.monotonic()
            try:
                assert storage.batch_get_v1(keys, where) == [False] * 8
                assert time.monotonic() - begun < 5, "not stuck"
                parts.data(pool).fill_(0xA5)
            finally:
                os.kill(holder, signal.SIGCONT)
            # Once pages come again, what hung has moved as well: the holder serves in order.
            fresh = parts.mha_pool()
            storage.pages.register(fresh.kv_buffer)
            deadline = time.monotonic() + 30
            storage._pools["kv"].host.kv_buffer, kept = fresh.kv_buffer, pool.kv_buffer
            while not all(storage.batch_get_v1(keys, where)):
                assert time.monotonic() < deadline, "the store did not come back"
            assert parts.page_bytes(fresh, range(8)) == before
            assert bool((kept.view(torch.uint8) == 0xA5).all()), "nobody wrote to what was given back"
        finally:
            storage.close()


def test_a_pools_memory_stays_when_its_tensor_is_given_other_memory() -> None:
    from tensorhold.sglang import _memory

    tensor = torch.zeros(1024)
    memory = _memory(tensor)
    owner: Any = memory.owner
    tensor.data = torch.empty(0)
    assert owner.data_ptr() == memory.address and owner.nbytes() == memory.nbytes == 4096
