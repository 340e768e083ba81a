"""A real SGLang server on Tensorhold: ``cargo xtask real sglang [--json]``.

A server without hierarchical cache says what the tokens have to be. For each layout a server computes the prompts,
writes them through to Tensorhold, is flushed and asked again; other servers, by each of SGLang's prefetch policies, are
asked the same. The last one negates what it loads, so that loaded pages are seen to matter.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from real import faults, model, processes, program, server, ssd
from real.prompts import NEW_TOKENS, PROMPTS, findable
from real.server import Served, Server

PAGE = 16
FINDABLE = findable(PAGE)
POLICIES = ("wait_complete", "best_effort", "timeout")
"""When a request stops waiting for its prefetch."""

FLAGS = """
    --device cpu --attention-backend torch_native --dtype float32 --mem-fraction-static 0.1 --max-total-tokens 8192
    --max-running-requests 4 --disable-cuda-graph --disable-overlap-schedule --grammar-backend none --skip-server-warmup
    --enable-cache-report --enable-metrics
""".split()
HIERARCHICAL = """
    --enable-hierarchical-cache --hicache-size 1 --hicache-write-policy write_through --hicache-io-backend direct
""".split()


class SglangServer(Server):
    """A running server of SGLang's."""

    def serve(self) -> Served:
        """All prompts, one after the other."""
        tokens, seconds, hits = [], [], 0
        for prompt in PROMPTS:
            sampling = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
            begun = time.monotonic()
            answer = json.loads(self.post("/generate", {"input_ids": prompt, "sampling_params": sampling}))
            seconds.append(time.monotonic() - begun)
            tokens.append(answer["output_ids"])
            details = answer["meta_info"].get("cached_tokens_details") or {}
            hits += details.get("storage", 0)
        return Served(tokens, hits, seconds)

    def first_token(self, prompt: list[int]) -> tuple[float, int]:
        """How long one token takes, and how many of the prompt's came from storage."""
        begun = time.monotonic()
        sampling = {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True}
        answer = json.loads(self.post("/generate", {"input_ids": prompt, "sampling_params": sampling}))
        details = answer["meta_info"].get("cached_tokens_details") or {}
        return time.monotonic() - begun, int(details.get("storage", 0))

    def counted(self, hit_tokens: int) -> dict[str, Any]:
        """What SGLang's metrics say of what was loaded since the server was started, and whether it is so many tokens. A
        step later they say it."""
        deadline = time.monotonic() + 30
        while True:
            metrics = self.metrics()
            sources = metrics.by("sglang:tensorhold_gets_total", "source")
            told = {
                "prefetched": metrics.sum("sglang:prefetched_tokens_total"),
                "hits": metrics.sum("sglang:storage_prefetch_hit_tokens_total"),
                "pages": metrics.sum("sglang:prefetch_pgs_sum"),
                "read": sum(sources.values()),
            }
            pages = hit_tokens // PAGE
            right = told == {"prefetched": hit_tokens, "hits": hit_tokens, "pages": pages, "read": pages}
            told["backed_up"] = metrics.sum("sglang:backuped_tokens_total")
            told["backup_pages"] = metrics.sum("sglang:backup_pgs_sum")
            right = right and told["backed_up"] == PAGE * told["backup_pages"] > 0
            if right or time.monotonic() > deadline:
                return {"metrics_right": right, "metrics": told, "sources": sources}
            time.sleep(0.2)

    def flush(self) -> None:
        """Empties device and host: what is asked for next can only come from Tensorhold."""
        deadline = time.monotonic() + 60
        while True:
            try:
                self.post("/flush_cache")
                return
            except urllib.error.HTTPError:  # refused while a request, or a write, is still under way
                if time.monotonic() > deadline:
                    raise self.stuck("SGLang does not flush its cache") from None
                time.sleep(0.5)


def backend(cluster: Any, tag: str, **more: Any) -> dict[str, Any]:
    """The options of Tensorhold's storage, for the cluster of a test."""
    return {
        "backend_name": "tensorhold",
        "module_path": "tensorhold.sglang",
        "class_name": "TensorholdHiCacheStorage",
        "interface_v1": 1,
        "master": cluster.master,
        "admin": cluster.admin,
        "metadata": cluster.metadata,
        "environment": {**cluster.client_env, "MC_LOG_LEVEL": "ERROR"},
        "extra_backend_tag": tag,
        **more,
    }


@contextmanager
def running(
    folder: Path,
    options: dict[str, Any] | None,
    scratch: Path,
    *,
    layout: str = "page_first_direct",
    policy: str = "wait_complete",
    storage: str = "dynamic",
    ranks: int = 1,
    flags: Sequence[str] = (),
    flush_denormals: bool = False,
    negate: bool = False,
) -> Iterator[SglangServer]:
    """A server, up inside the block and gone after it."""
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(folder), "--host", "127.0.0.1"]
    command += ["--page-size", str(PAGE), "--tp-size", str(ranks), *FLAGS, *flags]
    if options is not None:
        command += [*HIERARCHICAL, "--hicache-mem-layout", layout, "--hicache-storage-prefetch-policy", policy]
        command += ["--hicache-storage-backend", storage, "--hicache-storage-backend-extra-config", json.dumps(options)]
    variables = {"SGLANG_USE_CPU_ENGINE": "1", "MAX_JOBS": "1"}
    if ranks > 1:
        # By itself SGLang gives each rank a NUMA node, and refuses more ranks than there are nodes.
        cores = sorted(os.sched_getaffinity(0))
        variables["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(str(cores[rank % len(cores)]) for rank in range(ranks))
        # A torch for GPUs brings NCCL along, which SGLang would take for a GPU: ranks talk over gloo.
        variables["SGLANG_NCCL_SO_PATH"] = "none"
    if flush_denormals:
        variables["TENSORHOLD_TEST_FLUSH_DENORMALS"] = "1"
    if negate:
        variables["TENSORHOLD_TEST_NEGATE"] = "1"
    environment = processes.environment(**variables)
    environment["PYTHONPATH"] = os.pathsep.join([str(processes.HERE / "sglang_shims"), environment["PYTHONPATH"]])
    with server.running(command, environment, scratch) as up:
        yield SglangServer(up.port, up.process, up.log)


def hits_again(server: SglangServer, within: float = 60.0) -> Served:
    """Flushes and asks again, until what was written through has arrived: SGLang writes in the background."""
    deadline = time.monotonic() + within
    while True:
        server.flush()
        served = server.serve()
        if served.hit_tokens >= FINDABLE or time.monotonic() > deadline:
            return served


def cases(run: program.Program) -> None:
    """Each with a server of its own, about a minute each."""
    folder = model.make(run.scratch / "llama")
    run.say("without hierarchical cache …")
    with running(folder, None, run.scratch) as server:
        plain = server.serve()
    for layout, policies in [("page_first_direct", POLICIES), ("layer_first", POLICIES[:1])]:
        options = backend(run.cluster, uuid.uuid4().hex[:8])
        with run.case(f"{layout}, flushed") as figures:
            with running(folder, options, run.scratch, layout=layout) as server:
                first, flushed = server.serve(), hits_again(server)
            figures.update(
                tokens_equal=plain.tokens == first.tokens == flushed.tokens,
                hit_tokens=flushed.hit_tokens,
                enough_hits=flushed.hit_tokens >= FINDABLE,
                seconds={"computed": first.seconds, "loaded": flushed.seconds},
            )
        for policy in policies:
            with run.case(f"{layout}, restarted, {policy}") as figures:
                with running(folder, options, run.scratch, layout=layout, policy=policy) as server:
                    second = server.serve()
                    figures.update(
                        tokens_equal=plain.tokens == second.tokens,
                        hit_tokens=second.hit_tokens,
                        seconds={"loaded": second.seconds},
                    )
                    if policy == "wait_complete":  # by the others, time decides how much of a prefix is loaded
                        figures["enough_hits"] = second.hit_tokens >= FINDABLE
                        server.flush()
                        figures.update(server.counted(second.hit_tokens + server.serve().hit_tokens))
        with run.case(f"{layout}, negated") as figures:
            with running(folder, options, run.scratch, layout=layout, negate=True) as server:
                control = server.serve()
            figures.update(control_differs=control.tokens != plain.tokens, hit_tokens=control.hit_tokens)

    with run.case("two servers at once") as figures:
        options = backend(run.cluster, uuid.uuid4().hex[:8])
        with running(folder, options, run.scratch) as one, running(folder, options, run.scratch) as other:
            first, stored = one.serve(), hits_again(one)
            found = other.serve()
        figures.update(
            tokens_equal=plain.tokens == first.tokens == stored.tokens == found.tokens,
            hit_tokens=found.hit_tokens,
            enough_hits=found.hit_tokens >= FINDABLE,
        )
    for kind, ranks in [("deepseek", 1), ("llama", 2)]:
        with run.case(f"{kind}, {'one rank' if ranks == 1 else 'two ranks'}") as figures:
            figures.update(of_ranks(run, kind, ranks))
    on_ssd(run, folder, plain)
    under_faults(run, folder, plain)


def of_ranks(run: program.Program, kind: str, ranks: int) -> dict[str, Any]:
    """A model whose TP ranks each write their own part of a page (``llama``), or one of them the whole (``deepseek``,
    whose latent vectors all ranks have alike). Sums over ranks depend on their number, so the tokens are compared with
    those of as many ranks without hierarchical cache."""
    folder = model.make(run.scratch / kind, kind)
    tag = uuid.uuid4().hex[:8]
    options = backend(run.cluster, tag)
    with running(folder, None, run.scratch, ranks=ranks) as server:
        plain = server.serve()
    with running(folder, options, run.scratch, ranks=ranks) as server:
        first, flushed = server.serve(), hits_again(server)
        written = parts(run.cluster, tag)  # before the server is killed, which may be in the middle of a page
    with running(folder, options, run.scratch, ranks=ranks, negate=True) as server:
        control = server.serve()
    writers = 1 if kind == "deepseek" else ranks
    return {
        "tokens_equal": plain.tokens == first.tokens == flushed.tokens,
        "control_differs": control.tokens != plain.tokens,
        "hit_tokens": flushed.hit_tokens,
        "enough_hits": min(flushed.hit_tokens, control.hit_tokens) >= FINDABLE,
        "objects": {rank: len(pages) for rank, pages in written.items()},
        "every_part_written": sorted(written) == [f"t{rank}p0c0" for rank in range(writers)] and alike(written),
    }


def parts(cluster: Any, tag: str) -> dict[str, set[str]]:
    """The pages that each rank has written, once all of them have written the same ones: they write in the background."""
    deadline = time.monotonic() + 60
    while True:
        found: dict[str, set[str]] = {}
        for name in faults.keys(cluster):
            if name.startswith(f"kv/{tag}/"):
                page, rank = name.split("/")[-2:]
                found.setdefault(rank, set()).add(page)
        if alike(found) or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def alike(written: dict[str, set[str]]) -> bool:
    """Whether all ranks have written the same pages."""
    return len({frozenset(pages) for pages in written.values()}) == 1


def on_ssd(run: program.Program, folder: Path, plain: Served) -> None:
    """Every page is on SSD only when a new server asks for it."""
    with ssd.cluster() as cluster:
        tag = uuid.uuid4().hex[:8]
        with running(folder, backend(cluster, tag), run.scratch) as server:
            stored = server.serve(), hits_again(server)
        for how, options, source in ssd.WAYS:
            with run.case(f"pages on SSD, {how}") as figures:
                figures["pages_on_ssd"] = ssd.crowded_out(cluster)
                with running(folder, backend(cluster, tag, **options), run.scratch) as server:
                    found = server.serve()
                    figures.update(server.counted(found.hit_tokens))
                sources = figures["sources"]
                figures.update(
                    tokens_equal=all(each.tokens == plain.tokens for each in (*stored, found)),
                    hit_tokens=found.hit_tokens,
                    enough_hits=found.hit_tokens >= FINDABLE,
                    ssd_hit_tokens=PAGE * sources.get(source, 0),
                    only_from_there=set(sources) == {source},
                )


def under_faults(run: program.Program, folder: Path, plain: Served) -> None:
    """One server, and a cluster that is taken apart under it. Whatever is gone or wrong is computed anew."""
    from servers import running_cluster

    with running_cluster(holders=2, segment_mib=256) as cluster:
        options = backend(cluster, uuid.uuid4().hex[:8])
        with running(folder, options, run.scratch) as server:

            def after(fault: str, happens: Callable[[], Any], *, hits: bool = False) -> None:
                with run.case(f"fault: {fault}") as figures:
                    told = happens()
                    server.flush()
                    served = server.serve()
                    figures.update(tokens_equal=served.tokens == plain.tokens, hit_tokens=served.hit_tokens, faults=1)
                    figures["seconds"] = [round(each, 2) for each in served.seconds]
                    if isinstance(told, dict):
                        figures["objects"] = told
                    if hits:
                        figures["enough_hits"] = served.hit_tokens >= FINDABLE

            server.serve()
            hits_again(server)
            after("etcd is killed, which pages do not need", lambda: faults.kill(cluster, "etcd-0"), hits=True)
            after("every page is torn, truncated or replaced", lambda: faults.altered(cluster))
            # A get finds one wrong page, and the next request has it put anew: it takes some requests.
            after("none, what was wrong was put anew", lambda: hits_again(server), hits=True)
            after("a holder is killed", lambda: faults.kill(cluster, "holder-0"))
            command: list[str] = []
            after("the master is killed", lambda: command.extend(faults.kill(cluster, "master-0")))
            with faults.started_again(command, run.scratch / "master-again.log"):
                after("the master is back, and knows nothing", lambda: None)


if __name__ == "__main__":
    program.run(__doc__, cases)
