"""Four requests at once, again, and after a restart: ``python -m examples.kv_host``. Needs a Mooncake master with a holder:
those of the environment (TENSORHOLD_MASTER, TENSORHOLD_ADMIN), or those on this host (127.0.0.1:50051)."""

from __future__ import annotations

import asyncio
import uuid

import torch

from examples.cluster import run
from examples.kv_host import Host, Result, generate, make
from examples.kv_host.inputs import PAGE_TOKENS, TOKENS, prompts, settings
from tensorhold import kv


async def ask(host: Host, asked: list[list[int]]) -> list[Result]:
    """All of them at once."""
    pending = [host.submit(prompt, TOKENS) for prompt in asked]
    return [await one for one in pending]


async def main() -> None:
    """Prints where the tokens of each request came from, and compares the logits with those of a run without a cache."""
    torch.set_num_threads(1)
    asked, name = prompts(4, shared=44, own=30), f"kv-host-{uuid.uuid4().hex}"
    plain: list[tuple[list[int], list[torch.Tensor]]] = []

    def told(when: str, results: list[Result]) -> None:
        for result, (tokens, logits) in zip(results, plain, strict=True):
            assert result.tokens == tokens
            assert all(torch.equal(*pair) for pair in zip(result.logits, logits, strict=True))
        cached = [(one.cached.device, one.cached.host, one.cached.l3) for one in results]
        print(f"{when}: cached tokens (device, host, L3) {cached}")

    with kv.PageStore(**settings()) as store:  # without a cluster it ends here, before the model is made
        model = make()
        plain += [generate(model, prompt, TOKENS, PAGE_TOKENS) for prompt in asked]
        # The device has room for these requests and not for the next ones, which push them out to host memory.
        async with Host(store, model, name=name, device_pages=48) as host:
            told("first", await ask(host, asked))
            told("again", await ask(host, asked))
            await host.drained(30)
            await ask(host, prompts(8, shared=0, own=74)[4:])
            told("after others", await ask(host, asked))
            print(f"evicted from the device: {host.metrics.evicted_device_pages} pages")
    with kv.PageStore(**settings()) as store:
        async with Host(store, model, name=name, device_pages=48) as host:
            told("after a restart", await ask(host, asked))
    print("all logits are equal to those without a cache")


if __name__ == "__main__":
    run(lambda: asyncio.run(main()))
