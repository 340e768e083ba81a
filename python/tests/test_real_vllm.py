"""A real vLLM, on a CPU, with Tensorhold as its secondary tier. All of it: ``cargo xtask real vllm``."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from real import model, vllm
from real.prompts import PROMPT_TOKENS, findable
from servers import Cluster


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.make(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def options(cluster: Cluster) -> dict[str, Any]:
    return vllm.tier(cluster, f"test-{uuid.uuid4().hex[:8]}", enable_kv_events=True, locality="REMOTE")


@pytest.fixture(scope="module")
def first(folder: Path, options: dict[str, Any]) -> vllm.Served:
    """A process that finds nothing, computes, and stores."""
    served = vllm.serve(folder, options)
    assert served.hit_tokens == 0
    return served


def test_another_process_reuses_the_prefixes(folder: Path, options: dict[str, Any], first: vllm.Served) -> None:
    second = vllm.serve(folder, options)
    assert second.tokens == first.tokens
    print(f"{second.hit_tokens} of {PROMPT_TOKENS} prompt tokens were found")
    assert second.hit_tokens >= findable(vllm.BLOCK)
    for served in (first, second):
        assert served.let_go
    counted = vllm.as_counted(second.metrics, second.hit_tokens)
    assert counted["metrics_right"], counted


def test_a_subscriber_hears_of_every_block_that_is_stored(first: vllm.Served) -> None:
    assert first.events_lacking == 0


def test_loaded_pages_decide_what_is_generated(folder: Path, options: dict[str, Any], first: vllm.Served) -> None:
    assert vllm.serve(folder, options, negate=True).tokens != first.tokens
