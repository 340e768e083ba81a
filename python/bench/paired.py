"""Ratios that can be told from noise: the median over rounds of one side's time over another's, taken in turns.

A machine that slows down for a second slows down all sides of a round, so the ratio within a round says more than two
medians over the whole run. The interval beside a ratio is the bootstrap's: the rounds are drawn anew 2,000 times, with
replacement, and 95 % of the medians of these draws lie in it. If 1.0 lies in it too, the run does not tell which side
is faster.

Beside wall time there is processor time, user and system: of the calling process, and of the servers. It is less noisy
than wall time on a machine that does other things too.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy

DRAWS: Final = 2000
COVERED: Final = 0.95
SEED: Final = 1
"""The same rounds give the same interval."""

T = TypeVar("T")


@dataclass(frozen=True)
class Spent:
    """What one step took, in seconds."""

    wall: float
    cpu: float
    """Processor time of this process, all threads: those that work in the background, too."""
    servers: float = 0.0
    """Processor time of the servers."""


Rounds = dict[str, dict[str, list[Spent]]]
"""By side and step, one value for each round."""
Turn = Callable[[int], Mapping[str, Spent] | None]
"""One round of one side: what each of its steps took."""


class Stopwatch:
    """Measures steps of this process, and what the servers do meanwhile."""

    def __init__(self, servers: Iterable[int] = ()) -> None:
        self._servers = [_clock_of(pid) for pid in servers]

    def time(self, act: Callable[[], T]) -> tuple[T, Spent]:
        """Does a step. Returns its result and what it took."""
        begun = self._now()
        result = act()
        ended = self._now()
        return result, Spent(*(after - before for before, after in zip(begun, ended, strict=True)))

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), sum(map(time.clock_gettime, self._servers))


def _clock_of(pid: int) -> int:
    """The clock of another process's processor time: finer than the ticks in ``/proc``."""
    clock = ctypes.c_int()
    failed = ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock))
    if failed != 0:
        raise OSError(failed, os.strerror(failed), f"process {pid}")
    return clock.value


def order(sides: Sequence[str], turn: int) -> list[str]:
    """Which side goes when in a round. Each order is followed by its reverse, and the next pair of rounds begins one
    side further on: no side is always first, and none always follows the same other one."""
    first = turn // 2 % len(sides)
    turned = [*sides[first:], *sides[:first]]
    return turned if turn % 2 == 0 else turned[::-1]


def take_turns(sides: Mapping[str, Turn], rounds: int, warm_up: int) -> Rounds:
    """Lets sides take turns. Each is called with the number of the round, negative in rounds that do not count, and
    tells what its steps took. A round in which a side tells nothing does not count for any side."""
    found: Rounds = {side: {} for side in sides}
    for turn in range(-warm_up, rounds):
        told = {side: sides[side](turn) for side in order(list(sides), turn)}
        if turn < 0 or None in told.values():
            continue
        for side, steps in told.items():
            for step, spent in (steps or {}).items():
                found[side].setdefault(step, []).append(spent)
    return found


@dataclass(frozen=True)
class Ratio:
    """The median of one side's time over another's in the same round, with its interval."""

    value: float
    low: float
    high: float
    rounds: int
    cpu: float
    """The same of the calling process's processor time."""
    servers: float | None
    """The same of the servers' processor time, if it was measured."""

    def figures(self, name: str) -> dict[str, float]:
        """The figures of a report: ``x``, ``x_low``, ``x_high``, ``x_rounds``, ``x_cpu``, ``x_cpu_servers``."""
        found = {
            name: self.value,
            f"{name}_low": self.low,
            f"{name}_high": self.high,
            f"{name}_rounds": self.rounds,
            f"{name}_cpu": self.cpu,
        }
        return found if self.servers is None else {**found, f"{name}_cpu_servers": self.servers}

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f}), processor time {self.cpu:.3f}"


def ratio(above: Sequence[Spent], below: Sequence[Spent]) -> Ratio:
    """The ratio of what ``above`` took to what ``below`` took in the same rounds. To tell our throughput over theirs,
    theirs is above."""
    walls = _each([one.wall for one in above], [one.wall for one in below])
    cpu = _each([one.cpu for one in above], [one.cpu for one in below])
    servers = [[one.servers for one in side] for side in (above, below)]
    low, high = interval(walls)
    return Ratio(
        value=statistics.median(walls),
        low=low,
        high=high,
        rounds=len(walls),
        cpu=statistics.median(cpu),
        servers=statistics.median(_each(*servers)) if all(map(all, servers)) else None,
    )


def _each(above: Sequence[float], below: Sequence[float]) -> list[float]:
    if not above:
        raise ValueError("no round counts: there is nothing to tell")
    return [one / other for one, other in zip(above, below, strict=True)]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The bootstrap's interval of the median."""
    draws = numpy.random.default_rng(SEED).choice(numpy.asarray(values), (DRAWS, len(values)))
    medians = numpy.median(draws, axis=1)
    low, high = numpy.quantile(medians, [(1 - COVERED) / 2, (1 + COVERED) / 2])
    return float(low), float(high)


def median_of(rounds: Sequence[Spent]) -> Spent:
    """The median of each of the times."""
    return Spent(
        statistics.median(one.wall for one in rounds),
        statistics.median(one.cpu for one in rounds),
        statistics.median(one.servers for one in rounds),
    )
