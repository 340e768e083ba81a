"""Chunks of vLLM that mean different things never share a name, as far as vLLM tells. With vLLM's own configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from stand_ins import stand_in

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's own, at import

# vLLM's tiering takes the class of its statistics from here, and with it half of vLLM.
stand_in("vllm.distributed.kv_transfer")

CHUNK = 256 << 10


def config(**parallel: Any) -> Any:
    """What vLLM tells a tier."""
    from vllm.v1.kv_offload.config import (
        OffloadingCacheConfig,
        OffloadingConfig,
        OffloadingGroupConfig,
        OffloadingModelConfig,
        OffloadingParallelConfig,
    )

    alone = OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, True)
    return OffloadingConfig(
        groups=(OffloadingGroupConfig(tokens_per_block=16, layer_names=("layers.0", "layers.1"), group_id=0),),
        worker_kv_bytes_per_block=CHUNK,
        enable_kv_cache_events=False,
        extra_config={},
        engine_id="engine",
        model=OffloadingModelConfig(name="org/model-8b", dtype="bfloat16"),
        cache=OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
        parallel=replace(alone, **parallel),
        kv_cache_layout="LBNHC",
    )


def name(given: Any, chunk: int = CHUNK, tag: str | None = None, weights: str = "") -> str:
    from tensorhold.vllm import _names

    return _names(given, chunk, tag, weights)


def apart(*names: str) -> None:
    assert len(names) == len(set(names))


def test_another_engine_with_the_same_settings_finds_the_chunks() -> None:
    assert name(config()) == name(replace(config(data_parallel_index=1, data_parallel_size=2), engine_id="another"))


def test_numbers_of_other_kinds() -> None:
    """Of all that vLLM knows; most of them are stored as bytes. Scales of tokens, heads and blocks lie in the block."""
    from vllm.config.cache import CacheDType

    kinds = {*get_args(CacheDType), "float32"} - {"auto"}
    made = config()
    apart(*(name(replace(made, model=replace(made.model, dtype=kind))) for kind in sorted(kinds)))


@pytest.mark.parametrize("given", ["auto", "", "None"])
def test_numbers_that_vllm_does_not_tell_are_refused(given: str) -> None:
    made = config()
    with pytest.raises(ValueError, match="--kv-cache-dtype"):
        name(replace(made, model=replace(made.model, dtype=given)))
    with pytest.raises(ValueError, match="KV cache layout"):
        name(replace(made, kv_cache_layout=given or None))


def test_layouts_of_the_same_sizes() -> None:
    from vllm.v1.kv_cache_layout import KVCacheLayout

    made = config()
    apart(
        *(name(replace(made, kv_cache_layout=layout.name)) for layout in KVCacheLayout),
        name(replace(made, canonical_layout=True)),
        name(replace(made, replicated_layout=True)),
        name(made, 2 * CHUNK),
        name(replace(made, worker_kv_bytes_per_block=CHUNK // 2)),
        name(replace(made, cache=replace(made.cache, blocks_per_chunk=2))),
        name(replace(made, cache=replace(made.cache, tokens_per_hash=8))),
    )


def test_groups_of_layers() -> None:
    made = config()
    (group,) = made.groups
    window = replace(group, group_id=1, layer_names=("layers.2",))
    apart(
        name(made),
        name(replace(made, groups=(replace(group, layer_names=("layers.0", "layers.2")),))),
        name(replace(made, groups=(replace(group, tokens_per_block=32),))),
        name(replace(made, groups=(replace(group, group_id=1),))),
        name(replace(made, groups=(group, window))),
    )


def test_groups_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [{"tp_size": 2}, {"pp_size": 2}, {"pcp_size": 2}, {"dcp_size": 2}]
    found = [name(config())] + [name(config(**size, world_size=2)) for size in sizes]
    stages = config(pp_size=3, world_size=3)
    for partition in ("8,12,12", "12,12,8"):
        monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", partition)
        found.append(name(stages))
    apart(*found)


def test_models_and_their_weights() -> None:
    made = config()
    other = replace(made, model=replace(made.model, name="org/other"))
    apart(name(made), name(other), name(made, weights="2"), name(made, tag="another"))


def test_machines_that_pack_blocks_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from vllm.platforms import current_platform

    here = name(config())
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: None)
    cpu = name(config())
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: False)
    monkeypatch.setattr(type(current_platform), "device_name", "cuda")
    cuda = name(config())
    monkeypatch.setattr(type(current_platform), "device_name", "rocm")
    monkeypatch.setattr(type(current_platform), "is_rocm", lambda self: True)
    rocm = name(config())
    monkeypatch.setenv("VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT", "1")
    shuffled = name(config())
    monkeypatch.setattr(type(current_platform), "fp8_dtype", lambda self: torch.float8_e4m3fnuz)
    apart(here, cpu, cuda, rocm, shuffled, name(config()))


def test_another_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm

    here = name(config())
    monkeypatch.setattr(vllm, "__version__", "0.33.0")
    apart(here, name(config()))
