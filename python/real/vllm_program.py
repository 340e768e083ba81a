"""One vLLM process: serves prompts of token ids, and writes what it generated to a file, as JSON.

``python -m real.vllm_program SETTINGS REPORT``, with settings as JSON: ``model``, ``prompts``, ``tier`` (of Tensorhold,
or null for none), ``engine_id``, ``block_size``, ``blocks_per_chunk``, ``new_tokens``, ``more`` (arguments of vLLM's). A tier with ``enable_kv_events`` has
the process publish KV events, and take them itself.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from real import kv_events


def transfer(settings: dict[str, Any]) -> dict[str, Any]:
    """vLLM's setting for KV offloading, with Tensorhold below its primary tier."""
    if settings["tier"] is None:
        return {}
    extra: dict[str, Any] = {
        "spec_name": "CpuTieringOffloadingSpec",
        "spec_module_path": "real.vllm_copies",
        "cpu_bytes_to_use": 64 << 20,
        "secondary_tiers": [settings["tier"]],
        "self_describing_kv_events": True,
    }
    if settings["blocks_per_chunk"] > 1:
        extra["blocks_per_chunk"] = settings["blocks_per_chunk"]
    return {
        "kv_transfer_config": {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "engine_id": settings["engine_id"],
            "kv_connector_extra_config": extra,
        }
    }


def main() -> None:
    settings = json.loads(sys.argv[1])
    with kv_events.subscribed() as events:
        report = serve(settings, events)
    Path(sys.argv[2]).write_text(json.dumps(report))


def serve(settings: dict[str, Any], events: kv_events.Subscriber) -> dict[str, Any]:
    """Runs the engine, and says what came of it."""
    from vllm import LLM, SamplingParams
    from vllm.v1.metrics.reader import Counter

    more = {**transfer(settings), **settings["more"]}
    publishes = bool(settings["tier"] and settings["tier"].get("enable_kv_events"))
    if publishes:
        more["kv_events_config"] = events.config()
    engine = LLM(
        model=settings["model"],
        dtype="float32",
        max_model_len=1024,
        enforce_eager=True,
        max_num_seqs=4,
        block_size=settings["block_size"],
        enable_prefix_caching=True,
        distributed_executor_backend="uni",
        disable_log_stats=False,
        **more,
    )
    greedy = SamplingParams(temperature=0, max_tokens=settings["new_tokens"], ignore_eos=True)
    begun = time.monotonic()
    prompts: list[Any] = [{"prompt_token_ids": prompt} for prompt in settings["prompts"]]
    answers = engine.generate(prompts, greedy, use_tqdm=False)
    took = time.monotonic() - begun
    lacks = None
    if publishes:
        blocks = kv_events.whole_blocks(settings["prompts"], settings["block_size"])
        # The last chunks are stored when no request is left: an engine in its own process goes on by itself.
        lacks = events.lacks(blocks, engine.llm_engine.step)
    report = {
        "tokens": [list(answer.outputs[0].token_ids) for answer in answers],
        "cached": [answer.num_cached_tokens or 0 for answer in answers],
        "seconds": took,
        "events_lacking": lacks,
        "events": len(events.of_tensorhold("BlockStored")),
        "metrics": [
            (f"{one.name}_total", one.labels, one.value) for one in engine.get_metrics() if isinstance(one, Counter)
        ],
    }
    engine.llm_engine.engine_core.shutdown()
    return report


if __name__ == "__main__":
    main()
