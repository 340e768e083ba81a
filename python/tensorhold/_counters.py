"""Counters of a page store, in the form in which metrics of serving engines tell them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tensorhold.kv import PageStore


class Metric(NamedTuple):
    """A counter with one label."""

    name: str
    about: str
    label: str


GETS: Final = Metric(
    "tensorhold_gets", "Pages that were read: ahead into local memory, from DRAM, from SSD, or where nobody looked.", "source"
)
REFUSED: Final = Metric("tensorhold_refused", "Pages that were not read, or not as they were stored.", "reason")

_TOLD: Final = {
    "gets_local": (GETS, "local"),
    "gets_dram": (GETS, "dram"),
    "gets_ssd": (GETS, "ssd"),
    "gets_unknown": (GETS, "unknown"),
    "gets_wrong_length": (REFUSED, "wrong-length"),
    "gets_corrupt": (REFUSED, "corrupt"),
    "gets_failed": (REFUSED, "failed"),
}
"""The page store's counters, each with its metric and the value of its label."""


class Counters:
    """What the counters of a page store have grown by. For one thread."""

    def __init__(self, pages: PageStore) -> None:
        self._pages = pages
        self._before: dict[str, int] = {}

    def grown(self) -> Iterator[tuple[Metric, str, int]]:
        """Since the last call: metrics, the values of their labels, and by how much."""
        now = {**self._pages.prefetch_stats(), **self._pages.stats()}
        for counter, (metric, label) in _TOLD.items():
            more = now[counter] - self._before.get(counter, 0)
            if more > 0:
                self._before[counter] = now[counter]
                yield metric, label, more
