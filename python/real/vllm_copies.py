"""vLLM's ``TieringOffloadingSpec`` on a CPU.

Replaced: the copies between device blocks and chunks of the primary tier, which vLLM has as CUDA kernels, by plain ones
that are done when they are submitted. Everything else (scheduler, primary tier, secondary tiers) is vLLM's own. With
``TENSORHOLD_TEST_NEGATE`` in the environment every loaded value is negated: the control that shows that loaded pages
matter.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class Copies(OffloadingWorker):
    """Copies between blocks and chunks, in the thread that asks for it."""

    def __init__(self, caches: Any, per_chunk: int, region: Any) -> None:
        self.per_chunk, self.region, self.refs = per_chunk, region, caches.group_data_refs
        self.blocks = [cache.tensor.view(torch.int8) for cache in caches.tensors]
        self.chunks = [region.create_next_worker_view(cache.page_size_bytes * per_chunk) for cache in caches.tensors]
        self.negate = "TENSORHOLD_TEST_NEGATE" in os.environ
        self.finished: list[TransferResult] = []

    def pairs(self, device: Any, host: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """For each page of each block: where it lies on the device, and where in its chunk.

        A group's blocks are contiguous in their prompt. The first of them may lie in the middle of a chunk."""
        block_at = chunk_at = 0
        for refs, count, first in zip(self.refs, device.group_sizes, device.block_indices, strict=True):
            offset = first % self.per_chunk
            for n in range(count):
                block = int(device.block_ids[block_at + n])
                nth, place = divmod(n + offset, self.per_chunk)
                chunk = int(host.block_ids[chunk_at + nth])
                for ref in refs:
                    row = self.chunks[ref.tensor_idx][chunk]
                    start = place * (row.shape[0] // self.per_chunk)
                    end = start + ref.page_size_bytes
                    yield self.blocks[ref.tensor_idx][block, : ref.page_size_bytes], row[start:end]
            block_at += count
            if count:
                chunk_at += -(-(count + offset) // self.per_chunk)

    def done(self, job: int, nbytes: int, begun: float) -> bool:
        self.finished.append(TransferResult(job, True, nbytes, time.monotonic() - begun))
        return True

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        begun, nbytes = time.monotonic(), 0
        for device, host in self.pairs(src_spec, dst_spec):
            host.copy_(device)
            nbytes += host.numel()
        return self.done(job_id, nbytes, begun)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        begun, nbytes = time.monotonic(), 0
        for device, host in self.pairs(dst_spec, src_spec):
            device.copy_(host)
            if self.negate:
                device.view(torch.float32).neg_()
            nbytes += host.numel()
        return self.done(job_id, nbytes, begun)

    def get_finished(self) -> list[TransferResult]:
        finished, self.finished = self.finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Every job ended when it was submitted."""

    def shutdown(self) -> None:
        self.blocks.clear()
        self.chunks.clear()
        self.region.cleanup()


class CpuTieringOffloadingSpec(TieringOffloadingSpec):
    """vLLM's own, with :class:`Copies` as its worker."""

    copies: Copies | None = None

    def get_worker(self, kv_caches: Any) -> OffloadingWorker:
        if self.copies is None:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self.copies = Copies(kv_caches, self.blocks_per_chunk, region)
        return self.copies
