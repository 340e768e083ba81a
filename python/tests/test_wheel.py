"""The wheel, installed where nothing else of ours is.

Build it first, and say which it is::

    maturin build --release -m python/Cargo.toml
    HOLDFAST_WHEEL=$(ls target/wheels/holdfast-*.whl) python -m pytest python/tests/test_wheel.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import version
from pathlib import Path

import pytest

from servers import REPOSITORY, Cluster

ENGINE = "mooncake-transfer-engine-non-cuda"
WHEEL = os.environ.get("HOLDFAST_WHEEL", "")

WITHOUT_NUMPY_AND_TORCH = """
import sys
import holdfast
with holdfast.open("wheel") as store:
    ref = store.put("a", {"x": b"committed"}, groups=["g"])
    for lease in store.take("g"):
        with lease:
            print(lease.get()["x"].tobytes().decode())
assert "torch" not in sys.modules and "numpy" not in sys.modules
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with the wheel and the engine, and nothing else."""
    if not WHEEL:
        pytest.skip("no wheel was built: set HOLDFAST_WHEEL, see the top of this file")
    assert "-cp310-abi3-" in Path(WHEEL).name, "one wheel for every CPython from 3.10 on"
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=True)
    fresh = folder / "bin/python"
    wanted = [str(Path(WHEEL).resolve()), f"{ENGINE}=={version(ENGINE)}"]
    subprocess.run([fresh, "-m", "pip", "install", "--quiet", *wanted], check=True, timeout=600)
    return fresh


def run(python: Path, cluster: Cluster, *command: str) -> str:
    environment = {**os.environ, **cluster.variables(), "MC_LOG_LEVEL": "ERROR"}
    environment.pop("PYTHONPATH", None)
    ran = subprocess.run([str(python), *command], capture_output=True, text=True, timeout=120, env=environment)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_it_works_without_numpy_and_torch(python: Path, cluster: Cluster) -> None:
    assert run(python, cluster, "-c", WITHOUT_NUMPY_AND_TORCH) == "committed\n"


def test_the_command_is_installed(python: Path) -> None:
    ran = subprocess.run([str(python.parent / "holdfast"), "--version"], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout.split()[0]) == (0, "holdfast"), ran.stderr


def test_the_quickstart_runs(python: Path, cluster: Cluster) -> None:
    # torch is some gigabytes: it is borrowed from the environment of the tests, behind the wheel on the path.
    borrow = f"import sys; sys.path.append({sysconfig.get_path('purelib')!r})"
    example = REPOSITORY / "examples/quickstart.py"
    code = f"{borrow}; exec(open({str(example)!r}).read())"
    said = run(python, cluster, "-c", code)
    assert said.splitlines()[-1] == "all samples are used and freed"
    assert Path(sys.executable) != python
