"""Runs a frozen model, and puts what the trainer learns from: ``producer STORE FIRST COUNT``."""

from __future__ import annotations

import sys

import torch

import tensorhold

TOKENS, WIDTH = 16, 32


def main(store_name: str, first: int, count: int) -> None:
    """Puts ``count`` samples, each for one trainer of the group."""
    torch.manual_seed(7)  # the same model in every producer
    model = torch.nn.Linear(WIDTH, WIDTH).requires_grad_(False)
    random = torch.Generator().manual_seed(first)
    with tensorhold.open(store_name, role="producer") as store:
        for n in range(first, first + count):
            hidden = torch.randn(TOKENS, WIDTH, generator=random)
            store.put(f"sample-{n:02}", {"hidden": hidden, "target": model(hidden)}, groups=["trainers"])
    print(f"producer: put {count} samples, and is gone", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
