"""Two groups of consumers go over the same samples, epoch after epoch."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import tensorhold
from examples.cluster import run, store_name

SAMPLES = [f"sample-{n:02}" for n in range(24)]
EPOCHS = 3
EPOCH_S = 60.0
"""How long an epoch may take."""
GROUPS = {"trainers": 2, "evaluators": 1}
"""How many consumers each group has. They share the group's samples: each sample goes to one of them."""


def acknowledged(store: tensorhold.FeatureStore, group: str) -> int:
    """How many samples this group has used in this epoch, as the index has it."""
    return sum(found is not None and found.groups[group].state == "acked" for found in store.find(SAMPLES))


def consume(name: str, group: str) -> list[float]:
    """One consumer, usually a process of its own. Returns what it got in this epoch."""
    seen: list[float] = []
    end = time.monotonic() + EPOCH_S
    with tensorhold.open(name, role=group, pool_bytes=64 << 20) as store:
        while acknowledged(store, group) < len(SAMPLES):
            if time.monotonic() > end:
                raise TimeoutError(f"{group} did not see every sample within {EPOCH_S} s")
            for lease in store.take(group, count=4, timeout=0.5):
                with lease:
                    seen.append(float(lease.get(as_="numpy")["hidden"][0]))
    return seen


def epoch(name: str) -> dict[str, list[list[float]]]:
    """Both groups at once. Returns what each of their consumers got."""
    with ThreadPoolExecutor() as threads:
        begun = {group: [threads.submit(consume, name, group) for _ in range(many)] for group, many in GROUPS.items()}
        return {group: [one.result() for one in consumers] for group, consumers in begun.items()}


def main() -> None:
    name = store_name("epochs")
    with tensorhold.open(name, role="producer") as store:
        refs = [
            store.put(sample, {"hidden": np.full(4096, n, np.float32)}, groups=GROUPS, retain=True)
            for n, sample in enumerate(SAMPLES)
        ]
        print(f"put {len(refs)} samples for {' and '.join(GROUPS)}, to be kept when both have used them")
        for number in range(1, EPOCHS + 1):
            for group, consumers in epoch(name).items():
                every = sorted(value for seen in consumers for value in seen)
                right = every == [float(n) for n in range(len(SAMPLES))]
                print(f"epoch {number}: the {group} ({len(consumers)}) got every sample once: {right}")
            if number < EPOCHS:
                for ref in refs:
                    store.reopen(ref)
                print(f"epoch {number}: opened again; used by trainers: {acknowledged(store, 'trainers')}")
        print(f"after the last epoch, samples that are there: {sum(store.exists(SAMPLES))}")
        for ref in refs:
            store.retire(ref)
        store.drain()
        print(f"retired; samples that are there: {sum(store.exists(SAMPLES))}")


if __name__ == "__main__":
    run(main)
