"""Small random models with a tokenizer of their own, all made here: ``python -m real.model FOLDER [KIND]``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

VOCABULARY = 1024
LAYERS = 4


def tokenizer() -> Any:
    """Bytes and a few merges: the prompts of these tests are token ids, so it never has to be a good one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 24,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator((f"tensor {n} is held until somebody lets go of it {n * 3}" for n in range(1500)), trainer)
    fast: Any = PreTrainedTokenizerFast  # published without types
    return fast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>", model_max_length=2048
    )


def config(kind: str) -> Any:
    """``llama``: grouped-query attention; ``large``: the same with 30 million parameters. ``gemma``: sliding-window and full
    layers in turns, two KV groups. ``deepseek``: multi-head latent attention (MLA), whose pages hold one latent vector for
    a token instead of keys and values."""
    from transformers import DeepseekV2Config, Gemma3TextConfig, LlamaConfig

    common: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 2048,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        # Wide enough that a wrong page of KV changes the next token.
        "initializer_range": 0.2,
    }
    if kind == "llama":
        return LlamaConfig(**common, tie_word_embeddings=False)
    if kind == "large":
        larger = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8, "max_position_embeddings": 4096}
        return LlamaConfig(**{**common, **larger}, tie_word_embeddings=False)
    if kind == "gemma":
        windows = ["sliding_attention" if n % 2 == 0 else "full_attention" for n in range(LAYERS)]
        return Gemma3TextConfig(**common, sliding_window=128, layer_types=windows)
    if kind == "deepseek":
        # The latent vectors are as long as DeepSeek's: vLLM on a CPU knows no others.
        latent = {"q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 32, "qk_rope_head_dim": 64, "v_head_dim": 32}
        # Positions as DeepSeek-V2 has them: SGLang on a CPU knows no others for it.
        positions = {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 2.0,
            "original_max_position_embeddings": 1024,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
        }
        without = {**common, **latent, "head_dim": 64, "num_key_value_heads": 4}
        without["moe_layer_freq"] = 1  # SGLang reads it although no layer has experts
        return DeepseekV2Config(
            **without,
            rope_parameters=positions,
            first_k_dense_replace=LAYERS,  # so that no layer has experts
            tie_word_embeddings=False,
        )
    raise ValueError(f"there is no model {kind!r}: llama, large, gemma, deepseek")


def make(folder: Path, kind: str = "llama") -> Path:
    """Makes a model, the same one each time. Does nothing if it is there."""
    import torch
    from transformers import AutoModelForCausalLM

    if (folder / "complete").exists():
        return folder
    torch.manual_seed(7)
    auto: Any = AutoModelForCausalLM  # published without types
    model = auto.from_config(config(kind)).to(torch.float32)
    if kind == "gemma":
        # Its embeddings are scaled up, and are its output layer, too: without this each token only repeats itself, whatever
        # came before.
        with torch.no_grad():
            model.get_input_embeddings().weight.mul_(0.02)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    (folder / "complete").touch()
    return folder


if __name__ == "__main__":
    print(make(Path(sys.argv[1]), *sys.argv[2:3]))
