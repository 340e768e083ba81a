"""The examples run as they are on real servers, print what their READMEs show, and say what to do without a cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from servers import REPOSITORY, Cluster

EXAMPLES = REPOSITORY / "examples"
SHOWN = ["crash", "aio", "epochs", "sealed", "specforge"]
"""The examples whose READMEs show what they print. ``kv_host`` has tests of its own, and so has ``rust``, in its crate."""
VARIES = {
    "crash": r"(?<=with )\d+(?= samples in hand)|(?<=begins with )[1-9]\d*|(?<=samples )\d+(?= came)",
    "aio": r"\d+(?= ms)",
    "specforge": r"(?<=specforge-)\d+|\d+(?= of a Tensorhold store)|(?<=#g)\d+",
}
"""What of it differs from run to run."""
NOWHERE = {"TENSORHOLD_MASTER": "127.0.0.1:1", "TENSORHOLD_ETCD": "http://127.0.0.1:1"}


def run(*command: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs Python at the root of the repository, with the package as it stands here."""
    environment = {**os.environ, **variables, "PYTHONPATH": str(REPOSITORY / "python"), "MC_LOG_LEVEL": "ERROR"}
    return subprocess.run(
        [sys.executable, *command], cwd=REPOSITORY, capture_output=True, text=True, timeout=240, env=environment
    )


def shown(name: str) -> str:
    """What the README of an example shows below its command."""
    readme = (EXAMPLES / name / "README.md").read_text()
    found = re.search(rf"```sh\npython -m examples\.{name}\n```\n\n```text\n(.*?)```", readme, re.DOTALL)
    assert found is not None, "the README has the command, and what it prints below"
    return found.group(1)


def comparable(name: str, printed: str) -> list[str]:
    """The lines, without what differs from run to run. Those of several processes come in any order."""
    lines = (re.sub(VARIES[name], "N", printed) if name in VARIES else printed).splitlines()
    return sorted(lines) if name == "crash" else lines


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_prints_what_its_readme_shows(cluster: Cluster, name: str) -> None:
    ran = run("-m", f"examples.{name}", variables=cluster.variables())
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert comparable(name, ran.stdout) == comparable(name, shown(name)), ran.stdout
    if name == "crash":
        in_hand, trained, twice = re.findall(VARIES[name], ran.stdout)
        assert 32 <= int(trained) < 32 + int(in_hand), "it is killed once half of them are trained"
        assert in_hand == twice != "0", "what the trainer had in hand came again, and nothing else"
    if name == "aio":
        (pause_ms,) = re.findall(VARIES[name], ran.stdout)
        assert int(pause_ms) < 2000, "a machine may be busy; a call that blocks the loop waits for seconds"


@pytest.mark.parametrize("program", [*SHOWN, "kv_host"])
def test_without_a_cluster_an_example_says_what_to_do(program: str) -> None:
    ran = run("-m", f"examples.{program}", variables=NOWHERE)
    assert ran.returncode == 1 and "tensorhold up" in ran.stderr, ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("program", ["first.py", "quickstart.py"])
def test_without_a_cluster_a_program_ends_with_one_line(program: str) -> None:
    ran = run(f"examples/{program}", variables=NOWHERE)
    assert ran.returncode == 1 and "Traceback" not in ran.stderr, ran.stderr
    last = ran.stderr.splitlines()[-1]
    assert last.startswith("No cluster answers: ") and "127.0.0.1:1" in last and "tensorhold up" in last, ran.stderr


def test_examples_that_the_book_names_are_there() -> None:
    pages = [page.read_text(encoding="utf-8") for page in (REPOSITORY / "docs").glob("*.md")]
    named = {name for page in pages for name in re.findall(r"`examples/(\w+)`", page)}
    assert named >= {"kv_host", "sealed", "specforge"} and all((EXAMPLES / name).is_dir() for name in named), named


def test_the_list_of_examples_is_whole() -> None:
    listed = re.findall(r"^\| \[`([^`]+)`\]\(([^)]+)\)", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    there = {path.name for path in EXAMPLES.iterdir() if (path / "README.md").exists()}
    assert {name for name, _ in listed} == there | {"first.py", "quickstart.py"}
    assert all((EXAMPLES / link).exists() for _, link in listed)


def test_the_quickstart_runs(cluster: Cluster) -> None:
    ran = run("examples/quickstart.py", variables=cluster.variables())
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert len(lines) == 4 and lines[-1] == "all samples are used and freed"
    assert all(f"sample-{n}#g" in ran.stdout for n in range(3))


def test_types_hold() -> None:
    command = [sys.executable, "-m", "mypy", "--strict"]
    checked = subprocess.run(command, cwd=REPOSITORY / "python", capture_output=True, text=True, timeout=600)
    assert checked.returncode == 0, checked.stdout


def test_the_asyncio_face_is_made_from_the_blocking_one() -> None:
    command = [sys.executable, str(REPOSITORY / "python/tools/asyncio_face.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stderr
