"""An L3 for SGLang's HiCache: ``--hicache-storage-backend dynamic`` with the class :class:`TensorholdHiCacheStorage`.

::

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{
        "backend_name": "tensorhold", "module_path": "tensorhold.sglang", "class_name": "TensorholdHiCacheStorage",
        "interface_v1": 1, "master": "10.0.0.1:50051"}'

A page is one object: its parts (keys and values, or a slice for each layer) and a footer with its length and checksum,
bound to its name. A get returns exactly the page that was set, or reports that it did not.

Gets pass through frames, which are buffers of the page store. So the engine never writes to SGLang's host pool: a page
that was given back because its get timed out is not written to later. Sets of pages with long parts are read from where
they lie (``direct_put_bytes``): if the engine reads them too late, the checksum does not match and the page is refused.
A batch is one call of the engine, and no existence query precedes a set: the master ignores a set of a page that it
has.

The names of pages say what their bytes mean (module ``_sglang_pools``); a pool for which that cannot be known is
refused when it is registered.

As long as SGLang's arguments are right, no failure is raised into its threads: a store that is slow, gone or returns
wrong bytes means misses and failed sets. :meth:`TensorholdHiCacheStorage.page_stats` counts them.
"""

from __future__ import annotations

import json
import logging
import time
import urllib.request
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)

from tensorhold._counters import Counters, Metric
from tensorhold._sglang_config import Names, Options
from tensorhold._sglang_pools import Meaning, describe, weight_version
from tensorhold.errors import TensorholdError, Invalid
from tensorhold.kv import Memory

__all__ = ["TensorholdHiCacheStorage"]

log: Final = logging.getLogger("tensorhold.sglang")

Parts = tuple[list[int], list[int]]


@cache
def _counter(metric: Metric) -> Any:
    """A counter, which a process may register once. SGLang's server collects it with its own."""
    from prometheus_client import Counter

    return Counter(f"sglang:{metric.name}", metric.about, ["model_name", "tp_rank", metric.label])


@dataclass(frozen=True)
class Pool:
    """One host pool: the names of its pages, their length, and where they lie."""

    names: Names
    page_bytes: int
    host: Any
    tokens: int
    split: int

    def parts(self, indices: torch.Tensor) -> Parts:
        """The addresses and lengths of the parts of these pages, page by page."""
        if self.split > 1:
            found = self.host.get_split_heads_page_buffer_meta(indices, self.split)
        else:
            found = self.host.get_page_buffer_meta(indices)
        addresses, sizes = found
        if addresses and isinstance(addresses[0], Sequence):
            return [one for page in addresses for one in page], [one for page in sizes for one in page]
        return addresses, sizes

    def objects(self, keys: list[str], indices: torch.Tensor) -> tuple[list[str], list[int], list[int]]:
        """The objects of these pages, and the addresses and lengths of their parts."""
        if len(keys) * self.tokens != len(indices):
            raise Invalid("give the indices of as many pages as keys", operation="sglang.pages")
        return (self.names.all(keys), *self.parts(indices))

    def pages(self, results: list[bool]) -> list[bool]:
        """Combines the results of objects into results of pages."""
        if self.split == 1:
            return results
        return [all(results[at : at + self.split]) for at in range(0, len(results), self.split)]


class TensorholdHiCacheStorage(HiCacheStorage):  # type: ignore[misc]  # published without types
    """SGLang's storage interface, v1 and v2, on a page store. Options: :class:`tensorhold._sglang_config.Options`."""

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: dict[str, Any] | None = None) -> None:
        self.storage_config = storage_config
        self.options = Options.read(storage_config.extra_config)
        self.registered_pools: dict[Any, Any] = {}
        self._weights = weight_version()
        self._stale_told: str | None = None
        self.pages = self.options.open()
        self._pools: dict[Any, Pool] = {}
        self._flat: Names | None = None
        # Filled by the threads that move pages, emptied by the scheduler's.
        self._transfers: dict[str, deque[tuple[int, float]]] = {"get": deque(), "set": deque()}
        self._counters = Counters(self.pages)
        self._counters_failed = False

    # Pools.

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """The pool of the KV pages. A pool without its own memory (a logical anchor) has its pages in side pools."""
        super().register_mem_pool_host(mem_pool_host)
        if getattr(mem_pool_host, "kv_buffer", None) is None:
            return
        pool, meaning = self._add(PoolName.KV, mem_pool_host)
        self._pools[PoolName.KV] = pool
        self._flat = Names.of(
            self.storage_config, self.options, meaning, self._weights, "flat", self.storage_config.is_mla_model
        )

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """A side pool, such as that of an indexer, a sliding window or Mamba states."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if host_pool_name != PoolName.KV or PoolName.KV not in self._pools:
            self._pools[host_pool_name] = self._add(host_pool_name, host_pool)[0]

    def _add(self, name: Any, host: Any) -> tuple[Pool, Meaning]:
        config = self.storage_config
        group = name.value if isinstance(name, PoolName) else str(name)
        split = config.tp_lcm_size // config.tp_size if name == PoolName.KV and config.should_split_heads else 1
        facts = describe(group, host, split)
        tokens = int((config.logical_page_size if config.dcp_size > 1 else None) or getattr(host, "page_size", 1) or 1)
        sizes = Pool(Names("", ("",)), 0, host, tokens, split).parts(torch.arange(tokens, dtype=torch.int64))[1]
        facts["parts"] = sizes[: len(sizes) // split]
        nbytes = sum(facts["parts"])
        if nbytes > self.pages.frame_bytes:
            raise Invalid(
                f"a page of the pool {name} has {nbytes} bytes, more than a frame; set frame_bytes to at least that",
                operation="sglang.register",
            )
        meaning = Meaning.of(group, facts, config)
        names = Names.of(config, self.options, meaning, self._weights, group, self._is_shared(name, host))
        buffers = host.get_hybrid_pool_buffer() if hasattr(host, "get_hybrid_pool_buffer") else [host.kv_buffer]
        for buffer in buffers:
            for tensor in buffer if isinstance(buffer, (list, tuple)) else [buffer]:
                if tensor is not None and tensor.numel() > 0:
                    self.pages.register(_memory(tensor))
        return Pool(names, nbytes, host, tokens, split), meaning

    def _is_shared(self, name: Any, host: Any) -> bool:
        """Whether all TP ranks hold the same pages: then one of them writes, and the names do not contain the rank."""
        return bool(self.storage_config.is_mla_model) and not _is_rank_sharded(name, host)

    def _pool(self, name: Any) -> Pool:
        pool = self._pools.get(name)
        if pool is None:
            raise Invalid(f"the pool {name} was not registered", operation="sglang.pool")
        return pool

    @property
    def _has_pages(self) -> bool:
        """Whether the main pool has its own memory."""
        return PoolName.KV in self._pools

    def _names_hold(self) -> bool:
        """Whether the server has the weights that the names tell of. After an update it stores and finds nothing: pages
        of the former weights may still be on their way here, and must not get names of the new ones."""
        version = weight_version()
        if version == self._weights:
            return True
        if self._stale_told != version:
            self._stale_told = version
            log.warning(
                "the weights have changed from version %r to %r: no page is stored or found from now on; flush SGLang's"
                " cache, then detach and attach the storage back end",
                self._weights,
                version,
            )
        return False

    # Moving pages.

    def _load(self, pool: Pool, keys: list[str], indices: torch.Tensor) -> list[bool]:
        names, addresses, sizes = pool.objects(keys, indices)
        if not self._names_hold():
            return [False] * len(keys)
        begun = time.perf_counter()
        try:
            report = self.pages.get(names, addresses, sizes, timeout=self.options.get_timeout)
        except Invalid:
            raise
        except TensorholdError as error:
            log.warning("%d pages were not loaded: %s", len(keys), error)
            return [False] * len(keys)
        _tell("loaded", report.errors, len(names))
        return self._noted("get", pool.pages(report.loaded), begun)

    def _store(self, pool: Pool, keys: list[str], indices: torch.Tensor) -> list[bool]:
        names, addresses, sizes = pool.objects(keys, indices)
        if not self._names_hold():
            return [False] * len(keys)
        begun = time.perf_counter()
        try:
            report = self.pages.put(names, addresses, sizes, timeout=self.options.set_timeout)
        except Invalid:
            raise
        except TensorholdError as error:
            log.warning("%d pages were not stored: %s", len(keys), error)
            return [False] * len(keys)
        _tell("stored", report.errors, len(names))
        return self._noted("set", pool.pages(report.stored), begun)

    def _noted(self, what: str, moved: list[bool], begun: float) -> list[bool]:
        if self.storage_config.enable_storage_metrics and any(moved):
            self._transfers[what].append((sum(moved), time.perf_counter() - begun))
        return moved

    def _hits(self, names: list[str], nbytes: int | None) -> int:
        if not self._names_hold():
            return 0
        try:
            return self.pages.prefix_hits(
                names,
                nbytes=nbytes,
                prefetch=self.options.prefetch_on_exist,
                timeout=self.options.exists_timeout,
            )
        except TensorholdError as error:
            log.warning("whether %d pages exist is not known: %s", len(names), error)
            return 0

    # v1.

    def batch_exists(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        """The number of pages from the start that exist, with exactly the right length."""
        if self.options.interface_v1:
            pool = self._pools.get(PoolName.KV)
            if pool is None:
                return len(keys)
            return self._hits(pool.names.all(keys), pool.page_bytes) // pool.split
        return self._hits(self._flat_names(keys), None)

    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        """Loads pages into the host pool. The caller may reuse the memory of pages that are not loaded."""
        if not self._has_pages:
            return [True] * len(keys)
        pool = self._pools[PoolName.KV]
        return self._load(pool, keys, host_indices)

    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        """Stores pages of the host pool. A page that already exists counts as stored."""
        if not self._has_pages:
            return [True] * len(keys)
        pool = self._pools[PoolName.KV]
        return self._store(pool, keys, host_indices)

    # v2.

    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: list[PoolTransfer] | None = None,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> PoolTransferResult:
        """The longest prefix that every pool can restore, by its policy, and all shorter prefixes that they can."""
        kv_pages = self.batch_exists(keys, extra_info) if self._has_pages else len(keys)
        hits: dict[Any, int] = {PoolName.KV: kv_pages} if kv_pages else {}
        restorable = set(range(1, kv_pages + 1))
        for transfer in pool_transfers or []:
            if not restorable:
                break
            there = self._present(self._pool(transfer.name), keys[:kv_pages])
            if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
                pages = set(range(1, (there.index(False) if False in there else kv_pages) + 1))
            elif transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
                # A prefix is enough if the window that ends there is complete.
                window = max(1, len(transfer.keys or ()))
                pages = {end for end in range(1, kv_pages + 1) if all(there[max(0, end - window) : end])}
            else:
                raise ValueError(f"unknown pool hit policy: {transfer.hit_policy}")
            if pages:
                hits[transfer.name] = max(pages)
            restorable &= pages
        return PoolTransferResult(max(restorable, default=0), hits, sorted(restorable))

    def _present(self, pool: Pool, keys: list[str]) -> list[bool]:
        names = pool.names.all(keys)
        if not self._names_hold():
            return [False] * len(keys)
        try:
            hints = self.pages.exists(
                names, prefetch=self.options.prefetch_on_exist, timeout=self.options.exists_timeout
            )
        except TensorholdError as error:
            log.warning("whether %d pages exist is not known: %s", len(names), error)
            return [False] * len(keys)
        return pool.pages([hint is not None and hint.nbytes == pool.page_bytes for hint in hints])

    def batch_get_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[Any, list[bool]]:
        """Loads pages of several pools."""
        # Pools may differ in the number of parts of a page, so each pool is a separate call.
        return {one.name: self._load(*self._wanted(one)) for one in transfers}

    def batch_set_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[Any, list[bool]]:
        """Stores pages of several pools."""
        return {one.name: self._store(*self._wanted(one)) for one in transfers}

    def _wanted(self, transfer: PoolTransfer) -> tuple[Pool, list[str], torch.Tensor]:
        if not transfer.keys or transfer.host_indices is None:
            raise Invalid(f"a transfer of the pool {transfer.name} names no pages", operation="sglang.v2")
        return self._pool(transfer.name), list(transfer.keys), transfer.host_indices

    # The older calls: pages as tensors, under names of another kind.

    def _flat_names(self, keys: list[str]) -> list[str]:
        if self._flat is None:
            raise Invalid("register the host pool first", operation="sglang.flat")
        return [f"{self._flat.before}{key}{self._flat.after[0]}" for key in keys]

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> torch.Tensor | None:
        """One page, into the tensor ``target_location`` or, without it, into a new tensor."""
        return self.batch_get([key], None if target_location is None else [target_location])[0]

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[torch.Tensor | None]:
        """Pages, each as a tensor, or None for a page that does not exist."""
        names = self._flat_names(keys)
        targets: list[torch.Tensor | None] = list(target_locations or self._room(names))
        wanted = [(name, target) for name, target in zip(names, targets, strict=True) if target is not None]
        loaded = self._flat_call(wanted, load=True)
        came = {name for (name, _), good in zip(wanted, loaded, strict=True) if good}
        return [target if name in came else None for name, target in zip(names, targets, strict=True)]

    def _room(self, names: list[str]) -> list[torch.Tensor | None]:
        if not self._names_hold():
            return [None] * len(names)
        try:
            hints = self.pages.exists(names, timeout=self.options.exists_timeout)
        except TensorholdError as error:
            log.warning("whether %d pages exist is not known: %s", len(names), error)
            return [None] * len(names)
        return [None if hint is None or not hint.nbytes else torch.empty(hint.nbytes, dtype=torch.uint8) for hint in hints]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Stores one page: a tensor."""
        return self.batch_set([key], [target_location if value is None else value])

    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """Stores pages, each a tensor. Returns whether all of them are stored."""
        tensors = list(values if values is not None else target_locations or ())
        if not keys or len(tensors) != len(keys) or not all(isinstance(one, torch.Tensor) for one in tensors):
            raise Invalid("give a tensor for each key", operation="sglang.set")
        tensors = [tensor.contiguous() for tensor in tensors]
        return all(self._flat_call(list(zip(self._flat_names(keys), tensors, strict=True)), load=False))

    def _flat_call(self, wanted: list[tuple[str, torch.Tensor]], *, load: bool) -> list[bool]:
        if not wanted or not self._names_hold():
            return [False] * len(wanted)
        names = [name for name, _ in wanted]
        # New memory for each call: with frames, registering a little of it costs nothing, and afterwards nothing else
        # refers to it.
        runs = [Memory.of(tensor) for _, tensor in wanted]
        kept = []
        try:
            for run in runs:
                if self.pages.native.register(run.address, run.nbytes, run.owner, self.options.get_timeout):
                    kept.append(run)
            places = ([run.address for run in runs], [run.nbytes for run in runs])
            if load:
                return self.pages.get(names, *places, timeout=self.options.get_timeout).loaded
            return self.pages.put(names, *places, timeout=self.options.set_timeout).stored
        except Invalid:
            raise
        except TensorholdError as error:
            log.warning("%d pages were not %s: %s", len(names), "loaded" if load else "stored", error)
            return [False] * len(names)
        finally:
            for run in kept:
                self.pages.unregister(run)

    def exists(self, key: str) -> bool:
        """Whether a page seems to exist."""
        return self.batch_exists([key]) == 1

    # The rest.

    def clear(self) -> None:
        """Removes the pages of this model, tag and rank that the master knows. Other processes on the cluster keep
        theirs.

        With a key, names do not show which pages are whose: nothing is removed, and the engine evicts the pages in
        time."""
        if self.options.key is not None:
            log.warning("pages of a tier with a key are not cleared: their names are hidden; use another key or tag")
            return
        mine = [pool.names for pool in self._pools.values()] + ([self._flat] if self._flat else [])
        for address in self._admin():
            try:
                with urllib.request.urlopen(f"{address}/get_all_keys", timeout=self.options.exists_timeout) as answer:
                    known = answer.read().decode().split()
                break
            except OSError as error:
                log.warning("the list of keys could not be read from the master at %s: %s", address, error)
        else:
            return
        keys = [key for key in known if any(key.startswith(n.before) and key.endswith(n.after) for n in mine)]
        try:
            self.pages.remove(keys, timeout=self.options.set_timeout)
        except TensorholdError as error:
            log.warning("%d pages were not removed: %s", len(keys), error)

    def _admin(self) -> list[str]:
        from tensorhold._settings import _usual_admin, addresses

        given = self.options.admin
        return list(addresses(given)) if given is not None else _usual_admin(self.options.master)

    def get_stats(self) -> Any:
        """Pages and GB/s of each get and set since the last call, in the form of SGLang's metrics. Pages that missed or
        failed do not count; those that were there already do."""
        from sglang.srt.observability.metrics_collector import StorageMetrics

        metrics = StorageMetrics()
        pool = self._pools.get(PoolName.KV)
        gib = (pool.page_bytes if pool else 0) / (1 << 30)
        for what, pages, speed in (
            ("get", metrics.prefetch_pgs, metrics.prefetch_bandwidth),
            ("set", metrics.backup_pgs, metrics.backup_bandwidth),
        ):
            moved = self._transfers[what]
            taken = [moved.popleft() for _ in range(len(moved))]
            pages.extend(count for count, _ in taken)
            speed.extend(count * gib / max(seconds, 1e-9) for count, seconds in taken)
        if self.storage_config.enable_storage_metrics:
            self._tell_counters()
        return metrics

    def _tell_counters(self) -> None:
        """What SGLang's metrics have no place for: the page store's own counters. Without them a server can do, so no failure
        of theirs reaches its scheduler."""
        config = self.storage_config
        try:
            for metric, label, more in self._counters.grown():
                _counter(metric).labels(config.model_name or "", str(config.tp_rank), label).inc(more)
        except Exception:
            if not self._counters_failed:
                log.exception("counters of the page store are not told; this is logged once")
            self._counters_failed = True

    def page_stats(self) -> dict[str, int]:
        """The page store's counters: pages loaded, missed, refused as wrong, ..."""
        return self.pages.stats()

    def close(self) -> None:
        """Releases pools and engine."""
        self.pages.close()

    def __repr__(self) -> str:
        return f"TensorholdHiCacheStorage(master={self.options.master!r}, pools={json.dumps([str(n) for n in self._pools])})"


def _tell(what: str, errors: dict[int, TensorholdError], of: int) -> None:
    if errors:
        log.warning("%d of %d objects were not %s: %s", len(errors), of, what, next(iter(errors.values())))


def _memory(tensor: torch.Tensor) -> Memory:
    """All the memory under a tensor: a pool may expose one run of memory as several tensors."""
    storage = tensor.untyped_storage()
    if tensor.device.type != "cpu":
        raise Invalid("pages must lie in host memory", operation="sglang.memory")
    return Memory(storage.data_ptr(), storage.nbytes(), storage)  # not the tensor, which could be given other memory


def _is_rank_sharded(name: Any, host: Any) -> bool:
    """Whether every TP rank holds its own part of this pool's pages, whatever the kind of the main pool."""
    return name == PoolName.MAMBA or any(base.__name__ == "MHATokenToKVPoolHost" for base in type(host).__mro__)
