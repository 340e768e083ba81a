"""The feature store against the bare engine and against SpecForge's own store, in turns, on one master.

Run by ``cargo xtask bench features [--quick] [--json]``. It starts its own cluster (a master, a holder process, an
etcd), touches all memory of the holder, and then lets the contenders take turns: in every round each of them puts and
gets, in an order that changes from round to round, so that a busy moment hits all of them. A ratio is the median over
the rounds of the other contender's time over ours: a ratio of throughputs, where 1.0 is as fast and more is faster.
Beside each ``x`` there are its interval (``x_low`` to ``x_high``, 95 %), ``x_rounds``, and the same ratio of processor
time (``x_cpu`` of this process, ``x_cpu_servers`` of master, holder and etcd): see ``paired.py``.

A put is timed until the sample is visible to all processes; a get from the reference to verified tensors, including the
lease. Freeing is not timed here: ``cargo xtask prove ttl`` does that.

``pipelined_put_4m`` is a producer of ours with a writer, eight puts in flight, against SpecForge's store, which is called for one
sample at a time. ``specforge_loop_…`` are ratios of time, where less is faster: see ``specforge_loop.py``.

Metrics and logging are on, as in a program that is looked after; ``TENSORHOLD_METRICS=off`` switches both off.

The table goes to standard error with ``--json``, to standard output without; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TextIO

from paired import Ratio, Rounds, Spent, Stopwatch, median_of, ratio, take_turns
from servers import Cluster, running_cluster

SEGMENT_MIB: Final = 2048
"""Room for one sample of every contender, and for samples whose removal is late."""
IN_FLIGHT: Final = 8
EACH: Final = 4
"""How many samples each thread passes on in a round."""
WARM_UP: Final = 2
"""Rounds that do not count: connections, pools and caches fill up. Bytes are compared in these rounds."""
TOKENS_128M: Final = 4096
TOKENS_4M: Final = 128
CASES: Final = ("128m", "sealed", "4m", "4m_8inflight", "pipelined", "loop")
"""What ``--only`` takes. ``sealed`` is the 128 MiB of a sealed store and of the bare engine, without the others."""


@dataclass(frozen=True)
class Amount:
    """How many rounds each case has."""

    large: int
    small: int
    loop: int


QUICK: Final = Amount(large=21, small=41, loop=61)
FULL: Final = Amount(large=151, small=401, loop=401)


@dataclass(frozen=True)
class Case:
    """One workload, and what each contender took."""

    name: str
    samples: int
    """How many samples a round passes on."""
    nbytes: int
    """The size of each sample in bytes."""
    rounds: Rounds

    def ratio(self, what: str, ours: str, theirs: str) -> Ratio:
        """Our throughput over theirs."""
        return ratio(self.rounds[theirs][what], self.rounds[ours][what])

    def processor(self, contender: str) -> float:
        """Processor time of this process for one sample, from put to free, in seconds."""
        steps = self.rounds[contender].values()
        return sum(sum(spent.cpu for spent in step) / len(step) for step in steps) / self.samples


def run_case(
    name: str,
    contenders: Mapping[str, Any],
    sources: Sequence[dict[str, Any]],
    samples: int,
    rounds: int,
    watch: Stopwatch,
) -> Case:
    """Lets contenders put and get. There are as many threads as sources."""
    from contenders import check, nbytes, same

    threads = len(sources)
    for contender in contenders.values():
        contender.prepare(list(sources))
    slots = [n * threads // samples for n in range(samples)]  # each thread has one
    with ThreadPoolExecutor(threads) as workers:

        def each(act: Callable[[int], Any]) -> list[Any]:
            if threads == 1:
                return [act(n) for n in range(samples)]
            # One job for each thread: a thread processes its samples one after the other.
            per_thread = samples // threads
            shares = [range(t * per_thread, (t + 1) * per_thread) for t in range(threads)]
            jobs = [workers.submit(lambda share: [act(n) for n in share], share) for share in shares]
            return [result for job in jobs for result in job.result()]

        def one_round(contender: Any, turn: int) -> dict[str, Spent]:
            where, put = watch.time(lambda: each(lambda n: contender.put(slots[n], f"{name}-{turn}-{n}")))
            if turn < 0:
                for slot, at in zip(slots, where, strict=True):
                    right = same(contender.get(slot, at), sources[slot])
                    check(right, f"{type(contender).__name__}: wrong bytes came back")
            # The length: the tensors are dropped at once.
            _, get = watch.time(lambda: each(lambda n: len(contender.get(slots[n], where[n]))))

            def free() -> None:
                for at in where:
                    contender.free(at)
                contender.settle()

            return {"put": put, "get": get, "free": watch.time(free)[1]}

        turns = {side: partial(one_round, contender) for side, contender in contenders.items()}
        found = take_turns(turns, rounds, WARM_UP)
        gc.collect()
    return Case(name, samples, sum(map(nbytes, sources[0].values())), found)


def run_pipelined(
    cluster: Cluster, specforge: Any, sources: Sequence[dict[str, Any]], rounds: int, watch: Stopwatch
) -> Case:
    """Our producer with several puts in flight, and SpecForge's store, one put after the other."""
    from contenders import Pipeline, nbytes

    specforge.prepare(list(sources))
    samples = EACH * len(sources)
    with closing(Pipeline(cluster, IN_FLIGHT)) as pipeline:

        def ours(turn: int) -> dict[str, Spent]:
            given = [(f"pipelined-{turn}-{n}", sources[n % len(sources)]) for n in range(samples)]
            _, put = watch.time(lambda: pipeline.put(given))
            return {"put": put, "free": watch.time(lambda: pipeline.free([name for name, _ in given]))[1]}

        def theirs(turn: int) -> dict[str, Spent]:
            names = [f"one-by-one-{turn}-{n}" for n in range(samples)]
            refs, put = watch.time(lambda: [specforge.put(n % len(sources), name) for n, name in enumerate(names)])
            return {"put": put, "free": watch.time(lambda: [specforge.free(ref) for ref in refs])[1]}

        found = take_turns({"specforge": theirs, "tensorhold": ours}, rounds, WARM_UP)
    return Case("pipelined_put_4m", samples, sum(map(nbytes, sources[0].values())), found)


def table(cases: Sequence[Case], out: TextIO) -> None:
    """Prints medians and their spread, for people."""
    heading = ("case", "contender", "step", "median ms", "(fastest to slowest)", "GB/s", "processor ms", "servers' ms")
    rows: list[tuple[str, ...]] = [heading]
    for case in cases:
        for name, steps in case.rounds.items():
            for step, rounds in steps.items():
                median, each = median_of(rounds), 1e3 / case.samples
                walls = [spent.wall for spent in rounds]
                rate = f"{case.samples * case.nbytes / median.wall / 1e9:.2f}" if step in ("put", "get") else ""
                rows.append(
                    (
                        *(case.name, name, step, f"{median.wall * each:.3f}"),
                        f"({min(walls) * each:.3f} to {max(walls) * each:.3f})",
                        *(rate, f"{median.cpu * each:.3f}", f"{median.servers * each:.3f}"),
                    )
                )
    widths = [max(len(row[column]) for row in rows) for column in range(len(heading))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), file=out)
    print("times are for one sample; with several in flight, the time of all of them divided by their number", file=out)


def ratios(cases: Mapping[str, Case]) -> dict[str, Ratio]:
    """The ratios of the cases that were run, under the names that the goals use."""
    found: dict[str, Ratio] = {}

    def add(name: str, case: str, what: str, ours: str, theirs: str) -> None:
        if case in cases and {ours, theirs} <= cases[case].rounds.keys():
            found[name] = cases[case].ratio(what, ours, theirs)

    for what in ("put", "get"):
        add(f"{what}_ratio_128m", "128m", what, "tensorhold", "bare")
        add(f"{what}_ratio_128m_nosum", "128m", what, "tensorhold, no checksums", "bare")
        add(f"{what}_ratio_4m_8inflight", "4m_8inflight", what, "tensorhold", "bare")
        add(f"vs_specforge_{what}_128m", "128m", what, "tensorhold", "specforge")
        add(f"vs_specforge_{what}_4m", "4m", what, "tensorhold", "specforge")
        add(f"sealed_{what}_ratio_128m", "128m", what, "tensorhold, sealed", "bare")
        add(f"{what}_ratio_4m", "4m", what, "tensorhold", "bare")
    add("pipelined_put_4m", "pipelined_put_4m", "put", "tensorhold", "specforge")
    return found


def medians(cases: Mapping[str, Case]) -> dict[str, float]:
    """Times for one sample, under the names that the goals use."""
    found: dict[str, float] = {}
    for name in ("128m", "4m", "4m_8inflight"):
        case = cases[name]
        for what in ("put", "get"):
            for contender in ("bare", "specforge", "tensorhold"):
                median, prefix = median_of(case.rounds[contender][what]), f"{contender}_{what}_{name}"
                found[f"{prefix}_ms"] = median.wall / case.samples * 1e3
                found[f"{prefix}_cpu_us"] = median.cpu / case.samples * 1e6
                found[f"{prefix}_cpu_servers_us"] = median.servers / case.samples * 1e6
        found[f"cpu_{name}_us"] = case.processor("tensorhold") * 1e6
        # The bare engine's in the same run tells how fast the machine was: this one can be compared between runs.
        found[f"cpu_{name}_relative"] = case.processor("tensorhold") / case.processor("bare")
    return found


def measure(cluster: Cluster, amount: Amount, only: str | None) -> tuple[dict[str, Case], dict[str, Ratio]]:
    """Runs the cases. The ratios are those of the cases that were run."""
    import specforge_loop
    from contenders import Bare, Tensorhold, SpecForge, eagle_sample, nbytes

    watch = Stopwatch(cluster.pids.values())
    cases: list[Case] = []
    small_source = eagle_sample(TOKENS_4M)
    eight = [eagle_sample(TOKENS_4M) for _ in range(IN_FLIGHT)]

    def wanted(case: str) -> bool:
        return only in (None, case)

    with closing(Bare(cluster)) as bare:
        bare.touch_all_memory()
        specforge = SpecForge(cluster, bare)
        with ExitStack() as opened:
            plain = opened.enter_context(closing(Tensorhold(cluster, "plain")))
            three = {"bare": bare, "specforge": specforge, "tensorhold": plain}
            if wanted("128m") or only == "sealed":
                others: dict[str, dict[str, Any]] = {"sealed": {"key": secrets.token_bytes(32)}}
                five: dict[str, Any] = {"bare": bare}
                if only != "sealed":
                    others["no checksums"] = {"checksum": False}
                    five |= three
                with ExitStack() as more:
                    for name, settings in others.items():
                        other = Tensorhold(cluster, name.replace(" ", "-"), **settings)
                        five[f"tensorhold, {name}"] = more.enter_context(closing(other))
                    cases.append(run_case("128m", five, [eagle_sample(TOKENS_128M)], 1, amount.large, watch))
            if wanted("4m"):
                cases.append(run_case("4m", three, [small_source], EACH, amount.small, watch))
            if wanted("4m_8inflight"):
                cases.append(run_case("4m_8inflight", three, eight, IN_FLIGHT * EACH, amount.small, watch))
        if wanted("pipelined"):
            cases.append(run_pipelined(cluster, specforge, eight, amount.small, watch))
    found: dict[str, Ratio] = {}
    if wanted("loop"):
        loops = specforge_loop.measure(cluster, amount.loop)
        size = sum(map(nbytes, specforge_loop.small_sample().values()))
        cases += [Case(f"loop, {name}", specforge_loop.STEP, size, rounds) for name, rounds in loops.items()]
        found |= specforge_loop.ratios(loops)
    by_name = {case.name: case for case in cases}
    return by_name, {**ratios(by_name), **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", action="store_true", help="nothing but one JSON object on standard output")
    parser.add_argument("--only", choices=CASES, help="one case, for profiling; its ratios and no JSON")
    parser.add_argument("--rounds", type=int, help="how many rounds, for profiling")
    options = parser.parse_args()
    if os.environ.get("TENSORHOLD_METRICS") != "off":
        logging.basicConfig(level=logging.INFO, filename=os.devnull)
    amount = QUICK if options.quick else FULL
    if options.rounds:
        amount = Amount(options.rounds, options.rounds, options.rounds)
    out = sys.stderr if options.json else sys.stdout
    with running_cluster(segment_mib=SEGMENT_MIB, lease_ttl="5s") as cluster:
        os.environ.update({**cluster.client_env, "MC_LOG_LEVEL": "ERROR"})  # read when the engine is loaded
        cases, found = measure(cluster, amount, options.only)
    table(list(cases.values()), out)
    for name, one in found.items():
        print(f"{name:<28} {one}", file=out)
    if options.only is None:
        figures = medians(cases)
        for name, one in found.items():
            figures |= one.figures(name)
        print(json.dumps({name: round(value, 3) for name, value in figures.items()}), flush=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # SpecForge's client cannot be closed


if __name__ == "__main__":
    main()
