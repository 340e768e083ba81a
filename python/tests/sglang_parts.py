"""SGLang's own host pools and Mooncake back end, without a GPU and without what only serving a model needs.

Both import half of SGLang, and with it packages for images, tokenizers and kernels that are not installed here and that
the KV cache never calls. :func:`load` puts empty modules in their place; what is tested is SGLang's own code.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from stand_ins import stand_in

NOT_INSTALLED = ("torchvision", "tvm_ffi", "sentencepiece", "compressed_tensors", "gguf")


@cache
def load() -> None:
    """Makes SGLang's pools importable."""
    import warnings

    warnings.simplefilter("ignore")  # theirs, at import
    from transformers.utils import import_utils

    # It decides what is installed before the stand-ins are there to be seen.
    import_utils.is_torchvision_available()
    import_utils.is_sentencepiece_available()
    stand_in(*NOT_INSTALLED)


def mooncake_store_class() -> Any:
    """SGLang's own Mooncake back end."""
    load()
    from sglang.srt.mem_cache.storage.mooncake_store.mooncake_store import MooncakeStore

    return MooncakeStore


def host_sizes(layers: int, page: int, pages: int, layout: str) -> dict[str, Any]:
    """What every host pool is told about its size, place and layout."""
    return {
        "host_to_device_ratio": 1.0,
        "host_size": 0,
        "page_size": page,
        "layout": layout,
        "pin_memory": False,
        "device": "cpu",
        "device_capacity_tokens": 1,
        "start_layer": 0,
        "end_layer": layers,
        "host_token_capacity": page * pages,
    }


def mha_pool(
    *, layers: int = 4, heads: int = 8, dim: int = 64, page: int = 16, pages: int = 8, layout: str = "page_first"
) -> Any:
    """A real ``MHATokenToKVPoolHost``, with random bytes."""
    load()
    from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

    def rows() -> tuple[torch.Tensor, ...]:
        return tuple(torch.zeros(1, heads, dim, dtype=torch.bfloat16) for _ in range(layers))

    def pointers(tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.uint64)

    k, v = rows(), rows()
    info = MHABufferInfo(
        buffers=KVBuffers(k=k, v=v, k_data_ptrs=pointers(k), v_data_ptrs=pointers(v), layout=KVBufferLayout.NHD),
        page_size=page,
        head_num=heads,
        head_dim=dim,
        v_head_dim=dim,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
    )
    pool = MHATokenToKVPoolHost(info, **host_sizes(layers, page, pages, layout))
    fill(pool)
    return pool


def mla_pool(*, layers: int = 4, page: int = 16, pages: int = 8, layout: str = "page_first") -> Any:
    """A real ``MLATokenToKVPoolHost``, with random bytes."""
    load()
    from sglang.srt.mem_cache.device_pool_info import MLABufferInfo
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

    rows = tuple(torch.zeros(1, 1, 576, dtype=torch.bfloat16) for _ in range(layers))
    info = MLABufferInfo(
        buffers=rows,
        data_ptrs=torch.tensor([row.data_ptr() for row in rows], dtype=torch.uint64),
        layer_indices=tuple(range(layers)),
        device_layer_num=layers,
        page_size=page,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        kv_cache_dim=576,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
    )
    pool = MLATokenToKVPoolHost(info, **host_sizes(layers, page, pages, layout), target_layer_num=layers)
    fill(pool)
    return pool


def data(pool: Any) -> torch.Tensor:
    """All bytes of a pool."""
    flat: torch.Tensor = pool.kv_buffer.view(torch.uint8).reshape(-1)
    return flat


def fill(pool: Any) -> None:
    """Random bytes."""
    flat = data(pool)
    flat.copy_(torch.randint(0, 256, flat.shape, dtype=torch.uint8))


def indices(pool: Any, pages: Sequence[int]) -> torch.Tensor:
    """The token indices of these pages, as SGLang's controller hands them out."""
    size = pool.page_size
    return torch.cat([torch.arange(page * size, (page + 1) * size) for page in pages])


def page_bytes(pool: Any, pages: Sequence[int]) -> list[bytes]:
    """The bytes of pages, read where the pool says that they lie."""
    import ctypes

    found = []
    for page in pages:
        addresses, sizes = pool.get_page_buffer_meta(indices(pool, [page]))
        found.append(b"".join(ctypes.string_at(*part) for part in zip(addresses, sizes, strict=True)))
    return found


def storage_config(extra: dict[str, Any], **other: Any) -> Any:
    """A storage config as SGLang's controller makes it."""
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

    usual = {
        "tp_rank": 0,
        "tp_size": 1,
        "pp_rank": 0,
        "pp_size": 1,
        "attn_cp_rank": 0,
        "attn_cp_size": 1,
        "is_mla_model": False,
        "enable_storage_metrics": True,
        "is_page_first_layout": True,
        "model_name": "org/model-8b",
        "extra_config": extra,
    }
    return HiCacheStorageConfig(**{**usual, **other})
