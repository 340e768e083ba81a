"""What both programs ask, and where."""

from __future__ import annotations

import os
from random import Random
from typing import Any

from examples.kv_host.model import VOCABULARY

PAGE_TOKENS = 8
TOKENS = 12
"""To be generated for each prompt."""


def settings() -> dict[str, Any]:
    """Where the cluster is."""
    names = {"master": "TENSORHOLD_MASTER", "admin": "TENSORHOLD_ADMIN", "metadata": "TENSORHOLD_METADATA"}
    return {setting: os.environ[name] for setting, name in names.items() if name in os.environ}


def prompts(count: int, *, shared: int, own: int) -> list[list[int]]:
    """Prompts that begin with the same tokens, and go on with other ones."""
    random = Random(11)
    start = [random.randrange(VOCABULARY) for _ in range(shared)]
    return [start + [random.randrange(VOCABULARY) for _ in range(own)] for _ in range(count)]
