"""The workflows of the repository's host, as far as they can be checked without it: what they name is there, and they
use the tools that `.ci` uses."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from servers import REPOSITORY

WORKFLOWS = sorted((REPOSITORY / ".github/workflows").glob("*.yml"))
by_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def jobs(path: Any) -> Iterator[dict[str, Any]]:
    yield from yaml.safe_load(path.read_text())["jobs"].values()


def commands(path: Any) -> str:
    return "\n".join(step["run"] for job in jobs(path) for step in job.get("steps", ()) if "run" in step)


def test_there_are_workflows() -> None:
    assert {path.stem for path in WORKFLOWS} == {"ci", "nightly", "release"}


@by_workflow
def test_actions_are_pinned_by_commit(path: Any) -> None:
    for used in re.findall(r"uses: (.*)", path.read_text()):
        assert used.startswith("./") or re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", used), used


@by_workflow
def test_what_is_run_is_in_the_repository(path: Any) -> None:
    for named in re.findall(r"(?:\.ci|python|crates)/[\w/.-]+", commands(path)):
        assert (REPOSITORY / named).exists(), named
    for package in re.findall(r"-p (tensorhold-[\w-]+)", commands(path)):
        assert (REPOSITORY / "crates" / package.removeprefix("tensorhold-")).is_dir(), package


@by_workflow
def test_every_job_has_a_deadline_and_no_more_rights_than_it_needs(path: Any) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
    for job in jobs(path):
        assert "timeout-minutes" in job or job.get("uses") == "./.github/workflows/ci.yml"


@by_workflow
def test_the_tools_are_those_of_the_repository(path: Any) -> None:
    toolchain = tomllib.loads((REPOSITORY / "Cargo.toml").read_text())["workspace"]["package"]["rust-version"]
    for job in jobs(path):
        if "container" in job:
            assert re.fullmatch(rf"rust:{re.escape(toolchain)}\.\d+-bookworm", job["container"]["image"])
    setup = (REPOSITORY / ".ci/setup").read_text()
    for tool, release in re.findall(r"cargo install cargo-(\w+) --version (\S+)", commands(path)):
        assert f"make_cargo_tool {tool} {release}\n" in setup
