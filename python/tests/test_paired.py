"""The ratios of the benchmarks: found in noise, with an interval that covers them, and not moved by a bad round."""

from __future__ import annotations

import os
import random
from collections import Counter
from itertools import permutations

import pytest

import paired
from paired import Spent

RATIO = 1.3
ROUNDS = 31
NOISE = 0.15


def rounds(seed: int, *, by: float = RATIO) -> tuple[list[Spent], list[Spent]]:
    """Two sides, one of which takes ``by`` times as long. The machine's speed changes from round to round by more than
    that, and each side has noise of its own."""
    source = random.Random(seed)
    above, below = [], []
    for _ in range(ROUNDS):
        machine = source.uniform(0.5, 2.0)
        one, other = (machine * source.lognormvariate(0, NOISE) for _ in range(2))
        above.append(Spent(by * one, by * one / 2, by * one / 4))
        below.append(Spent(other, other / 2, other / 4))
    return above, below


def test_a_known_ratio_is_found_although_the_machine_changes_its_speed() -> None:
    found = paired.ratio(*rounds(7))
    assert found.value == pytest.approx(RATIO, rel=0.1)
    assert found.low < found.value < found.high
    assert found.high - found.low < 0.4
    assert found.rounds == ROUNDS
    assert found.cpu == pytest.approx(found.value) and found.servers == pytest.approx(found.value)


def test_the_interval_covers_the_true_ratio_as_often_as_it_says() -> None:
    runs = 200
    covered = sum(found.low <= RATIO <= found.high for found in (paired.ratio(*rounds(seed)) for seed in range(runs)))
    assert 0.90 * runs <= covered < runs


def test_an_outlier_moves_neither_the_ratio_nor_its_interval_by_much() -> None:
    above, below = rounds(7)
    undisturbed = paired.ratio(above, below)
    longest = max(range(ROUNDS), key=lambda at: above[at].wall / below[at].wall)
    above[longest] = Spent(100 * above[longest].wall, above[longest].cpu)
    assert paired.ratio(above, below).value == undisturbed.value
    assert paired.ratio(above, below).high == pytest.approx(undisturbed.high, rel=0.02)


def test_the_same_rounds_give_the_same_figures() -> None:
    found = paired.ratio(*rounds(3)).figures("x")
    assert found == paired.ratio(*rounds(3)).figures("x")
    assert list(found) == ["x", "x_low", "x_high", "x_rounds", "x_cpu", "x_cpu_servers"]
    without_servers = paired.ratio([Spent(2, 1)], [Spent(1, 1)]).figures("x")
    assert without_servers == {"x": 2, "x_low": 2, "x_high": 2, "x_rounds": 1, "x_cpu": 1}


def test_every_side_is_as_often_in_each_place_and_before_each_other() -> None:
    sides = ["a", "b", "c"]
    orders = [paired.order(sides, turn) for turn in range(2 * len(sides))]
    places = Counter((side, place) for one in orders for place, side in enumerate(one))
    assert set(places.values()) == {2} and len(places) == 9
    pairs = [(order, pair) for order in orders for pair in permutations(sides, 2)]
    before = Counter(pair for order, pair in pairs if order.index(pair[0]) < order.index(pair[1]))
    assert set(before.values()) == {len(sides)} and len(before) == 6
    assert ["".join(paired.order(["a", "b"], turn)) for turn in range(4)] == ["ab", "ba", "ba", "ab"]


def test_rounds_that_warm_up_and_rounds_without_a_result_count_for_no_side() -> None:
    turns: list[tuple[str, int]] = []

    def side(name: str, fails_in: int | None = None) -> paired.Turn:
        def turn(number: int) -> dict[str, Spent] | None:
            turns.append((name, number))
            return None if number == fails_in else {"put": Spent(number, number)}

        return turn

    found = paired.take_turns({"a": side("a"), "b": side("b", fails_in=1)}, rounds=4, warm_up=2)
    assert [number for name, number in turns if name == "a"] == [-2, -1, 0, 1, 2, 3]
    assert [spent.wall for spent in found["a"]["put"]] == [spent.wall for spent in found["b"]["put"]] == [0, 2, 3]


def test_processor_time_is_told_of_this_process_and_of_the_servers() -> None:
    # This process stands in for a server: its time is the same by either clock.
    watch = paired.Stopwatch([os.getpid()])
    total, spent = watch.time(lambda: sum(range(2_000_000)))
    assert total == sum(range(2_000_000))
    assert 0 < spent.cpu and spent.servers == pytest.approx(spent.cpu, rel=0.2)


def test_a_server_that_is_gone_is_an_error() -> None:
    with pytest.raises(ProcessLookupError):
        paired.Stopwatch([2**22 + 1])
