"""The package loads, knows its version, and says what it exports."""

from __future__ import annotations

import re
import tomllib

import tensorhold
from servers import REPOSITORY


def test_the_version_is_the_workspaces() -> None:
    manifest = tomllib.loads((REPOSITORY / "Cargo.toml").read_text())
    assert tensorhold.version() == tensorhold.__version__ == manifest["workspace"]["package"]["version"]


def test_what_is_exported_is_there_and_documented() -> None:
    for name in tensorhold.__all__:
        assert getattr(tensorhold, name).__doc__, f"{name} has no documentation"


def test_the_package_is_typed() -> None:
    folder = REPOSITORY / "python/tensorhold"
    assert (folder / "py.typed").exists()
    stub = (folder / "_tensorhold.pyi").read_text()
    exported = [name for name in dir(tensorhold._tensorhold) if not name.startswith("_")]
    assert exported
    for name in exported:
        assert re.search(rf"^(def|class) {name}\b", stub, re.MULTILINE), f"{name} is missing in _tensorhold.pyi"
        for member in vars(getattr(tensorhold._tensorhold, name, None)) if name[0].isupper() else ():
            if not member.startswith("_"):
                assert f"    def {member}(" in stub, f"{name}.{member} is missing in _tensorhold.pyi"
