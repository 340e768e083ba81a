"""The pages of the book that are made from the code: errors, the command's help, the steward's HTTP interface."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from typing import Any

from holdfast import errors
from servers import REPOSITORY

MADE = "<!-- Made from the code: HOLDFAST_REFERENCE=write .venv/bin/python -m pytest python/tests/test_book.py -k made_from -->"


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
    exceptions: dict[str, list[type[errors.HoldfastError]]] = {}
    for name in errors.__all__:
        one = getattr(errors, name)
        if one is not errors.HoldfastError:
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
    assert not exceptions, f"kinds that Rust does not have: {exceptions}"
    retries = [("retry", "means"), *((f"`{name.lower()}`", text) for name, text in _documented(core, "Retry").items())]
    return f"""# Errors

{MADE}

There is one type of error. A program decides by its *kind* and by its advice on *retrying*; a person reads the operation, the message
and the facts. A miss, a full pool and an empty list are values, and no errors.

In Python every one of them is a `holdfast.HoldfastError`, with `kind`, `retry`, `operation`, `message` and `facts`, and the builtin
exception that a program expects in its place. In Rust it is `holdfast_core::Error`. The command turns kinds into
[exit codes](command.md#exit-codes).

## Kinds

{_table(*rows)}

"Try again" is what holds for most errors of the kind; `retry` of the error itself counts.

`DeadlineExceeded` is `Unavailable` for the reason that the caller's timeout has passed.

## Retrying

{_table(*retries)}
"""


def help_page(help_of: Callable[..., str]) -> str:
    """What the command says of itself, for each of its subcommands."""

    def sections(*command: str) -> list[str]:
        text = help_of(*command)
        title = " ".join(("holdfast", *command))
        parts = [f"## {title}\n\n```text\n{text.rstrip()}\n```\n"]
        listed = re.search(r"^Commands:\n(.*?)(?:\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
        for name in re.findall(r"^  ([a-z-]+)", listed[1], re.MULTILINE) if listed else []:
            if name != "help":
                parts += sections(*command, name)
        return parts

    return f"# The command's help\n\n{MADE}\n\nWhat `holdfast` prints. [The command](command.md) explains it.\n\n" + "\n".join(sections())


def http_page(document: dict[str, Any]) -> str:
    """The steward's interface, from its own description."""
    schemas = document["components"]["schemas"]
    paths: list[tuple[str, ...]] = [("request", "what", "parameters", "body", "answer", "refusals")]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            given = [f"`{one['name']}`" for one in operation["parameters"] if one["in"] == "query"]
            statuses = {int(status): answer for status, answer in operation["responses"].items()}
            well = [_schema(answer) for status, answer in statuses.items() if status < 400]
            asked = operation.get("requestBody")
            paths.append(
                (
                    f"`{method.upper()} {path}`" + ("" if operation["security"] else " (no token)"),
                    operation["summary"],
                    ", ".join(given),
                    _schema(asked) if asked else "",
                    ", ".join(dict.fromkeys(well)),
                    ", ".join(str(status) for status in sorted(statuses) if status >= 400),
                )
            )
    parts = [
        f"# The steward's HTTP interface\n\n{MADE}\n\n{document['info']['description']} A steward serves this description itself, as "
        f"OpenAPI {document['openapi']} at `/v1/openapi.json`. [The steward](steward.md#http) says who may use it.\n",
        f"## Requests\n\n{_table(*paths)}\n",
        "## Values\n\nA field with ? may be missing.\n",
    ]
    for name, schema in schemas.items():
        if fields := schema.get("properties"):
            required = set(schema.get("required", []))
            rows = [
                (f"`{field}`" + ("" if field in required else " ?"), _type(one), one.get("description", ""))
                for field, one in fields.items()
            ]
            parts.append(f"### {name}\n\n{_table(('field', 'type', 'meaning'), *rows)}\n")
    return "\n".join(parts)


def _schema(holder: dict[str, Any]) -> str:
    types = [_type(one.get("schema", {})) for one in holder.get("content", {}).values()]
    return ", ".join(dict.fromkeys(types))


def _type(schema: dict[str, Any]) -> str:
    """A schema in a few words."""
    if reference := schema.get("$ref"):
        return str(reference.rsplit("/", 1)[1])
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return " or ".join(dict.fromkeys(_type(one) for one in schema[word]))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = schema.get("type", "any")
    kinds = kind if isinstance(kind, list) else [kind]
    if "array" in kinds:
        return f"list of {_type(schema.get('items', {}))}"
    return " or ".join(kinds)


def help_by(command: list[str], environment: dict[str, str]) -> Callable[..., str]:
    """Asks a command for its help."""

    def help_of(*words: str) -> str:
        ran = subprocess.run([*command, *words, "--help"], capture_output=True, text=True, timeout=60, env=environment)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    return help_of
