"""What a page store's counters have grown by: never less than nothing, and each count once."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tensorhold._counters import _TOLD, Counters


class Pages:
    def __init__(self) -> None:
        self.counts = dict.fromkeys(_TOLD, 0)

    def prefetch_stats(self) -> dict[str, int]:
        return dict(self.counts)

    def stats(self) -> dict[str, int]:
        return {}


def test_a_counter_that_falls_is_not_told_until_it_has_grown_again() -> None:
    pages = Pages()
    counters = Counters(cast(Any, pages))
    told = []
    for count in (3, 1, 2, 5):
        pages.counts["gets_unknown"] = count
        told += [more for _, _, more in counters.grown()]
    assert told == [3, 2]


def test_a_consumer_that_fails_is_not_told_twice() -> None:
    pages = Pages()
    counters = Counters(cast(Any, pages))
    pages.counts.update(gets_local=1, gets_dram=2)
    with pytest.raises(RuntimeError):
        for _ in counters.grown():
            raise RuntimeError
    assert [more for _, _, more in counters.grown()] == [2]
