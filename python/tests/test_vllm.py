"""The vLLM tier under vLLM's own tiering manager and primary tier, on a real master."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from real.vllm import tier
from servers import Cluster, running_cluster
from ssd_parts import crowd_out
from stand_ins import stand_in

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's own, at import

# vLLM's tiering manager takes the class of its statistics from here, and with it half of vLLM, which is not installed.
stand_in("vllm.distributed.kv_transfer")

CHUNK = 256 << 10
CHUNKS = 16


def spec(model: str = "org/model-8b") -> Any:
    """What a tier reads of vLLM's offloading spec: its real, normalized configuration."""
    from vllm.v1.kv_offload.base import OffloadingKVEventsConfig
    from vllm.v1.kv_offload.config import (
        OffloadingCacheConfig,
        OffloadingConfig,
        OffloadingGroupConfig,
        OffloadingModelConfig,
        OffloadingParallelConfig,
    )

    config = OffloadingConfig(
        groups=(OffloadingGroupConfig(tokens_per_block=16, layer_names=("layers.0", "layers.1"), group_id=0),),
        worker_kv_bytes_per_block=CHUNK,
        enable_kv_cache_events=False,
        extra_config={},
        engine_id=f"test-{uuid.uuid4().hex[:8]}",
        model=OffloadingModelConfig(name=model, dtype="bfloat16"),
        cache=OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
        parallel=OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, True),
        kv_cache_layout="LBNHC",
    )
    # Whether anybody hears of events is the spec's to say; whether the tier tells any, its own options'.
    events = OffloadingKVEventsConfig(enable_kv_cache_events=True, self_describing_kv_events=False)
    return SimpleNamespace(config=config, blocks_per_chunk=1, kv_events_config=events)


def keys(count: int) -> list[Any]:
    from vllm.v1.kv_offload.base import make_offload_key

    return [make_offload_key(hashlib.sha256(uuid.uuid4().bytes).digest(), 0) for _ in range(count)]


def request() -> Any:
    from vllm.v1.kv_offload.base import ReqContext

    return ReqContext(req_id=uuid.uuid4().hex)


class Server:
    """vLLM's scheduler side: its primary tier, its tiering manager, and our tier made by its factory."""

    def __init__(self, cluster: Cluster, tag: str, **more: Any) -> None:
        from vllm.v1.kv_offload.base import ScheduleEndContext
        from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
        from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
        from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager, TieringOffloadingManager

        made = spec(more.pop("model", "org/model-8b"))
        self.end = ScheduleEndContext(new_req_ids=(), preempted_req_ids=())
        self.region = SharedOffloadRegion(
            engine_id=made.config.engine_id, num_chunks=CHUNKS, rank=None, kv_bytes_per_chunk=CHUNK, cpu_page_size=CHUNK
        )
        self.primary = CPUPrimaryTierOffloadingManager(num_chunks=CHUNKS, mmap_region=self.region)
        config = tier(cluster, tag, **more)
        self.tier: Any = SecondaryTierFactory.create_secondary_tier(config, self.primary.get_kv_memoryview(), made)
        self.manager: Any = TieringOffloadingManager(self.primary, [self.tier])

    @property
    def memory(self) -> Any:
        return np.asarray(self.primary.get_kv_memoryview()).view(np.uint8)

    def step(self) -> None:
        """What happens at the end of each of the scheduler's steps."""
        self.manager.on_schedule_end(self.end)

    def until(self, holds: Callable[[], bool], within: float = 20.0) -> None:
        """Steps until something holds, as an engine does."""
        deadline = time.monotonic() + within
        while not holds():
            assert time.monotonic() < deadline, "it did not come about"
            self.step()
            time.sleep(0.005)

    def compute(self, wanted: list[Any]) -> list[bytes]:
        """A request whose chunks are computed and offloaded; returns their bytes."""
        context = request()
        self.manager.on_new_request(context)
        output = self.manager.prepare_store(wanted, context)
        assert output is not None
        slots = [int(chunk) for chunk in output.store_spec.block_ids]
        for slot in slots:
            self.memory[slot] = np.frombuffer(os.urandom(CHUNK), dtype=np.uint8)
        self.manager.complete_store(wanted, context)
        contents = [self.memory[slot].tobytes() for slot in slots]
        self.manager.on_request_finished(context)
        self.until(lambda: not self.tier.has_pending_work())
        return contents

    def close(self) -> None:
        self.manager.shutdown()


@pytest.fixture(scope="module")
def tier_cluster() -> Iterator[Cluster]:
    """One master and two holders."""
    with running_cluster(holders=2, segment_mib=128) as running:
        os.environ.update({**running.client_env, "MC_LOG_LEVEL": "ERROR"})
        yield running


@pytest.fixture
def serve(tier_cluster: Cluster) -> Iterator[Callable[..., Server]]:
    """Starts servers of one tag."""
    tag = f"test-{uuid.uuid4().hex[:8]}"
    with ExitStack() as servers:

        def one(**more: Any) -> Server:
            server = Server(tier_cluster, more.pop("tag", tag), **more)
            servers.callback(server.close)
            return server

        yield one


def looked_up(server: Server, wanted: list[Any], context: Any) -> list[str]:
    """Looks up until the answers are final, as the scheduler does with a request that waits."""
    found: list[str] = []

    def final() -> bool:
        found[:] = [server.manager.lookup(key, context).name for key in wanted]
        return not {"RETRY", "HIT_PENDING"} & set(found)

    server.until(final)
    return found


def test_chunks_of_one_server_are_loaded_by_another_byte_identical(serve: Callable[..., Server]) -> None:
    first, second = serve(), serve()
    wanted, unknown = keys(6), keys(1)
    contents = first.compute(wanted)
    context = request()
    second.manager.on_new_request(context)
    begun = time.perf_counter()
    answer = second.manager.lookup(wanted[0], context)
    assert time.perf_counter() - begun < 0.05, "a lookup does not block"
    assert answer.name == "RETRY"
    assert looked_up(second, [*wanted, *unknown], context) == ["HIT"] * 6 + ["MISS"]
    loaded = second.manager.prepare_load(wanted, context)
    assert [second.memory[int(slot)].tobytes() for slot in loaded.block_ids] == contents
    second.manager.complete_load(wanted, context)
    second.manager.on_request_finished(context)


@pytest.mark.parametrize("on", [False, True])
def test_chunks_on_ssd_are_read_ahead_by_the_lookup(ssd_cluster: Cluster, on: bool) -> None:
    settings = {"prefetch_on_exist": on, "prefetch": {"wait_for_prefetch": 5.0}}
    tag = f"test-{uuid.uuid4().hex[:8]}"
    with ExitStack() as servers:
        first, second = Server(ssd_cluster, tag), Server(ssd_cluster, tag, **settings)
        servers.callback(second.close)
        servers.callback(first.close)
        wanted = keys(6)
        contents = first.compute(wanted)
        names = [first.tier.name(key) for key in wanted]
        assert crowd_out(first.tier.pages, names) == names
        context = request()
        second.manager.on_new_request(context)
        assert looked_up(second, wanted, context) == ["HIT"] * 6
        loaded = second.manager.prepare_load(wanted, context)
        assert [second.memory[int(slot)].tobytes() for slot in loaded.block_ids] == contents
        second.manager.complete_load(wanted, context)
        second.manager.on_request_finished(context)
        stats = second.tier.pages.prefetch_stats()
        assert (stats["gets_local"], stats["gets_ssd"]) == ((6, 0) if on else (0, 6)), stats


def events_of(server: Server) -> list[tuple[Any, ...]]:
    """The events of the tier since the last time."""
    return [
        (one.keys, one.medium.value, one.removed, one.locality and one.locality.value, one.ownership)
        for one in server.manager.take_events()
    ]


def test_a_wrong_chunk_is_recomputed_and_never_served(serve: Callable[..., Server], tier_cluster: Cluster) -> None:
    from mooncake.store import MooncakeDistributedStore

    first, second = serve(enable_kv_events=True), serve(enable_kv_events=True, locality="REMOTE")
    wanted = keys(3)
    first.compute(wanted)
    assert events_of(first) == [(wanted, "STORAGE", False, None, "tensorhold")]
    assert events_of(first) == [], "each event once"
    client = MooncakeDistributedStore()
    assert client.setup("127.0.0.1", tier_cluster.metadata, 0, 16 << 20, "tcp", "", tier_cluster.master) == 0
    short, corrupt = first.tier.name(wanted[1]), first.tier.name(wanted[2])
    assert client.batch_remove([short, corrupt], True) == [0, 0]
    assert client.put(short, b"\x01" * 1000) == 0
    assert client.put(corrupt, b"\x01" * (CHUNK + 64)) == 0
    context = request()
    second.manager.on_new_request(context)
    assert looked_up(second, wanted, context) == ["HIT", "MISS", "MISS"]
    assert second.tier.pages.stats()["gets_corrupt"] == 1
    assert events_of(second) == [([wanted[2]], "STORAGE", True, "REMOTE", "tensorhold")], "who asks elsewhere need not ask here"
    second.manager.on_request_finished(context)


def test_events_are_told_only_if_they_are_asked_for(serve: Callable[..., Server]) -> None:
    server = serve()
    server.compute(keys(1))
    assert events_of(server) == []


def test_a_tier_that_is_shut_down_lets_vllms_memory_go(serve: Callable[..., Server]) -> None:
    server = serve()
    server.compute(keys(2))
    mapped = server.region.mmap_obj
    server.close()
    server.region.cleanup()
    assert mapped is not None and mapped.closed, "it was still exported"


def test_other_models_and_tags_share_nothing(serve: Callable[..., Server]) -> None:
    wanted = keys(1)
    serve().compute(wanted)
    for other in ({"model": "org/other"}, {"weights_version": "2"}, {"tag": "other"}):
        server = serve(**other)
        context = request()
        server.manager.on_new_request(context)
        assert looked_up(server, wanted, context) == ["MISS"], other
        server.manager.on_request_finished(context)


def test_jobs_are_bounded_and_all_of_them_end(serve: Callable[..., Server]) -> None:
    from vllm.v1.kv_offload.tiering.base import TransferJob

    tier = serve(most_jobs=2).tier
    jobs = [TransferJob(n, keys(1), np.array([n % CHUNKS]), False, request()) for n in range(40)]
    begun = time.perf_counter()
    for job in jobs:
        tier.submit_store(job)
    assert time.perf_counter() - begun < 1.0, "submitting does not block"
    tier.drain_jobs()
    results = list(tier.get_finished_jobs())
    assert sorted(result.job_id for result in results) == list(range(40)), "each exactly once"
    assert not all(result.success for result in results)
    assert not tier.has_pending_work()


def test_a_job_that_names_no_slots_or_is_drained_leaves_none_open(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    wrong = SimpleNamespace(job_id=1, keys=keys(1), chunk_ids=["no slot"])
    with pytest.raises(ValueError):
        server.tier.submit_store(wrong)
    assert not server.tier.has_pending_work()

    monkeypatch.setattr("tensorhold.vllm.PAGES_A_CALL", 1)
    begun, go = threading.Event(), threading.Event()
    calls: list[list[str]] = []

    def slow(names: list[str], slots: list[int]) -> list[str]:
        calls.append(names)
        begun.set()
        assert go.wait(20)
        return ["stored"] * len(names)

    server.tier._submit(server.tier._stores, SimpleNamespace(job_id=2, keys=keys(5), chunk_ids=list(range(5))), slow)
    assert begun.wait(20)
    draining = threading.Thread(target=server.tier.drain_jobs)
    draining.start()
    deadline = time.monotonic() + 20
    while not server.tier._draining:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    go.set()
    draining.join(20)
    (result,) = server.tier.get_finished_jobs()
    assert len(calls) == 1 and not result.success and len(result.successful_keys) == 1


@pytest.mark.parametrize("kind", ["store", "load"])
@pytest.mark.parametrize("runs", ["never", "later", "before it is told"])
def test_a_job_that_cannot_be_handed_to_a_thread_is_answered_once(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, kind: str, runs: str
) -> None:
    """A pool that cannot start a thread says so when the job is in its queue already, where another thread may find it."""
    from vllm.v1.kv_offload.tiering.base import TransferJob

    tier = serve().tier
    threads = tier._stores if kind == "store" else tier._loads
    queued: list[Callable[[], None]] = []

    def no_thread(work: Callable[..., None], *arguments: Any) -> None:
        queued.append(lambda: work(*arguments))
        if runs == "before it is told":
            queued.pop()()
        raise RuntimeError("can't start new thread")

    submit = tier.submit_store if kind == "store" else tier.submit_load
    with monkeypatch.context() as patched:
        patched.setattr(threads, "submit", no_thread)
        submit(TransferJob(1, keys(1), np.array([0]), kind == "load", request()))
    if runs == "later":
        queued.pop()()
    (result,) = tier.get_finished_jobs()
    assert (result.job_id, result.success) == (1, kind == "store" and runs == "before it is told")
    assert not tier.has_pending_work()
    submit(TransferJob(2, keys(1), np.array([1]), kind == "load", request()))
    tier.drain_jobs()
    assert [result.job_id for result in tier.get_finished_jobs()] == [2], "the tier works on"


def test_a_job_that_does_not_end_ends_neither_a_drain_nor_a_shutdown_silently(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorhold.vllm.AFTER_A_CALL_S", 0.2)
    tier = serve(load_timeout=0.1, store_timeout=0.3).tier
    begun, go = threading.Event(), threading.Event()

    def stuck(names: list[str], slots: list[int]) -> list[bool]:
        begun.set()
        assert go.wait(60)
        return [True] * len(names)

    try:
        tier._submit(tier._stores, SimpleNamespace(job_id=1, keys=keys(1), chunk_ids=[0]), stuck)
        assert begun.wait(20)
        drained: list[BaseException | None] = []
        draining = threading.Thread(target=lambda: drained.append(told(tier.drain_jobs)))
        draining.start()
        draining.join(10)
        assert not draining.is_alive(), "a drain has a deadline"
        assert isinstance(drained[0], TimeoutError) and "1 job" in str(drained[0])
        assert isinstance(told(tier.shutdown), TimeoutError), "its memory may still be written to"
        assert isinstance(told(tier.shutdown), TimeoutError)
    finally:
        go.set()
    tier.shutdown()
    tier.shutdown()
    assert [result.job_id for result in tier.get_finished_jobs()] == [1]


def told(call: Callable[[], None]) -> BaseException | None:
    """What a call raises."""
    try:
        call()
    except Exception as error:
        return error
    return None


def test_a_slot_whose_load_failed_is_never_written_to_later() -> None:
    from vllm.v1.kv_offload.tiering.base import TransferJob

    with running_cluster(segment_mib=64) as cluster:
        server = Server(cluster, "late", load_timeout=1.0)
        try:
            wanted = keys(4)
            server.compute(wanted)
            slots = np.arange(8, 12)
            holder = cluster.pids["holder-0"]
            os.kill(holder, signal.SIGSTOP)
            try:
                begun = time.monotonic()
                server.tier.submit_load(TransferJob(900, wanted, slots, True, request()))
                assert time.monotonic() - begun < 0.5
                server.tier.drain_jobs()
                (result,) = server.tier.get_finished_jobs()
                assert not result.success and not result.successful_keys
                server.memory[8:12] = 0xA5
            finally:
                os.kill(holder, signal.SIGCONT)

            def comes_again() -> bool:
                server.tier.submit_load(TransferJob(901, wanted, np.arange(12, 16), True, request()))
                server.until(lambda: server.tier._open == 0)
                return all(result.success for result in server.tier.get_finished_jobs())

            deadline = time.monotonic() + 30
            while not comes_again():
                assert time.monotonic() < deadline
            assert bool((server.memory[8:12] == 0xA5).all()), "nobody wrote to what was given back"
        finally:
            server.close()
