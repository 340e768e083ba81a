"""What a sample costs the index, as a model that is fitted to runs of the load generator.

Each run is the last line of ``cargo xtask load --json``. Collect runs at several rates and numbers of live samples, one JSON
object in a line, and fit::

    .venv/bin/python python/tools/cost_model.py docs/pictures/cost-runs.jsonl --svg docs/pictures/cost.svg

A run with ``"held_out": true`` is not fitted: it is compared with what the others predict. A run without ``clusters`` was on one
etcd cluster; those on several are fitted by their share of one (see ``Run``).

Least squares of relative residuals: a sample at 100 a second costs twenty times as much as one at 3,000, and both count alike. No
coefficient is negative, because nothing of it gives time back: a term that would be is left out. What a run was told and how many
samples went together in it are the inputs. Requests are predicted first, and the rest from predicted requests.

A fit over some runs on one machine says how costs grow and which term leads. It is no promise for another machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Final

import numpy

DAY_SECONDS: Final = 86_400.0
USUAL_HISTORY_SECONDS: Final = 60.0
"""What docs/cost.md advises."""


@dataclass(frozen=True)
class Run:
    """The inputs of the model, for one etcd cluster."""

    rate: float
    """Samples a second."""
    live: float
    """Live samples that nobody takes."""
    sessions: float
    """Sessions that are open, those of the workers too."""
    per_put: float
    """Samples in a put, on average."""
    per_take: float
    seconds: float
    history: float
    """How many seconds etcd keeps its history; its file grows until the second compaction."""
    clusters: int = 1

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Run:
        clusters = int(found.get("clusters", 1))
        workers = found["producers"] + found["consumers"] + 1
        return cls(
            rate=found["rate_reached"] / clusters,
            live=found["live"] / clusters,
            # Each process has a session on each cluster.
            sessions=found["sessions"] + workers,
            per_put=found["samples_per_put"],
            per_take=found["samples_per_take"],
            seconds=found["seconds"],
            history=found["history"],
            clusters=clusters,
        )


Terms = Mapping[str, Callable[[Run, Mapping[str, float]], float]]
ONE: Final[Terms] = {"1": lambda run, told: 1.0}
CALLS: Final[Terms] = {
    "1 / samples in a put": lambda run, told: 1 / run.per_put,
    "1 / samples in a take": lambda run, told: 1 / run.per_take,
    "1 / rate": lambda run, told: 1 / run.rate,
}
REQUESTS: Final[Terms] = {"requests": lambda run, told: told["etcd_requests_per_sample"]}
KEPT: Final[Terms] = {"samples in history": lambda run, told: run.rate * min(run.seconds, 2 * run.history)}
LIVE: Final[Terms] = {"live": lambda run, told: run.live}

MODEL: Final[Mapping[str, Terms]] = {
    "etcd_requests_per_sample": CALLS,
    "etcd_fsyncs_per_sample": CALLS,
    "etcd_received_bytes_per_sample": {**ONE, **REQUESTS},
    "etcd_sent_bytes_per_sample": {**ONE, **REQUESTS},
    "etcd_log_bytes_per_sample": {**ONE, **REQUESTS},
    "etcd_cpu_us_per_sample": {
        **ONE,
        **REQUESTS,
        "live / rate": lambda run, told: run.live / run.rate,
        # What was put before the run is compacted in it, once.
        "live / samples of the run": lambda run, told: run.live / (run.rate * run.seconds),
    },
    "clients_cpu_us_per_sample": {**ONE, **REQUESTS},
    "etcd_keep_alives_per_sample": {"sessions / rate": lambda run, told: run.sessions / run.rate},
    "etcd_db_bytes_most": {**ONE, **LIVE, **KEPT},
    "etcd_rss_bytes_most": {**ONE, **LIVE, **KEPT},
}
"""What is told of a run, and what it is made of. Requests come first: others are made of them."""

OF_ALL: Final = {"etcd_db_bytes_most", "etcd_rss_bytes_most"}
"""What is told of all clusters of a run together; the rest is told of a sample."""


def seen_in(found: Mapping[str, Any], run: Run, figure: str) -> float:
    """What was seen, of one cluster."""
    return float(found[figure]) / (run.clusters if figure in OF_ALL else 1)


@dataclass(frozen=True)
class Fit:
    """The coefficients of one figure, and how far the runs are from it."""

    figure: str
    coefficients: dict[str, float]
    residuals: list[float]
    """(seen - predicted) / seen, for each run."""

    def predict(self, run: Run, told: Mapping[str, float]) -> float:
        terms = MODEL[self.figure]
        return sum(factor * terms[term](run, told) for term, factor in self.coefficients.items())


def least_squares(rows: numpy.ndarray, seen: numpy.ndarray) -> numpy.ndarray:
    """Coefficients without a negative one: the term that is furthest below zero is left out, until none is."""
    scaled, kept = rows / seen[:, None], list(range(rows.shape[1]))
    while True:
        found = numpy.zeros(rows.shape[1])
        if not kept:
            return found
        found[kept] = numpy.linalg.lstsq(scaled[:, kept], numpy.ones(len(seen)), rcond=None)[0]
        if (found >= 0).all():
            return found
        kept.remove(int(numpy.argmin(found * numpy.abs(scaled).mean(axis=0))))


def fit(runs: Sequence[tuple[Run, Mapping[str, Any]]]) -> list[Fit]:
    """Fits all figures."""
    fits: list[Fit] = []
    told = [dict[str, float]() for _ in runs]
    for figure, terms in MODEL.items():
        known_of = list(zip(runs, told, strict=True))
        rows = numpy.array([[term(run, known) for term in terms.values()] for (run, _), known in known_of])
        seen = numpy.array([max(seen_in(found, run, figure), 1e-9) for run, found in runs])
        if len(runs) <= rows.shape[1]:
            raise SystemExit(f"{len(runs)} runs are too few for the {rows.shape[1]} terms of {figure}")
        if figure == "etcd_keep_alives_per_sample":
            # Runs without idle sessions have some keep-alives in all, and tell nothing.
            usable = numpy.array([run.sessions > 20 for run, _ in runs])
        else:
            usable = numpy.ones(len(runs), dtype=bool)
        factors = least_squares(rows[usable], seen[usable])
        one = Fit(figure, dict(zip(terms, factors.tolist(), strict=True)), [])
        predicted = [one.predict(run, known) for (run, _), known in known_of]
        one.residuals.extend(
            (value - guess) / value for value, guess, used in zip(seen.tolist(), predicted, usable, strict=True) if used
        )
        for known, value in zip(told, predicted, strict=True):
            known[figure] = value
        fits.append(one)
    return fits


def predict(fits: Sequence[Fit], run: Run) -> dict[str, float]:
    """All figures of a run that was not made."""
    told: dict[str, float] = {}
    for one in fits:
        told[one.figure] = one.predict(run, told)
    return told


def print_fits(fits: Sequence[Fit]) -> None:
    for one in fits:
        terms = " + ".join(f"{factor:.4g} x [{term}]" for term, factor in one.coefficients.items() if factor)
        each = " ".join(f"{100 * residual:+.0f}" for residual in one.residuals)
        typical = statistics.median(map(abs, one.residuals))
        print(f"{one.figure} = {terms}\n    off by {100 * typical:.0f} % (median); each run, in %: {each}")


def print_check(fits: Sequence[Fit], held_out: Sequence[tuple[Run, Mapping[str, Any]]]) -> None:
    for run, found in held_out:
        together = f"{run.per_put:.1f} in a put, {run.per_take:.1f} in a take"
        of_one = f", on each of {run.clusters} clusters" if run.clusters > 1 else ""
        print(f"\nnot fitted: {run.rate:.0f} samples/s, {run.live:.0f} live, {together}{of_one}")
        for figure, guess in predict(fits, run).items():
            seen = seen_in(found, run, figure)
            off = 100 * (guess - seen) / max(seen, 1e-9)
            print(f"    {figure:<32} seen {seen:>14,.3f}  predicted {guess:>14,.3f}  off by {off:+.0f} %")


def print_plan(fits: Sequence[Fit], plan: argparse.Namespace, syncs_seen: float) -> None:
    """What one shard of a plan needs, with puts and takes of one sample and of many. A process has sessions on one shard, or on all.
    What keep-alives cost etcd's processor is not in it: no run had enough of them."""
    rate = plan.samples_per_day / DAY_SECONDS
    print(f"\n{plan.samples_per_day:.3g} samples a day are {rate:,.0f} a second; each is live for {plan.live_seconds:.0f} s")
    columns = ("shards", "in a call", "sessions", "samples/s", "requests/s", "syncs/s", "keep-alives/s")
    print(" | ".join((*columns, "cores", "file, GiB", "RSS, GiB", "first")))
    bounds = {"syncs/s": syncs_seen, "cores": plan.cores, "file": plan.file_gib, "RSS": plan.memory_gib}
    for shards in (plan.shards, plan.few_shards):
        for per_call in (1.0, 16.0):
            for sessions in (plan.sessions / shards, float(plan.sessions)):
                each = rate / shards
                one = Run(
                    rate=each,
                    live=each * plan.live_seconds,
                    sessions=sessions,
                    per_put=per_call,
                    per_take=per_call,
                    seconds=DAY_SECONDS,
                    history=USUAL_HISTORY_SECONDS,
                )
                told = predict(fits, one)
                needs = {
                    "syncs/s": one.rate * told["etcd_fsyncs_per_sample"],
                    "cores": one.rate * told["etcd_cpu_us_per_sample"] / 1e6,
                    "file": told["etcd_db_bytes_most"] / 2**30,
                    "RSS": told["etcd_rss_bytes_most"] / 2**30,
                }
                first = max(needs, key=lambda name: needs[name] / bounds[name])
                cells = (
                    *(f"{shards}", f"{per_call:.0f}", f"{sessions:,.0f}", f"{one.rate:,.0f}"),
                    f"{one.rate * told['etcd_requests_per_sample']:,.0f}",
                    *(f"{needs['syncs/s']:,.0f}", f"{one.rate * told['etcd_keep_alives_per_sample']:,.0f}"),
                    *(f"{needs[name]:.2f}" for name in ("cores", "file", "RSS")),
                    f"{first}, {100 * needs[first] / bounds[first]:.0f} % of {bounds[first]:g}",
                )
                print(" | ".join(cells))


STYLE: Final = """
text { font: 13px sans-serif; fill: #1a1c23 }
.middle { text-anchor: middle } .end { text-anchor: end }
.grid { stroke: #c9cdd8 } .note { font-size: 12px; fill: #4a4e5a }
.etcd { fill: #3f51b5; stroke: #3f51b5 } .clients { fill: #b3541e; stroke: #b3541e }
path { fill: none !important; stroke-width: 2; stroke-dasharray: 6 4 }
.held { fill: none !important; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e8ef } .note { fill: #b8bdca } .grid { stroke: #4a4e5a }
  .etcd { fill: #8c9eff; stroke: #8c9eff } .clients { fill: #ffab7a; stroke: #ffab7a }
}
"""


def plot(fits: Sequence[Fit], fitted: Sequence[Mapping[str, Any]], held_out: Sequence[Mapping[str, Any]]) -> str:
    """Processor time over requests of a sample, seen and predicted, both on logarithmic scales."""
    width, height, left, right, top, bottom = 760, 420, 80, 20, 50, 60
    series = {"etcd": "etcd_cpu_us_per_sample", "clients": "clients_cpu_us_per_sample"}
    low_x, high_x = 0.1, 30.0
    low_y, high_y = 50.0, 20_000.0

    def place(x: float, y: float) -> tuple[float, float]:
        def share(value: float, low: float, high: float) -> float:
            return float(numpy.log(value / low) / numpy.log(high / low))

        along, up = share(x, low_x, high_x), share(y, low_y, high_y)
        return left + along * (width - left - right), height - bottom - up * (height - top - bottom)

    title = "Processor time of a sample over the requests that it takes"
    parts = [f'<text x="{left}" y="22">{title}</text>']
    for x in (0.1, 0.3, 1.0, 3.0, 10.0, 30.0):
        at, _ = place(x, low_y)
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{height - bottom}" class="grid"/>')
        parts.append(f'<text x="{at:.1f}" y="{height - bottom + 18}" class="middle note">{x:g}</text>')
    for y in (50.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0, 20_000.0):
        _, at = place(low_x, y)
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{at:.1f}" y2="{at:.1f}" class="grid"/>')
        parts.append(f'<text x="{left - 8}" y="{at + 4:.1f}" class="end note">{y:,.0f}</text>')
    parts.append(f'<text x="{(left + width) / 2:g}" y="{height - 14}" class="middle">etcd requests per sample</text>')
    turned = f'transform="rotate(-90 20 {height / 2:g})"'
    parts.append(f'<text x="20" y="{height / 2:g}" class="middle" {turned}>µs per sample</text>')
    by_name = {one.figure: one for one in fits}
    for name, figure in series.items():
        of = by_name[figure].coefficients
        line = [place(x, of["1"] + of["requests"] * x) for x in numpy.geomspace(low_x, high_x, 60)]
        inside = [(x, y) for x, y in line if top <= y <= height - bottom]
        parts.append(f'<path class="{name}" d="M{" L".join(f"{x:.1f} {y:.1f}" for x, y in inside)}"/>')
        for n, found in enumerate([*fitted, *held_out]):
            x, y = place(found["etcd_requests_per_sample"], found[figure])
            kind = f"{name} held" if n >= len(fitted) else name
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" class="{kind}"/>')
    for n, (name, label) in enumerate((("etcd", "etcd"), ("clients", "clients, together"))):
        parts.append(f'<circle cx="{left + 16}" cy="{top + 16 + 20 * n}" r="5" class="{name}"/>')
        parts.append(f'<text x="{left + 28}" y="{top + 20 + 20 * n}">{escape(label)}</text>')
    note = "open: not fitted; dashed: the model without live samples"
    parts.append(f'<text x="{left + 12}" y="{top + 62}" class="note">{note}</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            *(f"<title>{title}</title>", f"<style>{STYLE}</style>", *parts),
            "</svg>\n",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="files with one run in a line")
    parser.add_argument("--svg", type=Path, help="where to draw")
    parser.add_argument("--shards", type=int, default=100)
    parser.add_argument("--few-shards", type=int, default=8, help="a smaller number to compare with")
    parser.add_argument("--samples-per-day", type=float, default=1e9)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--live-seconds", type=float, default=600, help="how long a sample is live")
    parser.add_argument("--cores", type=float, default=4, help="of the machine of a shard's etcd")
    parser.add_argument("--file-gib", type=float, default=2, help="etcd's quota")
    parser.add_argument("--memory-gib", type=float, default=16, help="of that machine")
    plan = parser.parse_args()
    lines = [line for path in plan.runs for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    found = [json.loads(line) for line in lines]
    failed = [one for one in found if not one["holds"] or one["killed"]]
    if failed:
        sys.exit(f"{len(failed)} runs failed or had workers killed: leave them out")
    budgeted = [one for one in found if "budget" in one]
    if budgeted:
        sys.exit(f"{len(budgeted)} runs had a budget, which costs requests of its own: leave them out")
    fitted = [(Run.of(one), one) for one in found if not one.get("held_out")]
    held_out = [(Run.of(one), one) for one in found if one.get("held_out")]
    fits = fit(fitted)
    print_fits(fits)
    print_check(fits, held_out)
    print_plan(fits, plan, max(run.rate * one["etcd_fsyncs_per_sample"] for run, one in fitted + held_out))
    if plan.svg:
        drawn = plot(fits, [one for _, one in fitted], [one for _, one in held_out])
        plan.svg.write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
