"""SGLang's own host pools and Mooncake back end, without a GPU and without what only serving a model needs.

Both import half of SGLang, and with it packages for images, tokenizers and kernels that are not installed here and that
the KV cache never calls. :func:`load` puts empty modules in their place; what is tested is SGLang's own code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


@contextmanager
def published(**settings: Any) -> Iterator[None]:
    """Publishes settings as a scheduler of SGLang does, by SGLang's own means for tests."""
    load()
    from sglang.srt.runtime_context import get_context

    with get_context().override_server_args(**{"model_path": "org/model-8b", "device": "cpu", **settings}):
        yield


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
    *,
    layers: int = 4,
    heads: int = 8,
    dim: int = 64,
    page: int = 16,
    pages: int = 8,
    layout: str = "page_first",
    dtype: torch.dtype = torch.bfloat16,
    drafts: int = 0,
    order: str = "nhd",
    **sizes: Any,
) -> Any:
    """A real ``MHATokenToKVPoolHost`` of a real device pool, with random bytes. A draft model has ``drafts`` layers."""
    load()
    from msgspec.structs import replace
    from sglang.srt.mem_cache.device_pool_info import KVBufferLayout
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

    def info(layers: int) -> Any:
        device = MHATokenToKVPool(
            size=page,
            page_size=page,
            dtype=dtype,
            head_num=heads,
            head_dim=dim,
            layer_num=layers,
            device="cpu",
            enable_memory_saver=False,
        )
        found = device.get_device_pool_infos()[0].buffer_info
        return replace(found, buffers=replace(found.buffers, layout=KVBufferLayout(order)))

    pool = MHATokenToKVPoolHost(
        info(layers),
        **{**host_sizes(layers, page, pages, layout), **sizes},
        draft_buffer_infos=[info(1) for _ in range(drafts)],
    )
    fill(pool)
    return pool


def mla_device(*, layers: int = 4, page: int = 16, dtype: torch.dtype = torch.bfloat16, rank: int = 512) -> Any:
    """A real device pool of MLA with an index of keys beside it (DSA)."""
    load()
    from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool

    with published():
        return DSATokenToKVPool(
            size=page,
            page_size=page,
            dtype=dtype,
            kv_lora_rank=rank,
            qk_rope_head_dim=576 - rank,
            layer_num=layers,
            device="cpu",
            index_head_dim=128,
            enable_memory_saver=False,
            kv_cache_dim=576,
        )


def mla_pool(
    *,
    layers: int = 4,
    page: int = 16,
    pages: int = 8,
    layout: str = "page_first",
    dtype: torch.dtype = torch.bfloat16,
    rank: int = 512,
    first: int = 0,
    packed: bool = False,
) -> Any:
    """A real ``MLATokenToKVPoolHost``, with random bytes. It has the layers from ``first`` on of its device."""
    load()
    from sglang.srt.mem_cache.device_pool_info import MLABufferInfo
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

    rows = tuple(torch.zeros(1, 1, 576, dtype=dtype) for _ in range(layers))
    info = MLABufferInfo(
        buffers=rows,
        data_ptrs=torch.tensor([row.data_ptr() for row in rows], dtype=torch.uint64),
        layer_indices=tuple(range(first, first + layers)),
        device_layer_num=8,
        page_size=page,
        kv_lora_rank=rank,
        qk_rope_head_dim=576 - rank,
        kv_cache_dim=576,
        dtype=dtype,
        device=torch.device("cpu"),
        packed_fp8=packed,
    )
    pool = MLATokenToKVPoolHost(info, **host_sizes(layers, page, pages, layout), target_layer_num=layers)
    fill(pool)
    return pool


def index_pool(*, layout: str = "page_first", **device: Any) -> Any:
    """A real ``DSAIndexerPoolHost`` beside a pool of MLA."""
    from sglang.srt.mem_cache.pool_host.dsa import DSAIndexerPoolHost

    pool = mla_device(page=64, **device)
    anchor = mla_pool(layers=pool.layer_num, page=64, pages=4, layout=layout)
    return DSAIndexerPoolHost(decl=pool.host_pool_decls()[-1], anchor_host=anchor, pin_memory=False)


def mamba_pool(
    *, temporal: torch.dtype = torch.float32, conv: torch.dtype = torch.bfloat16, width: int = 3, slots: int = 4
) -> Any:
    """A real ``MambaPoolHost``."""
    load()
    from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo
    from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost

    states = MambaStateBufferInfo(
        temporal=torch.zeros(2, 4, 8, 8, dtype=temporal), conv=(torch.zeros(2, 4, 48 // width, width, dtype=conv),)
    )
    return MambaPoolHost(states, 1.0, 0, device_capacity=slots, pin_memory=False, layout="page_first")


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
