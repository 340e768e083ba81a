"""The ranks of a host. Every round has two collectives, which every rank joins: in the first one each brings a
:class:`Report` and gets all of them, in the order of the ranks; in the second one they compare the plans that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import torch

from tensorhold import kv


@dataclass(frozen=True)
class Submission:
    """A request, as rank 0 took it in."""

    id: int
    prompt: list[int]
    max_tokens: int


@dataclass(frozen=True)
class Report:
    """What a rank brings to a round."""

    tick: int
    """The time, by the clock of rank 0."""
    submissions: list[Submission]
    """Requests that have arrived, and (below) those to abort. Only rank 0 takes them in."""
    aborts: list[int]
    stop: bool
    """Rank 0 is done: this is the last round."""
    done: list[kv.Completion | None]
    """For each open operation, in the order in which the plans named them, how it ended on this rank; None if it has not.
    A part that failed is told like any other: no rank ever stays away (KV22)."""


class Diverged(RuntimeError):
    """The ranks have made different plans. They cannot go on: their pages mean different things."""


class Group(Protocol):
    """Brings all ranks together. Every rank calls :meth:`exchange` and then :meth:`agrees`, once in every round. Both block
    until all ranks have called them, for at most the group's timeout; then they raise."""

    tp: kv.Rank

    def exchange(self, report: Report) -> Sequence[Report]:
        """The reports of all ranks."""
        ...

    def agrees(self, digest: bytes) -> bool:
        """Whether all ranks have brought the same digest."""
        ...


class Alone:
    """A group of one."""

    tp = kv.Rank()

    def exchange(self, report: Report) -> Sequence[Report]:
        """What the only rank has brought."""
        return [report]

    def agrees(self, digest: bytes) -> bool:
        """There is nobody to differ."""
        return True


class Gloo:
    """Ranks on this machine that meet through a file. Collectives must be called from one thread, in the same order on all
    ranks: those of the rounds, and the sums within the model."""

    def __init__(self, tp: kv.Rank, meeting: Path, *, timeout: float = 60.0) -> None:
        import torch.distributed as collectives

        self.tp = tp
        self.exchanges = 0
        collectives.init_process_group(
            "gloo",
            init_method=f"file://{meeting}",
            rank=tp.rank,
            world_size=tp.size,
            timeout=timedelta(seconds=timeout),
        )
        self._collectives = collectives

    def exchange(self, report: Report) -> Sequence[Report]:
        """The reports of all ranks."""
        reports: list[Report | None] = [None] * self.tp.size
        self._collectives.all_gather_object(reports, report)
        self.exchanges += 1
        return [found for found in reports if found is not None]

    def agrees(self, digest: bytes) -> bool:
        """Whether all ranks have brought the same digest."""
        mine = torch.tensor(list(digest), dtype=torch.uint8)
        all_of_them = [torch.empty_like(mine) for _ in range(self.tp.size)]
        self._collectives.all_gather(all_of_them, mine)
        return all(torch.equal(mine, other) for other in all_of_them)

    def add_up(self, partial: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, the same bits on each of them."""
        self._collectives.all_reduce(partial)
        return partial

    def close(self) -> None:
        """Leaves the group."""
        self._collectives.destroy_process_group()
