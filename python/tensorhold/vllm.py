"""A secondary tier for vLLM's KV offloading: :class:`TensorholdTierManager`, under ``TieringOffloadingSpec``.

::

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
        "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 8589934592, "secondary_tiers": [
            {"type": "TensorholdTierManager", "module_path": "tensorhold.vllm", "master": "10.0.0.1:50051"}]}}'

It runs in the scheduler's process, so nothing in it blocks: a lookup answers ``RETRY`` until a thread knows the result,
stores and loads run on the tier's own threads, and ``get_finished_jobs`` collects their results.

A chunk is one object with a footer that holds its length and checksum, bound to its name: a load returns exactly what
was stored, or the key is not among the successful ones. Chunks pass through frames of the page store, so the engine
never gets the primary tier's memory, and a slot whose load failed is not written to later.

States of a job::

    submit ─▶ queued ─▶ running ─▶ finished, fetched once
               │ too many open, no thread for it, or drained before it began: finished, without success
"""

from __future__ import annotations

import json
import logging
import platform
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple
from urllib.parse import quote

import torch
import vllm
import vllm.envs as environment
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingEvent,
    OffloadingMetricMetadata,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
    get_offload_block_hash,
    get_offload_group_idx,
)
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from tensorhold._counters import GETS, REFUSED, Counters
from tensorhold.errors import TensorholdError, Invalid, Timeout
from tensorhold.kv import Memory, Namespace, PageStore, Rank

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats

__all__ = ["TensorholdTierManager"]

log: Final = logging.getLogger("tensorhold.vllm")

PAGES_A_CALL: Final = 256
"""The most chunks in one call of the page store; a job may have more."""
AFTER_A_CALL_S: Final = 5.0
"""How much longer than the timeout of its call a job may take to end while the tier is drained."""

OWNER: Final = "tensorhold"
"""Who owns the chunks that events tell of."""
MOVED: Final = frozenset({"stored", "loaded"})
"""Outcomes of chunks that moved."""
GONE: Final = frozenset({"miss", "wrong-length", "corrupt"})
"""Outcomes of gets that tell that the tier does not have the chunk. What is wrong is removed."""

METRIC: Final = "vllm:kv_offload_"
"""How the names of the tier's own metrics begin, as those of all offloading do."""

Work = Callable[[list[str], list[int]], Sequence[str]]
"""Moves chunks, given by the names of their objects and their slots. Returns the outcome of each."""


class _Ended(NamedTuple):
    """A job that has ended, and what that says about chunks, for events."""

    result: JobResult
    stored: Sequence[OffloadKey] = ()
    gone: Sequence[OffloadKey] = ()


class _Lookups(AsyncLookupManager):
    """vLLM's own bookkeeping of lookups: each is asked once, on a thread, and remembered while a request asks for
    it."""

    def __init__(self, tier: TensorholdTierManager) -> None:
        self._tier = tier
        super().__init__(tier_type=tier.tier_type)

    def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        return self._tier.present(keys)


class TensorholdTierManager(SecondaryTierManager):
    """vLLM's interface of a secondary tier, on a page store."""

    medium: ClassVar[Medium | None] = Medium.STORAGE
    # Not "disk", which vLLM would make of the medium: most chunks are in the DRAM of other hosts.
    cache_hit_source: ClassVar[CacheHitSource] = CacheHitSource.EXTERNAL_UNSPECIFIED

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        *,
        master: str = "127.0.0.1:50051",
        admin: str | list[str] | None = None,
        metadata: str = "P2PHANDSHAKE",
        protocol: str = "tcp",
        local_hostname: str = "127.0.0.1",
        tag: str | None = None,
        weights_version: str = "",
        load_threads: int = 2,
        store_threads: int = 1,
        most_jobs: int = 4096,
        frames: int = 8,
        frame_bytes: int | None = None,
        connect_timeout: float = 30.0,
        exists_timeout: float = 2.0,
        load_timeout: float = 10.0,
        store_timeout: float = 20.0,
        key: str | None = None,
        environment: dict[str, str] | None = None,
        engine: dict[str, Any] | None = None,
        prefetch_on_exist: bool = True,
        prefetch: dict[str, Any] | None = None,
        enable_kv_events: bool = False,
        locality: str | None = None,
    ) -> None:
        """``tag`` is a prefix of all names; ``weights_version`` is part of them. While ``most_jobs`` jobs are open, the
        next one fails at once. With ``key`` (``env:NAME``, ``file:PATH``, or its text; the same for all processes)
        chunks are encrypted and authenticated, and their names reveal nothing. ``frame_bytes`` is at least one chunk;
        the default is one chunk or 8 MiB, whichever is larger. With ``prefetch_on_exist`` chunks that a lookup finds on
        SSD only are read ahead; ``prefetch`` holds settings of that (see :class:`tensorhold.kv.PageStore`).

        With ``enable_kv_events``, if vLLM publishes KV events at all, the tier tells which chunks it has stored and
        which it found gone. ``locality`` (``LOCAL`` or ``REMOTE``) is passed on with them. Both are named as in vLLM's own
        tiers."""
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        if frames < 1:
            raise Invalid("frames must be at least 1", operation="vllm.options")
        chunk = self.block_size_bytes
        self._before = _names(offloading_spec.config, chunk, tag, weights_version)
        self._exists_timeout, self._load_timeout, self._store_timeout = exists_timeout, load_timeout, store_timeout
        self._most_jobs = most_jobs
        self.locality = None if locality is None else Locality(locality)
        self.pages = PageStore(
            master=master,
            admin=admin,
            metadata=metadata,
            protocol=protocol,
            local_hostname=local_hostname,
            frames=frames,
            frame_bytes=max(8 << 20, chunk) if frame_bytes is None else frame_bytes,
            timeout=connect_timeout,
            key=key,
            environment=environment,
            engine=engine,
            prefetch=prefetch,
        )
        self._prefetch_on_exist = prefetch_on_exist
        self._events: list[OffloadingEvent] | None = None
        if enable_kv_events:
            if offloading_spec.kv_events_config.enable_kv_cache_events:
                self._events = []
            else:  # nobody would take them
                log.warning("enable_kv_events has no effect: vLLM does not publish KV events")
        self._counters = Counters(self.pages)
        # Only the address is kept: an export of the view would keep vLLM from closing its memory.
        self._base = self.pages.register(Memory.of(primary_kv_view)).address
        self._finished: queue.SimpleQueue[_Ended] = queue.SimpleQueue()
        self._loading: dict[int, list[OffloadKey]] = {}
        self._open = 0
        self._draining = False
        self._closed = False
        self._ended = False
        self._idle = threading.Condition()
        self._loads = ThreadPoolExecutor(load_threads, thread_name_prefix="tensorhold-vllm-load")
        self._stores = ThreadPoolExecutor(store_threads, thread_name_prefix="tensorhold-vllm-store")
        self._lookups = _Lookups(self)

    def name(self, key: OffloadKey) -> str:
        """The name of a chunk's object."""
        return f"{self._before}{get_offload_block_hash(key).hex()}/g{get_offload_group_idx(key)}"

    def present(self, keys: list[OffloadKey]) -> list[bool]:
        """Whether chunks seem to exist, with exactly the right length. Blocks; called on the thread for lookups."""
        names = [self.name(key) for key in keys]
        try:
            hints = self.pages.exists(names, prefetch=self._prefetch_on_exist, timeout=self._exists_timeout)
        except TensorholdError as error:
            log.warning("it is unknown whether %d chunks exist: %s", len(keys), error)
            return [False] * len(keys)
        return [hint is not None and hint.nbytes == self.block_size_bytes for hint in hints]

    # Called by the scheduler.

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """``RETRY`` until the result is known; a hit is a hint, and its load may still fail."""
        known = self._lookups.lookup(key, req_context)
        if known is None:
            return LookupResult.RETRY
        return LookupResult.HIT if known else LookupResult.MISS

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Stores chunks of the primary tier. A chunk that already exists counts as stored."""
        self._submit(self._stores, job_metadata, self._store)

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Loads chunks into slots of the primary tier."""
        self._loading[job_metadata.job_id] = list(job_metadata.keys)
        self._submit(self._loads, job_metadata, self._load)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """The results since the last call. A key whose load failed is a miss from now on, so that it is recomputed."""
        results: list[JobResult] = []
        while True:
            try:
                result, stored, gone = self._finished.get_nowait()
            except queue.Empty:
                return results
            self._tell_event(stored, removed=False)
            self._tell_event(gone, removed=True)
            keys = self._loading.pop(result.job_id, None)
            if keys is not None and not result.success:
                good = set(result.successful_keys or ())
                self._lookups.mark_miss([key for key in keys if key not in good])
            results.append(result)

    def _tell_event(self, keys: Sequence[OffloadKey], *, removed: bool) -> None:
        if self._events is not None and keys:
            self._events.append(
                # No removal is promised: what the engine evicts, nobody hears of.
                OffloadingEvent(list(keys), Medium.STORAGE, removed, locality=self.locality, ownership=OWNER)
            )

    def take_events(self) -> Iterable[OffloadingEvent]:
        """Since the last call: chunks that are stored now, and chunks that a load found missing or wrong."""
        if not self._events:
            return ()
        taken, self._events = self._events, []
        return taken

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        """The tier's own metrics, besides those that vLLM keeps for every tier."""
        return {METRIC + one.name: OffloadingCounterMetadata(one.about, (one.label,)) for one in (GETS, REFUSED)}

    def get_stats(self) -> OffloadingConnectorStats | None:
        """What the tier's own metrics have grown by since the last call."""
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats

        if self._ended:
            return None
        stats = OffloadingConnectorStats()
        for metric, label, more in self._counters.grown():
            stats.increase_counter(METRIC + metric.name, more, (label,))
        return stats

    def has_pending_work(self) -> bool:
        """Whether jobs are open or have results to collect."""
        return self._open > 0 or not self._finished.empty()

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """No preference."""
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Forgets the request's lookups."""
        self._lookups.cleanup(req_context.req_id)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Starts the lookups of this step."""
        self._lookups.flush()

    def drain_jobs(self) -> None:
        """Waits until no job is open. Jobs that were not begun fail at once, and a call in flight is bounded by its
        timeout.

        Raises :class:`Timeout` if a call exceeds that: vLLM must not reuse memory that the call may still write to.
        """
        within = max(self._load_timeout, self._store_timeout) + AFTER_A_CALL_S
        with self._idle:
            self._draining = True
            try:
                if not self._idle.wait_for(lambda: self._open == 0, within):
                    raise Timeout(f"{self._open} job(s) do not end; call again", operation="vllm.drain")
            finally:
                self._draining = False

    def shutdown(self) -> None:
        """Ends the threads and releases the primary tier's memory. Idempotent once it has succeeded.

        If a job does not end, it raises as :meth:`drain_jobs` does, and releases nothing.
        """
        if self._ended:
            return
        self._closed = True
        self.drain_jobs()
        self._ended = True
        self._lookups.shutdown()
        self._loads.shutdown()
        self._stores.shutdown()
        self.pages.close()

    # Run on the tier's threads.

    def _submit(self, threads: ThreadPoolExecutor, job: TransferJob, work: Work) -> None:
        keys = list(job.keys)
        slots = [self._base + int(chunk) * self.block_size_bytes for chunk in job.chunk_ids]
        with self._idle:
            refused = self._open >= self._most_jobs or self._closed
            if not refused:
                self._open += 1
        if refused:
            log.warning("a job was refused: %d jobs are open, or the tier is closed", self._most_jobs)
            self._finished.put(_Ended(JobResult(job_id=job.job_id, success=False)))
            return
        answering = threading.Lock()  # only the thread that acquires it completes the job
        try:
            threads.submit(self._run, answering, job.job_id, keys, slots, work)
        except Exception:  # a job must end, whatever happens: the scheduler waits for it
            log.exception("job %d could not be submitted to a thread", job.job_id)
            # A pool that cannot start a thread has queued the job nevertheless: another of its threads may run it.
            if answering.acquire(blocking=False):
                self._answer(_Ended(JobResult(job_id=job.job_id, success=False)))

    def _run(
        self,
        answering: threading.Lock,
        job_id: int,
        keys: list[OffloadKey],
        slots: list[int],
        work: Work,
    ) -> None:
        if not answering.acquire(blocking=False):
            return  # it has failed, and its slots may belong to another job by now
        begun = time.monotonic()
        outcomes = ["skipped"] * len(keys)
        try:
            if not self._draining:
                outcomes = self._in_calls([self.name(key) for key in keys], slots, work)
        except Exception:  # a job must end, whatever happens: the scheduler waits for it
            log.exception("job %d failed", job_id)
        by_key = list(zip(keys, outcomes, strict=True))
        good = [key for key, outcome in by_key if outcome in MOVED]
        result = JobResult(
            job_id=job_id,
            success=len(good) == len(keys),
            successful_keys=tuple(good) if 0 < len(good) < len(keys) else None,
            transfer_time=time.monotonic() - begun,
            transfer_bytes=len(good) * self.block_size_bytes,
        )
        self._answer(
            _Ended(
                result,
                stored=[key for key, outcome in by_key if outcome == "stored"],
                gone=[key for key, outcome in by_key if outcome in GONE],
            )
        )

    def _answer(self, ended: _Ended) -> None:
        with self._idle:
            self._finished.put(ended)
            self._open -= 1
            self._idle.notify_all()

    def _in_calls(self, names: list[str], slots: list[int], work: Work) -> list[str]:
        done: list[str] = []
        for at in range(0, len(names), PAGES_A_CALL):
            if self._draining:
                return done + ["skipped"] * (len(names) - at)
            done += work(names[at : at + PAGES_A_CALL], slots[at : at + PAGES_A_CALL])
        return done

    def _load(self, names: list[str], slots: list[int]) -> Sequence[str]:
        sizes = [self.block_size_bytes] * len(slots)
        try:
            report = self.pages.get(names, slots, sizes, timeout=self._load_timeout)
        except TensorholdError as error:
            log.warning("%d chunks were not loaded: %s", len(names), error)
            return ["failed"] * len(names)
        _tell("loaded", report.errors, len(names))
        return report.pages

    def _store(self, names: list[str], slots: list[int]) -> Sequence[str]:
        sizes = [self.block_size_bytes] * len(slots)
        try:
            report = self.pages.put(names, slots, sizes, timeout=self._store_timeout)
        except TensorholdError as error:
            log.warning("%d chunks were not stored: %s", len(names), error)
            return ["failed"] * len(names)
        _tell("stored", report.errors, len(names))
        return report.pages


def _tell(what: str, errors: dict[int, TensorholdError], of: int) -> None:
    if errors:
        log.warning("%d of %d chunks were not %s: %s", len(errors), of, what, next(iter(errors.values())))


def _names(config: Any, chunk: int, tag: str | None, weights: str) -> str:
    """The prefix of all names: a hash of everything that a chunk's bytes depend on besides its tokens (KV11), as far as
    vLLM tells a tier (``docs/kv.md``). A chunk holds the bytes of all workers, so the prefix covers the sizes of the
    groups of ranks, but no rank."""
    for what, given in (("KV cache type", config.model.dtype), ("KV cache layout", config.kv_cache_layout)):
        if given in (None, "", "auto", "None"):
            raise Invalid(
                f"vLLM does not tell its {what} ({given!r}), so chunks cannot be named; set --kv-cache-dtype, or start"
                " vLLM without this tier",
                operation="vllm.names",
            )
    parallel = config.parallel
    layout = {
        "vllm": vllm.__version__,
        "platform": _platform(),
        "chunk": chunk,
        "worker": config.worker_kv_bytes_per_block,
        "blocks": config.cache.blocks_per_chunk,
        "groups": [[group.group_id, group.tokens_per_block, list(group.layer_names)] for group in config.groups],
        "workers": parallel.world_size,
        "stages": environment.VLLM_PP_LAYER_PARTITION,
        "dcp": parallel.dcp_size,
        "replicated": config.replicated_layout,
        "canonical": config.canonical_layout,
        "kv_cache_layout": config.kv_cache_layout,
    }
    namespace = Namespace(
        model=config.model.name,
        weights=weights,
        dtype=config.model.dtype,
        layout=json.dumps(layout, sort_keys=True),
        group="vllm",
        page_tokens=config.cache.tokens_per_hash,
        tp=Rank(0, parallel.tp_size),
        pp=Rank(0, parallel.pp_size),
        cp=Rank(0, parallel.pcp_size),
    )
    before = "" if tag is None else quote(tag, safe="") + "/"
    return f"kv/{before}{namespace.root().hex()[:32]}/"


def _platform() -> list[Any]:
    """What of the machine decides how vLLM's attention packs a block, and which numbers its fp8 has."""
    from vllm.platforms import current_platform

    facts: list[Any] = [current_platform.device_name, str(current_platform.fp8_dtype())]
    if current_platform.is_rocm():
        facts.append(environment.VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT)
    if current_platform.is_cpu():  # its instructions decide
        facts += [platform.machine(), torch.cpu._is_amx_tile_supported()]
    return facts
