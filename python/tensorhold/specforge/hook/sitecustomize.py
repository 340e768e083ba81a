"""Read by every Python process of a SpecForge run at its start: see ``tensorhold.specforge._launch``.

When SpecForge imports its Mooncake store, Tensorhold's is put in its place. Until then nothing is imported here, so other
programs with the same environment pay nothing. A ``sitecustomize`` further down the path is run as it would have been.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

STORE = "specforge.runtime.data_plane.mooncake_store"
HERE = os.path.dirname(os.path.abspath(__file__))


class ReplacingLoader(importlib.abc.Loader):
    """Loads a module as its own loader does, and replaces the store in it."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        try:
            from tensorhold.specforge import replace_mooncake_store
        except ImportError as error:
            raise ImportError(
                f"this run is to keep its samples in Tensorhold, and Tensorhold cannot be imported here ({error}): install "
                f"it for {sys.executable}, or take {HERE} out of PYTHONPATH"
            ) from error
        replace_mooncake_store()


class StoreFinder(importlib.abc.MetaPathFinder):
    """Finds SpecForge's Mooncake store, for :class:`ReplacingLoader`, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != STORE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = ReplacingLoader(spec.loader)
        return spec


def run_next() -> None:
    """Runs the ``sitecustomize`` that this one hides."""
    elsewhere = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


sys.meta_path.insert(0, StoreFinder())
run_next()
