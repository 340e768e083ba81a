"""The prompts of all real engines: token ids, so that no tokenizer has a say."""

from __future__ import annotations

PROMPTS = [[(11 * at + 17 * which) % 900 + 5 for at in range(300 + 40 * which)] for which in range(3)]
PROMPT_TOKENS = sum(map(len, PROMPTS))
NEW_TOKENS = 24


def findable(page: int) -> int:
    """How many of the prompts' tokens an engine finds at best, by the tokens of its pages: it reuses whole pages only,
    and computes at least the last token anew."""
    return sum((len(prompt) - 1) // page * page for prompt in PROMPTS)
