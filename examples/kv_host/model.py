"""A small random Llama, whole or one rank's part of it, run on KV that the caller holds.

Sums of floating point numbers depend on the shapes that they are made with. So that a run with a cache gives exactly the
logits of a run without one, both compute the same spans (:func:`spans`): the prompt page by page, because what is cached
is always whole pages, and every later token by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from tensorhold.kv import Rank

Past = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of each layer: batch, heads, tokens, size of a head."""

VOCABULARY = 512


def config(parts: int = 1) -> Any:
    """The whole model, or one of ``parts`` equal parts of it: that many fewer heads, and a narrower MLP."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256 // parts,
        num_hidden_layers=3,
        num_attention_heads=4 // parts,
        num_key_value_heads=2 // parts,
        head_dim=32,
        max_position_embeddings=2048,
        # Wide enough that a wrong page of KV changes the next token.
        initializer_range=0.2,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
    )


def make(tp: Rank = Rank(), add_up: Callable[[torch.Tensor], torch.Tensor] | None = None) -> Any:
    """The model, the same one each time. With more than one rank this rank's part of it: its heads and its share of the
    MLP. ``add_up`` adds what all ranks have computed, twice in each layer; all of them must call it."""
    from transformers import LlamaForCausalLM

    model_class: Any = LlamaForCausalLM  # published without types
    # The caller's random numbers stay as they are.
    with torch.random.fork_rng():
        torch.manual_seed(7)
        whole = model_class(config()).eval()
    if tp.size == 1:
        return whole
    assert add_up is not None
    add = add_up
    part = model_class(config(tp.size)).eval()
    part.load_state_dict({name: _part_of(name, weight, tp) for name, weight in whole.state_dict().items()})
    for layer in part.model.layers:
        for partial_sums in (layer.self_attn.o_proj, layer.mlp.down_proj):
            partial_sums.register_forward_hook(lambda _module, _inputs, output: add(output))
    return part


def _part_of(name: str, weight: torch.Tensor, tp: Rank) -> torch.Tensor:
    if any(f".{column}_proj." in name for column in ("q", "k", "v", "gate", "up")):
        return weight.chunk(tp.size, dim=0)[tp.rank]
    if any(f".{row}_proj." in name for row in ("o", "down")):
        return weight.chunk(tp.size, dim=1)[tp.rank]
    return weight


def spans(start: int, end: int, *, prompt: int, page_tokens: int) -> Iterator[tuple[int, int]]:
    """Cuts the positions from ``start`` to ``end`` into those that are computed together."""
    while start < end:
        stop = min(start - start % page_tokens + page_tokens, prompt) if start < prompt else start + 1
        yield start, min(stop, end)
        start = stop


def forward(model: Any, tokens: Sequence[int], past: Past) -> tuple[torch.Tensor, Past]:
    """Computes the next tokens behind ``past``. Returns the logits behind the last of them, and their own KV."""
    from transformers import DynamicCache

    cache_class: Any = DynamicCache  # published without types
    cache = cache_class(ddp_cache_data=past or None, config=model.config)
    known = cache.get_seq_length()
    with torch.no_grad():
        output = model(input_ids=torch.tensor([list(tokens)]), past_key_values=cache, logits_to_keep=1)
    new = [(layer.keys[:, :, known:], layer.values[:, :, known:]) for layer in cache.layers]
    return output.logits[0, -1], new


def generate(model: Any, prompt: Sequence[int], most: int, page_tokens: int) -> tuple[list[int], list[torch.Tensor]]:
    """Generates without pages and without a cache of ours: what every answer of the host is compared with. The KV stays
    in the tensors that transformers made."""
    from transformers import DynamicCache

    cache_class: Any = DynamicCache  # published without types
    cache = cache_class(config=model.config)
    sequence, tokens, logits = list(prompt), list[int](), list[torch.Tensor]()
    while len(tokens) < most:
        start, end = cache.get_seq_length(), len(sequence)
        with torch.no_grad():
            for first, last in spans(start, end, prompt=len(prompt), page_tokens=page_tokens):
                output = model(input_ids=torch.tensor([sequence[first:last]]), past_key_values=cache, logits_to_keep=1)
        logits.append(output.logits[0, -1])
        tokens.append(int(logits[-1].argmax()))
        sequence.append(tokens[-1])
    return tokens, logits
