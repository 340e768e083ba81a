"""A real SGLang server, on a CPU, with Tensorhold as HiCache's storage. All of it: ``cargo xtask real sglang``."""

from __future__ import annotations

import uuid
from pathlib import Path

from real import model, sglang
from servers import Cluster


def test_a_flushed_server_and_another_one_reuse_the_prefixes(cluster: Cluster, tmp_path: Path) -> None:
    folder = model.make(tmp_path / "model")
    options = sglang.backend(cluster, f"test-{uuid.uuid4().hex[:8]}")
    with sglang.running(folder, options, tmp_path) as server:
        first = server.serve()
        assert first.hit_tokens == 0
        flushed = sglang.hits_again(server)
        assert flushed.tokens == first.tokens and flushed.hit_tokens >= sglang.FINDABLE
        assert server.metrics().sum("sglang:backuped_tokens_total") >= sglang.FINDABLE
    with sglang.running(folder, options, tmp_path) as server:
        second = server.serve()
        assert second.tokens == first.tokens and second.hit_tokens >= sglang.FINDABLE
        server.flush()
        third = server.serve()
        assert third.tokens == first.tokens and third.hit_tokens >= sglang.FINDABLE
        counted = server.counted(second.hit_tokens + third.hit_tokens)
        assert counted["metrics_right"], counted
    with sglang.running(folder, options, tmp_path, negate=True) as server:
        control = server.serve()
        assert control.hit_tokens >= sglang.FINDABLE and control.tokens != first.tokens, "loaded pages decide"
