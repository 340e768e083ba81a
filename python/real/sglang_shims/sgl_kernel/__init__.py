"""Stands for SGLang's kernels, whose package has code for GPUs only: every name can be imported, none can be called.

The CPU path of SGLang imports them and calls none; a call that it makes all the same raises, and names what was called.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

__version__ = "0.4.10"


class Absent:
    """A name of the kernels."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self._name}.{name}")

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError(f"{self._name} runs on a GPU, and there is none")


class Kernels(types.ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module below this one."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.startswith(f"{__name__}."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return Kernels(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing in it."""


sys.meta_path.insert(0, Finder())
sys.modules[__name__].__class__ = Kernels
