"""What a SpecForge run on a CPU needs, all made here: a small random target, its tokenizer, the draft's configuration,
prompts, and hidden states on disk for the offline run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCABULARY = 128
HIDDEN = 128
LAYERS = 4
CAPTURED = (0, 1, 2)
"""The layers whose hidden states the draft is trained on."""
TOKENS = 64
MASKED = 8
"""The first tokens of a sample count for nothing."""


def make(folder: Path, samples: int) -> Path:
    """Makes everything, the same each time."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(7)
    common: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
    }
    causal: Any = LlamaForCausalLM  # published without types
    target = causal(LlamaConfig(**common, num_hidden_layers=LAYERS, initializer_range=0.25)).to(torch.bfloat16).eval()
    # In several files: SpecForge looks for their index.
    target.save_pretrained(folder / "target", max_shard_size="200KB")
    words = Tokenizer(models.WordLevel({f"t{n}": n for n in range(VOCABULARY)}, unk_token="t3"))
    fast: Any = PreTrainedTokenizerFast
    fast(tokenizer_object=words, pad_token="t0", bos_token="t1", eos_token="t2", unk_token="t3").save_pretrained(
        folder / "target"
    )
    draft = {
        **common,
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "draft_vocab_size": VOCABULARY,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.02,
        "torch_dtype": "bfloat16",
    }
    (folder / "draft.json").write_text(json.dumps(draft))
    every = {"t2d": torch.ones(VOCABULARY, dtype=torch.bool), "d2t": torch.zeros(VOCABULARY, dtype=torch.int64)}
    torch.save(every, folder / "vocab.pt")
    mask = [0] * MASKED + [1] * (TOKENS - MASKED)
    rows = [[(which + at * (which % 5 + 1)) % (VOCABULARY - 4) + 4 for at in range(TOKENS)] for which in range(samples)]
    with (folder / "prompts.jsonl").open("w") as prompts:
        for row in rows:
            prompts.write(json.dumps({"input_ids": row, "loss_mask": mask}) + "\n")
    (folder / "hidden").mkdir(exist_ok=True)
    with torch.no_grad():
        for which, row in enumerate(rows):
            seen = target.model(torch.tensor([row]), output_hidden_states=True)
            sample = {
                "input_ids": torch.tensor(row),
                "loss_mask": torch.tensor(mask),
                "hidden_state": seen.last_hidden_state,
                "aux_hidden_state": torch.cat([seen.hidden_states[layer + 1] for layer in CAPTURED], -1),
            }
            torch.save(sample, folder / "hidden" / f"{which:04d}.ckpt")
    return folder


def config(
    folder: Path,
    run: str,
    cluster: Any,
    *,
    servers: list[str] | None = None,
    ranks: int = 1,
    training: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The configuration of a run: offline, or online with these capture servers."""
    where: dict[str, Any] = {
        "control_dir": str(folder / run / "control"),
        "backend": "mooncake",
        "mooncake_metadata_server": cluster.metadata,
        "mooncake_master_server_addr": cluster.master,
        "mooncake_local_hostname": "127.0.0.1",
        "mooncake_protocol": "tcp",
    }
    data: dict[str, Any] = {"max_length": TOKENS}
    made: dict[str, Any] = {}
    if servers is None:
        where["producer_segment_size"] = 128 << 20  # SpecForge demands one; Tensorhold does not lend it
        data["hidden_states_path"] = str(folder / "hidden")
    else:
        where["server_urls"] = servers
        data |= {"prompts_path": str(folder / "prompts.jsonl"), "cache_dir": str(folder / run / "cache")}
        made["runtime"] = {
            "producer_lease": 4,
            "producer_concurrency": 2,
            "in_flight_high_watermark": 32,
            "in_flight_low_watermark": 16,
        }
    return made | {
        "run_id": run,
        "output_dir": str(folder / run / "out"),
        "model": {
            "target_model_path": str(folder / "target"),
            "draft_model_config": str(folder / "draft.json"),
            "vocab_mapping_path": str(folder / "vocab.pt"),
            "aux_hidden_state_layer_ids": list(CAPTURED),
        },
        "data": data,
        "training": {
            "strategy": "eagle3",
            "num_epochs": 2 if servers is None else 1,
            "batch_size": 4,
            "learning_rate": 4e-3,
            "max_grad_norm": 5.0,
            "lr_scheduler": "constant",
            "ttt_length": 3,
            "attention_backend": "sdpa",
            "fsdp_sharding": "NO_SHARD",
            "log_interval": 1,
            **(training or {}),
        },
        "deployment": {
            "mode": "disaggregated",
            "trainer": {"nproc_per_node": ranks},
            "disaggregated": where,
        },
    }
