"""The page of the book about errors, made from the code."""

from __future__ import annotations

import re

from tensorhold import errors
from servers import REPOSITORY

MADE = "<!-- Made from the code: TENSORHOLD_REFERENCE=write .venv/bin/python -m pytest python/tests/test_book.py -k made_from -->"


def _table(*rows: tuple[str, ...]) -> str:
    head, *rest = (f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *rest])


def _documented(text: str, enum: str) -> dict[str, str]:
    """The variants of a Rust enum, and what is said of each."""
    body = re.search(rf"pub enum {enum} \{{\n(.*?)\n\}}", text, re.DOTALL)
    assert body is not None, f"there is no enum {enum}"
    variants: dict[str, str] = {}
    said: list[str] = []
    for line in body[1].splitlines():
        if found := re.fullmatch(r"    /// (.*)", line):
            said.append(found[1])
        elif found := re.fullmatch(r"    (\w+),", line):
            variants[found[1]], said = " ".join(said), []
    return variants


def errors_page() -> str:
    """The kinds of errors, what each means, and what it is in Python."""
    core = (REPOSITORY / "crates/core/src/error.rs").read_text()
    safe = re.search(r"const fn usual_retry.*?match self \{\s+(.*?) => Retry::Safe", core, re.DOTALL)
    assert safe is not None
    again = set(re.findall(r"\w+::(\w+)", safe[1]))
    exceptions: dict[str, list[type[errors.TensorholdError]]] = {}
    for name in errors.__all__:
        one = getattr(errors, name)
        if one is not errors.TensorholdError:
            exceptions.setdefault(one.kind, []).append(one)
    rows: list[tuple[str, ...]] = [("kind", "means", "try again", "in Python", "which is also a")]
    for variant, meaning in _documented(core, "ErrorKind").items():
        kind = re.sub(r"(?<!^)(?=[A-Z])", " ", variant).lower()
        classes = exceptions.pop(kind)
        builtins = {base.__name__ for one in classes for base in one.__bases__ if base.__module__ == "builtins"}
        rows.append(
            (
                f"`{variant}`",
                meaning,
                "yes" if variant in again else "no",
                ", ".join(f"`{one.__name__}`" for one in classes),
                ", ".join(f"`{name}`" for name in sorted(builtins)) or "–",
            )
        )
    assert exceptions.pop(errors.PutsFailed.kind) == [errors.PutsFailed]
    assert not exceptions, f"kinds that Rust does not have: {exceptions}"
    retries = [("retry", "means"), *((f"`{name.lower()}`", text) for name, text in _documented(core, "Retry").items())]
    return f"""# Errors

{MADE}

There is one type of error. A program decides by its *kind* and by its advice on *retrying*; a person reads the operation, the message
and the facts. A miss, a full pool and an empty list are values, and no errors.

In Python every one of them is a `tensorhold.TensorholdError`, with `kind`, `retry`, `operation`, `message` and `facts`, and the builtin
exception that a program expects in its place. In Rust it is `tensorhold_core::Error`. The command turns kinds into
[exit codes](command.md#exit-codes).

## Kinds

{_table(*rows)}

"Try again" is what holds for most errors of the kind; `retry` of the error itself counts.

`DeadlineExceeded` is `Unavailable` for the reason that the caller's timeout has passed.

`PutsFailed` (`{errors.PutsFailed.kind}`) is Python's alone: a writer raises it when some of its puts failed. `failed` has the error of
each by sample, with a kind from the table; its `retry` is `ambiguous` if that of any put is.

## Retrying

{_table(*retries)}
"""
