"""Pages of SGLang that mean different things never share a name. With SGLang's own pools and configuration."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import sglang_parts as parts
import torch

pytestmark = pytest.mark.filterwarnings("ignore")  # SGLang's own, at import

parts.load()

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Names are made without a store."""
    from tensorhold._sglang_config import Options

    store = SimpleNamespace(frame_bytes=1 << 30, register=lambda memory: None, close=lambda: None)
    monkeypatch.setattr(Options, "open", lambda self: store)
    yield


def name(
    pool: Any,
    settings: dict[str, Any] | None = None,
    *,
    side: Any = None,
    options: dict[str, Any] | None = None,
    **config: Any,
) -> tuple[Any, ...]:
    """The names that a server with these settings gives to one page of this pool, of v1 and of the older calls."""
    from tensorhold.sglang import TensorholdHiCacheStorage

    with parts.published(**(settings or {})):
        storage = TensorholdHiCacheStorage(parts.storage_config(options or {}, **config), {})
        if side is not None:
            storage.register_mem_host_pool_v2(pool, side)
            return tuple(storage._pools[side].names.all(["abc"]))
        storage.register_mem_pool_host(pool)
        return (*storage._pools["kv"].names.all(["abc"]), *storage._flat_names(["abc"]))


def apart(*names: tuple[Any, ...]) -> None:
    """No two of these servers share a name."""
    every = [one for several in names for one in several]
    assert len(every) == len(set(every))


def test_a_restart_with_another_size_of_memory_finds_its_pages() -> None:
    """The control: what does not change the bytes is in no name."""
    assert name(parts.mha_pool(pages=8)) == name(parts.mha_pool(pages=4), {"served_model_name": "another"})
    assert name(parts.mha_pool()) == name(parts.mha_pool(), {"speculative_draft_model_path": "org/draft"})
    assert name(parts.mla_pool(pages=8)) == name(parts.mla_pool(pages=4), {"hicache_ratio": 3.0})
    assert name(parts.mamba_pool(slots=4), side="mamba") == name(parts.mamba_pool(slots=7), side="mamba")
    assert name(parts.index_pool(), side="indexer") == name(parts.index_pool(), side="indexer")


@pytest.mark.parametrize("pool", [parts.mha_pool, parts.mla_pool])
def test_numbers_of_other_kinds(pool: Any) -> None:
    fp8 = [pool(dtype=E4M3 if pool is parts.mha_pool else torch.uint8) for _ in range(2)]
    assert fp8[0].dtype == torch.uint8, "SGLang stores every fp8 so"
    apart(
        name(pool(dtype=torch.bfloat16)),
        name(pool(dtype=torch.float16)),
        name(fp8[0], {"kv_cache_dtype": "fp8_e4m3"}),
        name(fp8[1], {"kv_cache_dtype": "fp8_e5m2"}),
    )


@pytest.mark.parametrize("given", ["auto", "bfloat16", "nvfp4", "mxfp8"])
def test_bytes_that_the_server_does_not_explain_are_refused(given: str) -> None:
    with pytest.raises(ValueError, match=f"--kv-cache-dtype is {given}.*fp8_e4m3, fp8_e5m2"):
        name(parts.mha_pool(dtype=E4M3), {"kv_cache_dtype": given})


def test_fp8_of_another_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.mem_cache import kv_cache_dtype

    settings = {"kv_cache_dtype": "fp8_e4m3"}
    here = name(parts.mha_pool(dtype=E4M3), settings)
    cuda = name(parts.mha_pool(dtype=E4M3), {**settings, "device": "cuda"})
    monkeypatch.setattr(kv_cache_dtype, "fp8_dtype", torch.float8_e4m3fnuz)
    apart(here, cuda, name(parts.mha_pool(dtype=E4M3), settings))


def test_scales_from_a_file() -> None:
    settings = {"kv_cache_dtype": "fp8_e4m3"}
    apart(
        *(
            name(parts.mha_pool(dtype=E4M3), {**settings, "quantization_param_path": path})
            for path in (None, "/scales/a.json", "/scales/b.json")
        )
    )


def test_scales_beside_the_page_are_refused() -> None:
    """By SGLang itself, for all that keep one for each token or block."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPoolFP4
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

    with parts.published():
        pool = MHATokenToKVPoolFP4(
            size=16,
            page_size=16,
            dtype=torch.float4_e2m1fn_x2,
            head_num=8,
            head_dim=64,
            layer_num=2,
            device="cpu",
            enable_memory_saver=False,
        )
        with pytest.raises(ValueError, match="do not support KV scale layout"):
            MHATokenToKVPoolHost(
                pool.get_device_pool_infos()[0].buffer_info, **parts.host_sizes(2, 16, 2, "page_first")
            )


@pytest.mark.parametrize(
    "kind",
    [
        "MHATokenToKVPoolMXFP8Host",
        "HiSparseMHATokenToKVPoolHost",
        "UnifiedPageEnvelopeHostPool",
        "PageInterleaveHostPool",
        "DeepSeekV4PagedHostPool",
        "DeepSeekV4StateHostPool",
        "QSAIndexerPoolHost",
        "MiniMaxM3Nvfp4MainKVPoolHost",
        "MiniMaxM3Nvfp4IndexKPoolHost",
    ],
)
def test_a_pool_of_several_formats_is_refused(kind: str) -> None:
    """All of SGLang's host pools that are not described."""
    import sglang.srt.mem_cache.memory_pool_host as old
    from sglang.srt.mem_cache.pool_host import mha, mha_mxfp8, minimax_m3_nvfp4, page_interleave, qsa, unified

    modules = (old, mha, mha_mxfp8, minimax_m3_nvfp4, page_interleave, qsa, unified)
    known = next(getattr(module, kind) for module in modules if hasattr(module, kind))
    pool = object.__new__(known)
    with pytest.raises(ValueError, match=f"{kind}.*cannot tell apart"):
        name(pool, side="kv")


def test_layouts_and_orders_of_the_same_sizes() -> None:
    apart(
        *(name(parts.mha_pool(layout=layout)) for layout in ("page_first", "page_first_direct", "page_head")),
        name(parts.mha_pool(layout="layer_first")),
        name(parts.mha_pool(order="hnd")),
        name(parts.mha_pool(heads=16, dim=32)),
        name(parts.mha_pool(page=8)),
    )
    apart(*(name(parts.mla_pool(layout=one), is_mla_model=True) for one in ("page_first", "page_first_direct")))


def test_latents_that_are_cut_or_packed_otherwise() -> None:
    apart(
        name(parts.mla_pool()),
        name(parts.mla_pool(rank=448)),
        name(parts.mla_pool(packed=True)),
        name(parts.mla_pool(first=4)),
        name(parts.mla_pool(layers=8, page=8)),
    )


def test_indexes_beside_latents() -> None:
    apart(
        name(parts.index_pool(), side="indexer"),
        name(parts.index_pool(dtype=torch.float16), side="indexer"),
        name(parts.index_pool(layout="page_first_direct"), side="indexer"),
        name(parts.index_pool(dtype=E4M3), {"kv_cache_dtype": "fp8_e4m3"}, side="indexer"),
        name(parts.index_pool(layers=2), side="indexer"),
    )


def test_states_of_mamba() -> None:
    apart(
        name(parts.mamba_pool(), side="mamba"),
        name(parts.mamba_pool(conv=torch.float16), side="mamba"),
        name(parts.mamba_pool(temporal=torch.bfloat16), side="mamba"),
        name(parts.mamba_pool(width=4), side="mamba"),
    )


def test_pools_of_one_kind_under_several_names() -> None:
    apart(*(name(parts.mha_pool(), side=side) for side in ("kv", "swa", "auxiliary_swa", "draft", "draft_swa")))


def test_stages_that_are_cut_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    second: dict[str, Any] = {"pp_rank": 1, "pp_size": 3}
    cuts = [(8, 20, "8,12,12"), (12, 24, "12,12,8")]
    found, states = [], []
    for start, end, partition in cuts:
        found.append(name(parts.mha_pool(start_layer=start, end_layer=end), **second))
        monkeypatch.setenv("SGLANG_PP_LAYER_PARTITION", partition)
        states.append(name(parts.mamba_pool(), side="mamba", **second))
    apart(*found, *states)


def test_groups_of_ranks() -> None:
    tp = [name(parts.mha_pool(), tp_rank=rank, tp_size=size) for rank, size in ((0, 1), (0, 2), (1, 2), (0, 4))]
    pp = [name(parts.mha_pool(), pp_rank=rank, pp_size=2) for rank in range(2)]
    cp = [name(parts.mha_pool(), attn_cp_rank=rank, attn_cp_size=2) for rank in range(2)]
    slices = name(parts.mha_pool(), {"cp_strategy": "interleave"}, attn_cp_rank=0, attn_cp_size=2)
    apart(*tp, *pp, *cp, slices)
    dcp: dict[str, Any] = {"is_mla_model": True, "tp_size": 2, "dcp_size": 2, "logical_page_size": 32}
    apart(
        name(parts.mla_pool(), is_mla_model=True),
        *(name(parts.mla_pool(), **dcp, tp_rank=rank, dcp_rank=rank) for rank in range(2)),
    )


def test_heads_that_do_not_split_are_refused() -> None:
    """With fewer heads than ranks the ranks hold copies, and another size of the group would number them otherwise."""
    with pytest.raises(ValueError, match="1 heads do not split into 2"):
        name(parts.mha_pool(heads=1, layout="page_head"), tp_lcm_size=2, should_split_heads=True)


def test_a_draft_model() -> None:
    """Its layers lie in pools of their own, or behind those of the model."""
    models = [{"speculative_draft_model_path": f"org/draft-{n}"} for n in range(2)]
    models += [{**models[0], "speculative_draft_model_revision": "2"}, {**models[0], "speculative_algorithm": "EAGLE3"}]
    apart(*(name(parts.mha_pool(), one, side="draft") for one in models))
    apart(name(parts.mha_pool(layers=5)), *(name(parts.mha_pool(drafts=1), one) for one in models))
    fp8 = parts.mha_pool(dtype=E4M3)
    model, drafts = {"kv_cache_dtype": "fp8_e4m3"}, ("fp8_e4m3", "fp8_e5m2")
    apart(*(name(fp8, {**model, "speculative_draft_kv_cache_dtype": one}, side="draft") for one in drafts))


def test_models_and_their_weights() -> None:
    """``served_model_name`` is only a label: SGLang gives it for the model's when a back end is attached later."""
    settings: list[dict[str, Any]] = [
        {},
        {"model_path": "org/other"},
        {"revision": "2"},
        {"load_format": "dummy"},
        {"model_impl": "transformers"},
        {"json_model_override_args": '{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}'},
        {"dtype": "float16"},
        {"quantization": "fp8"},
        {"weight_version": "2"},
    ]
    apart(*(name(parts.mha_pool(), one, model_name="one label") for one in settings))
    apart(name(parts.mha_pool()), name(parts.mha_pool(), options={"weights_version": "2"}))


def test_another_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    import sglang.version

    here = name(parts.mha_pool())
    monkeypatch.setattr(sglang.version, "__version__", "0.5.24")
    apart(here, name(parts.mha_pool()))


def test_a_server_that_publishes_nothing_is_refused() -> None:
    from tensorhold.sglang import TensorholdHiCacheStorage

    with pytest.raises(ValueError, match="does not publish its setting weight_version"):
        TensorholdHiCacheStorage(parts.storage_config({}), {})


def test_adapters_and_salts_are_in_sglangs_own_keys() -> None:
    from sglang.srt.mem_cache.utils import storage_namespace_seed

    keys = [(None, None), ("adapter", None), (None, "salt"), ("", None), ("adapter", "salt"), ("adaptersalt", "")]
    assert len({storage_namespace_seed(*one) for one in keys}) == len(keys)
