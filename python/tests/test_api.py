"""The public Python API, name by name, as ``golden/api.txt`` has it: a change of it is seen in a review.

After an intended change: ``TENSORHOLD_BLESS=1 .venv/bin/python -m pytest python/tests/test_api.py`` writes the file anew.
What a change means for users is in ``docs/versioning.md``."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import importlib
import inspect
import os
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorhold

GOLDEN = Path(__file__).parent / "golden" / "api.txt"
# Methods with underscores that users call: by a statement, an operator or a builtin.
CALLED = {
    "__aenter__", "__aexit__", "__await__", "__call__", "__contains__", "__dlpack__", "__dlpack_device__", "__enter__",
    "__exit__", "__getitem__", "__init__", "__iter__", "__len__",
}  # fmt: skip
# Read, not imported: their frameworks are slow to load.
ADAPTERS = {"tensorhold.sglang", "tensorhold.specforge", "tensorhold.torchspec", "tensorhold.vllm"}
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Text(str):
    """An annotation as it stands in the source: a signature shows it without quotes."""

    __repr__ = str.__str__


def public_modules() -> list[str]:
    found = (module.name for module in pkgutil.iter_modules(tensorhold.__path__))
    return ["tensorhold", *sorted(f"tensorhold.{name}" for name in found if not name.startswith("_"))]


def signature(function: Any) -> str:
    try:
        known = inspect.signature(function)
    except ValueError:
        return "(...)"  # a builtin that does not tell
    plain = [
        parameter.replace(annotation=as_written(parameter.annotation)) for parameter in known.parameters.values()
    ]
    return str(known.replace(parameters=plain, return_annotation=as_written(known.return_annotation)))


def as_written(annotation: Any) -> Any:
    return Text(annotation) if isinstance(annotation, str) else annotation


def members(public: type[Any]) -> Iterator[str]:
    """What the class and its bases in this package offer; what a framework's base class adds is the framework's."""
    arguments = {field.name for field in dataclasses.fields(public)} if dataclasses.is_dataclass(public) else set()
    for member in inspect.classify_class_attrs(public):
        inside = member.defining_class.__module__.partition(".")[0] == "tensorhold"
        if not inside or member.name in arguments or (member.name.startswith("_") and member.name not in CALLED):
            continue
        if member.kind == "property":
            told = signature(member.object.fget).partition(" -> ")[2] if isinstance(member.object, property) else ""
            yield f"{member.name}: {told or 'property'}"
        elif member.kind == "data" and not callable(member.object):
            yield member.name
        else:
            function = getattr(member.object, "__func__", member.object)
            marks = {"class method": "classmethod ", "static method": "staticmethod "}.get(member.kind, "")
            marks += "async " if inspect.iscoroutinefunction(function) else ""
            yield f"{marks}{member.name}{signature(function)}"


def lines(module: str, classes: dict[type[Any], str]) -> Iterator[str]:
    """The names of a module; of a class that another module offers, too, the name there."""
    public = importlib.import_module(module)
    for name in sorted(public.__all__):
        value = getattr(public, name)
        if inspect.isclass(value) and value in classes:
            yield f"{module}.{name} = {classes[value]}"
        elif inspect.isclass(value):
            classes[value] = f"{module}.{name}"
            exceptions = [base.__name__ for base in value.__bases__ if issubclass(base, BaseException)]
            yield f"{module}.{name}" + (f"({', '.join(exceptions)})" if exceptions else "")
            yield from (f"    {member}" for member in sorted(members(value)))
        elif inspect.isroutine(value):
            yield f"{module}.{name}{signature(value)}"
        elif inspect.ismodule(value) or isinstance(value, str):
            yield f"{module}.{name}"
        else:
            yield f"{module}.{name} = " + re.sub(r"\btensorhold(\.\w+)*\.", "", str(value))


def source(module: str) -> ast.Module:
    path = Path(tensorhold.__path__[0], *module.split(".")[1:])
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())


def defined(module: str, name: str) -> Definition:
    """Where a name that a module exports is defined: there, or in a module of this package that it is imported from."""
    for statement in source(module).body:
        if isinstance(statement, Definition) and statement.name == name:
            return statement
        if isinstance(statement, ast.ImportFrom) and name in (alias.name for alias in statement.names):
            return defined(str(statement.module), name)
    raise AssertionError(f"{module} exports {name} and does not define it")


def adapter_exports(module: str) -> list[str]:
    for statement in source(module).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return list(ast.literal_eval(statement.value))
    raise AssertionError(f"{module} has no __all__")


def header(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    marks = "".join(f"@{ast.unparse(decorator)} " for decorator in function.decorator_list)
    marks += "async " if isinstance(function, ast.AsyncFunctionDef) else ""
    told = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    return f"{marks}{function.name}({ast.unparse(function.args)}){told}"


def adapter_lines(module: str) -> Iterator[str]:
    for name in sorted(adapter_exports(module)):
        definition = defined(module, name)
        if not isinstance(definition, ast.ClassDef):
            yield f"{module}.{header(definition)}"
            continue
        yield f"{module}.{name}({', '.join(ast.unparse(base) for base in definition.bases)})"
        for statement in definition.body:
            if isinstance(statement, ast.AnnAssign):
                yield f"    {ast.unparse(statement)}"
            elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                if not statement.name.startswith("_") or statement.name in CALLED:
                    yield f"    {header(statement)}"


def test_the_public_api_is_the_one_on_record() -> None:
    classes: dict[type[Any], str] = {}
    now: list[str] = []
    for module in public_modules():
        now += adapter_lines(module) if module in ADAPTERS else lines(module, classes)
    if os.environ.get("TENSORHOLD_BLESS") == "1":
        GOLDEN.write_text("".join(f"{line}\n" for line in now))
    recorded = GOLDEN.read_text().splitlines()
    changed = "\n".join(difflib.unified_diff(recorded, now, "golden/api.txt", "this package", lineterm="", n=0))
    assert not changed, f"the public API has changed; if that is intended, run this with TENSORHOLD_BLESS=1\n{changed}"


def test_every_public_module_says_what_it_exports() -> None:
    for module in public_modules():
        exported = adapter_exports(module) if module in ADAPTERS else importlib.import_module(module).__all__
        assert len(exported) == len(set(exported)), f"{module} exports a name twice"
