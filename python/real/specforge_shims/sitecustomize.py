"""Read by every Python process of a SpecForge run on a CPU. SpecForge's loss is a Triton kernel, which a CPU cannot run;
in its place goes the reference that SpecForge has for it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence

MODEL = "specforge.algorithms.eagle3.model"


class OnACpu(importlib.abc.Loader):
    """Loads the model's module, and replaces the kernel in it."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        self._loader.exec_module(module)
        from specforge.core.loss import _compute_loss

        module.__dict__["LogSoftmaxLoss"] = types.SimpleNamespace(apply=_compute_loss)


class Finder(importlib.abc.MetaPathFinder):
    """Finds that module, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != MODEL:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = OnACpu(spec.loader)
        return spec


sys.meta_path.insert(0, Finder())
