"""Trains on every sample, and may be killed: ``trainer STORE CHECKPOINT SAMPLES [--killed-at N]``.

The order of a step is what counts::

    take ──▶ train ──▶ checkpoint ──▶ ack
                                 ▲
                                 └── killed here: the samples come again, and the checkpoint says that they are in it

Killed before the checkpoint, the step is lost with the weights, and its samples come again. Killed after it, they come
again too, but their ids are in the checkpoint: they are acknowledged and not trained. So each sample is *delivered* at
least once, and *trained* exactly once in the weights that survive.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch

import tensorhold
from examples.crash.producer import WIDTH

BATCH = 4


@dataclass
class Trained:
    """What a checkpoint holds."""

    model: torch.nn.Linear = field(default_factory=lambda: torch.nn.Linear(WIDTH, WIDTH))
    samples: list[str] = field(default_factory=list)
    """Every sample that the weights have seen, in order."""
    redelivered: int = 0
    """How many samples came again and were in the checkpoint."""

    def save(self, path: Path) -> None:
        """Replaces the checkpoint as a whole: a process that dies here leaves the former one."""
        part = path.with_suffix(".part")
        state = {"model": self.model.state_dict(), "samples": self.samples, "redelivered": self.redelivered}
        torch.save(state, part)
        part.replace(path)

    @staticmethod
    def load(path: Path) -> Trained:
        trained = Trained()
        if path.exists():
            state = torch.load(path, weights_only=True)
            trained.model.load_state_dict(state["model"])
            trained.samples, trained.redelivered = state["samples"], state["redelivered"]
        return trained


def step(model: torch.nn.Linear, optimizer: torch.optim.Optimizer, leases: list[tensorhold.Lease]) -> None:
    """One step on the samples of these leases."""
    samples = [lease.get(as_="torch") for lease in leases]
    hidden, target = (torch.stack([sample[name] for sample in samples]) for name in ("hidden", "target"))
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(hidden), target)
    loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
    optimizer.step()


def finished(store: tensorhold.FeatureStore, trained: Trained, total: int) -> bool:
    """Whether every sample was trained, and none is left to be acknowledged."""
    return len(trained.samples) == total and not any(store.exists(trained.samples))


def main(store_name: str, checkpoint: Path, total: int, killed_at: int) -> None:
    """Trains until all samples are trained and acknowledged."""
    trained = Trained.load(checkpoint)
    optimizer = torch.optim.SGD(trained.model.parameters(), lr=0.5)
    print(f"trainer: begins with {len(trained.samples)} samples in its checkpoint", flush=True)
    with tensorhold.open(store_name, role="trainer") as store:
        while not finished(store, trained, total):
            leases = store.take("trainers", BATCH)
            if not leases:
                raise SystemExit("trainer: no sample came within the timeout; are the producers gone?")
            fresh = [lease for lease in leases if lease.sample not in trained.samples]
            trained.redelivered += len(leases) - len(fresh)
            if fresh:
                step(trained.model, optimizer, fresh)
                trained.samples += [lease.sample for lease in fresh]
            trained.save(checkpoint)
            if len(trained.samples) >= killed_at:
                print(f"trainer: killed with {len(leases)} samples in hand, trained and not acknowledged", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            for answer in store.ack_many(leases):
                if isinstance(answer, tensorhold.TensorholdError):
                    raise answer
    print(f"trainer: done; of {total} samples {trained.redelivered} came twice and were not trained again", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("samples", type=int)
    kill = "once this many samples are trained, send this process SIGKILL before it acknowledges the last of them"
    parser.add_argument("--killed-at", type=int, default=sys.maxsize, help=kill)
    given = parser.parse_args()
    main(given.store, given.checkpoint, given.samples, given.killed_at)
