"""The wheel, installed where nothing else of ours is.

Build it first, and say which it is::

    cargo xtask wheel
    TENSORHOLD_WHEEL=$(ls target/wheels/tensorhold-*.whl) python -m pytest python/tests/test_wheel.py
"""

from __future__ import annotations

import email
import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from servers import REPOSITORY, Cluster

ENGINE = "mooncake-transfer-engine-non-cuda"
WHEEL = os.environ.get("TENSORHOLD_WHEEL", "")

WITHOUT_NUMPY_AND_TORCH = """
import sys
import tensorhold
with tensorhold.open("wheel") as store:
    ref = store.put("a", {"x": b"committed"}, groups=["g"])
    for lease in store.take("g"):
        with lease:
            print(lease.get()["x"].tobytes().decode())
assert "torch" not in sys.modules and "numpy" not in sys.modules
"""


@pytest.fixture(scope="module")
def wheel() -> Path:
    if not WHEEL:
        pytest.skip("no wheel was built: set TENSORHOLD_WHEEL, see the top of this file")
    return Path(WHEEL).resolve()


@pytest.fixture(scope="module")
def files(wheel: Path) -> dict[str, bytes]:
    """What is in the wheel. The names of the metadata's files are those within its folder."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = f"tensorhold-{wheel.name.split('-')[1]}.dist-info/"
        return {name.removeprefix(metadata): archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with the wheel and the engine, and nothing else."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=True)
    fresh = folder / "bin/python"
    wanted = [str(wheel), f"{ENGINE}=={version(ENGINE)}"]
    subprocess.run([fresh, "-m", "pip", "install", "--quiet", *wanted], check=True, timeout=600)
    return fresh


def compiled_crates(edges: str) -> set[tuple[str, str]]:
    """The names and versions of the crates that cargo compiles for the module."""
    package = ["--package", "tensorhold-python", "--target", "x86_64-unknown-linux-gnu"]
    command = ["cargo", "tree", "--locked", *package, "--edges", edges, "--prefix", "none", "--format", "{p}"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, cwd=REPOSITORY)
    lines = [line.split() for line in ran.stdout.splitlines() if line]
    return {(words[0], words[1].removeprefix("v")) for words in lines}


def run(python: Path, cluster: Cluster, *command: str) -> str:
    environment = {**os.environ, **cluster.variables(), "MC_LOG_LEVEL": "ERROR"}
    environment.pop("PYTHONPATH", None)
    ran = subprocess.run([str(python), *command], capture_output=True, text=True, timeout=120, env=environment)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_it_works_without_numpy_and_torch(python: Path, cluster: Cluster) -> None:
    assert run(python, cluster, "-c", WITHOUT_NUMPY_AND_TORCH) == "committed\n"


def test_the_command_is_installed(python: Path) -> None:
    ran = subprocess.run([str(python.parent / "tensorhold"), "--version"], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout.split()[0]) == (0, "tensorhold"), ran.stderr


def test_the_quickstart_runs(python: Path, cluster: Cluster) -> None:
    # torch is some gigabytes: it is borrowed from the environment of the tests, behind the wheel on the path.
    borrow = f"import sys; sys.path.append({sysconfig.get_path('purelib')!r})"
    example = REPOSITORY / "examples/quickstart.py"
    code = f"{borrow}; exec(open({str(example)!r}).read())"
    said = run(python, cluster, "-c", code)
    assert said.splitlines()[-1] == "all samples are used and freed"
    assert Path(sys.executable) != python


def test_one_wheel_runs_on_every_cpython_from_3_10_and_every_glibc_from_2_28(wheel: Path) -> None:
    assert wheel.name.split("-", 2)[2] == "cp310-abi3-manylinux_2_28_x86_64.whl"


def test_it_holds_the_package_and_nothing_that_the_tests_leave_behind(files: dict[str, bytes]) -> None:
    command = ["git", "ls-files", "tensorhold"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=REPOSITORY / "python")
    assert {name for name in files if name.startswith("tensorhold/")} == {*ran.stdout.split(), "tensorhold/_tensorhold.abi3.so"}


def test_it_says_under_which_licences_its_parts_are(files: dict[str, bytes]) -> None:
    said = email.message_from_bytes(files["METADATA"])
    named = set(said.get_all("License-File", []))
    assert named == {"LICENSE", "THIRD-PARTY-NOTICES.txt", "RUST-STANDARD-LIBRARY.html"}
    assert files["licenses/LICENSE"] == (REPOSITORY / "LICENSE").read_bytes()
    assert b"The Rust Standard Library" in files["licenses/RUST-STANDARD-LIBRARY.html"]
    notices = files["licenses/THIRD-PARTY-NOTICES.txt"].decode().splitlines()
    listed = {tuple(line.split(":")[0].split()) for line in notices[: notices.index("-" * 120)] if line.count(": ") == 1}
    linked = compiled_crates("normal,no-proc-macro")
    assert {crate for crate in linked if not crate[0].startswith("tensorhold-")} <= listed


def test_its_sbom_names_what_cargo_compiles_and_nothing_else(files: dict[str, bytes]) -> None:
    sbom = json.loads(files["sboms/tensorhold.cdx.json"])
    assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.6")
    assert {(one["name"], one["version"]) for one in sbom["components"]} == compiled_crates("normal")
    linked = {(one["name"], one["version"]) for one in sbom["components"] if one["scope"] == "required"}
    assert linked == compiled_crates("normal,no-proc-macro")


def test_no_path_of_the_machine_that_built_it_is_inside(files: dict[str, bytes]) -> None:
    folders = [REPOSITORY, Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo")), Path.home() / ".rustup"]
    for folder in folders:
        assert [name for name, content in files.items() if str(folder).encode() in content] == []
