"""Pages and samples that lie on SSD: found without side effects, prefetched, and read from memory."""

from __future__ import annotations

import time
import uuid
from contextlib import ExitStack
from typing import Any, get_args

import numpy
import pytest
import sglang_parts as parts

import tensorhold
from tensorhold import kv
from real.sglang import backend
from servers import Cluster
from ssd_parts import MIB, crowd_out, printed

pytestmark = pytest.mark.filterwarnings("ignore")  # SGLang's own, at import

parts.load()


def open_pages(cluster: Cluster, **settings: object) -> kv.PageStore:
    return kv.PageStore(
        master=cluster.master,
        admin=cluster.admin,
        metadata=cluster.metadata,
        environment={**cluster.client_env, "MC_LOG_LEVEL": "ERROR"},
        **settings,  # type: ignore[arg-type]
    )


def test_pages_on_ssd_are_prefetched_and_read_from_memory(ssd_cluster: Cluster) -> None:
    count, tag = 24, uuid.uuid4().hex
    memory = numpy.empty((count, MIB), dtype=numpy.uint8)
    for n in range(count):
        memory[n] = n
    with open_pages(ssd_cluster) as pages:
        run = pages.register(memory)
        keys = [f"kv/{tag}/{n}" for n in range(count)]
        parts_of = [run.address + n * MIB for n in range(count)]
        assert all(pages.put(keys, parts_of, [MIB] * count).stored)
        assert crowd_out(pages, keys) == keys

        hints, prefetch = pages.exists_and_prefetch([*keys, "kv/none"])
        assert hints[-1] is None and all(hint is not None and hint.nbytes == MIB for hint in hints[:-1])
        assert prefetch.wait(10.0), prefetch
        assert prefetch.outcomes == ["resident"] * count + ["absent"]
        assert prefetch.progress.ended == {"resident": count, "absent": 1} and prefetch.done
        assert "resident" in repr(prefetch)

        memory[:] = 255
        report = pages.get(keys, parts_of, [MIB] * count)
        assert report.loaded == [True] * count
        assert all((memory[n] == n).all() for n in range(count))
        stats = pages.prefetch_stats()
        assert stats["gets_local"] == count and stats["gets_ssd"] == 0
        assert stats["asked"] == count + 1 and stats["buffered"] == 0


def test_a_wrong_setting_of_prefetches_is_named(ssd_cluster: Cluster) -> None:
    with pytest.raises(tensorhold.Invalid, match="workers"):
        open_pages(ssd_cluster, prefetch={"workers": 0})
    with pytest.raises(tensorhold.Invalid, match="prefetch|speed"):
        open_pages(ssd_cluster, prefetch={"speed": 1})


@pytest.mark.parametrize("on", [False, True])
def test_sglang_reads_prefix_pages_from_memory(ssd_cluster: Cluster, on: bool) -> None:
    """As SGLang's controller does it: the pages of a prefix are asked for, then read into the host pool."""
    from sglang.srt.mem_cache.storage import StorageBackendFactory

    pool = parts.mha_pool(pages=16)
    tag = f"test-{uuid.uuid4().hex[:8]}"
    extra = backend(ssd_cluster, tag, prefetch_on_exist=on, prefetch={"wait_for_prefetch": 5.0})
    with ExitStack() as opened:
        opened.enter_context(parts.published())
        storage = StorageBackendFactory.create_backend("dynamic", parts.storage_config(extra), pool)
        opened.callback(storage.close)
        storage.register_mem_pool_host(pool)
        storage.on_host_pools_registered()
        places, took = list(range(8)), []
        for _ in range(3):
            parts.fill(pool)
            keys = [uuid.uuid4().hex + uuid.uuid4().hex for _ in places]
            assert all(storage.batch_set_v1(keys, parts.indices(pool, places)))
            names = storage._pools[next(iter(storage._pools))].names.all(keys)
            assert crowd_out(storage.pages, names) == names
            before = parts.page_bytes(pool, places)
            parts.data(pool).zero_()
            assert storage.batch_exists(keys) == len(keys)
            # The controller asks when a request arrives, and reads when its turn has come.
            deadline = time.monotonic() + 10
            while storage.pages.prefetch_stats()["buffered"] < on * len(keys):
                assert time.monotonic() < deadline, storage.pages.prefetch_stats()
                time.sleep(0.01)
            begun = time.perf_counter()
            assert all(storage.batch_get_v1(keys, parts.indices(pool, places)))
            took.append(time.perf_counter() - begun)
            assert parts.page_bytes(pool, places) == before
        stats, all_keys = storage.pages.prefetch_stats(), 3 * len(places)
        print(f"prefetch {on}: get of {len(places)} pages, median {sorted(took)[1] * 1e3:.1f} ms, {stats}")
        assert stats["gets_local"] == (all_keys if on else 0)
        assert stats["gets_ssd"] == (0 if on else all_keys)


def open_samples(cluster: Cluster) -> tensorhold.FeatureStore:
    name = f"test-{uuid.uuid4().hex[:12]}"
    return tensorhold.open(name, residency="spill", sweep_every=None, pool_bytes=64 << 20, **cluster.settings())


def put_samples(store: tensorhold.FeatureStore, count: int) -> list[str]:
    """Samples of 1 MiB for the trainers: each has its number in its name and in all its bytes."""
    names = [f"run/{n}" for n in range(count)]
    for at in range(0, count, 32):
        items = [
            tensorhold.PutItem(name, {"x": numpy.full(MIB, number(name), dtype=numpy.uint8)}, ["trainers"])
            for name in names[at : at + 32]
        ]
        for ref in store.put_many(items, timeout=60):
            assert isinstance(ref, tensorhold.SampleRef), ref
    return names


def number(name: str) -> int:
    return int(name.removeprefix("run/"))


def work(store: tensorhold.FeatureStore, asked: int) -> None:
    """Takes as long as reading ahead what was asked for since, and two seconds at most: reading ahead may fail."""
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        stats = store.prefetch_stats()
        if asked < stats["asked"] == sum(stats[outcome] for outcome in get_args(kv.PrefetchOutcome)):
            return
        time.sleep(0.01)


def test_samples_that_spill_are_kept_found_and_read_ahead(ssd_cluster: Cluster) -> None:
    count = 160
    with open_samples(ssd_cluster) as store:
        names = put_samples(store, count)
        tiers = store.tiers([*names, "run/none"])
        assert tiers[-1] is None and set(tiers[:-1]) <= {"dram", "ssd"} and tiers.count("ssd") >= count - 128
        assert store.exists(["run/0", "run/none"]) == [True, False]
        on_ssd = [name for name, tier in zip(names, tiers, strict=False) if tier == "ssd"]
        cold = on_ssd[:8]
        prefetch = store.prefetch(cold)
        assert prefetch.wait(20) and prefetch.outcomes == ["resident"] * len(cold)
        assert store.tiers(cold) == ["local"] * len(cold)
        for name in cold:
            assert (store.get(name, as_="numpy")["x"] == number(name)).all()
        local = store.prefetch_stats()["gets_local"]
        assert local >= len(cold)

        seen: set[str] = set()
        ahead: set[str] = set()
        while len(seen) < count:
            asked = store.prefetch_stats()["asked"]
            leases = store.take("trainers", 8, ahead=8, timeout=30)
            assert leases
            for lease in leases:
                tensor = store.get(lease, as_="numpy")["x"]
                assert (tensor == number(lease.ref.sample)).all()
                seen.add(lease.ref.sample)
            store.ack_many(leases)
            # What the first take got was not read ahead. Until they are read, the others stay on SSD.
            ahead = ahead or set(on_ssd[8:]) - seen
            if len(seen) < count:
                work(store, asked)
        local = store.prefetch_stats()["gets_local"] - local
        assert 2 * local >= len(ahead) >= 16, (local, len(ahead), store.prefetch_stats())


def test_the_page_about_ssd_runs_as_printed(ssd_cluster: Cluster) -> None:
    memory = numpy.zeros((4, MIB), dtype=numpy.uint8)
    with open_samples(ssd_cluster) as store, open_pages(ssd_cluster) as pages:
        run = pages.register(memory)
        keys = [f"kv/{uuid.uuid4().hex}" for _ in memory]
        assert all(pages.put(keys, [run.address + n * MIB for n in range(4)], [MIB] * 4).stored)
        put_samples(store, 16)
        assert crowd_out(pages, keys) == keys

        names: dict[str, Any] = {"pages": pages, "store": store, "keys": keys}
        (asking,) = printed("Asking, without side effects", "python")
        # The lines that ask; those before them open the stores, which are here already.
        asked = [line for line in asking.splitlines() if line.startswith(("store.exists", "store.tiers", "pages.exists"))]
        found, tiers, hints = (eval(line, names) for line in asked)
        assert hints == [kv.Hint(MIB, False)] * 4
        assert found == [True] and tiers in (["dram"], ["ssd"])
        (prefetching,) = printed("Prefetch", "python")
        exec(prefetching, names)
        assert names["hints"] == hints
        assert names["prefetch"].wait(20) and names["prefetch"].outcomes == ["resident"] * 4
