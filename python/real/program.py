"""What all of ``cargo xtask real`` have in common: a cluster, cases, and figures."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from real import processes, verified
from real.prompts import PROMPT_TOKENS


@dataclass
class Program:
    """A run of all cases, and what it has found so far."""

    cluster: Any
    scratch: Path
    quiet: bool
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    stuck: int = 0

    def say(self, text: str) -> None:
        """For a person who waits."""
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    @contextmanager
    def case(self, name: str) -> Iterator[dict[str, Any]]:
        """A case, and its figures to be filled in. A figure that is False is a failure. A process or request that runs
        into its deadline ends the case, and counts as stuck; the others are run all the same."""
        figures: dict[str, Any] = {}
        self.cases[name] = figures
        self.say(f"{name} …")
        try:
            yield figures
        except processes.Stuck as error:
            self.stuck += 1
            self.say(str(error))
        self.say(f"  {figures}")

    def figures(self) -> dict[str, Any]:
        """All that was found."""
        cases = self.cases.values()
        hits = min((case["hit_tokens"] for case in cases if "enough_hits" in case), default=0)
        return {
            "tokens_equal": all(case.get("tokens_equal", True) for case in cases),
            "control_differs": all(case.get("control_differs", True) for case in cases),
            "prompt_tokens": PROMPT_TOKENS,
            "hit_tokens": hits,
            "hit_ratio": round(hits / PROMPT_TOKENS, 3),
            "wrong_outputs": sum(not case.get("tokens_equal", True) for case in cases),
            "faults": sum(case.get("faults", 0) for case in cases),
            "stuck": self.stuck,
            "cases": self.cases,
        }

    def failures(self) -> list[str]:
        """What went wrong; empty if nothing did."""
        figures = [(name, figure, value) for name, case in self.cases.items() for figure, value in case.items()]
        wrong = [f"{name}: {figure} is false" for name, figure, value in figures if value is False]
        return wrong + [f"stuck: {self.stuck}"] * (self.stuck > 0)


def run(
    about: str | None,
    cases: Callable[[Program], None],
    figures: Callable[[Program], dict[str, Any]] = Program.figures,
) -> None:
    """Runs the cases on a cluster of their own, prints the figures as one line of JSON, and exits with 1 if anything
    went wrong."""
    arguments = argparse.ArgumentParser(description=about)
    arguments.add_argument("--json", action="store_true", help="only the last line, as JSON")
    arguments.add_argument("--record", metavar="NAME", help="keep the figures for docs/verified.md, if nothing went wrong")
    given = arguments.parse_args()
    sys.path.insert(0, str(processes.HERE.parent / "tests"))
    from servers import running_cluster

    with tempfile.TemporaryDirectory() as scratch, running_cluster(holders=2, segment_mib=256) as cluster:
        program = Program(cluster, Path(scratch), given.json)
        cases(program)
    found = figures(program)
    print(json.dumps(found))
    if failures := program.failures():
        sys.exit("; ".join(failures))
    if given.record:
        verified.record(given.record, found)
