"""What the bytes of SGLang's pages mean: everything besides their tokens, read from SGLang itself.

Two servers that would read one page differently must not share its name: the checksum fits, and the values are others.
A host pool alone does not tell enough (each fp8 format is stored as ``uint8``, and a rope scaling on the command line
leaves no trace in it), so this also reads the configuration that SGLang publishes in the scheduler's process. Nothing
is guessed: what cannot be read is refused, and so is a pool of a kind that is not listed here. ``docs/kv.md`` has the
table of what is in a name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

from tensorhold.errors import Invalid

MODEL: Final = (
    "model_path",
    "revision",
    "load_format",
    "model_impl",
    "json_model_override_args",
    "dtype",
    "quantization",
    "modelopt_quant",
    "modelopt_checkpoint_restore_path",
    "rl_quant_profile",
    "quantization_param_path",
)
"""Arguments of the server that decide which values it computes."""

DRAFT: Final = (
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_draft_model_revision",
    "speculative_draft_load_format",
    "speculative_draft_model_quantization",
    "speculative_draft_kv_cache_dtype",
    "uno_lora_path",
    "context_length",
)
"""The same for a draft model. They count where a page holds layers of one."""

CONTEXT_PARALLEL: Final = ("cp_strategy", "enable_dsa_cache_layer_split", "enable_kv_cache_sharding")
"""How ranks of a context-parallel group divide a page."""

FP8: Final = frozenset({"fp8_e4m3", "fp8_e5m2"})
"""What ``--kv-cache-dtype`` may be where a pool stores bytes. Other formats keep scales outside of the page."""

Facts = dict[str, Any]


def _refuse(message: str) -> Invalid:
    return Invalid(message, operation="sglang.names")


def leaf(name: str) -> Any:
    """A setting that SGLang has resolved and published in this process."""
    from sglang.srt.runtime_context import get_context

    try:
        return get_context().config_leaf(name)
    except ValueError as error:
        raise _refuse(
            f"SGLang does not publish its setting {name} in this process ({error}), so pages cannot be named;"
            " the back end works in SGLang's scheduler only"
        ) from error


def weight_version() -> str:
    """The version that SGLang knows its weights by: ``--weight-version``, and that of each update since."""
    return str(leaf("weight_version"))


def describe(name: str, host: Any, split: int) -> Facts:
    """What the pages of a host pool consist of, ``split`` objects for each page. Where its formats are not known, it is
    refused."""
    kind = type(host).__name__
    if kind not in _KINDS:
        raise _refuse(
            f"pages of the pool {name} ({kind}) can be of several formats that tensorhold cannot tell apart, so it does"
            " not store them; start SGLang without this storage back end, or without what makes it use such a pool"
        )
    try:
        facts = _KINDS[kind](host, split)
        return {
            **facts,
            "kind": kind,
            "layout": host.layout,
            "format": host.storage_format_tag,
            "rows": host.page_size,
            "stored": host.dtype,
        }
    except AttributeError as error:
        raise _refuse(f"a pool of this SGLang is not as expected, so its pages cannot be named: {error}") from error


@dataclass(frozen=True)
class Meaning:
    """What goes into the names of a pool's pages."""

    model: str
    dtype: str
    layout: str
    page_tokens: int

    @staticmethod
    def of(name: str, facts: Facts, config: HiCacheStorageConfig) -> Meaning:
        """That of a pool that consists of this, on this rank of the server."""
        layout = {**facts, "platform": ["hip" if torch.version.hip else leaf("device"), _fp8_of_the_platform()]}
        drafted = name.startswith("draft")
        if drafted or facts["drafts"]:
            layout["draft"] = {one: leaf(one) for one in DRAFT}
        if config.pp_size > 1:
            layout["stages"] = os.environ.get("SGLANG_PP_LAYER_PARTITION")
        if config.attn_cp_size > 1:
            layout["slices"] = {one: leaf(one) for one in CONTEXT_PARALLEL}
        return Meaning(
            model=_text({"sglang": _version(), **{one: leaf(one) for one in MODEL}}),
            dtype=_dtype(name, facts["stored"], drafted),
            layout=_text(layout),
            page_tokens=int(config.logical_page_size or facts["rows"]),
        )


def _dtype(name: str, stored: torch.dtype, drafted: bool) -> str:
    """What the elements are. A tensor of bytes does not tell; the server's arguments do."""
    if stored != torch.uint8:
        return str(stored)
    option = "speculative_draft_kv_cache_dtype" if drafted else "kv_cache_dtype"
    given = leaf(option)
    if given is None:
        option = "kv_cache_dtype"
        given = leaf(option)
    if given not in FP8:
        raise _refuse(
            f"the pool {name} stores bytes, and --{option.replace('_', '-')} is {given}, which does not tell what they"
            f" are; start SGLang with one of {', '.join(sorted(FP8))}"
        )
    return str(given)


def _fp8_of_the_platform() -> torch.dtype:
    """AMD's gfx94 has other fp8 numbers than all others, under the same arguments."""
    from sglang.srt.mem_cache.kv_cache_dtype import fp8_dtype

    found: torch.dtype = fp8_dtype
    return found


def _version() -> str:
    from sglang.version import __version__

    return str(__version__)


def _text(facts: Facts) -> str:
    return json.dumps(facts, sort_keys=True, default=str)


# What the pages of each kind of pool consist of. An object of a page whose heads are split holds a part of them.


def _layers(host: Any) -> Facts:
    return {"layers": [host.start_layer, host.end_layer, host.layer_num]}


def _mha(host: Any, split: int) -> Facts:
    heads, rest = divmod(host.head_num, split)
    if rest:
        raise _refuse(f"{host.head_num} heads do not split into {split} parts; choose another tp_lcm_size")
    return {
        **_layers(host),
        "heads": [heads, host.head_dim, host.v_head_dim, host.head_group_num],
        "order": [info.buffers.layout.value for info in host._buffer_infos],
        "drafts": host.layer_num - host.target_layer_num,
    }


def _keys_only(host: Any, split: int) -> Facts:
    return {**_layers(host), "heads": [host.head_num, host.head_dim], "drafts": 0}


def _mla(host: Any, split: int) -> Facts:
    native = host._native_buffers
    return {
        **_layers(host),
        "latent": [host.kv_lora_rank, host.qk_rope_head_dim, host.kv_cache_dim, host.dsa_kv_cache_store_fp8],
        "slots": [host._device_layer_num, *host._target_layer_indices],
        "native": native
        and [native.k_width, native.v_width, native.index_width, native.index_scales is not None]
        + list(native.index_layer_indices),
        "drafts": host.layer_num - host.target_layer_num,
    }


def _indexer(host: Any, split: int) -> Facts:
    pool = host.device_pool
    return {
        **_layers(host),
        "index": [pool.index_head_dim, pool.quant_block_size, pool.index_kpool, pool.index_kpool_compress],
        "slots": list(host._live_target_layers),
        "drafts": len(host.mtp_draft_device_pools),
    }


def _mamba(host: Any, split: int) -> Facts:
    return {
        "layers": host.num_mamba_layers,
        "temporal": [host.temporal_dtype, list(host.temporal_state_shape)],
        "conv": [host.conv_dtype, [list(shape) for shape in host.conv_state_shapes]],
        "drafts": len(host.mtp_draft_buffer_infos),
    }


_KINDS: Final[dict[str, Callable[[Any, int], Facts]]] = {
    "MHATokenToKVPoolHost": _mha,
    "AsymmetricMHATokenToKVPoolHost": _mha,
    "MHATokenToKOnlyPoolHost": _keys_only,
    "MLATokenToKVPoolHost": _mla,
    "DSAIndexerPoolHost": _indexer,
    "MambaPoolHost": _mamba,
}
"""By the exact class: a subclass may store something else."""
