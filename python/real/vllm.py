"""A real vLLM on Tensorhold: ``cargo xtask real vllm [--json]``.

Processes one after the other on one cluster: one without offloading (what the tokens have to be), one that computes
and stores, one that finds what the other stored, and one that negates what it loads, so that loaded pages are seen to
matter. Then API servers, two at once, and with a cluster that is taken apart under them.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from real import faults, kv_events, model, processes, program, server, ssd, vllm_program
from real.prompts import NEW_TOKENS, PROMPTS, findable
from real.server import Metrics, Server

BLOCK = 32
"""Tokens of a block; on a CPU vLLM takes multiples of this only, but for MLA."""
MLA_BLOCK = 16
"""Tokens of a block of latent vectors; on a CPU vLLM takes no others."""
VARIABLES = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
FLAGS = """
    --dtype float32 --max-model-len 1024 --enforce-eager --max-num-seqs 4 --enable-prefix-caching
    --enable-prompt-tokens-details
""".split()


@dataclass(frozen=True)
class Served:
    """What one vLLM process generated."""

    tokens: list[list[int]]
    hit_tokens: int
    """Tokens of prompts that did not have to be computed. Each process starts empty, so they came from Tensorhold."""
    seconds: float
    log: str
    metrics: Metrics
    events_lacking: int | None
    """How many whole blocks of the prompts were not told to be stored, if events were asked for."""

    @property
    def let_go(self) -> bool:
        """Whether the tier had let vLLM's memory go when vLLM unmapped it."""
        return "BufferError" not in self.log


def tier(cluster: Any, tag: str, **more: Any) -> dict[str, Any]:
    """Tensorhold's tier and its options, for the cluster of a test."""
    return {
        "type": "TensorholdTierManager",
        "module_path": "tensorhold.vllm",
        "master": cluster.master,
        "admin": cluster.admin,
        "metadata": cluster.metadata,
        "environment": {**cluster.client_env, "MC_LOG_LEVEL": "ERROR"},
        "tag": tag,
        **more,
    }


def serve(
    folder: Path, options: dict[str, Any] | None, *, blocks_per_chunk: int = 1, mla: bool = False, negate: bool = False
) -> Served:
    """Runs one process over all prompts."""
    engine = uuid.uuid4().hex
    settings = {
        "model": str(folder),
        "prompts": PROMPTS,
        "new_tokens": NEW_TOKENS,
        "tier": options,
        "engine_id": engine,
        "block_size": MLA_BLOCK if mla else BLOCK,
        # With AMX it would prefer a back end that takes no float32.
        "more": {"attention_backend": "CPU_MLA"} if mla else {},
        "blocks_per_chunk": blocks_per_chunk,
    }
    variables = {**VARIABLES, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    if negate:
        variables["TENSORHOLD_TEST_NEGATE"] = "1"
    try:
        ended = processes.run("vllm_program", settings, **variables)
    finally:
        _forget_memory(engine)
    report = ended.report
    metrics = Metrics([(name, labels, value) for name, labels, value in report["metrics"]])
    hits = sum(report["cached"])
    return Served(report["tokens"], hits, report["seconds"], ended.log, metrics, report["events_lacking"])


def as_counted(
    metrics: Metrics, hit_tokens: int, chunk_tokens: int = BLOCK, *, one_group: bool = True
) -> dict[str, Any]:
    """What vLLM's metrics say of what was found, and whether that is so many tokens. Of a model with several groups of
    layers, each group's chunks count, and those of a sliding window are fewer."""
    chunks = hit_tokens // chunk_tokens
    tier = "1:TensorholdTierManager"
    sources = metrics.by("vllm:kv_offload_tensorhold_gets_total", "source")
    told = {
        "external": metrics.sum("vllm:external_prefix_cache_hits_total"),
        "by_source": metrics.sum("vllm:prompt_tokens_cached_by_source_total", source="external_unspecified"),
        "chunks": metrics.sum("vllm:kv_offload_tiering_chunk_hits_total", tier=tier),
        "read": sum(sources.values()),
    }
    as_found = told["external"] == told["by_source"] == hit_tokens and told["chunks"] == told["read"]
    right = as_found and (told["read"] == chunks if one_group else told["read"] > chunks)
    return {"metrics_right": right, "metrics": told, "sources": sources}


def _forget_memory(engine: str) -> None:
    """Removes the memory of a primary tier, which a vLLM that is killed leaves behind."""
    Path(f"/dev/shm/vllm_offload_{engine}.mmap").unlink(missing_ok=True)


class VllmServer(Server):
    """A running API server of vLLM's."""

    def serve(self) -> server.Served:
        """All prompts, one after the other."""
        tokens, seconds, hits = [], [], 0
        for prompt in PROMPTS:
            body = {"model": "m", "prompt": prompt, "max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
            begun = time.monotonic()
            answer = json.loads(self.post("/v1/completions", {**body, "return_token_ids": True}))
            seconds.append(time.monotonic() - begun)
            tokens.append(answer["choices"][0]["token_ids"])
            hits += (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return server.Served(tokens, hits, seconds)


@contextmanager
def running(
    folder: Path, options: dict[str, Any] | None, scratch: Path, events: kv_events.Subscriber | None = None
) -> Iterator[VllmServer]:
    """An API server, up inside the block and gone after it."""
    engine = uuid.uuid4().hex
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--served-model-name", "m", "--host", "127.0.0.1", "--block-size", str(BLOCK), *FLAGS]
    asked = {"tier": options, "engine_id": engine, "blocks_per_chunk": 1}
    for name, value in vllm_program.transfer(asked).items():
        command += [f"--{name.replace('_', '-')}", json.dumps(value)]
    if events is not None:
        command += ["--kv-events-config", json.dumps(events.config())]
    environment = processes.environment(**VARIABLES)
    try:
        with server.running(command, environment, scratch) as up:
            yield VllmServer(up.port, up.process, up.log)
    finally:
        _forget_memory(engine)


def api_servers(run: program.Program) -> None:
    """Two API servers on one cluster: one finds what the other stored; then the cluster is taken apart."""
    from servers import running_cluster

    folder = model.make(run.scratch / "llama", "llama")
    with running(folder, None, run.scratch) as alone:
        plain = alone.serve()
    with running_cluster(holders=2, segment_mib=256) as cluster, kv_events.subscribed() as events:
        options = tier(cluster, uuid.uuid4().hex[:8], enable_kv_events=True, locality="REMOTE")

        def served(case: str, *, hits: bool = False, happens: Callable[[], Any] = lambda: None) -> None:
            # A server of its own: what it finds was not computed by it.
            with run.case(case) as figures, running(folder, options, run.scratch, events) as up:
                told = happens()
                found = up.serve()
                events.read()
                figures.update(tokens_equal=found.tokens == plain.tokens, hit_tokens=found.hit_tokens)
                figures["seconds"] = [round(each, 2) for each in found.seconds]
                if case.startswith("fault"):
                    figures["faults"] = 1
                if isinstance(told, dict):
                    figures["objects"] = told
                if hits:
                    figures["enough_hits"] = found.hit_tokens >= findable(BLOCK)
                    figures.update(as_counted(up.metrics(), found.hit_tokens))

        with running(folder, options, run.scratch, events) as first:
            with run.case("an API server") as figures:
                figures["tokens_equal"] = first.serve().tokens == plain.tokens
                figures["all_told"] = events.lacks(kv_events.whole_blocks(PROMPTS, BLOCK)) == 0
                figures["stored_events"] = len(events.of_tensorhold("BlockStored"))
            served("another API server at once", hits=True)
        served("fault: etcd is killed, which pages do not need", hits=True, happens=lambda: faults.kill(cluster, "etcd-0"))
        served("fault: every page is torn, truncated or replaced", happens=lambda: faults.altered(cluster))
        with run.case("events of wrong pages") as figures:
            gone = {one for event in events.of_tensorhold("BlockRemoved") for one in event["block_hashes"]}
            stored = {one for event in events.of_tensorhold("BlockStored") for one in event["block_hashes"]}
            figures.update(removed_events=len(gone), removed_are_told=bool(gone) and gone <= stored)
        served("fault: a holder is killed", happens=lambda: faults.kill(cluster, "holder-0"))
        served("fault: the master is killed", happens=lambda: faults.kill(cluster, "master-0"))


def on_ssd(run: program.Program) -> None:
    """Every chunk is on SSD only when a new process asks for it."""
    folder = model.make(run.scratch / "llama", "llama")
    with ssd.cluster() as cluster:
        tag = uuid.uuid4().hex[:8]
        plain, stored = serve(folder, None), serve(folder, tier(cluster, tag))
        for how, options, source in ssd.WAYS:
            with run.case(f"chunks on SSD, {how}") as figures:
                figures["chunks_on_ssd"] = ssd.crowded_out(cluster)
                found = serve(folder, tier(cluster, tag, **options))
                figures.update(
                    tokens_equal=plain.tokens == stored.tokens == found.tokens,
                    hit_tokens=found.hit_tokens,
                    enough_hits=found.hit_tokens >= findable(BLOCK),
                    **as_counted(found.metrics, found.hit_tokens),
                )
                sources = figures["sources"]
                figures["ssd_hit_tokens"] = BLOCK * sources.get(source, 0)
                figures["only_from_there"] = set(sources) == {source}


def cases(run: program.Program) -> None:
    """Each with four processes, about a minute each."""
    api_servers(run)
    on_ssd(run)
    for kind, per_chunk in [("llama", 1), ("llama", 4), ("gemma", 1), ("deepseek", 1)]:
        of_model(run, kind, per_chunk)


def of_model(run: program.Program, kind: str, per_chunk: int) -> None:
    """Computed, stored, found, and as a control found and negated."""
    with run.case(f"{kind}, {per_chunk} to a chunk") as figures:
        folder = model.make(run.scratch / kind, kind)
        options = tier(run.cluster, uuid.uuid4().hex[:8], enable_kv_events=kind == "llama" and per_chunk == 1)
        mla = kind == "deepseek"
        chunk = (MLA_BLOCK if mla else BLOCK) * per_chunk
        plain = serve(folder, None, mla=mla)
        first = serve(folder, options, blocks_per_chunk=per_chunk, mla=mla)
        second = serve(folder, options, blocks_per_chunk=per_chunk, mla=mla)
        control = serve(folder, options, blocks_per_chunk=per_chunk, mla=mla, negate=True)
        expected = findable(chunk)
        figures.update(
            tokens_equal=plain.tokens == first.tokens == second.tokens,
            control_differs=control.tokens != plain.tokens,
            hit_tokens=second.hit_tokens,
            expected_hits=expected,
            let_go=first.let_go and second.let_go,
            **as_counted(second.metrics, second.hit_tokens, chunk, one_group=kind != "gemma"),
            seconds={"plain": plain.seconds, "stored": first.seconds, "loaded": second.seconds},
        )
        if first.events_lacking is not None:
            figures["all_told"] = first.events_lacking == 0
        # Only whole chunks are found: of large ones, a smaller share.
        figures["enough_hits" if per_chunk == 1 else "all_whole_chunks"] = second.hit_tokens >= expected


if __name__ == "__main__":
    program.run(__doc__, cases)
