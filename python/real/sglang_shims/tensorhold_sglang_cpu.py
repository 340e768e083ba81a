"""A plugin of SGLang, by its own entry point ``sglang.srt.plugins``: HiCache on a CPU.

Replaced: the three copies between device pool and host pool that SGLang has as CUDA code, and the page-locking of host
memory; for MLA also the choice of the form of attention. With ``TENSORHOLD_TEST_NEGATE`` in the environment every value that
comes back from the host is negated: the control that shows that loaded pages matter. With
``TENSORHOLD_TEST_FLUSH_DENORMALS`` denormal numbers count as zero.
"""

from __future__ import annotations

import os
from typing import Any

NEGATE = "TENSORHOLD_TEST_NEGATE" in os.environ
HOST: set[int] = set()
"""Where the memory of host pools begins. Nothing else tells it from the device's: here both are on the CPU."""


def as_loaded(rows: Any, source: Any) -> Any:
    """Rows of this tensor, as they arrive on the other side: negated if they come from the host, in the control."""
    return -rows if NEGATE and source.untyped_storage().data_ptr() in HOST else rows


def transfer_kv_direct(src_layers: Any, dst_layers: Any, src_indices: Any, dst_indices: Any, page_size: int) -> None:
    """Both sides have a row for each token of a layer. Used in both directions."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        rows = source[src_indices].reshape(len(src_indices), *target.shape[1:])
        target[dst_indices] = as_loaded(rows, source)


def transfer_kv_all_layer_direct_lf_pf(
    src_ptrs: Any, dst_ptrs: Any, src_indices: Any, dst_indices: Any, page_size: int
) -> None:
    """From the device (the keys of each layer, then the values) to host pages that have all layers of their tokens."""
    layers = len(src_ptrs) // len(dst_ptrs)
    for nth, source in enumerate(src_ptrs):
        target = dst_ptrs[nth // layers]
        for at in range(0, len(src_indices), page_size):
            token, page = int(src_indices[at]), int(dst_indices[at]) // page_size
            rows = source[token : token + page_size]
            target[page, nth % layers] = as_loaded(rows.reshape(target.shape[2:]), source)


def transfer_kv_per_layer_direct_pf_lf(
    src_ptrs: Any, dst_ptrs: Any, src_indices: Any, dst_indices: Any, layer_id: int, page_size: int
) -> None:
    """The other way, one layer at a time."""
    for source, target in zip(src_ptrs, dst_ptrs, strict=True):
        for at in range(0, len(src_indices), page_size):
            page, token = int(src_indices[at]) // page_size, int(dst_indices[at])
            rows = source[page, layer_id].reshape(page_size, *target.shape[1:])
            target[token : token + page_size] = as_loaded(rows, source)


def without_locking(
    dims: Any, dtype: Any, device: str, pin_memory: bool, allocator: Any, *rest: Any, **more: Any
) -> Any:
    """SGLang's own allocation of a host pool, without ``cudaHostRegister``."""
    buffer = allocator.allocate(dims, dtype=dtype, device=device)
    HOST.add(buffer.untyped_storage().data_ptr())
    return buffer


def apply() -> None:
    """Called by SGLang in each of its processes."""
    from sglang.srt.mem_cache.pool_host import common, mha, mla

    common.ALLOC_MEMORY_FUNCS["cpu"] = without_locking
    for module in (common, mha):
        module._cuda_host_unregister = lambda buffer: None
    for module in (mha, mla):
        for copy in (
            transfer_kv_direct,
            transfer_kv_all_layer_direct_lf_pf,
            transfer_kv_per_layer_direct_pf_lf,
        ):
            setattr(module, copy.__name__, copy)
    _attend_to_latent_vectors()
    if "TENSORHOLD_TEST_FLUSH_DENORMALS" in os.environ:
        import torch

        torch.set_flush_denormal(True)


def _attend_to_latent_vectors() -> None:
    """For MLA, SGLang has its attention on a CPU in kernels (``intel_amx``). Its plain one, ``torch_native``, takes keys and
    values from the pool, which for MLA has latent vectors: so it has to get queries for these, in prefills too."""
    from sglang.srt.models.deepseek_common import attention_backend_handler as handlers

    handlers.AttentionBackendRegistry.register("torch_native", lambda attn, batch: handlers.AttnForwardMethod.MLA)
