"""Which releases of Mooncake a store opens with, what it says of others, and the way to try one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from servers import REPOSITORY, Cluster

OPEN = """
import tensorhold
try:
    with tensorhold.open("releases") as store:
        print("open", store.put("a", {"x": b"bytes"}, groups=["g"]).sample)
except tensorhold.errors.Unsupported as refused:
    print("refused", refused)
"""


def known() -> list[str]:
    """The releases that the truths were run on."""
    source = (REPOSITORY / "crates/engine-mooncake/src/release.rs").read_text()
    listed = re.search(r"pub const KNOWN: &\[&str\] = &\[(.*)\];", source)
    assert listed
    return re.findall(r'"([^"]+)"', listed[1])


def test_the_extra_installs_known_releases_only() -> None:
    project = tomllib.loads((REPOSITORY / "python/pyproject.toml").read_text())["project"]
    (engine,) = [Requirement(text) for text in project["optional-dependencies"]["mooncake"]]
    assert all(engine.specifier.contains(release) for release in known())
    bounds = {one.operator: one.version for one in engine.specifier}
    assert set(bounds) == {">=", "<"} and bounds[">="] == known()[0]
    assert not engine.specifier.contains(bounds["<"])
    for later in ["0.3.13.post2", "0.3.14", "0.4.0", "1.0"]:
        assert later in known() or not engine.specifier.contains(later)


@pytest.fixture
def another_release(tmp_path: Path) -> Path:
    """A folder that, on Python's path, makes the engine's package look like a release that nobody has tried."""
    info = tmp_path / "mooncake_transfer_engine_non_cuda-9.9.dist-info"
    info.mkdir()
    text = "Metadata-Version: 2.1\nName: mooncake-transfer-engine-non-cuda\nVersion: 9.9\n"
    (info / "METADATA").write_text(text)
    return tmp_path


def opened(cluster: Cluster, another_release: Path, **variables: str) -> str:
    path = os.pathsep.join([str(another_release), str(REPOSITORY / "python")])
    environment = {**os.environ, **cluster.variables(), "MC_LOG_LEVEL": "ERROR", "PYTHONPATH": path, **variables}
    command = [sys.executable, "-c", OPEN]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_another_release_is_refused_with_the_known_ones_and_the_way_to_try_it(
    cluster: Cluster, another_release: Path
) -> None:
    said = opened(cluster, another_release)
    assert said.startswith("refused")
    for part in ["9.9", "TENSORHOLD_UNTESTED_MOONCAKE=1", *known()]:
        assert part in said


def test_another_release_is_tried_if_the_environment_says_so(cluster: Cluster, another_release: Path) -> None:
    assert opened(cluster, another_release, TENSORHOLD_UNTESTED_MOONCAKE="1") == "open a\n"
    assert opened(cluster, another_release, TENSORHOLD_UNTESTED_MOONCAKE="0").startswith("refused")
