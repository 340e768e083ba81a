"""The feature store against the bare engine and against SpecForge's own store, in turns, on one master.

Run by ``cargo xtask bench features [--quick] [--json]``. It starts its own cluster (a master, a holder process, an
etcd), touches all memory of the holder, and then lets the contenders take turns: in every round each of them puts and
gets, in an order that changes from round to round, so that a busy moment hits all of them. A ratio is the median time
of the other contender over the median time of ours: a ratio of throughputs, where 1.0 is as fast and more is faster.

A put is timed until the sample is visible to all processes; a get from the reference to verified tensors, including the
lease. Freeing is not timed here: ``cargo xtask prove ttl`` does that.

Metrics and logging are on, as in a program that is looked after; ``HOLDFAST_METRICS=off`` switches both off.

The table goes to standard error with ``--json``, to standard output without; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TextIO

from servers import running_cluster

SEGMENT_MIB: Final = 2048
"""Room for one sample of every contender, and for samples whose removal is late."""
IN_FLIGHT: Final = 8
EACH: Final = 4
"""How many samples each thread passes on in a round."""
WARM_UP: Final = 2
"""Rounds that do not count: connections, pools and caches fill up. Bytes are compared in these rounds."""
TOKENS_128M: Final = 4096
TOKENS_4M: Final = 128


@dataclass
class Times:
    """The times of one contender in one case, one value for each round, in seconds."""

    put: list[float] = field(default_factory=list)
    get: list[float] = field(default_factory=list)
    processor: float = 0.0
    """Processor time of all threads of this process over all rounds: puts, gets, frees, and what follows them."""


@dataclass
class Case:
    """One workload, and the times of each contender."""

    name: str
    samples: int
    """How many samples a round passes on."""
    nbytes: int
    """The size of each sample in bytes."""
    times: dict[str, Times] = field(default_factory=dict)

    def ratio(self, what: str, ours: str, theirs: str) -> float:
        """Our throughput over theirs."""
        return self.median(what, theirs) / self.median(what, ours)

    def median(self, what: str, contender: str) -> float:
        """The median time of a round, in seconds."""
        times = self.times[contender]
        return statistics.median(times.put if what == "put" else times.get)


def run_case(
    case: Case, contenders: Mapping[str, Any], sources: Sequence[dict[str, Any]], rounds: int, threads: int
) -> Case:
    """Lets contenders take turns."""
    from contenders import check, same

    for contender in contenders.values():
        contender.prepare(list(sources))
    case.times = {name: Times() for name in contenders}
    order = list(contenders)
    slots = [n * threads // case.samples for n in range(case.samples)]  # each thread has one
    with ThreadPoolExecutor(threads) as workers:

        def each(act: Callable[[int], Any]) -> tuple[list[Any], float]:
            begun = time.perf_counter()
            if threads == 1:
                results = [act(n) for n in range(case.samples)]
            else:
                # One job for each thread: a thread processes its samples one after the other.
                per_thread = case.samples // threads
                shares = [range(t * per_thread, (t + 1) * per_thread) for t in range(threads)]
                jobs = [workers.submit(lambda share: [act(n) for n in share], share) for share in shares]
                results = [result for job in jobs for result in job.result()]
            return results, time.perf_counter() - begun

        for turn in range(-WARM_UP, rounds):
            order.append(order.pop(0))
            for name in order:
                contender = contenders[name]
                processor = time.process_time()
                put_one = partial(_put, contender, slots, f"{case.name}-{turn}")
                where, put = each(put_one)
                if turn < 0:
                    for slot, at in zip(slots, where, strict=True):
                        check(same(contender.get(slot, at), sources[slot]), f"{name}: wrong bytes came back")
                _, get = each(partial(_get, contender, slots, where))
                for at in where:
                    contender.free(at)
                contender.settle()
                if turn >= 0:
                    case.times[name].processor += time.process_time() - processor
                    case.times[name].put.append(put)
                    case.times[name].get.append(get)
        gc.collect()
    return case


def _put(contender: Any, slots: Sequence[int], name: str, n: int) -> Any:
    return contender.put(slots[n], f"{name}-{n}")


def _get(contender: Any, slots: Sequence[int], where: Sequence[Any], n: int) -> int:
    return len(contender.get(slots[n], where[n]))  # drops the tensors at once


def table(cases: Sequence[Case], out: TextIO) -> None:
    """Prints medians and their spread, for people."""
    heading = ("case", "contender", "put: median ms", "(fastest to slowest)", "GB/s", "get: median ms", "(…)", "GB/s")
    rows: list[tuple[str, ...]] = [heading]
    for case in cases:
        for name, times in case.times.items():
            cells = [case.name, name]
            for values in (times.put, times.get):
                median, each = statistics.median(values), case.samples
                cells += [
                    f"{median / each * 1e3:.2f}",
                    f"({min(values) / each * 1e3:.2f} to {max(values) / each * 1e3:.2f})",
                    f"{case.samples * case.nbytes / median / 1e9:.2f}",
                ]
            rows.append(tuple(cells))
    widths = [max(len(row[column]) for row in rows) for column in range(len(heading))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), file=out)
    print("times are for one sample; with several in flight, the time of all of them divided by their number", file=out)


def figures(large: Case, small: Case, parallel: Case) -> dict[str, float]:
    """The ratios, under the names that the goals use."""
    found: dict[str, float] = {}
    for what in ("put", "get"):
        found[f"{what}_ratio_128m"] = large.ratio(what, "holdfast", "bare")
        found[f"{what}_ratio_128m_nosum"] = large.ratio(what, "holdfast, no checksums", "bare")
        found[f"{what}_ratio_4m_8inflight"] = parallel.ratio(what, "holdfast", "bare")
        found[f"vs_specforge_{what}_128m"] = large.ratio(what, "holdfast", "specforge")
        found[f"vs_specforge_{what}_4m"] = small.ratio(what, "holdfast", "specforge")
        found[f"sealed_{what}_ratio_128m"] = large.ratio(what, "holdfast, sealed", "bare")
        found[f"{what}_ratio_4m"] = small.ratio(what, "holdfast", "bare")
        for case, name in ((large, "128m"), (small, "4m"), (parallel, "4m_8inflight")):
            for contender in ("bare", "specforge", "holdfast"):
                found[f"{contender}_{what}_{name}_ms"] = case.median(what, contender) / case.samples * 1e3
    for case, name in ((large, "128m"), (small, "4m"), (parallel, "4m_8inflight")):
        ours, bare = case.times["holdfast"], case.times["bare"]
        found[f"cpu_{name}_us"] = ours.processor / (len(ours.put) * case.samples) * 1e6
        # The bare engine's in the same run tells how fast the machine was: this one can be compared between runs.
        found[f"cpu_{name}_relative"] = ours.processor / bare.processor
    return {name: round(value, 3) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", action="store_true", help="nothing but one JSON object on standard output")
    parser.add_argument("--only", choices=["128m", "4m", "4m_8inflight"], help="one case, for profiling; no figures")
    parser.add_argument("--rounds", type=int, help="how many rounds, for profiling")
    options = parser.parse_args()
    if os.environ.get("HOLDFAST_METRICS") != "off":
        logging.basicConfig(level=logging.INFO, filename=os.devnull)
    rounds_large, rounds_small = (9, 15) if options.quick else (31, 61)
    with running_cluster(segment_mib=SEGMENT_MIB, lease_ttl="5s") as cluster:
        os.environ.update({**cluster.client_env, "MC_LOG_LEVEL": "ERROR"})  # read when the engine is loaded, below
        from contenders import Bare, Holdfast, SpecForge, eagle_sample, nbytes

        def case(name: str, tokens: int, samples: int) -> tuple[Case, list[dict[str, Any]]]:
            sources = [eagle_sample(tokens) for _ in range(IN_FLIGHT if samples > EACH * 2 else 1)]
            return Case(name, samples, sum(map(nbytes, sources[0].values()))), sources

        with closing(Bare(cluster)) as bare:
            bare.touch_all_memory()
            with (
                closing(Holdfast(cluster, "plain")) as plain,
                closing(Holdfast(cluster, "nosum", checksum=False)) as nosum,
                closing(Holdfast(cluster, "sealed", key=secrets.token_bytes(32))) as sealed,
            ):
                three = {"bare": bare, "specforge": SpecForge(cluster, bare), "holdfast": plain}
                five = {**three, "holdfast, no checksums": nosum, "holdfast, sealed": sealed}
                plans: dict[str, Callable[[], Case]] = {
                    "128m": lambda: run_case(
                        *in_order(case("128m", TOKENS_128M, 1), five), options.rounds or rounds_large, 1
                    ),
                    "4m": lambda: run_case(
                        *in_order(case("4m", TOKENS_4M, EACH), three), options.rounds or rounds_small, 1
                    ),
                    "4m_8inflight": lambda: run_case(
                        *in_order(case("4m_8inflight", TOKENS_4M, IN_FLIGHT * EACH), three),
                        options.rounds or rounds_small,
                        IN_FLIGHT,
                    ),
                }
                cases = [plan() for name, plan in plans.items() if options.only in (None, name)]
    table(cases, sys.stderr if options.json else sys.stdout)
    if options.only is None:
        large, small, parallel = cases
        print(json.dumps(figures(large, small, parallel)), flush=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # SpecForge's client cannot be closed


def in_order(made: tuple[Case, list[dict[str, Any]]], contenders: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """A case, its contenders and its sources."""
    return made[0], contenders, made[1]


if __name__ == "__main__":
    main()
