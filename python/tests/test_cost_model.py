"""The model of what a sample costs finds what runs were made of, and the picture is what it draws (docs/cost.md)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from servers import REPOSITORY

PROGRAM = REPOSITORY / "python/tools/cost_model.py"
RUNS = REPOSITORY / "docs/pictures/cost-runs.jsonl"


def fitted(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", str(PROGRAM), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def made(rate: float, live: int, per_put: float, per_take: float, seconds: int, history: int = 10) -> dict[str, Any]:
    """A run whose figures follow the model exactly."""
    requests = 2 / per_put + 3 / per_take + 100 / rate
    kept = rate * min(seconds, 2 * history)
    return {
        **{"holds": True, "killed": 0, "producers": 2, "consumers": 2, "sessions": 100, "seconds": seconds},
        **{"rate_reached": rate, "live": live, "samples_per_put": per_put, "samples_per_take": per_take, "history": history},
        "etcd_requests_per_sample": requests,
        "etcd_fsyncs_per_sample": 1 / per_put + 1 / per_take + 50 / rate,
        "etcd_received_bytes_per_sample": 2000 + 1000 * requests,
        "etcd_sent_bytes_per_sample": 500 + 300 * requests,
        "etcd_log_bytes_per_sample": 6000 + 500 * requests,
        "etcd_cpu_us_per_sample": 90 + 400 * requests + 7 * live / (rate * seconds),
        "clients_cpu_us_per_sample": 20 + 200 * requests,
        "etcd_keep_alives_per_sample": 0.3 * 105 / rate,
        "etcd_db_bytes_most": 2e6 + 1700 * live + 3500 * kept,
        "etcd_rss_bytes_most": 5e7 + 6000 * live + 13000 * kept,
    }


@pytest.fixture
def runs() -> list[dict[str, Any]]:
    return [
        *(made(100, 1000, 1, 1, 15), made(400, 100_000, 1.1, 2, 60, history=20), made(800, 10_000, 2, 4, 15), made(1500, 1000, 3, 9, 15)),
        *(made(3000, 30_000, 6, 20, 30), made(4000, 0, 12, 30, 30), made(200, 100_000, 1, 1.3, 15)),
    ]


def written(path: Path, runs: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(run) + "\n" for run in runs), encoding="utf-8")
    return path


def test_it_finds_what_the_runs_were_made_of(tmp_path: Path, runs: list[dict[str, Any]]) -> None:
    held_out = {**made(600, 20_000, 1.5, 3, 15), "held_out": True}
    done = fitted(written(tmp_path / "runs.jsonl", [*runs, held_out]))
    assert done.returncode == 0, done.stderr
    assert "etcd_requests_per_sample = 2 x [1 / samples in a put] + 3 x [1 / samples in a take] + 100 x [1 / rate]" in done.stdout
    assert "7 x [live / samples of the run]" in done.stdout
    assert "1700 x [live] + 3500 x [samples in history]" in done.stdout
    checked = [line for line in done.stdout.splitlines() if "predicted" in line]
    assert checked and all(line.endswith(("off by +0 %", "off by -0 %")) for line in checked), done.stdout


def test_runs_on_several_clusters_count_by_their_share(tmp_path: Path, runs: list[dict[str, Any]]) -> None:
    twice = {**made(500, 5000, 1, 2, 15), "clusters": 2}
    twice |= {"rate_reached": 1000, "live": 10_000}
    # What is told of a sample stays; file and memory are those of both.
    twice |= {figure: 2 * twice[figure] for figure in ("etcd_db_bytes_most", "etcd_rss_bytes_most")}
    done = fitted(written(tmp_path / "runs.jsonl", [*runs, twice, twice | {"held_out": True}]))
    assert "not fitted: 500 samples/s, 5000 live" in done.stdout, done.stderr
    assert "1700 x [live] + 3500 x [samples in history]" in done.stdout
    assert "syncs/s, " in done.stdout and " of 800" in done.stdout, "the syncs of one cluster are the bound of one"
    checked = [line for line in done.stdout.splitlines() if "predicted" in line]
    assert checked and all(line.endswith(("off by +0 %", "off by -0 %")) for line in checked), done.stdout


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"holds": False}, "1 runs failed or had workers killed"),
        ({"killed": 1}, "1 runs failed or had workers killed"),
        ({"budget": 4096}, "1 runs had a budget"),
    ],
)
def test_a_run_that_is_not_comparable_is_refused(
    tmp_path: Path, runs: list[dict[str, Any]], wrong: dict[str, Any], told: str
) -> None:
    done = fitted(written(tmp_path / "runs.jsonl", [*runs, runs[0] | wrong]))
    assert done.returncode == 1
    assert told in done.stderr


def test_the_picture_is_what_the_recorded_runs_give(tmp_path: Path) -> None:
    done = fitted(RUNS, "--svg", tmp_path / "cost.svg")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "cost.svg").read_text(encoding="utf-8") == RUNS.with_name("cost.svg").read_text(encoding="utf-8")
