"""The example host of planner and tier, on real servers: its logits are exactly those of the model without a cache."""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from examples.kv_host import Aborted, Alone, Cached, Diverged, Host, Pending, Result, generate, make
from examples.kv_host.group import Report
from examples.kv_host.inputs import PAGE_TOKENS, TOKENS, prompts
from tensorhold import kv
from servers import REPOSITORY, Cluster, running_cluster

WITHIN_S = 30.0
PROMPT = 74  # nine pages, and two tokens that no page holds
WHOLE = 72


def settings(cluster: Cluster) -> dict[str, Any]:
    found = cluster.settings()
    del found["etcd"]
    return found


@pytest.fixture
def store(cluster: Cluster) -> Iterator[kv.PageStore]:
    with kv.PageStore(**settings(cluster)) as opened:
        yield opened


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield make()
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def distinct() -> list[list[int]]:
    return prompts(6, shared=0, own=PROMPT)


@pytest.fixture
def start(store: kv.PageStore, model: Any) -> Callable[..., Host]:
    """Makes hosts that find each other's pages in L3, and nobody else's."""
    name = uuid.uuid4().hex
    return lambda **options: Host(store, model, name=name, **options)


async def wait(pending: Pending) -> Result:
    return await pending


async def ask(host: Host, prompt: Sequence[int], most: int = TOKENS) -> Result:
    return await asyncio.wait_for(wait(host.submit(prompt, most, timeout=WITHIN_S)), 2 * WITHIN_S)


def same_logits(host: Host, prompt: Sequence[int], result: Result) -> bool:
    tokens, logits = generate(host.model, prompt, len(result.tokens), PAGE_TOKENS)
    return result.tokens == tokens and all(torch.equal(*pair) for pair in zip(result.logits, logits, strict=True))


async def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


async def all_pages_are_back(host: Host) -> None:
    await host.drained(WITHIN_S)
    sizes = (len(host.pools.host), host.pools.device.shape[2])
    for pool, size in zip(host.planner.pools(), sizes, strict=True):
        assert pool.owned == 0 and pool.free + pool.indexed == size
    assert not host.planner.pending and host.tier.stats()["open"] == 0


async def test_four_requests_at_once_share_a_prefix_on_the_device(start: Callable[..., Host]) -> None:
    asked = prompts(5, shared=44, own=30)
    async with start() as host:
        first = await ask(host, asked[0])
        assert same_logits(host, asked[0], first) and first.cached == Cached()
        results = await asyncio.gather(*(ask(host, prompt, 48) for prompt in asked[1:]))
        assert host.metrics.most_running == 4
        for prompt, result in zip(asked[1:], results, strict=True):
            assert same_logits(host, prompt, result)
            assert result.cached == Cached(device=40), "the five pages that all of them begin with"
        assert host.metrics.cached == Cached(device=160)
        await all_pages_are_back(host)


async def test_logits_are_near_those_of_one_pass_over_everything(
    start: Callable[..., Host], distinct: list[list[int]]
) -> None:
    """Against the model as transformers runs it, without spans of ours. Other shapes have other last bits."""
    async with start() as host:
        result = await ask(host, distinct[0])
        with torch.no_grad():
            output = host.model(input_ids=torch.tensor([distinct[0] + result.tokens[:-1]]))
        torch.testing.assert_close(torch.stack(result.logits), output.logits[0, PROMPT - 1 :], rtol=0, atol=1e-3)


async def test_pages_come_back_from_the_host_and_are_what_the_model_reads(
    start: Callable[..., Host], distinct: list[list[int]]
) -> None:
    first, *others = distinct[:4]
    async with start(device_pages=16) as host:
        for prompt in distinct[:4]:
            assert same_logits(host, prompt, await ask(host, prompt))
        assert host.metrics.evicted_device_pages > 0
        again = await ask(host, first)
        assert again.cached == Cached(host=WHOLE) and same_logits(host, first, again)
        # The control: with other bytes in the host pool the answer is another one.
        await host.drained(WITHIN_S)
        host.pools.host.neg_()
        wrong = await ask(host, others[0])
        assert wrong.cached == Cached(host=WHOLE) and not same_logits(host, others[0], wrong)


async def test_after_a_restart_pages_come_from_l3(start: Callable[..., Host], distinct: list[list[int]]) -> None:
    async with start() as host:
        await asyncio.gather(*(ask(host, prompt) for prompt in distinct[:4]))
    assert host.metrics.cached == Cached()
    async with start() as restarted:
        results = await asyncio.gather(*(ask(restarted, prompt) for prompt in distinct[:4]))
        for prompt, result in zip(distinct, results, strict=False):
            assert result.cached == Cached(l3=WHOLE) and same_logits(restarted, prompt, result)
        assert restarted.metrics.computed == 4 * (PROMPT - WHOLE + TOKENS - 1)
        await all_pages_are_back(restarted)


async def test_a_token_has_kv_only_after_the_model_has_run_on_it(start: Callable[..., Host]) -> None:
    """76 tokens and 12 generated ones fill eleven pages, but the last one has no KV: ten pages can be found. A second turn
    finds them. Its logits may differ in the last bits: their tokens were computed one by one, and a prompt's together."""
    (prompt,) = prompts(1, shared=0, own=76)
    async with start() as host:
        result = await ask(host, prompt)
        turn = prompt + result.tokens
        assert host.planner.find(kv.PageKeys(host.namespace, turn))[1] == 10
        second = await ask(host, turn + prompt[:5])
        assert second.cached == Cached(device=80)
        tokens, logits = generate(host.model, turn + prompt[:5], TOKENS, PAGE_TOKENS)
        assert second.tokens == tokens
        torch.testing.assert_close(torch.stack(second.logits), torch.stack(logits), rtol=0, atol=1e-3)


async def test_a_device_that_is_too_small_evicts_and_retracts(
    start: Callable[..., Host], distinct: list[list[int]]
) -> None:
    """Two of six requests have room at a time, and not until their end: the younger one gives up its pages."""
    async with start(device_pages=21) as host:
        results = await asyncio.gather(*(ask(host, prompt, 24) for prompt in distinct))
        for prompt, result in zip(distinct, results, strict=True):
            assert same_logits(host, prompt, result)
        assert host.metrics.evicted_device_pages > 0 and host.metrics.retracted > 0
        await all_pages_are_back(host)
        with pytest.raises(ValueError, match="larger than"):
            host.submit(distinct[0], 21 * PAGE_TOKENS - PROMPT)
        with pytest.raises(ValueError, match="does not know"):
            host.submit([-1], 1)


async def test_a_host_pool_that_is_too_small_costs_only_hits(
    start: Callable[..., Host], distinct: list[list[int]]
) -> None:
    async with start(device_pages=16, host_pages=12) as host:
        for prompt in (*distinct[:4], distinct[0]):
            assert same_logits(host, prompt, await ask(host, prompt))
        assert host.metrics.evicted_host_pages > 0
        await all_pages_are_back(host)


@pytest.mark.parametrize("how", ["aborted", "cancelled", "too late"])
async def test_a_request_that_is_given_up_while_it_decodes_returns_its_pages(
    start: Callable[..., Host], distinct: list[list[int]], how: str
) -> None:
    async with start() as host:
        other = asyncio.create_task(ask(host, distinct[1]))
        pending = host.submit(distinct[0], 400, timeout=0.1 if how == "too late" else WITHIN_S)
        waiting = asyncio.create_task(wait(pending))
        if how != "too late":
            await until(lambda: host.generated(pending.id) >= 3)
            assert host.planner.pools()[1].owned > 0
            if how == "aborted":
                host.abort(pending.id)
            else:
                waiting.cancel()
        with pytest.raises(asyncio.CancelledError if how == "cancelled" else Aborted):
            await asyncio.wait_for(waiting, WITHIN_S)
        assert same_logits(host, distinct[1], await other)
        await all_pages_are_back(host)
        assert host.metrics.aborted == 1
        host.abort(pending.id)  # once more: nothing happens
        assert same_logits(host, distinct[0], await ask(host, distinct[0]))
        assert host.metrics.aborted == 1


async def test_a_request_that_is_aborted_under_a_prefetch_keeps_its_pages_until_that_has_ended(
    model: Any, distinct: list[list[int]]
) -> None:
    prompt, name = distinct[0], uuid.uuid4().hex
    with running_cluster(segment_mib=64, etcd=0) as cluster, kv.PageStore(**settings(cluster)) as store:
        async with Host(store, model, name=name) as host:
            await ask(host, prompt)
        async with Host(store, model, name=name) as restarted:
            # The master still says where the pages are; nobody sends them.
            os.kill(cluster.pids["holder-0"], signal.SIGSTOP)
            try:
                pending = restarted.submit(prompt, TOKENS, timeout=WITHIN_S)
                await until(lambda: restarted.planner.pools()[0].owned == WHOLE // PAGE_TOKENS)
                restarted.abort(pending.id)
                with pytest.raises(Aborted):
                    await pending
                rounds = restarted.metrics.rounds
                await until(lambda: restarted.metrics.rounds > rounds + 2)
                # On a slow machine the abort may come before the get has begun, and then there is nothing to wait for.
                assert restarted.planner.pools()[0].owned == (WHOLE // PAGE_TOKENS if restarted._open else 0)
            finally:
                os.kill(cluster.pids["holder-0"], signal.SIGCONT)
            await all_pages_are_back(restarted)
            assert restarted.metrics.cached == Cached()
            assert same_logits(restarted, prompt, await ask(restarted, prompt))


async def test_a_copy_that_fails_costs_only_what_it_did_not_copy(
    start: Callable[..., Host], distinct: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start() as host:
        await ask(host, distinct[0])
    async with start() as restarted:
        copy = restarted.pools.copy

        def fails(operation: kv.Operation, page: kv.PageAt) -> None:
            if operation.kind == "load-back" and page.at == 5:
                raise RuntimeError("the device did not take it")
            copy(operation, page)

        monkeypatch.setattr(restarted.pools, "copy", fails)
        result = await ask(restarted, distinct[0])
        assert result.cached == Cached(l3=5 * PAGE_TOKENS) and same_logits(restarted, distinct[0], result)
        await all_pages_are_back(restarted)


class Disturbed(Alone):
    """A group whose collective goes wrong once the first token is there."""

    def __init__(self, *, other_plan: bool) -> None:
        self.other_plan = other_plan
        self.host: Host | None = None

    def exchange(self, report: Report) -> Sequence[Report]:
        if self.is_disturbed() and not self.other_plan:
            raise ConnectionError("the other rank is gone")
        return [report]

    def agrees(self, digest: bytes) -> bool:
        return not (self.is_disturbed() and self.other_plan)

    def is_disturbed(self) -> bool:
        return self.host is not None and self.host.generated(1) > 0


@pytest.mark.parametrize("other_plan", [False, True], ids=["a rank is gone", "plans differ"])
async def test_ranks_that_cannot_go_on_end_with_an_error(
    start: Callable[..., Host], distinct: list[list[int]], other_plan: bool
) -> None:
    group = Disturbed(other_plan=other_plan)
    host = start(group=group)
    group.host = host
    told: list[object] = []
    with pytest.raises(Diverged if other_plan else ConnectionError):
        async with host:
            told += await asyncio.gather(ask(host, distinct[0]), return_exceptions=True)
            try:
                host.submit(distinct[0], TOKENS)
            except RuntimeError as error:
                told.append(error)
    assert [str(error) for error in told] == ["the host has ended", "requests go to rank 0 of a host that runs"]


COMMANDS = [f"python -m examples.{program}" for program in ("kv_host", "kv_host.ranks")]


@pytest.mark.parametrize("page", ["docs/kv.md", "examples/kv_host/README.md"])
def test_the_commands_are_printed_as_they_are_run_here(page: str) -> None:
    lines = (REPOSITORY / page).read_text().splitlines()
    assert [line.strip() for line in lines if "-m examples" in line] == COMMANDS


def test_the_example_runs(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As by ``python -m``, in this process, which has imported all that it needs."""
    for variable, value in cluster.variables().items():
        monkeypatch.setenv(variable, value)
    runpy.run_module("examples.kv_host", run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "all logits are equal to those without a cache" and len(lines) == 6


def test_two_ranks_make_the_same_plans_while_one_cannot_read_its_pages(cluster: Cluster) -> None:
    """The example compares rank with rank, and each answer with one without a cache; here is what it must have met."""
    package = str(REPOSITORY / "python")
    environment = {**os.environ, **cluster.variables(), "PYTHONPATH": package, "MC_LOG_LEVEL": "ERROR"}
    command = [sys.executable, *COMMANDS[1].split()[1:]]
    ran = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, env=environment)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["first"] == [0, 0, 0, 0]
    assert told["after a restart"] == [WHOLE, 4 * PAGE_TOKENS, 6 * PAGE_TOKENS, 0], "the smaller count of both ranks"
    assert sorted(told["ended differently"]) == [
        [[9, None], [0, "corrupt"]],
        [[9, None], [4, "corrupt"]],
        [[9, None], [6, "miss"]],
    ]
    assert told["on a small device"] == [WHOLE, WHOLE, 0, WHOLE], "what was computed again was stored again"
    assert told["evicted"] > 0 and told["retracted"] > 0
    assert told["exchanges"] == told["rounds"], "one exchange in each round, on both ranks"
